"""Scores in the user's units, over all rows of a split."""

import torch
from torchmetrics import (
    MeanAbsoluteError,
    MeanMetric,
    MeanSquaredError,
    MeanSquaredLogError,
    Metric,
    MetricCollection,
)

from model.losses import pinball


class RootMeanSquaredLogError(MeanSquaredLogError):
    """RMSLE over all rows, not a mean of batch means. A negative value counts as 0."""

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        """Add rows; both of one shape, in the user's units."""
        super().update(preds.clamp_min(0), target.clamp_min(0))

    def compute(self) -> torch.Tensor:
        """The score of all rows so far."""
        return super().compute().sqrt()


class PinballLoss(MeanMetric):
    """Mean pinball loss over rows and levels, in the user's units."""

    def __init__(self, levels: list[float]) -> None:
        super().__init__()
        self.levels = levels

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:  # type: ignore[override]
        """Add rows; (..., Q) and (...)."""
        loss = pinball(preds, target, preds.new_tensor(self.levels))
        super().update(loss, target.numel())


class Coverage(MeanMetric):
    """Share of the rows that lie between the lowest quantile and the highest."""

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:  # type: ignore[override]
        """Add rows; (..., Q) and (...)."""
        inside = (preds[..., 0] <= target) & (target <= preds[..., -1])
        super().update(inside.to(preds.dtype))


class ScoreMetrics(torch.nn.Module):
    """Those of the forecast itself, and those of its quantiles where there are any.

    Args:
        prefix: of the names.
        quantiles: levels, or none.
    """

    def __init__(self, prefix: str, quantiles: list[float]) -> None:
        super().__init__()
        of_the_forecast: dict[str, Metric | MetricCollection] = {
            "rmsle": RootMeanSquaredLogError(),
            "mae": MeanAbsoluteError(),
            "rmse": MeanSquaredError(squared=False),
        }
        of_quantiles: dict[str, Metric | MetricCollection] = {}
        if quantiles:
            of_quantiles = {"pinball": PinballLoss(quantiles), "coverage": Coverage()}
        self.point = MetricCollection(of_the_forecast, prefix=prefix, compute_groups=False)
        self.band = MetricCollection(of_quantiles, prefix=prefix, compute_groups=False)
        for metric in [*self.point.values(), *self.band.values()]:
            metric.set_dtype(torch.float64)  # a score must not depend on the batch size

    def update(self, forecast: torch.Tensor, target: torch.Tensor) -> None:
        """Add rows; (B, horizon, 1 + Q) and (B, horizon), in the user's units."""
        self.point.update(forecast[..., 0].flatten(), target.flatten())
        if len(self.band):
            self.band.update(forecast[..., 1:], target)
