"""Scores in the user's units, over all rows of a split."""

import torch
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MeanSquaredLogError, MetricCollection


class RootMeanSquaredLogError(MeanSquaredLogError):
    """RMSLE over all rows, not a mean of batch means. A negative value counts as 0."""

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        """Add rows; both (B,), in the user's units."""
        super().update(preds.clamp_min(0), target.clamp_min(0))

    def compute(self) -> torch.Tensor:
        """The score of all rows so far."""
        return super().compute().sqrt()


def score_metrics(prefix: str) -> MetricCollection:
    """RMSLE, MAE and RMSE, summed in float64: a score must not depend on the batch size."""
    metrics = MetricCollection(
        {
            "rmsle": RootMeanSquaredLogError(),
            "mae": MeanAbsoluteError(),
            "rmse": MeanSquaredError(squared=False),
        },
        prefix=prefix,
        compute_groups=False,
    )
    for metric in metrics.values():
        metric.set_dtype(torch.float64)
    return metrics
