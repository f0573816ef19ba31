"""A trained model from Python: what train.py predict writes, from a table in memory."""

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch

from data.columns import DataError
from model.inference import TrainedForecaster
from tests.conftest import Run
from tests.data.tables import COLUMNS, LONG, day_month_year, long_table, times

RunTrain = Callable[..., Run]
WARM = [*COLUMNS, "--data.covariates=[Temp]"]


def columns(hours: int, level: float = 0, name: str = "a") -> dict[str, Any]:
    """A series of its own as a dict of columns."""
    number = np.arange(hours)
    return {
        "Zeit": [time for _, time in times(hours)],
        "Kunde": [name] * hours,
        "kWh": level + 10 + 3 * np.sin(number),
        "Temp": number % 24 * 0.5,
    }


@pytest.fixture
def trained(run: RunTrain, tmp_path: Path) -> TrainedForecaster:
    """Of two customers' kWh, with their own names for the columns."""
    return TrainedForecaster.load(run("--data.path", long_table(tmp_path / "t.csv"), *WARM).best)


FULL = [
    "--data.horizon=3",
    "--data.known=[Tarif]",
    "--data.static=[Art]",
    "--model.quantiles=[0.1,0.5,0.9]",
    "--model.meter_features=2",
    "--model.seasons=[4]",
    "--model.flags=true",
    "--model.members=2",
    "--model.linear=true",
    "--model.amplitude=true",
]


@pytest.mark.parametrize("options", [[], FULL])
def test_python_and_the_command_line_forecast_the_same(
    run: RunTrain, tmp_path: Path, options: list[str]
) -> None:
    """The same columns and numbers; the file's columns are as the checkpoint says."""
    table = pa.concat_tables(
        [pa.table(columns(LONG, level, name)) for level, name in ((0, "a"), (500, "b"))]
    )
    table = table.append_column("Tarif", pa.array(np.arange(2 * LONG) % 7 / 7))
    table = table.append_column("Art", pa.array(["Amt"] * LONG + ["Halle"] * LONG))
    path, output = tmp_path / "t.parquet", tmp_path / "out.parquet"
    pq.write_table(table, path)
    best = run("--data.path", path, *WARM, *options).best
    r = run(
        *("predict", "--ckpt_path", best, "--data.predict_path", path, "--output", output),
        "--data.beyond_end=true",
    )
    assert r.code == 0, r.text
    told = "columns as in the checkpoint's table (id Kunde, timestamp Zeit, target kWh)"
    assert r.text.count(told) == 1
    found = TrainedForecaster.load(best).predict(table)
    written = pq.read_table(output)
    assert found.column_names == written.column_names
    assert found.num_rows == written.num_rows
    for name in found.column_names:
        ours, theirs = found[name].to_numpy(), written[name].to_numpy()
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        else:
            assert (ours == theirs).all(), name


@pytest.mark.parametrize("subcommand", ["predict", "test"])
def test_the_table_itself_needs_no_columns_again(
    run: RunTrain, tmp_path: Path, subcommand: str
) -> None:
    path = long_table(tmp_path / "t.csv")
    trained = run("--data.path", path, *WARM)
    r = run(subcommand, "--ckpt_path", trained.best, "--data.path", path)
    assert r.code == 0, r.text
    assert r.text.count("t.csv: columns as in the checkpoint's table") == 1
    if subcommand == "test":
        assert len(scores_of(r)) == 2
        assert scores_of(r) == scores_of(trained)


def scores_of(run: Run) -> list[str]:
    """Its table's line of all rows."""
    return re.findall(r"^all .*", run.text, re.MULTILINE)


def test_a_wide_table_is_read_as_it_was_trained_on(run: RunTrain, tmp_path: Path) -> None:
    rows = [f"{time},{n},{100 + n % 5}" for n, time in times(LONG, "%d/%m/%Y %H:%M")]
    path, output = tmp_path / "wide.csv", tmp_path / "out.csv"
    path.write_text("\n".join(["Zeit,a,b", *rows]))
    wide = ["--data.layout=wide", "--data.timestamp=Zeit", "--data.time_format=%d/%m/%Y %H:%M"]
    best = run("--data.path", path, *wide).best
    r = run("predict", "--ckpt_path", best, "--data.predict_path", path, "--output", output)
    assert r.code == 0, r.text
    table = pacsv.read_csv(path)
    found = TrainedForecaster.load(best).predict(table)
    assert found["series"].unique().to_pylist() == ["a", "b"]
    assert found.num_rows == pacsv.read_csv(output).num_rows + 2  # what follows the end


def test_options_that_name_columns_go_before_the_checkpoints(run: RunTrain, tmp_path: Path) -> None:
    best = run("--data.path", long_table(tmp_path / "t.csv"), *WARM).best
    other = day_month_year(tmp_path / "other.csv", LONG)
    text = other.read_text().replace("Kunde", "customer")
    other.write_text(text)
    named = ["--data.id=customer", *COLUMNS[1:], "--data.time_format=%d/%m/%Y %H:%M"]
    r = run("predict", "--ckpt_path", best, "--data.predict_path", other, *named)
    assert r.code == 0, r.text
    assert "as in the checkpoint's table" not in r.text
    assert r.data.roles.id == ("customer",)


def test_what_follows_the_end_is_last(trained: TrainedForecaster) -> None:
    table = pa.concat_tables([pa.table(columns(20, name=name)) for name in "ab"])
    every = trained.predict(table)
    ahead = trained.predict(table, every_window=False)
    assert every.num_rows == 2 * (20 - trained.window + 1)
    assert ahead["Kunde"].to_pylist() == ["a", "b"]
    assert {str(time) for time in ahead["timestamp"].to_pylist()} == {"2023-03-11 20:00:00"}
    assert every.slice(every.num_rows - 1).equals(ahead.slice(1))


def test_a_window_alone_and_in_company_get_one_forecast(trained: TrainedForecaster) -> None:
    """F01: nothing is fitted anew to the frame."""
    alone = pa.table(columns(trained.window))
    company = pa.concat_tables([pa.table(columns(1000, 50_000, "b")), alone])
    (expected,) = trained.predict(alone)["prediction"].to_pylist()
    found = trained.predict(company, every_window=False).to_pylist()
    assert [row["Kunde"] for row in found] == ["a", "b"]
    assert found[0]["prediction"] == pytest.approx(expected, rel=1e-6)


def test_columns_go_by_name(trained: TrainedForecaster) -> None:
    """F02: neither their order nor others beside them change a forecast."""
    table = pa.table(columns(30))
    turned = table.select(["Temp", "kWh", "Kunde", "Zeit"]).append_column("x", table["kWh"])
    assert trained.predict(turned).equals(trained.predict(table))


@pytest.mark.parametrize("name", ["Zeit", "Kunde", "kWh", "Temp"])
def test_a_missing_column_is_named(trained: TrainedForecaster, name: str) -> None:
    """F02: a covariate that is not there would be the training mean, in silence."""
    table = pa.table(columns(30)).drop_columns(name)
    with pytest.raises(DataError, match=rf"the frame: no column '{name}'; its columns are "):
        trained.predict(table)


@pytest.mark.parametrize(
    ("name", "row", "value", "told"),
    [
        ("kWh", 3, "n/k", "the frame, column kWh, row 3 (from 0): 'n/k' is not readable"),
        ("Zeit", 4, None, "the frame, column Zeit, row 4 (from 0): the cell is blank"),
        ("Zeit", 5, "2023-03-11 04:00", "the frame, row 4 (from 0) and row 5 (from 0): Kunde a"),
        ("Zeit", 5, "2023-03-11 04:10", "the frame, column Zeit, row 5 (from 0): 2023-03-11 04:10"),
    ],
)
def test_a_cell_that_cannot_be_read_is_found_in_the_frame(
    trained: TrainedForecaster, name: str, row: int, value: Any, told: str
) -> None:
    frame = columns(30)
    frame[name] = [str(v) for v in frame[name]]
    frame[name][row] = value
    with pytest.raises(DataError) as caught:
        trained.predict(frame)
    assert str(caught.value).startswith(told)


def test_frames_that_hold_nothing_to_predict_from_are_refused(trained: TrainedForecaster) -> None:
    with pytest.raises(DataError, match="no 4 consecutive times with readings"):
        trained.predict(columns(3))
    with pytest.raises(DataError, match="give a pyarrow Table, a pandas DataFrame or a dict"):
        trained.predict([1, 2, 3])
    daily = columns(10) | {"Zeit": np.arange("2023-03-01", "2023-03-11", dtype="datetime64[D]")}
    with pytest.raises(DataError, match=r"a reading every day, .* trained on one every hour"):
        trained.predict(daily)


def test_what_was_repaired_is_logged(
    trained: TrainedForecaster, caplog: pytest.LogCaptureFixture
) -> None:
    frame = columns(30)
    frame["kWh"][7] = -1
    with caplog.at_level(logging.INFO):
        trained.predict(frame)
    assert "the frame: 1 negative readings, the first is -1 in row 7 (from 0)" in caplog.text
    assert frame["kWh"][7] == -1  # the user's own


def test_a_data_frame_is_read_with_its_index(trained: TrainedForecaster) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns(30))
    expected = trained.predict(columns(30))
    frame["Zeit"] = pandas.to_datetime(frame["Zeit"])
    assert trained.predict(frame).equals(expected)
    assert trained.predict(frame.set_index("Zeit")).equals(expected)
    assert trained.predict(frame.set_index(["Kunde", "Zeit"])).equals(expected)
    assert trained.predict(frame[frame.kWh > 0]).equals(expected)  # an index of no name


def test_an_older_checkpoint_has_gepiiis_columns(
    run: RunTrain, tmp_path: Path, trained: TrainedForecaster
) -> None:
    old = tmp_path / "old.ckpt"
    best = next(tmp_path.glob("runs/*/checkpoints/best.ckpt"))
    checkpoint = torch.load(best, weights_only=True)
    assert checkpoint.pop("roles")["id"] == ("Kunde",)
    torch.save(checkpoint, old)
    names = {"Zeit": "timestamp", "Kunde": "building_id", "kWh": "meter_reading"}
    table = pa.table({names.get(name, name): v for name, v in columns(30).items()})
    table = table.append_column("meter", pa.array([0] * 30))
    found = TrainedForecaster.load(old).predict(table)
    assert found.column_names == ["building_id", "meter", "timestamp", "prediction"]
    assert found["prediction"].equals(trained.predict(columns(30))["prediction"])


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, trained: TrainedForecaster) -> None:
    with pytest.raises(DataError, match="there is no file"):
        TrainedForecaster.load(tmp_path / "none.ckpt")
    bare = tmp_path / "bare.ckpt"
    checkpoint = torch.load(next(tmp_path.glob("runs/*/checkpoints/best.ckpt")), weights_only=True)
    checkpoint["state_dict"]["forecaster.fitted"].fill_(False)
    torch.save(checkpoint, bare)
    with pytest.raises(DataError, match="holds no scaling"):
        TrainedForecaster.load(bare)


@pytest.mark.slow
def test_neither_lightning_nor_tensorboard_is_needed() -> None:
    lines = "import sys, model.inference; print({'lightning', 'tensorboard'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
