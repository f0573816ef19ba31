"""The meters that are shown, and the forecasts of their last week."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from data.scores import Scores, scores
from model.training.callbacks.drawing import Panel
from model.training.forecasts import Outcome
from model.training.report.fans import choose, fan
from tests.model.training.report.made import (
    HOURS,
    LENGTH,
    NOISE,
    QUANTILES,
    START,
    outcome,
    scored,
    series,
)


def scores_of(cv: list[float]) -> Scores:
    """Of a series each, whose readings are 100 and whose forecasts are off by so many percent."""
    owner = np.arange(len(cv))
    actual = np.full(len(cv), 100.0)
    return scores(actual + np.array(cv), actual, owner, np.full(len(cv), np.nan))


def panel(of: Outcome, number: int) -> Panel:
    return fan(of.forecasts, number, of.scores["S4ConvD"])


@pytest.mark.parametrize(
    ("cv", "typical", "worst"),
    [
        ([7.0], [0], []),
        ([7.0, 9.0], [0], [1]),
        ([9.0, 7.0, 5.0], [1, 2], [0]),
        ([1.0, 50.0, 2.0, 60.0], [2, 0], [3, 1]),
        ([10.0, 80.0, 30.0, 12.0, 11.0, 70.0], [2, 3], [1, 5]),
        ([np.nan, 5.0], [1], []),
        ([np.nan], [], []),
    ],
)
def test_typical_and_worst_meters(cv: list[float], typical: list[int], worst: list[int]) -> None:
    chosen = choose(scores_of(cv))
    assert chosen.typical == typical
    assert chosen.worst == worst


def test_the_worst_really_is_the_worst() -> None:
    of = outcome()
    chosen = choose(of.scores["S4ConvD"])
    cv = {}
    for s in range(5):
        mine = of.forecasts.owner == s
        f, y = of.forecasts.point[mine, 0], of.forecasts.actual[mine, 0]
        cv[s] = np.sqrt(np.mean((f - y) ** 2)) / np.mean(y)
    assert chosen.worst[0] == max(cv, key=cv.__getitem__) == int(np.argmax(NOISE))
    shown = panel(of, 0)
    assert shown.title == "customer <b>C0</b> & Co"
    assert shown.subtitle == f"CV(RMSE) {100 * cv[0]:.1f} %"


def test_a_week_of_forecasts_of_the_next_hour() -> None:
    of = outcome()
    shown = panel(of, 2)
    last = START + HOURS - 1
    assert shown.hours.tolist() == list(range(last - 167, last + 1))
    mine = of.forecasts.owner == 2
    assert shown.forecast.tolist() == of.forecasts.point[mine, 0][-168:].tolist()
    assert shown.actual.tolist() == of.forecasts.actual[mine, 0][-168:].tolist()
    assert shown.band is None
    assert shown.starts.size == 0


def test_a_week_of_days_that_do_not_overlap() -> None:
    of = outcome(horizon=24, levels=QUANTILES)
    shown = panel(of, 1)
    end = START + HOURS
    assert shown.hours.tolist() == list(range(end - 168, end))
    assert shown.starts.tolist() == list(range(end - 168, end, 24))
    assert shown.band is not None
    forecasts = of.forecasts
    for day in range(7):  # the forecast of each day is the one made at its beginning
        first = 2 * HOURS - 168 + 24 * day  # its first predicted cell, of the second series
        row = int(np.flatnonzero(forecasts.cell == first - LENGTH)[0])
        part = slice(24 * day, 24 * day + 24)
        assert shown.forecast[part].tolist() == forecasts.values[row, :, 0].tolist()
        assert shown.band.low[part].tolist() == forecasts.values[row, :, 1].tolist()
        assert shown.band.high[part].tolist() == forecasts.values[row, :, 3].tolist()
    assert shown.band.name == "forecast's 0.1 to 0.9 band"


def without(of: Outcome, dropped: range) -> Outcome:
    """Without the forecasts whose first predicted cell is one of these."""
    kept = ~np.isin(of.forecasts.target[:, 0], list(dropped))
    return scored(
        of.forecasts.rows(kept), {name: values[kept] for name, values in of.baselines.items()}
    )


def test_hours_without_a_forecast_are_a_gap() -> None:
    """A line is drawn over them, or what was read there is not shown."""
    shown = panel(without(outcome(), range(HOURS - 60, HOURS - 50)), 0)
    assert shown.hours.size == 168
    assert np.flatnonzero(np.isnan(shown.forecast)).tolist() == list(range(108, 118))
    assert np.isfinite(shown.actual).all()


def test_days_without_a_forecast_move_the_earlier_ones() -> None:
    """The forecast before a gap is the latest that ends before the next one begins."""
    shown = panel(without(outcome(horizon=24), range(HOURS - 60, HOURS - 40)), 0)
    begins = (shown.starts - START - HOURS).tolist()
    assert begins[-1] == -24
    assert begins[-2] == -61
    assert all(b - a >= 24 for a, b in pairwise(begins))
    assert np.isnan(shown.forecast).sum() == 61 - 24 - 24


def test_a_forecast_past_the_end_of_the_readings_is_the_last_resort() -> None:
    of = outcome(horizon=24).forecasts
    late = np.arange(HOURS - LENGTH - 30, HOURS - LENGTH)
    beyond = replace(of, cell=late, values=np.zeros((late.size, 24, 1)))
    nothing = scores_of([1.0] * 5)
    assert fan(beyond, 0, nothing).starts.tolist() == [START + HOURS - 24]
    only = replace(of, cell=late[-1:], values=np.zeros((1, 24, 1)))
    assert fan(only, 0, nothing).hours.tolist() == [START + HOURS - 1]


def test_a_forecast_that_reaches_further_than_a_week_is_shown_whole() -> None:
    of = outcome(series(count=1), horizon=180)
    shown = panel(of, 0)
    assert shown.starts.tolist() == [START + HOURS - 180]
    assert np.isfinite(shown.forecast).all()
    assert shown.hours.size == 180
