"""The forecasts to beat are what they are called."""

import numpy as np

from data.baselines import linear_forecast, naive_forecasts
from data.series import SeriesSet
from data.windows import Windows, find_windows


def two_series(readings: list[np.ndarray]) -> SeriesSet:
    sizes = [r.size for r in readings]
    return SeriesSet(
        ids={
            "building_id": np.arange(len(sizes)),
            "meter": np.zeros(len(sizes), dtype=np.int64),
        },
        site=np.zeros(len(sizes), dtype=np.int64),
        first_tick=np.full(len(sizes), 400_000),
        offset=np.r_[0, np.cumsum(sizes)],
        reading=np.concatenate(readings).astype(np.float32),
        covariates=np.zeros((sum(sizes), 0), dtype=np.float32),
        covariate_start=np.zeros(len(sizes), dtype=np.int64),
    )


def test_naive_forecasts_repeat_the_hour_they_name() -> None:
    series = two_series([np.arange(200.0), 1000 + np.arange(30.0)])
    windows = find_windows(series, 4, 0, 10**9)
    target = series.reading[windows.cell + 4]
    for name, back in (
        ("persistence", 1),
        ("same hour yesterday", 24),
        ("same hour last week", 168),
    ):
        found = naive_forecasts(windows)[name][:, 0]
        there = ~np.isnan(found)
        np.testing.assert_array_equal(found[there], target[there] - back)
        hour = windows.cell + 4 - series.offset[series.series_of(windows.cell)]
        np.testing.assert_array_equal(there, hour >= back)  # never into the series before


def test_a_missing_reference_leaves_its_rows_out() -> None:
    readings = np.arange(60.0)
    readings[10] = np.nan
    windows = find_windows(two_series([readings]), 4, 0, 10**9)
    found = naive_forecasts(windows)
    assert np.flatnonzero(np.isnan(found["persistence"])).size == 0
    yesterday = dict(zip(windows.cell + 4, found["same hour yesterday"][:, 0], strict=True))
    assert np.isnan(yesterday[34])
    assert yesterday[35] == 11


def test_the_linear_model_finds_a_linear_law() -> None:
    """log(1 + y) a day of two sines: an exact linear recurrence of its own past."""
    hours = np.arange(2_000)
    logs = 3 + np.sin(2 * np.pi * hours / 24) + 0.5 * np.sin(2 * np.pi * hours / 7.3)
    series = two_series([np.expm1(logs)])
    windows = find_windows(series, 12, 0, 10**9)
    train, test = (Windows(series, part, 12) for part in np.split(windows.cell, [1_500]))
    forecast = linear_forecast(train, test)[:, 0]
    actual = series.reading[test.cell + 12]
    assert np.abs(np.log1p(forecast) - np.log1p(actual)).max() < 0.02
    naive = series.reading[test.cell + 11]
    assert np.abs(np.log1p(naive) - np.log1p(actual)).max() > 0.3
