"""How long to train, where nobody said."""

from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_info

from model.training.errors import UsageError

STEPS = 1_000  # a minute on two cores with the default model
MAX_EPOCHS = 30


class EpochBudget(L.Callback):
    """Chooses the number of epochs nearest to `STEPS` steps: a small file needs more of them.

    Args:
        resumed: the checkpoint that is resumed, None for a new run.
        done: epochs that it has behind it.
    """

    def __init__(self, resumed: str | None, done: int) -> None:
        self.resumed = resumed
        self.done = done

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Set the number, and say so; Lightning has set up the data by now."""
        if stage != "fit":
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        batches = len(data.train_dataloader())
        epochs = min(max(1, round(STEPS / batches)), MAX_EPOCHS)
        if epochs <= self.done:
            raise UsageError(
                f"{self.resumed} has finished its {self.done} epochs; to train on, pass "
                f"--trainer.max_epochs {self.done + 1} or more"
            )
        trainer.fit_loop.max_epochs = epochs
        rank_zero_info(
            f"training for {epochs} epoch{'s' if epochs > 1 else ''} of {batches:,} steps "
            "(--trainer.max_epochs sets another number)"
        )
