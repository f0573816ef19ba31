"""TensorBoard's HPARAMS tab, filled from the first step on."""

from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import (
    DATA_TYPE_BOOL,
    DATA_TYPE_FLOAT64,
    DATA_TYPE_STRING,
    STATUS_FAILURE,
    STATUS_SUCCESS,
    Experiment,
    MetricName,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)

from model.training.callbacks.timing import STEADY

# The tab reads the metrics' values from the scalars of the same name, so that they are the real,
# latest ones, also after an interrupted run.
SCORES = ("val/rmsle", "val/mae", "val/rmse", "train/loss")
METRICS = (*SCORES, *STEADY.values())
# The tab opens with five columns: the first in the alphabet, unless some are marked as differing.
SHOWN_FIRST = ("data.batch_size", "data.window", "kernel", "model.channels", "model.lr")

Setting = bool | int | float | str


def flatten(config: dict[str, Any]) -> dict[str, Setting]:
    """Groups of settings as one level of dotted names and plain values.

    A setting that is itself a mapping stays one setting: every run has the same names.
    """
    flat: dict[str, Setting] = {}
    for group, settings in config.items():
        if isinstance(settings, dict):
            flat |= {f"{group}.{name}": _plain(value) for name, value in settings.items()}
        else:
            flat[group] = _plain(settings)
    return flat


def _plain(value: Any) -> Setting:
    return value if isinstance(value, bool | int | float | str) else str(value)


_FIELDS = {
    DATA_TYPE_BOOL: "bool_value",
    DATA_TYPE_FLOAT64: "number_value",
    DATA_TYPE_STRING: "string_value",
}


def _data_type(value: Setting) -> int:
    if isinstance(value, bool):  # before the numbers: a bool is an int, too
        return DATA_TYPE_BOOL
    return DATA_TYPE_STRING if isinstance(value, str) else DATA_TYPE_FLOAT64


class HParams(L.Callback):
    """Writes the run's settings, the same set of names in every run.

    Args:
        settings: name -> value, see `flatten`.
    """

    def __init__(self, settings: dict[str, Setting]) -> None:
        self.settings = settings
        self.open = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the session."""
        experiment, start = Experiment(), SessionStartInfo()
        for tag in METRICS:
            experiment.metric_infos.add(name=MetricName(tag=tag))
        for name, value in self.settings.items():
            kind = _data_type(value)
            experiment.hparam_infos.add(name=name, type=kind, differs=name in SHOWN_FIRST)
            setattr(start.hparams[name], _FIELDS[kind], value)
        self._write(trainer, metadata.EXPERIMENT_TAG, experiment=experiment)
        self._write(trainer, metadata.SESSION_START_INFO_TAG, session_start_info=start)
        self.open = True

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the session."""
        self._end(trainer, STATUS_SUCCESS)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Close the session of an interrupted run."""
        self._end(trainer, STATUS_FAILURE)

    def _end(self, trainer: L.Trainer, status: int) -> None:
        if self.open:
            end = SessionEndInfo(status=status)
            self._write(trainer, metadata.SESSION_END_INFO_TAG, session_end_info=end)
            self.open = False

    def _write(self, trainer: L.Trainer, tag: str, **content: Any) -> None:
        if trainer.is_global_zero and isinstance(trainer.logger, TensorBoardLogger):
            about = metadata.create_summary_metadata(HParamsPluginData(**content))
            summary = Summary(value=[Summary.Value(tag=tag, metadata=about)])
            trainer.logger.experiment._get_file_writer().add_summary(summary)
