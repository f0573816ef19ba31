"""How far a forecast is off: by hour, by weekday, by temperature and by meter.

Errors are relative, so that a small meter counts as much as a large one.
"""

from dataclasses import dataclass, replace

import numpy as np

from data.baselines import look_backs
from data.grid import DAY, HOUR
from data.scores import Scores
from model.canvas import round_ticks
from model.training.forecasts import Forecasts, Outcome

LEAST = 20  # predicted readings; fewer say nothing of a temperature
MOST = 10_000_000  # predicted readings; each takes about 300 bytes
MOST_BINS = 12  # of temperature
SPREAD = (10, 90)  # percentiles: 8 of 10 lie between them
THURSDAY = 3  # the weekday of 1970-01-01, with Monday as 0


@dataclass(frozen=True)
class Errors:
    """Of m predicted readings that are known; (m,) each.

    Attributes:
        cell: int64, of the predicted reading.
        owner: int64, its series.
        minutes: int64 since 1970-01-01, local time.
        model: the model's relative error; above 0 the forecast is too high.
        naive: that of the best naive forecast, NaN where there is none.
        best: the name of that forecast.
        in_logs: whether an error is a difference of log(1 + reading); otherwise, where readings
            may be negative, it is one of readings over the series' mean of |reading|.
    """

    cell: np.ndarray
    owner: np.ndarray
    minutes: np.ndarray
    model: np.ndarray
    naive: np.ndarray
    best: str
    in_logs: bool

    def typical(self, error: np.ndarray) -> float:
        """The RMSLE of some errors (k,), or the mean of their sizes; NaN of none."""
        return float(self.by(error, np.zeros(error.size, dtype=np.int64), 1)[0])

    def by(self, error: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
        """The same in each group, (groups,); `group` (k,) says in which one an error is."""
        there = np.isfinite(error)
        error, group = error[there], group[there]
        count = np.bincount(group, minlength=groups)
        weight = error**2 if self.in_logs else np.abs(error)
        with np.errstate(invalid="ignore"):
            mean = np.bincount(group, weight, groups) / count
        return np.sqrt(mean) if self.in_logs else mean

    def compared(self, group: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
        """By group, of the model and of the naive forecast, where both have one; (groups,) each."""
        both = np.isfinite(self.naive)
        group = group[both]
        return self.by(self.model[both], group, groups), self.by(self.naive[both], group, groups)

    @property
    def hour(self) -> np.ndarray:
        """(m,) hour of the day, 0 to 23."""
        return self.minutes // HOUR % 24

    @property
    def weekday(self) -> np.ndarray:
        """(m,) Monday is 0."""
        return (self.minutes // DAY + THURSDAY) % 7


def find_errors(outcome: Outcome) -> Errors:
    """Of all predicted readings that are known, or of a sample of the forecasts that has `MOST`."""
    outcome = _sample(outcome, MOST // outcome.forecasts.horizon)
    forecasts, series = outcome.forecasts, outcome.forecasts.windows.series
    actual, point = forecasts.actual, forecasts.point
    known = np.isfinite(actual) & np.isfinite(point)
    owner = np.broadcast_to(forecasts.owner[:, None], known.shape)[known]
    y = actual[known].astype(np.float64)
    in_logs = not (y < 0).any()
    model = _relative(point[known], y, owner, in_logs)
    naive = {
        name: _relative(outcome.baselines[name][known], y, owner, in_logs)
        for name in look_backs(series.step)
        if name in outcome.baselines
    }
    found = Errors(
        cell=forecasts.target[known],
        owner=owner,
        minutes=series.minute(forecasts.tick[known]),
        model=model,
        naive=np.full(y.size, np.nan),
        best="",
        in_logs=in_logs,
    )
    scored = {name: found.typical(error) for name, error in naive.items()}
    best = min(scored, key=lambda name: np.nan_to_num(scored[name], nan=np.inf))
    return Errors(**(vars(found) | {"naive": naive[best], "best": best}))


def _sample(outcome: Outcome, most: int) -> Outcome:
    """At most so many forecasts; drawn, as every n-th would be of the same hours of the day."""
    count = outcome.forecasts.cell.size
    if count <= most:
        return outcome
    chosen = np.sort(np.random.default_rng(0).choice(count, most, replace=False))
    baselines = {name: values[chosen] for name, values in outcome.baselines.items()}
    return replace(outcome, forecasts=outcome.forecasts.rows(chosen), baselines=baselines)


def _relative(
    forecast: np.ndarray, actual: np.ndarray, owner: np.ndarray, in_logs: bool
) -> np.ndarray:
    """Relative errors (m,), NaN where there is no forecast, or nothing to divide by."""
    forecast = forecast.astype(np.float64)
    if in_logs:
        return np.log1p(np.maximum(forecast, 0)) - np.log1p(actual)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.bincount(owner, np.abs(actual)) / np.bincount(owner)
        return (forecast - actual) / np.where(size > 0, size, np.nan)[owner]


# -- by temperature ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ByTemperature:
    """The model's relative errors in k ranges of temperature, (k,) each.

    Attributes:
        middle: of the range.
        mean: of the errors.
        low, high: 8 of 10 errors lie between them.
    """

    name: str
    middle: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def by_temperature(outcome: Outcome, errors: Errors) -> ByTemperature | None:
    """By the first covariate with "temp" in its name; None where there is none, or few values."""
    names = [name for name in outcome.covariates if "temp" in name.lower()]
    if not names:
        return None
    value = _covariate(outcome, errors, outcome.covariates.index(names[0]))
    there = np.isfinite(value) & np.isfinite(errors.model)
    value, error = value[there], errors.model[there]
    edges = np.array(round_ticks(value, most=MOST_BINS + 1))
    place = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, edges.size - 2)
    inside = [error[place == k] for k in range(edges.size - 1)]
    kept = [k for k, of in enumerate(inside) if of.size >= LEAST]
    if not kept:
        return None
    spread = np.array([np.percentile(inside[k], SPREAD) for k in kept])
    return ByTemperature(
        name=names[0],
        middle=((edges[:-1] + edges[1:]) / 2)[kept],
        mean=np.array([inside[k].mean() for k in kept]),
        low=spread[:, 0],
        high=spread[:, 1],
    )


def _covariate(outcome: Outcome, errors: Errors, column: int) -> np.ndarray:
    """(m,) a covariate at the time of each predicted reading."""
    series = outcome.forecasts.windows.series
    shift = series.covariate_start - series.offset[:-1]
    return series.covariates[errors.cell + shift[errors.owner], column].astype(np.float64)


# -- by meter ----------------------------------------------------------------------------------


def worst_first(scores: Scores) -> np.ndarray:
    """Numbers of the series that have a CV(RMSE), (k,), the largest first."""
    size = np.abs(scores.cv_rmse)  # the mean reading may be negative
    found = np.flatnonzero(np.isfinite(size))
    return found[np.argsort(-size[found], kind="stable")]


def share_in_band(forecasts: Forecasts) -> float:
    """Of the known readings, those between the lowest and the highest level; 0 to 1."""
    actual = forecasts.actual
    inside = (forecasts.low <= actual) & (actual <= forecasts.high)
    return float(inside[np.isfinite(actual)].mean())
