"""Tests of a forecast as a run may have found them, of made-up readings."""

from dataclasses import replace
from typing import Any

import numpy as np

from data.baselines import naive_forecasts
from data.scores import scores
from data.series import SeriesSet
from data.windows import Windows, find_windows
from model.training.forecasts import Forecasts, Outcome

START = 409_848  # 3 October 2016, 00:00, a Monday
HOURS = 24 * 21
LENGTH = 48
NOISE = (0.3, 0.05, 0.2, 0.1, 0.15)  # the first series is forecast worst, the next best
QUANTILES = (0.1, 0.5, 0.9)


def series(shift: float = 0.0, count: int = 5, **changes: Any) -> SeriesSet:
    """Customers with a daily shape, each ten times as large as the one before.

    Args:
        shift: to add to all readings, as a share of their mean.
    """
    rng = np.random.default_rng(3)
    hour = np.arange(HOURS)
    shape = 6 + 4 * np.sin(2 * np.pi * hour / 24) + rng.normal(0, 0.3, HOURS) + 6 * shift
    reading = np.concatenate([10.0**k * shape for k in range(count)]).astype(np.float32)
    reading[100] = np.nan
    temperature = np.tile(10 + 9 * np.sin(2 * np.pi * hour / HOURS), count)
    parts: dict[str, Any] = {
        "ids": {"customer": np.array([f"<b>C{k}</b> & Co" for k in range(count)])},
        "site": np.zeros(count, dtype=np.int64),
        "first_tick": np.full(count, START),
        "offset": HOURS * np.arange(count + 1),
        "reading": reading,
        "covariates": np.column_stack([np.zeros(HOURS * count), temperature]).astype(np.float32),
        "covariate_start": HOURS * np.arange(count),
    }
    return SeriesSet(**(parts | changes))


def windows(of: SeriesSet, horizon: int = 1) -> Windows:
    """Of the last ten days, with all that they predict."""
    found = find_windows(of, LENGTH, START + HOURS - 240, START + HOURS - horizon)
    return Windows(of, found.cell, LENGTH)


def outcome(
    of: SeriesSet | None = None,
    horizon: int = 1,
    levels: tuple[float, ...] = (),
    covariates: tuple[str, ...] = ("cloud_coverage", "air_Temperature"),
    bias: float = 0.0,
) -> Outcome:
    """Forecasts that are off by `NOISE` and `bias`, as shares of a reading; and naive ones."""
    of = series() if of is None else of
    found = windows(of, horizon)
    blank = Forecasts(found, found.cell, (), np.zeros((len(found), horizon, 1)))
    size = np.abs(np.nan_to_num(blank.actual, nan=1.0))
    share = np.array(NOISE)[blank.owner % len(NOISE)][:, None]
    noise = np.random.default_rng(7).normal(bias, share, size.shape)
    spread = [0.0, *(3 * (level - 0.5) for level in levels)]
    values = [np.nan_to_num(blank.actual) + size * (noise + share * k) for k in spread]
    forecasts = Forecasts(found, found.cell, levels, np.stack(values, axis=-1))
    return scored(forecasts, naive(forecasts), covariates)


def naive(forecasts: Forecasts) -> dict[str, np.ndarray]:
    """Those of the baselines."""
    return naive_forecasts(replace(forecasts.windows, horizon=forecasts.horizon))


def scored(
    forecasts: Forecasts, baselines: dict[str, np.ndarray], covariates: tuple[str, ...] = ()
) -> Outcome:
    """The same with the scores by series."""
    known = np.isfinite(forecasts.actual)
    owner = np.broadcast_to(forecasts.owner[:, None], known.shape)[known]
    nothing = np.full(len(forecasts.windows.series), np.nan)
    found = {
        name: scores(values[known], forecasts.actual[known], owner, nothing)
        for name, values in {"S4ConvD": forecasts.point, **baselines}.items()
    }
    return Outcome(forecasts, baselines, found, covariates)
