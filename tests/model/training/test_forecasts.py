"""Forecasts as plain arrays: what was predicted, for when, and what came."""

import numpy as np

from model.training.forecasts import Forecasts
from tests.model.training.report.made import HOURS, LENGTH, START, series, windows


def test_a_forecast_without_quantiles() -> None:
    values = np.array([[[3.0]], [[4.0]]])
    found = Forecasts(windows(series()), np.array([0, 5]), (), values)
    assert found.horizon == 1
    assert found.point.tolist() == [[3.0], [4.0]]
    assert not found.has_band
    twice = np.repeat(values, 2, axis=2)
    assert not Forecasts(found.windows, found.cell, (0.5,), twice).has_band


def test_the_forecast_is_ahead_of_its_quantiles() -> None:
    values = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    found = Forecasts(windows(series()), np.array([0, 5]), (0.1, 0.5, 0.9), values)
    assert found.horizon == 3
    assert found.has_band
    assert found.point.tolist() == [[0, 4, 8], [12, 16, 20]]
    assert found.low.tolist() == [[1, 5, 9], [13, 17, 21]]
    assert found.high.tolist() == [[3, 7, 11], [15, 19, 23]]


def test_what_came_is_read_at_the_predicted_cells_of_the_same_series() -> None:
    """A forecast past its series' end is held against the next series' first readings."""
    of = series()
    cell = np.array([7, HOURS - LENGTH - 1, HOURS + 3])
    found = Forecasts(windows(of), cell, (), np.zeros((3, 2, 1)))
    assert found.owner.tolist() == [0, 0, 1]
    first, last, next_one = found.actual
    assert first.tolist() == of.reading[[7 + LENGTH, 8 + LENGTH]].tolist()
    assert last[0] == of.reading[HOURS - 1]
    assert np.isnan(last[1])
    assert next_one.tolist() == of.reading[[HOURS + 3 + LENGTH, HOURS + 4 + LENGTH]].tolist()
    assert found.tick[2].tolist() == [START + 3 + LENGTH, START + 4 + LENGTH]


def test_missing_readings_and_the_end_of_all_are_no_numbers() -> None:
    of = series(count=1)
    found = Forecasts(windows(of), np.array([99 - LENGTH, HOURS - LENGTH]), (), np.zeros((2, 2, 1)))
    assert np.isnan(found.actual).tolist() == [[False, True], [True, True]]
