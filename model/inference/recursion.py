"""Forecasts far beyond the horizon: each block is forecast from the forecasts before it."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from data.series import SeriesSet
from data.windows import DeviceSeries, find_windows
from model.forecaster import Forecaster


@torch.inference_mode()
def fill_ahead(
    of: Forecaster,
    series: SeriesSet,
    source: DeviceSeries,
    watch: Callable[[range], Iterable[int]] = iter,
) -> tuple[np.ndarray, int]:
    """Forecast all that is missing after the last whole window of each series.

    All series go on together, a horizon at a time; what was read is kept.

    Args:
        of: the forecaster.
        series: with NaN up to where they are to be forecast, and their covariates.
        source: the same on the forecaster's device; its readings are filled.
        watch: is handed the range of blocks and iterates over it, as a progress bar does.

    Returns:
        (N,) float32, the readings with the forecasts; and how many series have no whole window and
        are as they were.
    """
    window, device = source.length, source.reading.device
    windows = find_windows(series, window, *series.span(), target_known=False)
    owner = series.series_of(windows.cell)
    last = np.r_[owner[1:] != owner[:-1], True][: owner.size]
    cell = torch.from_numpy(windows.cell[last]).to(device)
    end = torch.from_numpy(series.offset[1:][owner[last]]).to(device)
    without = len(series) - cell.numel()
    most = source.reading.numel() - 1
    ahead = int((end - cell).max()) - window if cell.numel() else 0
    for _ in watch(range(-(-ahead // of.horizon))):
        forecast = of(*source.gather(cell).inputs)[..., 0]
        target = cell.unsqueeze(1) + window + source.ahead  # (B, horizon)
        missing = source.reading[target.clamp_max(most)].isnan() & (target < end.unsqueeze(1))
        # The windows of `source` are views of its readings: the next ones see what is written here.
        source.reading[target[missing]] = of.to_user_units(forecast)[missing]
        cell = cell + of.horizon
        goes_on = cell + window < end
        cell, end = cell[goes_on], end[goes_on]
    return source.reading.cpu().numpy(), without
