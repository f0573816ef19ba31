"""Forecasts as a table, a row for each tick that a window predicts."""

import numpy as np
import pyarrow as pa

from data.columns import TIME
from data.windows import Windows


def prediction_table(
    windows: Windows, cell: np.ndarray, forecast: np.ndarray, quantiles: list[float]
) -> pa.Table:
    """A row for each window and each tick that it predicts.

    The series' own columns, timestamp (as in the input), horizon (1 for the first tick after the
    window; where there are several), prediction (in the user's units) and a column a quantile.

    Args:
        windows: what was predicted.
        cell: (n,) the windows' first cells.
        forecast: (n, horizon, 1 + Q), the user's units, the quantiles last.
        quantiles: their levels, or none.
    """
    series, ahead = windows.series, np.arange(windows.horizon)
    owner = np.repeat(series.series_of(cell), windows.horizon)
    minute = series.minute((series.tick_of(cell) + windows.length)[:, None] + ahead).ravel()
    columns = {name: pa.array(values[owner]) for name, values in series.ids.items()}
    columns[TIME] = pa.array(minute.astype("datetime64[m]").astype("datetime64[s]"))
    if windows.horizon > 1:
        columns["horizon"] = pa.array(np.tile(ahead + 1, cell.size))
    columns["prediction"] = pa.array(forecast[..., 0].ravel())
    for number, level in enumerate(quantiles, 1):
        columns[f"quantile_{level:g}"] = pa.array(forecast[..., number].ravel())
    return pa.table(columns)
