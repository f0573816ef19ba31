"""What a forecast is worth, by series and in all: the measures of the building field and others.

All follow from a few sums over rows, so that scores of many series cost one pass, and the score of
several series together is that of their rows, not a mean of means.
"""

from dataclasses import dataclass

import numpy as np

MEASURES = {
    "rmsle": "RMSLE",
    "mae": "MAE",
    "rmse": "RMSE",
    "cv_rmse": "CV(RMSE), %",
    "nmbe": "NMBE, %",
    "mase": "MASE",
    "pinball": "pinball loss",
    "coverage": "coverage, %",
}
"""Property of `Scores` -> its name in a table."""


def measure_of(transform: str) -> str:
    """The measure that forecasts are held against one another by, of `MEASURES`: what is trained.

    Args:
        transform: of the readings, log1p or none.
    """
    return "rmsle" if transform == "log1p" else "rmse"


@dataclass(frozen=True)
class Scores:
    """Those of S series, (S,) each; NaN where a measure has nothing to stand on.

    Attributes:
        rows: how many rows have a forecast and count.
        squared_log: sum of squared errors of log(1 + y); negative values count as 0.
        absolute: sum of |forecast - actual|.
        squared: sum of their squares.
        over: sum of forecast - actual.
        actual: sum of the readings.
        scale: sum over the rows of the series' mean absolute error of a seasonal naive forecast on
            the training rows; NaN where there is none.
        pinball_sum: sum of the mean pinball loss over the quantiles; NaN where there are none.
        inside: rows between the lowest quantile and the highest; NaN where there are none.
    """

    rows: np.ndarray
    squared_log: np.ndarray
    absolute: np.ndarray
    squared: np.ndarray
    over: np.ndarray
    actual: np.ndarray
    scale: np.ndarray
    pinball_sum: np.ndarray
    inside: np.ndarray

    @property
    def rmsle(self) -> np.ndarray:
        """Root mean squared logarithmic error."""
        return np.sqrt(_ratio(self.squared_log, self.rows))

    @property
    def mae(self) -> np.ndarray:
        """Mean absolute error, in the readings' unit."""
        return _ratio(self.absolute, self.rows)

    @property
    def rmse(self) -> np.ndarray:
        """Root mean squared error, in the readings' unit."""
        return np.sqrt(_ratio(self.squared, self.rows))

    @property
    def cv_rmse(self) -> np.ndarray:
        """Coefficient of variation of the RMSE, % of the mean reading (ASHRAE Guideline 14).

        The guideline divides by n - 1, which matters for monthly bills, not for hours; here by n.
        """
        return 100 * _ratio(self.rmse, _ratio(self.actual, self.rows))

    @property
    def nmbe(self) -> np.ndarray:
        """Normalised mean bias error, % of the mean reading; above 0 the forecast is too high.

        ASHRAE Guideline 14 writes actual - forecast; its limits are for the absolute value.
        """
        return 100 * _ratio(self.over, self.actual)

    @property
    def mase(self) -> np.ndarray:
        """Mean absolute scaled error (Hyndman and Koehler 2006); 1 is the seasonal naive one's."""
        return _ratio(self.absolute, self.scale)

    @property
    def pinball(self) -> np.ndarray:
        """Mean pinball loss over the quantiles, in the readings' unit (Koenker, Bassett 1978)."""
        return _ratio(self.pinball_sum, self.rows)

    @property
    def coverage(self) -> np.ndarray:
        """Share of the readings between the lowest quantile and the highest, %."""
        return 100 * _ratio(self.inside, self.rows)

    def all(self) -> "Scores":
        """Of all rows together, (1,) each."""
        return Scores(*(np.array([values.sum()]) for values in vars(self).values()))


def scores(
    forecast: np.ndarray,
    actual: np.ndarray,
    series: np.ndarray,
    naive_error: np.ndarray,
    levels: tuple[float, ...] = (),
    quantiles: np.ndarray | None = None,
) -> Scores:
    """Scores of each series; a row whose forecast is NaN does not count.

    Args:
        forecast: (n,), the user's units.
        actual: (n,), the user's units.
        series: (n,) number of each row's series, 0 to S - 1.
        naive_error: (S,) mean absolute error of a seasonal naive forecast on the training rows.
        levels: Q levels of the quantiles, if there are any.
        quantiles: (n, Q), likewise.
    """
    there = ~np.isnan(forecast)
    f, y = (values[there].astype(np.float64) for values in (forecast, actual))
    series = series[there]
    error = f - y
    logs = np.log1p(np.maximum(f, 0)) - np.log1p(np.maximum(y, 0))

    def total(values: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(series, values, naive_error.size).astype(np.float64)

    rows = total()
    pinball_sum = inside = np.full(naive_error.size, np.nan)
    if quantiles is not None:
        q = quantiles[there].astype(np.float64)
        short = y[:, None] - q
        at = np.array(levels)
        pinball_sum = total(np.maximum(at * short, (at - 1) * short).mean(1))
        inside = total((q[:, 0] <= y) & (y <= q[:, -1]))
    return Scores(
        rows=rows,
        squared_log=total(logs**2),
        absolute=total(np.abs(error)),
        squared=total(error**2),
        over=total(error),
        actual=total(y),
        scale=np.where(rows > 0, rows * naive_error, 0.0),
        pinball_sum=pinball_sum,
        inside=inside,
    )


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below != 0, above / below, np.nan)
