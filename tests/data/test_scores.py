"""Scores by series are what the formulas say of each series' rows."""

from dataclasses import replace

import numpy as np
import pytest

from data.module import SeriesDataModule
from data.scores import MEASURES, Scores, scores

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def rows() -> Rows:
    """Of four series, the third without a row and the last without a naive error."""
    rng = np.random.default_rng(7)
    series = rng.choice([0, 1, 3], 500)
    actual = rng.gamma(2.0, 30.0, 500).astype(np.float32)
    forecast = (actual + rng.normal(2, 20, 500)).astype(np.float32)  # some below zero
    forecast[rng.random(500) < 0.1] = np.nan
    return forecast, actual, series, np.array([5.0, 2.5, 1.0, np.nan])


LEVELS = (0.2, 0.5, 0.9)


def quantiles(forecast: np.ndarray) -> np.ndarray:
    return forecast[:, None] + [-5.0, 0.0, 12.0]


def by_formula(
    f: np.ndarray, y: np.ndarray, naive: float, has_band: bool = False
) -> dict[str, float]:
    f, y = f.astype(np.float64), y.astype(np.float64)
    log = np.log1p(np.maximum(f, 0)) - np.log1p(np.maximum(y, 0))
    by_hand = [
        level * (value - q) if value > q else (1 - level) * (q - value)
        for value, band in zip(y, quantiles(f), strict=True)
        for level, q in zip(LEVELS, band, strict=True)
    ]
    return {
        "rmsle": np.sqrt(np.mean(log**2)),
        "mae": np.mean(np.abs(f - y)),
        "rmse": np.sqrt(np.mean((f - y) ** 2)),
        "cv_rmse": 100 * np.sqrt(np.mean((f - y) ** 2)) / np.mean(y),
        "nmbe": 100 * np.sum(f - y) / np.sum(y),
        "mase": np.mean(np.abs(f - y)) / naive,
        "pinball": np.mean(by_hand) if has_band else np.nan,
        "coverage": 100 * np.mean((f - 5 <= y) & (y <= f + 12)) if has_band else np.nan,
    }


def values(of: Scores, at: int) -> dict[str, float]:
    return {name: float(getattr(of, name)[at]) for name in MEASURES}


def test_each_series_for_itself(rows: Rows) -> None:
    forecast, actual, series, naive = rows
    found = scores(forecast, actual, series, naive, LEVELS, quantiles(forecast))
    for s in (0, 1, 3):
        of = (series == s) & ~np.isnan(forecast)
        assert found.rows[s] == of.sum()
        expected = by_formula(forecast[of], actual[of], naive[s], has_band=True)
        assert values(found, s) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert found.rows[2] == 0
    assert np.isnan([*values(found, 2).values()]).all()


def test_all_together_are_their_rows(rows: Rows) -> None:
    """Not a mean of the series' scores; MASE by what the naive forecast would have missed."""
    forecast, actual, series, naive = rows
    naive = np.nan_to_num(naive, nan=4.0)
    found = scores(forecast, actual, series, naive, LEVELS, quantiles(forecast)).all()
    there = ~np.isnan(forecast)
    of = naive[series[there]].mean()
    expected = by_formula(forecast[there], actual[there], of, has_band=True)
    assert values(found, 0) == pytest.approx(expected, rel=1e-12)


def test_nothing_to_divide_by_is_no_number() -> None:
    """A meter that reads 0 has no percentage of its mean."""
    of = scores(np.ones(3), np.zeros(3), np.zeros(3, dtype=int), np.array([0.0]))
    found = values(of, 0)
    assert (found["mae"], found["rmse"]) == (1, 1)
    assert np.isnan([found["cv_rmse"], found["nmbe"], found["mase"]]).all()


def test_the_naive_error_is_yesterdays_on_the_training_rows() -> None:
    """Checklist 42: a scale that has seen the test rows."""
    data = SeriesDataModule()
    data.prepare_data()
    data.setup("fit")
    train = data.windows["train"]
    series = train.series
    found = data.naive_error(series)
    for s in (0, len(series) - 1):
        cell = train.cell[series.series_of(train.cell) == s] + train.length
        error = np.abs(series.reading[cell].astype(np.float64) - series.reading[cell - 24])
        assert found[s] == pytest.approx(np.nanmean(error), rel=1e-9)
    assert np.isnan(data.naive_error(replace(series))).all()  # another file's
