"""The forecasts of a test as plain arrays: what its report is made from."""

from dataclasses import dataclass, replace

import numpy as np

from data.scores import Scores
from data.windows import Windows


@dataclass(frozen=True)
class Forecasts:
    """n forecasts, each of the `horizon` readings that follow its window, in the user's units.

    Attributes:
        windows: whose readings and times these are.
        cell: (n,) int64, the first cell of each window, ascending.
        levels: Q quantile levels, ascending; () for none.
        values: (n, horizon, 1 + Q), the forecast and behind it a value for each level.
    """

    windows: Windows
    cell: np.ndarray
    levels: tuple[float, ...]
    values: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Forecasts":
        """Some of the forecasts, by a mask (n,) or by their numbers."""
        return replace(self, cell=self.cell[chosen], values=self.values[chosen])

    @property
    def horizon(self) -> int:
        """How many readings ahead a forecast reaches."""
        return self.values.shape[1]

    @property
    def point(self) -> np.ndarray:
        """(n, horizon) the forecast itself."""
        return self.values[:, :, 0]

    @property
    def low(self) -> np.ndarray:
        """(n, horizon) of the lowest level."""
        return self.values[:, :, 1]

    @property
    def high(self) -> np.ndarray:
        """(n, horizon) of the highest level."""
        return self.values[:, :, -1]

    @property
    def has_band(self) -> bool:
        """Whether there is something between `low` and `high`."""
        return len(self.levels) > 1

    @property
    def owner(self) -> np.ndarray:
        """(n,) the series of each forecast."""
        return self.windows.series.series_of(self.cell)

    @property
    def target(self) -> np.ndarray:
        """(n, horizon) int64, the cell of each predicted reading; it may lie past its series."""
        return self.cell[:, None] + self.windows.length + np.arange(self.horizon)

    @property
    def tick(self) -> np.ndarray:
        """(n, horizon) int64, when each predicted reading is."""
        ahead = self.windows.length + np.arange(self.horizon)
        return self.windows.series.tick_of(self.cell)[:, None] + ahead

    @property
    def actual(self) -> np.ndarray:
        """(n, horizon) float32, NaN where nothing was read or the series has ended."""
        return replace(self.windows, cell=self.cell, horizon=self.horizon).targets()


@dataclass(frozen=True)
class Outcome:
    """What a test found.

    Attributes:
        forecasts: of the model.
        baselines: name -> (n, horizon), in the user's units, NaN where there is none; the naive
            ones are named as in `data.baselines.look_backs`.
        scores: name of the model or of a baseline -> its scores by series; the model comes first.
        covariates: names of the series' covariates, in their order.
        measure: what its tables lead with, a property of `Scores`: rmsle, or rmse where readings
            are modelled without a logarithm, as they may be negative.
    """

    forecasts: Forecasts
    baselines: dict[str, np.ndarray]
    scores: dict[str, Scores]
    covariates: tuple[str, ...]
    measure: str = "rmsle"

    @property
    def model(self) -> str:
        """What the model is called."""
        return next(iter(self.scores))

    @property
    def methods(self) -> dict[str, np.ndarray]:
        """Name -> forecasts (n, horizon), the model's first."""
        return {self.model: self.forecasts.point, **self.baselines}
