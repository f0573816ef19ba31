"""TensorBoard without the curve that nobody asks for."""

from collections.abc import Mapping

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only


class StepLogger(TensorBoardLogger):
    """Leaves out Lightning's `epoch` counter, which TensorBoard would open before all else."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars at an optimiser step."""
        super().log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step)
