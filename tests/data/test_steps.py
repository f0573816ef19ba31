"""Readings at any equal step: every few minutes, every day, every week."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from data.baselines import linear_forecast, look_backs, naive_forecasts, season
from data.boosting import lightgbm_forecast
from data.columns import DataError
from data.grid import DAY, HOUR, WEEK, every
from data.rules import long_zero_runs
from data.splits import split_ranges
from data.windows import DeviceSeries, Windows, find_windows
from model.training.callbacks.hparams import HParams
from model.training.callbacks.panels import ForecastPanels
from tests.conftest import Run, assert_refused, load_checkpoint
from tests.data.test_baselines import two_series
from tests.data.test_own_tables import read

RunTrain = Callable[..., Run]
OWN = ["--data.id=id", "--data.target=kwh"]
ROWS = 60


def times(step: int, rows: int = ROWS, start: str = "2023-03-11 00:00") -> list[datetime]:
    first = datetime.fromisoformat(start)
    return [first + timedelta(minutes=n * step) for n in range(rows)]


def table(path: Path, stamps: list[datetime], written: str = "%Y-%m-%d %H:%M") -> Path:
    """Two series; the reading is the number of the row."""
    lines = [f"{name},{t.strftime(written)},{n}" for name in "ab" for n, t in enumerate(stamps)]
    path.write_text("\n".join(["id,timestamp,kwh", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("step", "start", "written", "told"),
    [
        (30, "2023-03-11 00:00", "%Y-%m-%d %H:%M", "a reading every 30 minutes"),
        (15, "2023-03-11 00:15", "%Y-%m-%d %H:%M:%S", "a reading every 15 minutes"),
        (10, "2023-03-11 00:05", "%d.%m.%Y %H:%M", "a reading every 10 minutes"),
        (60, "2023-03-11 00:15", "%Y-%m-%d %H:%M", None),
        (120, "2023-03-11 01:00", "%Y-%m-%d %H:%M", "a reading every 2 hours"),
        (DAY, "2023-03-11 00:00", "%Y-%m-%d", "a reading every day"),
        (DAY, "2023-03-11 07:00", "%Y-%m-%d %H:%M", "a reading every day"),
        (DAY, "2023-03-11 00:00", "%d-%m-%Y", "a reading every day"),
        (WEEK, "2023-03-13 00:00", "%Y-%m-%d", "a reading every week"),
    ],
)
def test_a_table_of_any_step_trains_and_is_forecast_at_its_own_times(
    run: RunTrain, tmp_path: Path, step: int, start: str, written: str, told: str | None
) -> None:
    stamps = times(step, start=start)
    r = run("--data.path", table(tmp_path / "mine.csv", stamps, written), *OWN)
    assert r.code == 0, r.text
    assert ("a reading every" in r.text) == (told is not None)
    assert told is None or f"mine.csv: {told}" in r.text
    assert f"{stamps[0]:%Y-%m-%d %H:%M} to {stamps[-1]:%Y-%m-%d %H:%M}" in r.text
    series = r.data.windows["train"].series
    assert series.length.tolist() == [ROWS, ROWS]
    batch = next(iter(r.data.test_dataloader()))
    since = np.array(stamps[int(batch.target[0])], dtype="datetime64[m]").astype(np.int64)
    assert int(batch.minute[0]) == since
    tested = len(r.data.windows["test"]) // 2
    forecasts = [row["timestamp"] for row in read(r.folder / "predictions.csv")]
    assert forecasts == 2 * [f"{t:%Y-%m-%d %H:%M:%S}" for t in stamps[-tested:]]
    assert load_checkpoint(r.best)["hyper_parameters"]["step"] == step
    assert yaml.safe_load((r.folder / "hparams.yaml").read_text())["step"] == step
    (shown,) = (c.settings for c in r.cli.trainer.callbacks if isinstance(c, HParams))
    assert shown["model.step"] == step
    again = run("predict", "--config", r.folder / "config.yaml", "--ckpt_path", r.best)
    assert again.code == 0, again.text
    assert read(again.folder / "predictions.csv") == read(r.folder / "predictions.csv")


def test_a_wide_table_has_a_step_too(run: RunTrain, tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    lines = [f"{t:%Y-%m-%d %H:%M},{n},{2 * n}" for n, t in enumerate(times(30))]
    path.write_text("\n".join(["time,a,b", *lines]))
    r = run("--data.path", path, "--data.layout=wide", "--data.timestamp=time")
    assert r.code == 0, r.text
    series = r.data.windows["train"].series
    assert (series.step, series.length.tolist()) == (30, [ROWS, ROWS])


def test_missing_rows_are_gaps(run: RunTrain, tmp_path: Path) -> None:
    stamps = times(30)
    del stamps[5:9]
    r = run("inspect", "--data.path", table(tmp_path / "mine.csv", stamps), *OWN)
    assert "8 times have no row" in r.text
    text = " ".join(r.text.split())
    assert "2 series, a row every 30 minutes" in text
    assert f"id a 2023-03-11 00:00 {ROWS} 4 " in text
    assert "split predicted from to windows train 2023-03-11 02:00" in text


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (30, ["2023-03-11 02:40 lies between 2023-03-11 02:30 and 2023-03-11 03:00", "30 minutes"]),
        (60, ["2023-03-11 05:10 is not a whole hour", "every hour"]),
        (DAY, ["2023-03-16 00:10 lies between 2023-03-16 00:00 and 2023-03-17 00:00", "every day"]),
    ],
)
def test_a_time_off_the_grid_is_refused_by_line(
    run: RunTrain, tmp_path: Path, step: int, told: list[str]
) -> None:
    stamps = times(step)
    stamps[5] += timedelta(minutes=10)
    refused = run("--data.path", table(tmp_path / "mine.csv", stamps), *OWN)
    assert_refused(refused, "mine.csv, column timestamp, line 7: ", *told, "mend the time or drop")


@pytest.mark.parametrize("count", [3, 30])
def test_months_are_refused(run: RunTrain, tmp_path: Path, count: int) -> None:
    stamps = [datetime(2020 + n // 12, n % 12 + 1, 1) for n in range(count)]
    refused = run("--data.path", table(tmp_path / "mine.csv", stamps, "%Y-%m-%d"), *OWN)
    assert_refused(refused, "mine.csv, column timestamp", "every month", "not of one length")


def test_files_of_two_steps_are_refused(run: RunTrain, tmp_path: Path) -> None:
    hourly, half = (table(tmp_path / f"{step}.csv", times(step)) for step in (60, 30))
    both = ["--data.train_path", hourly, "--data.val_path", half, *OWN, "--data.covariates=[]"]
    told = ["30.csv has a reading every 30 minutes", "60.csv every hour", "one step"]
    assert_refused(run(*both), *told)
    both = ["--data.path", hourly, *OWN, "--data.predict_path", half]
    assert_refused(run(*both), *told)


def test_a_trained_model_keeps_its_step(run: RunTrain, tmp_path: Path) -> None:
    """Weights may be a start at another step; a checkpoint is of its own alone."""
    hourly, half = (table(tmp_path / f"{step}.csv", times(step)) for step in (60, 30))
    first = run("--data.path", hourly, *OWN)
    other = ["--data.path", half, *OWN]
    for command in ("fit", "test", "predict"):
        refused = run(command, *other, "--ckpt_path", first.best, "--trainer.max_epochs=2")
        assert_refused(refused, "every hour", "every 30 minutes", "--init_from")
    only = ["--data.predict_path", half, *OWN]
    refused = run("predict", *only, "--data.covariates=[]", "--ckpt_path", first.best)
    assert_refused(refused, "every hour", "every 30 minutes")
    begun = run(*other, "--init_from", first.best)
    assert begun.code == 0, begun.text
    assert "made anew: nothing" in begun.text
    assert load_checkpoint(begun.best)["hyper_parameters"]["step"] == 30


def test_kernels_are_compared_at_the_tables_step(run: RunTrain, tmp_path: Path) -> None:
    half = table(tmp_path / "30.csv", times(30))
    few = ["--steps=12", "--rounds=1", "--trainer.log_every_n_steps=4"]
    r = run("compare", "--kernels=pytorch", "--data.path", half, *OWN, *few)
    assert r.code == 0, r.text
    record = json.loads((tmp_path / "runs" / "compare_0" / "compare.json").read_text())
    assert record["settings"]["model.step"] == 30


def test_a_checkpoint_of_before_there_were_steps_is_hourly(run: RunTrain, tmp_path: Path) -> None:
    first = run("--data.path", table(tmp_path / "60.csv", times(60)), *OWN)
    checkpoint = load_checkpoint(first.best)
    del checkpoint["hyper_parameters"]["step"]
    torch.save(checkpoint, tmp_path / "old.ckpt")
    old = ["--ckpt_path", tmp_path / "old.ckpt"]
    again = run("predict", "--data.path", tmp_path / "60.csv", *OWN, *old)
    assert again.code == 0, again.text
    same = [read(r.folder / "predictions.csv") for r in (first, again)]
    assert same[0] == same[1]
    half = table(tmp_path / "30.csv", times(30))
    assert_refused(run("predict", "--data.path", half, *OWN, *old), "old.ckpt", "every hour")


# -- weather ---------------------------------------------------------------------------------------


def with_weather(
    run: RunTrain, tmp_path: Path, step: int, rows: int, weather: list[str], *options: str
) -> Run:
    """One building at a step, and lines of weather of its site."""
    lines = [f"7,0,{t:%Y-%m-%d %H:%M},{n}" for n, t in enumerate(times(step, rows))]
    head = "building_id,meter,timestamp,meter_reading"
    (tmp_path / "train.csv").write_text("\n".join([head, *lines]))
    (tmp_path / "building_metadata.csv").write_text("site_id,building_id\n3,7\n")
    head = "site_id,timestamp,air_temperature"
    (tmp_path / "weather_train.csv").write_text("\n".join([head, *weather]))
    air = "--data.covariates=[air_temperature]"
    r = run("--data.root", tmp_path, air, *options)
    assert r.code == 0, r.text
    return r


def air(r: Run) -> np.ndarray:
    series = r.data.windows["train"].series
    return series.covariates[series.covariate_cells(), 0]


def test_hourly_weather_is_interpolated_onto_half_hours(run: RunTrain, tmp_path: Path) -> None:
    weather = [f"3,{t:%Y-%m-%d %H:%M},{10 * n}" for n, t in enumerate(times(60, 30))]
    weather[3] = weather[3].rsplit(",", 1)[0] + ","  # 03:00 is missing
    r = with_weather(run, tmp_path, 30, 59, weather)
    assert air(r)[:10].tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40, 45]
    assert air(r)[-1] == 290
    assert "weather_train.csv: a row every hour, interpolated between" in r.text
    assert "air_temperature: 1 of 59 values missing, 1 interpolated, 0 set" in r.text


def test_what_weather_cannot_be_interpolated_is_counted(run: RunTrain, tmp_path: Path) -> None:
    """The last half hour has no later row of weather to interpolate to."""
    weather = [f"3,{t:%Y-%m-%d %H:%M},{10 * n}" for n, t in enumerate(times(60, 30))]
    r = with_weather(run, tmp_path, 30, 60, weather)
    assert np.isnan(air(r)).tolist() == [False] * 59 + [True]
    assert "air_temperature: 1 of 60 values missing, 0 interpolated, 1 set" in r.text


def test_hourly_weather_is_averaged_over_days(run: RunTrain, tmp_path: Path) -> None:
    hours = times(60, 24 * 40, start="2023-03-11 05:00")  # UTC; the offset makes it midnight
    weather = [f"3,{t:%Y-%m-%d %H:%M},{n // 24 + n % 24}" for n, t in enumerate(hours)]
    weather[24] = weather[24].rsplit(",", 1)[0] + ","  # of the second day's 24 values the first, 1
    r = with_weather(run, tmp_path, DAY, 40, weather, "--data.utc_offset=-5")
    assert air(r)[0] == pytest.approx(11.5)
    assert air(r)[1] == pytest.approx((24 * 12.5 - 1) / 23)
    assert air(r)[2:].tolist() == pytest.approx([11.5 + n for n in range(2, 40)])
    assert "weather_train.csv: a row every hour, averaged" in r.text
    assert "values missing" not in r.text


# -- rules, splits, baselines ----------------------------------------------------------------------


def stepped(step: int, readings: np.ndarray, phase: int = 0) -> Any:
    """One series from 2016-01-01 on."""
    series = two_series([readings])
    series.step, series.phase = step, phase
    first = np.datetime64("2016-01-01T00:00", "m").astype(np.int64)
    series.first_tick[:] = series.tick_at(first + phase)
    return series


def test_runs_of_a_rule_are_hours_at_any_step() -> None:
    series = stepped(30, np.array([1, 0, 0, 0, 0, 0, 1, *[0] * 6, 1]))
    long_zero_runs(series, 3)
    assert np.flatnonzero(np.isnan(series.reading)).tolist() == [7, 8, 9, 10, 11, 12]
    with pytest.raises(DataError, match=r"--data\.rules .* every day; leave it out"):
        long_zero_runs(stepped(DAY, np.zeros(5)), 3)


@pytest.mark.parametrize(
    ("step", "phase", "val", "test"),
    [
        (30, 0, ("2016-01-02 00:00", "2016-01-03 12:00"), "2016-01-03 12:30"),
        (DAY, 420, ("2016-01-02 07:00", "2016-01-03 07:00"), "2016-01-04 07:00"),
        (15, 5, ("2016-01-02 00:05", "2016-01-03 11:50"), "2016-01-03 12:05"),
    ],
)
def test_ends_given_as_dates_are_of_the_tables_times(
    step: int, phase: int, val: tuple[str, str], test: str
) -> None:
    series = stepped(step, np.arange(400.0), phase)
    ends = {"train_end": "2016-01-01", "val_end": "2016-01-03 12:00", "test_end": None}
    ranges = split_ranges(series, ends, 0.1, 0.1)
    assert tuple(map(series.stamp, ranges["val"])) == val
    assert series.stamp(ranges["test"][0]) == test
    assert ranges["test"][1] == series.span()[1]


def test_naive_forecasts_look_back_a_day_and_a_week_at_any_step() -> None:
    series = stepped(30, np.arange(400.0))
    windows = find_windows(series, 4, 0, 10**9)
    target = series.reading[windows.cell + 4]
    found = {name: forecast[:, 0] for name, forecast in naive_forecasts(windows).items()}
    assert list(found) == ["persistence", "same time yesterday", "same time last week"]
    for name, back in zip(found, (1, 48, 336), strict=True):
        there = ~np.isnan(found[name])
        assert there.sum() == min(400 - back, 396)
        np.testing.assert_array_equal(found[name][there], target[there] - back)


@pytest.mark.parametrize(
    ("step", "backs", "scale"),
    [
        (15, [1, 96, 672], "same time yesterday"),
        (HOUR, [1, 24, 168], "same hour yesterday"),
        (12 * HOUR, [1, 2, 14], "same time yesterday"),
        (DAY, [1, 7], "same day last week"),
        (7 * HOUR, [1, 24], "same time last week"),
        (2 * DAY, [1], "persistence"),
        (WEEK, [1], "persistence"),
    ],
)
def test_a_look_back_of_no_ticks_is_none(step: int, backs: list[int], scale: str) -> None:
    assert list(look_backs(step).values()) == backs
    assert season(step) == scale


@pytest.mark.parametrize(("step", "period"), [(30, DAY), (DAY, WEEK)])
@pytest.mark.parametrize("method", [linear_forecast, lightgbm_forecast])
def test_the_fitted_baselines_know_the_calendar(method: Any, step: int, period: int) -> None:
    """Three readings are too few to tell where in its cycle a noisy one is."""
    turn = 2 * np.pi * step / period * np.arange(3_000)
    logs = 5 + np.sin(turn) + 0.3 * np.random.default_rng(1).standard_normal(turn.size)
    series = stepped(step, np.expm1(logs))
    cells = find_windows(series, 3, 0, 10**9).cell
    train, test = (Windows(series, part, 3) for part in np.split(cells, [2_500]))
    error = np.log1p(method(train, test)[:, 0]) - logs[test.cell + 3]
    assert np.sqrt(np.mean(error**2)) < 0.35


def test_the_panels_show_a_week_in_hours(run: RunTrain, tmp_path: Path) -> None:
    stamps = times(30, 2_400)
    r = run("--data.path", table(tmp_path / "mine.csv", stamps), *OWN, "--data.batch_size=512")
    panel = ForecastPanels()._panel(r.cli.model, r.data, r.data.windows["val"], 0)
    assert (panel.step, panel.hours.size) == (0.5, 7 * 48)
    assert set(np.diff(panel.hours)) == {0.5}
    assert np.datetime64("1970-01-01") + np.timedelta64(int(60 * panel.hours[0]), "m") == (
        np.datetime64(stamps[int(panel.actual[0])])
    )


def test_daily_scores_are_in_units_of_last_week(run: RunTrain, tmp_path: Path) -> None:
    """The reading grows by 1 a day: last week's is off by 7, and the day before's by 1."""
    r = run("--data.path", table(tmp_path / "mine.csv", times(DAY, 120)), *OWN)
    assert r.code == 0, r.text
    assert r.data.naive_error(r.data.windows["train"].series).tolist() == [7, 7]
    assert "yesterday" not in r.text
    rows = {row["forecast"]: row for row in read(r.folder / "scores.csv")}
    assert float(rows["persistence"]["mase"]) == pytest.approx(1 / 7)


def test_a_batch_tells_the_minute() -> None:
    series = stepped(30, np.arange(100.0), phase=10)
    cell = torch.tensor([0, 7])
    batch = DeviceSeries(series, 4, torch.device("cpu")).gather(cell)
    when = [np.datetime64(int(minute), "m") for minute in batch.minute]
    assert [str(w) for w in when] == ["2016-01-01T02:10", "2016-01-01T05:40"]


def test_steps_have_names() -> None:
    found = [every(step) for step in (1, 15, 60, 90, 120, DAY, 3 * DAY, WEEK, 2 * WEEK)]
    assert found == [
        *("every minute", "every 15 minutes", "every hour", "every 90 minutes", "every 2 hours"),
        *("every day", "every 3 days", "every week", "every 2 weeks"),
    ]
