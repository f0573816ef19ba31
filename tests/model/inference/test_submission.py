"""GEPIII's test file is answered row by row, from forecasts of forecasts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
import torch

import data.submission
from model.inference import TrainedForecaster
from tests.conftest import Run, assert_refused

RunTrain = Callable[..., Run]
HOURS, AHEAD = 72, 17
AIR = "--data.covariates=[air_temperature]"
METERS = ((1, 0), (1, 2), (7, 0))  # of buildings; the last has no whole window


def stamps(first: int, count: int) -> list[str]:
    start = np.datetime64("2016-12-29T00", "h")
    return [str(start + n).replace("T", " ") + ":00:00" for n in range(first, first + count)]


def readings(meter: tuple[int, int]) -> np.ndarray:
    number = np.arange(HOURS)
    values = 20 + 10 * meter[1] + 5 * np.sin(number / 4)
    return np.where(number % 3 == 0, np.nan, values) if meter == METERS[2] else values


def air(site: int, first: int, count: int) -> np.ndarray:
    return np.round(10 * site + np.cos(np.arange(first, first + count) / 5), 3)


def weather(first: int, count: int) -> pa.Table:
    return pa.table(
        {
            "site_id": np.repeat([0, 1], count),
            "timestamp": 2 * stamps(first, count),
            "air_temperature": np.concatenate([air(site, first, count) for site in (0, 1)]),
        }
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The contest's folder, of three meters at two sites."""
    folder = tmp_path / "gepiii"
    folder.mkdir()
    train: list[dict[str, Any]] = []
    test: list[dict[str, Any]] = []
    for building, meter in METERS:
        one = {"building_id": building, "meter": meter}
        for time, value in zip(stamps(0, HOURS), readings((building, meter)), strict=True):
            train.append(one | {"timestamp": time, "meter_reading": float(value)})
        test += [one | {"timestamp": time} for time in stamps(HOURS, AHEAD)]
    test.append({"building_id": 9, "meter": 0, "timestamp": stamps(HOURS, 1)[0]})
    order = np.random.default_rng(0).permutation(len(test))
    asked = [{"row_id": n} | test[of] for n, of in enumerate(order)]
    files = {
        "train": pa.Table.from_pylist(train),
        "test": pa.Table.from_pylist(asked),
        "weather_train": weather(0, HOURS),
        "weather_test": weather(HOURS, AHEAD),
        "building_metadata": pa.table({"site_id": [0, 1], "building_id": [1, 7]}),
    }
    for name, table in files.items():
        pacsv.write_csv(table, folder / f"{name}.csv")
    return folder


def answer(r: Run, root: Path, output: Path) -> dict[tuple[int, int], np.ndarray]:
    """The forecasts of each meter in order of time; rows are in the test file's order."""
    assert r.code == 0, r.text
    asked, found = pacsv.read_csv(root / "test.csv"), pacsv.read_csv(output)
    assert found.column_names == ["row_id", "meter_reading"]
    assert found["row_id"].equals(asked["row_id"])
    table = asked.append_column("value", found["meter_reading"])
    rows = table.sort_by("timestamp").to_pylist()
    meters = {(row["building_id"], row["meter"]) for row in rows}
    return {
        meter: np.array(
            [row["value"] for row in rows if (row["building_id"], row["meter"]) == meter]
        )
        for meter in meters
    }


def step_by_step(best: str, meter: tuple[int, int], site: int) -> np.ndarray:
    """The same from Python: the frame grows by what was forecast."""
    forecaster = TrainedForecaster.load(best)
    values = readings(meter)
    while values.size < HOURS + AHEAD:
        frame = {
            "building_id": [meter[0]] * values.size,
            "meter": [meter[1]] * values.size,
            "timestamp": stamps(0, values.size),
            "meter_reading": values,
            "air_temperature": air(site, 0, values.size),
        }
        ahead = forecaster.predict(frame, every_window=False)
        values = np.concatenate([values, ahead["prediction"].to_numpy()])
    return values[HOURS : HOURS + AHEAD]


@pytest.mark.parametrize("horizon", [1, 5])
def test_every_row_is_answered(
    run: RunTrain, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, horizon: int
) -> None:
    monkeypatch.setattr(data.submission, "BLOCK", 300)  # bytes: several pieces
    best = run("--data.root", root, AIR, f"--data.horizon={horizon}", "--model.lr=0.05").best
    output = tmp_path / "out" / "submission.csv"
    r = run("submission", "--ckpt_path", best, "--data.root", root, "--output", output)
    found = answer(r, root, output)
    for meter in METERS[:2]:
        np.testing.assert_allclose(found[meter], step_by_step(best, meter, 0), rtol=1e-4)
    own = readings(METERS[2])
    np.testing.assert_allclose(found[METERS[2]], np.median(own[~np.isnan(own)]), rtol=1e-6)
    assert found[9, 0].tolist() == [0]
    assert "1 meters have no 4 readings in a row: median" in r.text
    assert "1 rows are of meters that were not trained on: 0" in r.text


def test_answers_are_in_the_units_that_were_recorded(
    run: RunTrain, root: Path, tmp_path: Path
) -> None:
    """Under rules gepiii site 0's electricity is trained on in kWh, and Kaggle has it in kBTU."""
    train = root / "train.csv"
    train.write_text(train.read_text().replace('"2016-12-', '"2017-12-'))
    for name in ("test", "weather_test", "weather_train"):
        path = root / f"{name}.csv"
        path.write_text(
            path.read_text().replace("2016-12-", "2017-12-").replace("2017-01", "2018-01")
        )
    trained = run("--data.root", root, AIR, "--data.rules=gepiii").best
    checkpoint = torch.load(trained, weights_only=True)
    for name in ("weight", "bias"):  # a network of 0 forecasts the last reading
        checkpoint["state_dict"][f"forecaster.network.decoder.{name}"].zero_()
    persistent = tmp_path / "persistent.ckpt"
    torch.save(checkpoint, persistent)
    output = tmp_path / "answer.csv"
    options = ["--data.root", root, "--output", output, "--data.rules=gepiii"]
    found = answer(run("submission", "--ckpt_path", persistent, *options), root, output)
    for meter in METERS[:2]:
        np.testing.assert_allclose(found[meter], readings(meter)[-1], rtol=1e-4)
    np.testing.assert_allclose(found[METERS[2]], np.nanmedian(readings(METERS[2])), rtol=1e-6)


def test_what_cannot_be_answered_is_refused(run: RunTrain, root: Path) -> None:
    best = run("--data.root", root, AIR).best
    ckpt = ["submission", "--ckpt_path", best]
    assert_refused(run(*ckpt), "--data.root")
    assert_refused(run(*ckpt, "--data.root", root, "--data.target=kWh"), "GEPIII's own columns")
    test = root / "test.csv"
    test.write_text(test.read_text().replace("row_id", "row"))
    assert_refused(run(*ckpt, "--data.root", root), "test.csv", "'row_id'")
    test.unlink()
    assert_refused(run(*ckpt, "--data.root", root), "no file test.csv")
    shown = run("submission", "--help", tiny=False)
    assert "usage: python train.py submission" in shown.text
    assert max(map(len, shown.text.splitlines())) <= 80
