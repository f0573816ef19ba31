"""RMSLE in the user's units, with a gradient everywhere."""

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


def rmsle(
    log_prediction: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Root mean squared logarithmic error, finite in value and gradient also where it is 0.

    Args:
        log_prediction: log(1 + prediction), any shape.
        target: readings in the user's units, the same shape.
        weight: of each in the mean, their sum 1; None: all alike.
    """
    square = (log_prediction - signed_log1p(target)).square()
    mean = square.mean() if weight is None else torch.dot(weight, square)
    return torch.sqrt(mean + EPSILON)
