"""What a forecast has to beat: three naive ones and a linear model."""

import numpy as np

from data.windows import Windows

NAIVE = {"persistence": 1, "same hour yesterday": 24, "same hour last week": 168}
"""Name of a naive forecast -> how many hours it looks back."""

MAX_FIT_WINDOWS = 200_000
HARMONICS = ((24, 3), (168, 3))


def naive_forecasts(windows: Windows) -> dict[str, np.ndarray]:
    """Each naive forecast of each window's target, (n,); NaN where its reading is missing.

    The look-back may reach before the start of the split: those hours are past by then.
    """
    series = windows.series
    target = windows.cell + windows.length
    start = series.offset[series.series_of(windows.cell)]
    forecasts = {}
    for name, back in NAIVE.items():
        cell = target - back
        inside = cell >= start
        forecasts[name] = np.where(inside, series.reading[np.where(inside, cell, 0)], np.nan)
    return forecasts


def linear_forecast(train: Windows, test: Windows) -> np.ndarray:
    """Least squares on log(1 + reading) of the window's hours and the calendar, (n,).

    Fitted on the training windows, evenly thinned to `MAX_FIT_WINDOWS`.
    """
    chosen = thinned(train, MAX_FIT_WINDOWS)
    inputs, level = _linear_inputs(chosen)
    target = np.log1p(_clip(train.series.reading[chosen.cell + train.length])) - level
    gram = inputs.T @ inputs + 1e-6 * len(chosen) * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs.T @ target)
    forecast = np.empty(len(test))
    for low in range(0, len(test), MAX_FIT_WINDOWS):  # bounds the memory
        part = slice(low, low + MAX_FIT_WINDOWS)
        inputs, level = _linear_inputs(Windows(test.series, test.cell[part], test.length))
        forecast[part] = np.expm1(np.clip(inputs @ weights + level, 0, 80))
    return forecast


def thinned(windows: Windows, most: int) -> Windows:
    """Every n-th window, so that at most so many are left."""
    every = max(1, -(-len(windows) // most))
    return Windows(windows.series, windows.cell[::every], windows.length)


def log_windows(windows: Windows) -> np.ndarray:
    """log(1 + reading) of each window's hours, (n, L), float64; readings below zero count as 0."""
    view = np.lib.stride_tricks.sliding_window_view(windows.series.reading, windows.length)
    return np.log1p(_clip(view[windows.cell]))


def _clip(reading: np.ndarray) -> np.ndarray:
    return np.maximum(reading.astype(np.float64), 0)


def _linear_inputs(windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, L + calendar + 1), and the level (n,) that they are relative to."""
    series, length = windows.series, windows.length
    logs = log_windows(windows)
    level = logs[:, -1]
    hour = series.tick_of(windows.cell) + length
    turns = [2 * np.pi * n * hour / period for period, top in HARMONICS for n in range(1, top + 1)]
    calendar = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
    inputs = np.column_stack([logs - level[:, None], *calendar, np.ones(len(windows))])
    return inputs, level
