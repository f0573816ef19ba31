"""Errors by hour, weekday and temperature are what a plain loop over the rows finds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from model.training.forecasts import Forecasts, Outcome
from model.training.report.errors import (
    LEAST,
    by_temperature,
    find_errors,
    share_in_band,
    worst_first,
)
from tests.model.training.report.made import HOURS, NOISE, QUANTILES, outcome, scored, series

NEGATIVE = -1.2  # the mean reading is below zero, and some are above


def rows(of: Outcome, name: str) -> list[tuple[datetime, int, float, float]]:
    """When, whose, forecast and reading, of all that are known."""
    forecasts, found = of.forecasts, []
    for w in range(len(forecasts.cell)):
        for h in range(forecasts.horizon):
            value, actual = float(of.methods[name][w, h]), float(forecasts.actual[w, h])
            if np.isfinite(value) and np.isfinite(actual):
                hours = int(forecasts.tick[w, h])
                when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
                found.append((when, int(forecasts.owner[w]), value, actual))
    return found


def rmsle(pairs: list[tuple[float, float]]) -> float:
    logs = [np.log1p(max(f, 0)) - np.log1p(y) for f, y in pairs]
    return float(np.sqrt(np.mean(np.square(logs))))


@pytest.mark.parametrize("horizon", [1, 24])
def test_by_hour_and_weekday(horizon: int) -> None:
    of = outcome(horizon=horizon, levels=() if horizon == 1 else QUANTILES)
    errors = find_errors(of)
    assert errors.in_logs
    for k, name in enumerate((of.model, errors.best)):
        found = rows(of, name)
        by_hour = errors.compared(errors.hour, 24)[k]
        for hour in range(24):
            expected = rmsle([(f, y) for when, _, f, y in found if when.hour == hour])
            assert by_hour[hour] == pytest.approx(expected, rel=1e-6)
        by_weekday = errors.compared(errors.weekday, 7)[k]
        for day in range(7):
            expected = rmsle([(f, y) for when, _, f, y in found if when.weekday() == day])
            assert by_weekday[day] == pytest.approx(expected, rel=1e-6)


def test_readings_below_zero_are_measured_by_the_meters_size() -> None:
    of = outcome(series(NEGATIVE))
    errors = find_errors(of)
    assert not errors.in_logs
    found = rows(of, of.model)
    size = {s: np.mean([abs(y) for _, t, _, y in found if t == s]) for s in range(5)}
    for hour in (0, 13):
        expected = np.mean([abs(f - y) / size[s] for when, s, f, y in found if when.hour == hour])
        assert errors.compared(errors.hour, 24)[0][hour] == pytest.approx(expected, rel=1e-6)


def test_the_best_naive_forecast_is_the_one_with_the_smallest_error() -> None:
    of = outcome()
    by_hand = {name: rmsle([(f, y) for *_, f, y in rows(of, name)]) for name in of.baselines}
    assert find_errors(of).best == min(by_hand, key=by_hand.__getitem__)
    bad = of.baselines | {find_errors(of).best: np.full_like(of.forecasts.point, 1e6)}
    del by_hand[find_errors(of).best]
    assert find_errors(replace(of, baselines=bad)).best == min(by_hand, key=by_hand.__getitem__)


def test_another_method_is_no_naive_one() -> None:
    of = outcome()
    perfect = {"LightGBM": np.nan_to_num(of.forecasts.actual)}
    assert find_errors(replace(of, baselines=of.baselines | perfect)).best in of.baselines


def test_hours_that_the_naive_forecast_lacks_count_for_neither() -> None:
    """The model is blamed for hard hours that the other left out."""
    of = outcome()
    when = of.forecasts.tick % 24
    lacking = {name: np.where(when == 7, np.nan, v) for name, v in of.baselines.items()}
    errors = find_errors(replace(of, baselines=lacking))
    model, naive = errors.compared(errors.hour, 24)
    assert np.flatnonzero(np.isnan(model)).tolist() == [7]
    assert np.flatnonzero(np.isnan(naive)).tolist() == [7]


def test_of_very_many_forecasts_a_sample_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 24th would be of one hour of the day."""
    of = outcome(horizon=24)
    whole = find_errors(of)
    monkeypatch.setattr("model.training.report.errors.MOST", 24 * 300)
    errors = find_errors(of)
    assert errors.model.size == 24 * 300
    assert set(errors.hour.tolist()) == set(range(24))
    assert set(errors.owner.tolist()) == set(range(5))
    assert errors.typical(errors.model) == pytest.approx(whole.typical(whole.model), rel=0.1)


def test_by_temperature() -> None:
    """The temperature is that of the predicted hour, and each range's numbers are its rows'."""
    of = outcome(horizon=24, levels=QUANTILES, bias=0.1)
    errors = find_errors(of)
    found = by_temperature(of, errors)
    assert found is not None
    assert found.name == "air_Temperature"
    assert 4 <= found.middle.size <= 12
    width = np.diff(found.middle).min() / 2
    forecasts, source = of.forecasts, of.forecasts.windows.series
    logs: list[list[float]] = [[] for _ in found.middle]
    for w in range(len(forecasts.cell)):
        for h in range(24):
            target = int(forecasts.cell[w]) + 48 + h
            temperature = float(source.covariates[target, 1])
            error = np.log1p(forecasts.point[w, h]) - np.log1p(source.reading[target])
            for k, middle in enumerate(found.middle):
                if middle - width <= temperature < middle + width:
                    logs[k].append(float(error))
    for k, inside in enumerate(logs):
        assert len(inside) >= LEAST
        assert found.mean[k] == pytest.approx(np.mean(inside), rel=1e-4)
        assert found.low[k] == pytest.approx(np.percentile(inside, 10), rel=1e-4)
        assert found.high[k] == pytest.approx(np.percentile(inside, 90), rel=1e-4)
    assert found.mean.mean() == pytest.approx(0.07, abs=0.03)  # of 0.1 too high


def test_no_temperature_no_ranges() -> None:
    unknown = series(covariates=np.full((5 * HOURS, 2), np.nan, dtype=np.float32))
    for of in (outcome(covariates=("cloud", "wind")), outcome(unknown)):
        assert by_temperature(of, find_errors(of)) is None


def test_the_worst_comes_first_and_a_dead_meter_not_at_all() -> None:
    assert worst_first(outcome().scores["S4ConvD"]).tolist() == np.argsort(NOISE)[::-1].tolist()
    of = series()
    of.reading[2 * of.length[0] : 3 * of.length[0]] = 0
    assert 2 not in worst_first(outcome(of).scores["S4ConvD"])


def test_a_mean_below_zero_is_not_best_for_it() -> None:
    """CV(RMSE) has the sign of the mean reading."""
    ranked = worst_first(outcome(series(NEGATIVE)).scores["S4ConvD"])
    assert ranked.tolist() == np.argsort(NOISE)[::-1].tolist()


def test_share_in_the_band() -> None:
    """4 readings, of which one is missing and one lies outside; the ends belong to the band."""
    of = series(count=1)
    at = np.array([96, 97, 98, 99])  # the last one's predicted reading is missing
    found = Forecasts(outcome(of).forecasts.windows, at - 47, (0.1, 0.5, 0.9), np.zeros((4, 1, 4)))
    y = np.nan_to_num(found.actual)[..., None]
    # The forecast itself, the first of each, may lie anywhere.
    rows = [[0, -1, 0, 1], [3, 0, 0, 1], [0, 0.5, 1, 2], [0, -1, 0, 1]]
    values = y + np.array(rows)[:, None]
    assert share_in_band(replace(found, values=values)) == pytest.approx(2 / 3)


def test_a_forecast_that_is_no_number_leaves_nothing_to_compare() -> None:
    forecasts = outcome().forecasts
    of = scored(
        replace(forecasts, values=np.full_like(forecasts.values, np.nan)), outcome().baselines
    )
    errors = find_errors(of)
    assert np.isnan(errors.typical(errors.model))
