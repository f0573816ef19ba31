"""What a forecast has to beat: three naive ones and a linear model."""

import numpy as np

from data.grid import DAY, HOUR, WEEK
from data.windows import Windows

MAX_FIT_WINDOWS = 200_000
HARMONICS = ((DAY, 3), (WEEK, 3))


def look_backs(step: int) -> dict[str, int]:
    """Name of a naive forecast -> how many ticks of `step` minutes it looks back from the first."""
    same = {HOUR: "same hour", DAY: "same day"}.get(step, "same time")
    seasons = {f"{same} yesterday": DAY, f"{same} last week": WEEK}
    whole = {name: season // step for name, season in seasons.items() if season % step == 0}
    return {"persistence": 1} | {name: back for name, back in whole.items() if back > 1}


def season(step: int) -> str:
    """The naive forecast that a forecast's errors are scaled by: the shortest season's."""
    return list(look_backs(step))[:2][-1]


def naive_forecasts(windows: Windows) -> dict[str, np.ndarray]:
    """Each naive forecast of each window's targets, (n, horizon); NaN where its reading is missing.

    The look-back may reach before the start of the split: those times are past by then. A forecast
    of a season repeats the latest whole one before the first target.
    """
    series = windows.series
    first = windows.cell + windows.length
    start = series.offset[series.series_of(windows.cell)]
    ahead = np.arange(windows.horizon)
    forecasts = {}
    for name, back in look_backs(series.step).items():
        cell = first[:, None] - back + ahead % back
        inside = cell >= start[:, None]
        forecasts[name] = np.where(inside, series.reading[np.where(inside, cell, 0)], np.nan)
    return forecasts


def linear_forecast(train: Windows, test: Windows) -> np.ndarray:
    """Least squares on log(1 + reading) of the window's readings and the calendar, (n, horizon).

    Fitted on the training windows, evenly thinned to `MAX_FIT_WINDOWS`, for each tick ahead.
    """
    chosen = thinned(train, MAX_FIT_WINDOWS)
    inputs, level = _linear_inputs(chosen)
    target = np.log1p(_clip(chosen.targets())) - level[:, None]
    gram = inputs.T @ inputs + 1e-6 * len(chosen) * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs.T @ target)
    forecast = np.empty((len(test), test.horizon))
    for low in range(0, len(test), MAX_FIT_WINDOWS):  # bounds the memory
        part = slice(low, low + MAX_FIT_WINDOWS)
        inputs, level = _linear_inputs(test.kept(part))
        forecast[part] = np.expm1(np.clip(inputs @ weights + level[:, None], 0, 80))
    return forecast


def thinned(windows: Windows, most: int) -> Windows:
    """Every n-th window, so that at most so many are left."""
    every = max(1, -(-len(windows) // most))
    return windows.kept(slice(None, None, every))


def log_windows(windows: Windows) -> np.ndarray:
    """log(1 + reading) of each window's readings, (n, L), float64; those below zero count as 0."""
    view = np.lib.stride_tricks.sliding_window_view(windows.series.reading, windows.length)
    return np.log1p(_clip(view[windows.cell]))


def _clip(reading: np.ndarray) -> np.ndarray:
    return np.maximum(reading.astype(np.float64), 0)


def _linear_inputs(windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, L + calendar + 1), and the level (n,) that they are relative to."""
    series, length = windows.series, windows.length
    logs = log_windows(windows)
    level = logs[:, -1]
    minute = series.minute(series.tick_of(windows.cell) + length)
    periods = [period / n for period, top in HARMONICS for n in range(1, top + 1)]
    # A wave of two ticks or less cannot be seen in readings at every tick.
    turns = [2 * np.pi * minute / period for period in periods if period > 2 * series.step]
    calendar = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
    inputs = np.column_stack([logs - level[:, None], *calendar, np.ones(len(windows))])
    return inputs, level
