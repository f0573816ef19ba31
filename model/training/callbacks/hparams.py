"""TensorBoard's HPARAMS tab, filled from the first step on."""

from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard.summary import hparams

# The tab reads the metrics' values from the scalars of the same name, so that they are the real,
# latest ones, also after an interrupted run.
METRICS = ("val/rmsle", "val/mae", "val/rmse", "train/loss")


def flatten(config: Any, prefix: str = "") -> dict[str, bool | int | float | str]:
    """A nested configuration as one level of dotted names and plain values."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


class HParams(L.Callback):
    """Writes the run's settings, the same set of names in every run.

    Args:
        settings: name -> value, see `flatten`.
    """

    def __init__(self, settings: dict[str, bool | int | float | str]) -> None:
        self.settings = settings

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the session."""
        experiment, start, self._end = hparams(self.settings, dict.fromkeys(METRICS, 0.0))
        self._write(trainer, experiment)
        self._write(trainer, start)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the session."""
        self._write(trainer, self._end)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Close the session of an interrupted run."""
        if hasattr(self, "_end"):
            self._write(trainer, self._end)

    def _write(self, trainer: L.Trainer, summary: Any) -> None:
        if trainer.is_global_zero and isinstance(trainer.logger, TensorBoardLogger):
            trainer.logger.experiment._get_file_writer().add_summary(summary)
