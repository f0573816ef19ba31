"""The last week of some meters: the reading, the forecast, and the band around it."""

from dataclasses import dataclass

import numpy as np

from data.scores import Scores
from model.training.callbacks.drawing import Band, Panel
from model.training.forecasts import DAY, Forecasts, step_minutes
from model.training.report.errors import worst_first

MOST = 2  # panels of typical meters, and of the worst


@dataclass(frozen=True)
class Chosen:
    """Numbers of the series to draw."""

    typical: list[int]
    worst: list[int]


def choose(scores: Scores) -> Chosen:
    """The worst meters and, of the others, those next to the median; none is drawn twice."""
    ranked = worst_first(scores)
    worst, others = np.split(ranked, [min(MOST, ranked.size // 2)])
    size = np.abs(scores.cv_rmse)
    away = np.abs(size[others] - np.median(size[ranked])) if ranked.size else np.zeros(0)
    typical = others[np.argsort(away, kind="stable")[:MOST]]
    return Chosen(typical.tolist(), worst.tolist())


def fan(forecasts: Forecasts, series: int, scores: Scores) -> Panel:
    """A series' last week that was forecast.

    Of forecasts that reach further than one reading, one in `horizon` is drawn: those that end
    with the week, and follow each other without overlapping.
    """
    of = forecasts.windows.series
    end = int(of.offset[series + 1])
    rows = _one_after_another(forecasts, np.flatnonzero(forecasts.owner == series), end)
    target = forecasts.target[rows]
    first, last = int(target[0, 0]), min(int(target[-1, -1]), end - 1)
    cells = np.arange(first, last + 1)

    def placed(values: np.ndarray) -> np.ndarray:
        line = np.full(cells.size + forecasts.horizon, np.nan)
        line[target - first] = values[rows]
        return line[: cells.size]

    levels = forecasts.levels
    band = None
    if forecasts.has_band:
        name = f"forecast's {levels[0]:g} to {levels[-1]:g} band"
        band = Band(name, placed(forecasts.low), placed(forecasts.high))
    alone = forecasts.horizon == 1  # each point is a forecast of its own
    ticks = of.tick_of(cells)
    return Panel(
        title=of.name(series),
        subtitle=f"CV(RMSE) {abs(scores.cv_rmse[series]):.1f} %",
        hours=ticks,
        actual=of.reading[cells],
        forecast=placed(forecasts.point),
        band=band,
        starts=ticks[:0] if alone else ticks[target[:, 0] - first],
    )


def _one_after_another(forecasts: Forecasts, rows: np.ndarray, end: int) -> np.ndarray:
    """Those of a series' forecasts `rows`, ascending, that tile its last week from its end.

    The last of them is one that ends before cell `end`, the end of the readings, if there is one.
    """
    within = rows[forecasts.target[rows, -1] < end]
    rows = within if within.size else rows
    cell = forecasts.cell[rows]
    week = 7 * DAY // step_minutes(forecasts.windows.series)  # readings
    begin = cell[-1] + forecasts.horizon - week  # no window of the week starts before
    taken = [int(rows[-1])]
    for row, at in zip(rows[::-1].tolist(), cell[::-1].tolist(), strict=True):
        if begin <= at <= forecasts.cell[taken[-1]] - forecasts.horizon:
            taken.append(row)
    return np.array(taken[::-1])
