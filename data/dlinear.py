"""A linear model for several readings ahead: DLinear (Zeng et al. 2023), as ridge regression."""

from dataclasses import dataclass

import numpy as np

from data.baselines import thinned
from data.windows import Windows

AVERAGED = 25  # readings in the moving average
RIDGES = (1e-2, 1e-1, 1.0, 10.0)  # per window, of inputs whose deviation is 1
MAX_INPUTS = 5_000
MAX_VALUES = 20_000_000  # of all inputs: 160 MB, and seconds for the product with themselves


@dataclass(frozen=True)
class _Fit:
    """Linear maps of I inputs to the horizon, and how the inputs are made and scaled."""

    log1p: bool
    beside: bool  # whether the covariates are inputs, too
    mean: np.ndarray  # (I,)
    std: np.ndarray  # (I,)
    weights: np.ndarray  # (I, horizon)
    offset: np.ndarray  # (horizon,)

    def forecast(self, windows: Windows) -> np.ndarray:
        """(n, horizon), in the transform's units."""
        inputs, level = _inputs(windows, self.log1p, self.beside)
        scaled = _scaled(inputs, self.mean, self.std)
        return scaled @ self.weights + self.offset + level[:, None]


def dlinear_forecast(train: Windows, val: Windows, test: Windows, log1p: bool) -> np.ndarray:
    """Each window's trend and what is left of it, mapped linearly to its targets, (n, horizon).

    The trend is a moving average. Window and targets are seen relative to the window's last
    reading, as the network by default has it. Whether the covariates are inputs beside the reading,
    and the ridge, are chosen on the validation windows.

    Args:
        train: fitted to, evenly thinned.
        val: chosen on, likewise.
        test: to forecast.
        log1p: of log(1 + reading) rather than of the reading.
    """
    fits = _fits(train, log1p, beside=False)
    covariates = train.series.covariates.shape[1]
    if covariates and 2 * train.length * (1 + covariates) <= MAX_INPUTS:
        fits += _fits(train, log1p, beside=True)
    best = _best(fits, val)
    forecast = np.empty((len(test), test.horizon))
    size = MAX_VALUES // len(best.mean)
    for low in range(0, len(test), size):  # bounds the memory
        part = slice(low, low + size)
        forecast[part] = best.forecast(test.kept(part))
    return np.expm1(np.clip(forecast, 0, 80)) if log1p else forecast


def linear_map(train: Windows, val: Windows, log1p: bool) -> tuple[np.ndarray, np.ndarray]:
    """The same without covariates, trend and rest put together again into one map.

    Args: see `dlinear_forecast`.

    Returns:
        Weights (L, horizon) of a window's readings less the last of them, and offsets (horizon,),
        of the targets less that reading; all in the transform's units.
    """
    best = _best(_fits(train, log1p, beside=False), val)
    weights = best.weights / best.std[:, None]
    of_trend, of_rest = np.split(weights, 2)
    trend = _trend(np.eye(train.length))  # window @ trend is its moving average
    return of_rest + trend @ (of_trend - of_rest), best.offset - best.mean @ weights


def _best(fits: list[_Fit], val: Windows) -> _Fit:
    """The one of the least squared error in the transform's units."""
    judges = thinned(val, MAX_VALUES // len(fits[-1].mean))
    target = _transformed(judges.targets(), fits[0].log1p)
    return min(fits, key=lambda fit: np.square(fit.forecast(judges) - target).mean())


def _fits(train: Windows, log1p: bool, beside: bool) -> list[_Fit]:
    """The least squares of each of `RIDGES`."""
    columns = 1 + train.series.covariates.shape[1] * beside
    chosen = thinned(train, MAX_VALUES // (2 * train.length * columns))
    inputs, level = _inputs(chosen, log1p, beside)
    there = ~np.isnan(inputs)
    count = np.maximum(there.sum(0), 1)
    mean = inputs.sum(0, where=there) / count
    std = np.sqrt(np.square(inputs - mean).sum(0, where=there) / count)
    std[std == 0] = 1
    scaled = _scaled(inputs, mean, std)
    target = _transformed(chosen.targets(), log1p) - level[:, None]
    offset = target.mean(0)
    gram, right = scaled.T @ scaled, scaled.T @ (target - offset)
    eye = len(chosen) * np.eye(len(gram))
    return [
        _Fit(log1p, beside, mean, std, np.linalg.solve(gram + ridge * eye, right), offset)
        for ridge in RIDGES
    ]


def _inputs(windows: Windows, log1p: bool, beside: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, I), NaN where a covariate is missing, and the level (n,) they are relative to."""
    series, length = windows.series, windows.length
    view = np.lib.stride_tricks.sliding_window_view(series.reading, length)
    reading = _transformed(view[windows.cell], log1p)
    level = reading[:, -1]
    columns = [reading - level[:, None]]
    if beside:
        shift = series.covariate_start - series.offset[:-1]
        row = windows.cell + shift[series.series_of(windows.cell)]
        view = np.lib.stride_tricks.sliding_window_view(series.covariates, length, axis=0)
        columns += [view[row, c].astype(np.float64) for c in range(series.covariates.shape[1])]
    trends = [_trend(column) for column in columns]
    rests = [column - trend for column, trend in zip(columns, trends, strict=True)]
    return np.concatenate([*trends, *rests], axis=1), level


def _trend(values: np.ndarray) -> np.ndarray:
    """Moving average of (n, L), the first and the last value repeated beyond the ends."""
    half = AVERAGED // 2
    padded = np.pad(values, ((0, 0), (half, half)), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, AVERAGED, axis=1).mean(-1)


def _scaled(inputs: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """A missing value becomes the training mean, 0."""
    return np.nan_to_num((inputs - mean) / std, nan=0.0)


def _transformed(reading: np.ndarray, log1p: bool) -> np.ndarray:
    reading = reading.astype(np.float64)
    return np.log1p(np.maximum(reading, 0)) if log1p else reading
