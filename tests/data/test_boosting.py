"""LightGBM sees what the network sees, and no more."""

from dataclasses import replace

import numpy as np
import pytest

from data import boosting
from data.boosting import lightgbm_forecast
from data.series import SeriesSet
from data.windows import Windows

LENGTH = 6


def meters(levels: list[float], hours: int = 600) -> SeriesSet:
    """Meters whose reading follows the hour of the day, each at its own level."""
    day = 1 + np.sin(2 * np.pi * np.arange(hours) / 24)
    rng = np.random.default_rng(3)
    noise = 1 + 0.02 * rng.standard_normal((len(levels), hours))
    reading = (np.array(levels)[:, None] * (0.5 + day) * noise).astype(np.float32)
    return SeriesSet(
        ids={
            "building_id": np.arange(len(levels)),
            "meter": np.zeros(len(levels), dtype=np.int64),
        },
        site=np.zeros(len(levels), dtype=np.int64),
        first_tick=np.full(len(levels), 403_224),
        offset=np.arange(len(levels) + 1) * hours,
        reading=reading.reshape(-1),
        covariates=np.empty((0, 0), dtype=np.float32),
        covariate_start=np.zeros(len(levels), dtype=np.int64),
    )


def split(series: SeriesSet, first: int, last: int) -> Windows:
    cells = [np.arange(o + first, o + last - LENGTH) for o in series.offset[:-1]]
    return Windows(series, np.concatenate(cells), LENGTH)


def error(windows: Windows, forecast: np.ndarray) -> float:
    actual = windows.targets()
    return float(np.sqrt(np.mean((np.log1p(forecast) - np.log1p(actual)) ** 2)))


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting, "TREES", 60)


@pytest.mark.usefixtures("few_trees")
def test_it_learns_and_sees_no_target() -> None:
    series = meters([5.0, 80.0, 2000.0])
    train, test = split(series, 0, 400), split(series, 400, 600)
    found = lightgbm_forecast(train, test)
    last = series.reading[test.cell + LENGTH - 1]
    assert error(test, found) < 0.3 * error(test, last[:, None])
    changed = replace(series, reading=series.reading.copy())
    changed.reading[test.cell[-1] + LENGTH] = 1e6  # the last target, which is in no window
    assert np.array_equal(lightgbm_forecast(train, replace(test, series=changed)), found)


@pytest.mark.usefixtures("few_trees")
def test_a_meter_is_known_by_its_name() -> None:
    """The test file lists its meters in another order, and has one more."""
    series = meters([5.0, 80.0, 2000.0])
    train, test = split(series, 0, 400), split(series, 400, 600)
    found = lightgbm_forecast(train, test).reshape(3, -1)
    turned = meters([2000.0, 80.0, 5.0, 80.0])
    turned.ids["building_id"] = np.array([2, 1, 0, 9])
    turned.reading[: 3 * 600] = series.reading.reshape(3, -1)[::-1].reshape(-1)
    turned.reading[3 * 600 :] = series.reading[600 : 2 * 600]
    other = lightgbm_forecast(train, split(turned, 400, 600)).reshape(4, -1)
    assert np.array_equal(other[:3], found[::-1])
    assert np.isfinite(other[3]).all()


@pytest.mark.usefixtures("few_trees")
def test_long_data_are_thinned_and_forecast_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    series = meters([5.0, 80.0])
    train, test = split(series, 0, 400), split(series, 400, 600)
    monkeypatch.setattr(boosting, "MAX_FIT_WINDOWS", 100)
    found = lightgbm_forecast(train, test)
    assert found.shape == (len(test), 1)
    assert np.isfinite(found).all()


@pytest.mark.usefixtures("few_trees")
def test_each_reading_ahead_has_a_model_of_its_own() -> None:
    """The first is what it would be alone; the second knows the hour that it is for."""
    series = meters([5.0, 80.0])
    train, test = (replace(split(series, *ends), horizon=2) for ends in ((0, 399), (400, 599)))
    found = lightgbm_forecast(train, test)
    alone = lightgbm_forecast(replace(train, horizon=1), replace(test, horizon=1))
    assert found.shape == (len(test), 2)
    assert np.array_equal(found[:, :1], alone)
    off = np.log1p(found) - np.log1p(test.targets())
    last = np.log1p(series.reading[test.cell + LENGTH - 1])[:, None] - np.log1p(test.targets())
    assert (np.square(off).mean(0) < 0.1 * np.square(last).mean(0)).all()
