"""A trained model from Python: load a checkpoint, hand it a table, get the forecasts."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from data.columns import DataError, Roles, require_columns
from data.frame import Frame, frame_of
from data.grid import every
from data.load import load_series
from data.series import SeriesSet
from data.static import columns_of, numbers
from data.table import TRAINED_ON, Source
from data.windows import DeviceSeries, WindowLoader, Windows, find_windows
from model.forecaster import Forecaster
from model.inference.checkpoint import forecaster_of, load_checkpoint, roles_of
from model.inference.predictions import prediction_table

BATCH = 4096  # windows
LOG = logging.getLogger(__name__)


class TrainedForecaster:
    """A `Forecaster` as train.py trained it, and what it takes to read a table for it.

    Args:
        forecaster: with its weights and scaling.
        window: readings that it sees.
        roles: which column of a table plays which part.
        covariates: columns that are not known ahead.
        known: columns that are.
        static: numbers that are known of each series, by their names, see `data.static`.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        window: int,
        roles: Roles,
        covariates: list[str],
        known: list[str],
        static: list[str],
    ) -> None:
        self.forecaster = forecaster
        self.window = window
        self.roles = roles
        self.covariates = tuple(covariates)
        self.known = tuple(known)
        self.static = static

    @classmethod
    def load(cls, path: str | Path) -> "TrainedForecaster":
        """Read a checkpoint of train.py; the model runs on the CPU.

        Raises:
            DataError: there is none, or it is something else.
        """
        checkpoint = load_checkpoint(Path(path))
        hparams = checkpoint["hyper_parameters"]
        return cls(
            forecaster_of(checkpoint),
            hparams["window"],
            roles_of(checkpoint),
            hparams["covariates"],
            hparams["known"],
            hparams["static"],
        )

    def predict(self, frame: Any, every_window: bool = True) -> pa.Table:
        """Forecast from each window of a table, also what follows its end.

        What was dropped, filled or repaired is logged at level INFO.

        Args:
            frame: a pyarrow Table, a pandas DataFrame, a dict of columns or what else speaks Arrow,
                with the columns of the table that was trained on, in any order.
            every_window: otherwise from the last window of each series alone, whose forecasts are
                of what is next.

        Returns:
            What `train.py predict --data.beyond_end true` writes, by series and time: the series'
            own columns, `timestamp`, `horizon` (1, 2, ..., where there are several), `prediction`
            in the readings' own units, and a column for each quantile.

        Raises:
            DataError: a column is missing, a cell cannot be read, or no window is whole.
        """
        windows = self._windows(self._read(frame_of(frame)))
        if not every_window:
            owner = windows.series.series_of(windows.cell)
            windows = windows.kept(np.r_[owner[1:] != owner[:-1], True])
        return prediction_table(
            windows, windows.cell, self._forecast(windows), self.forecaster.quantiles
        )

    def _read(self, frame: Frame) -> SeriesSet:
        """The series of a frame, which has to have every covariate: no other file can."""
        covariates, static = self.covariates + self.known, tuple(columns_of(self.static))
        require_columns(
            frame,
            frame.table.column_names,
            covariates + static,
            f"{TRAINED_ON} Nulls are allowed in it.",
        )
        series = load_series(
            Source((frame,), roles=self.roles, covariates=covariates, static=static)
        )
        if self.forecaster.transform == "log1p" and series.clip():
            series.notes.append("readings below zero are set to 0")
        for note in series.notes:
            LOG.info(note)
        if series.step != self.forecaster.step:
            raise DataError(
                f"{frame} has a reading {every(series.step)}, and the model was trained on one "
                f"{every(self.forecaster.step)}; bring the frame to that step"
            )
        return series

    def _windows(self, series: SeriesSet) -> Windows:
        """All windows without a missing reading, the last of each series among them."""
        first, last = series.span()
        horizon = self.forecaster.horizon
        found = find_windows(
            series,
            self.window,
            first,
            last + horizon,
            horizon=horizon,
            target_known=False,
            beyond_end=True,
        )
        if not len(found):
            raise DataError(
                f"the frame: no {self.window} consecutive times with readings lie between "
                f"{series.stamp(first)} and {series.stamp(last)}: there is nothing to predict from"
            )
        return found

    @torch.inference_mode()
    def _forecast(self, windows: Windows) -> np.ndarray:
        """(n, horizon, 1 + Q), the user's units."""
        of, series = self.forecaster, windows.series
        static, notes = numbers(series.static, self.static, len(series))
        for note in notes:
            LOG.info(note)
        source = DeviceSeries(
            series, self.window, torch.device("cpu"), of.horizon, len(self.known), static
        )
        forecasts = [
            of.to_user_units(of(*b.inputs)) for b in WindowLoader(source, windows.cell, BATCH)
        ]
        return torch.cat(forecasts).numpy()
