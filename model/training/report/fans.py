"""The last week of some meters: the reading, the forecast, and the band around it."""

from dataclasses import dataclass

import numpy as np

from data.grid import HOUR, WEEK
from data.scores import Scores
from model.training.callbacks.drawing import Band, Panel
from model.training.forecasts import Forecasts
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
    shown = _one_after_another(forecasts.rows(forecasts.owner == series), end)
    target = shown.target
    first, last = int(target[0, 0]), min(int(target[-1, -1]), end - 1)
    cells = np.arange(first, last + 1)

    def placed(values: np.ndarray) -> np.ndarray:
        line = np.full(cells.size + shown.horizon, np.nan)  # the last one may reach past the end
        line[target - first] = values
        return line[: cells.size]

    band = None
    if shown.has_band:
        name = f"forecast's {shown.levels[0]:g} to {shown.levels[-1]:g} band"
        band = Band(name, placed(shown.low), placed(shown.high))
    hours = of.minute(of.tick_of(cells)) / HOUR
    return Panel(
        title=of.name(series),
        subtitle=f"CV(RMSE) {abs(scores.cv_rmse[series]):.1f} %",
        hours=hours,
        step=of.step / HOUR,
        actual=of.reading[cells],
        forecast=placed(shown.point),
        band=band,
        # Where each point is a forecast of its own, there is no line to interrupt.
        starts=hours[:0] if shown.horizon == 1 else hours[target[:, 0] - first],
    )


def _one_after_another(forecasts: Forecasts, end: int) -> Forecasts:
    """Those of a series' forecasts that tile its last week from its end.

    The last of them is one that ends before cell `end`, the end of the readings, if there is one.
    """
    within = forecasts.rows(forecasts.target[:, -1] < end)
    found = within if within.cell.size else forecasts
    week = WEEK // forecasts.windows.series.step  # readings
    begin = found.cell[-1] + found.horizon - week  # no window of the week starts before
    taken = [found.cell.size - 1]
    for row, at in reversed(list(enumerate(found.cell.tolist()))):
        if begin <= at <= found.cell[taken[-1]] - found.horizon:
            taken.append(row)
    return found.rows(np.array(taken[::-1]))
