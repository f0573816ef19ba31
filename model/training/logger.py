"""TensorBoard without the curve that nobody asks for."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only


class StepLogger(TensorBoardLogger):
    """Leaves out Lightning's `epoch` counter, which TensorBoard would open before all else.

    Attributes:
        tags: the scalars that were written.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tags: set[str] = set()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars at an optimiser step."""
        kept = {tag: value for tag, value in metrics.items() if tag != "epoch"}
        self.tags.update(kept)
        super().log_metrics(kept, step)
