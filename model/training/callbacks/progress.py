"""The progress bar, drawn as often as an eye follows."""

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar

PAUSE = 0.2  # seconds between two drawings


class PacedProgressBar(TQDMProgressBar):
    """Lightning's, which draws itself, and asks the GPU for the loss, five times a second.

    Lightning's own does both after every step. Then the host never runs ahead of the GPU, and of a
    step of a millisecond nothing is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn = 0.0
        self._loss: dict[str, float] = {}

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Draw, if it is time or the epoch's last batch."""
        last = batch_idx + 1 == trainer.num_training_batches
        if self.is_enabled and (last or time.monotonic() - self._drawn > PAUSE):
            self._loss = {"loss": float(outputs["loss"])}
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            self._drawn = time.monotonic()

    def get_metrics(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """What stands behind the bar."""
        return {**super().get_metrics(trainer, pl_module), **self._loss}
