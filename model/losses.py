"""Losses: RMSLE in the user's units, and the pinball loss of quantiles."""

import torch
import torch.nn.functional as F

# Below the square root: 1e-4 of loss at a perfect forecast, and a gradient of 0 there, not 0/0.
EPSILON = 1e-8


def signed_log1p(reading: torch.Tensor) -> torch.Tensor:
    """log(1 + y) for y >= 0, continued below zero by its tangent y.

    The tangent keeps the gradient at 1 for a negative forecast, where a clamp would make it 0 for
    ever, and is finite below -1, where the logarithm is not.
    """
    return torch.log1p(F.relu(reading)) - F.relu(-reading)


def root_mean_square(error: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Finite in value and gradient also where every error is 0.

    Args:
        error: (B, ...).
        weight: (B,) of each in the mean, their sum 1; None: all alike.
    """
    return torch.sqrt(_mean(error.square(), weight) + EPSILON)


def rmsle(
    log_prediction: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Root mean squared logarithmic error.

    Args:
        log_prediction: log(1 + prediction), (B, ...).
        target: readings in the user's units, the same shape.
        weight: see `root_mean_square`.
    """
    return root_mean_square(log_prediction - signed_log1p(target), weight)


def pinball(
    forecast: torch.Tensor,
    target: torch.Tensor,
    levels: torch.Tensor,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean pinball loss, which the quantiles of a distribution minimise (Koenker, Bassett 1978).

    Args:
        forecast: (B, ..., Q), a quantile for each level.
        target: (B, ...), in the same units.
        levels: (Q,), in (0, 1).
        weight: see `root_mean_square`.
    """
    short = target.unsqueeze(-1) - forecast
    return _mean(torch.maximum(levels * short, (levels - 1) * short), weight)


def _mean(values: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    if weight is None:
        return values.mean()
    return torch.dot(weight, values.flatten(1).mean(1) if values.dim() > 1 else values)
