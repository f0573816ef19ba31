"""Group (f) of the cases: a checkpoint meets other files, other machines and odd folders."""

import csv
import math
import re
import shlex
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from model.training.module import S4ConvDModule
from tests.conftest import INPUTS, Run, one_file, second_kernel

Runner = Callable[..., Run]
AIR = "--data.covariates=[air_temperature]"
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), AIR]
EXTRA = INPUTS / "F02_extra_feature.csv"
ODD = INPUTS / "F05 my runs [v1]" / "epoch=3" / "train data.csv"
FIVE = INPUTS / "A10_exact_fit_5rows.csv"
HEADER = ["timestamp", "building_id", "meter", "meter_reading", "air_temperature"]
Key = tuple[str, str, str]


def forecasts(run: Run, path: Path | None = None) -> dict[Key, float]:
    """(building, meter, timestamp) -> forecast, of the run's file."""
    with (path or run.folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("building_id", "meter", "timestamp")
    found = {tuple(row[name] for name in names): float(row["prediction"]) for row in rows}
    assert len(found) == len(rows)  # one row a window
    return found  # type: ignore[return-value]


def write_rows(path: Path, rows: list[list[Any]], header: list[str] = HEADER) -> Path:
    path.write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")
    return path


def hours(readings: list[Any], building: int = 1, air: Any = 5.0) -> list[list[Any]]:
    """Rows of one building from the start of 2016, an hour each."""
    return [
        [f"2016-01-{h // 24 + 1:02} {h % 24:02}:00:00", building, 0, reading, air]
        for h, reading in enumerate(readings)
    ]


def predict(run: Runner, best: str, path: Path, *options: str) -> dict[Key, float]:
    done = run("predict", "--ckpt_path", best, f"--data.predict_path={path}", *options)
    assert done.code == 0, done.text
    return forecasts(done)


@pytest.fixture
def best(run: Runner) -> str:
    """A checkpoint of one short training."""
    return run(*NINE).best


@pytest.fixture
def persistent(run: Runner, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that trains a model which forecasts the last reading: its network gives 0."""

    def silence(self: S4ConvDModule) -> None:
        with torch.no_grad():
            self.forecaster.network.decoder.weight.zero_()
            self.forecaster.network.decoder.bias.zero_()

    def train(*options: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(S4ConvDModule, "on_validation_start", silence)
            return run(*NINE, *options).best

    return train


# -- F01: units and scaling ------------------------------------------------------------------------


def test_a_window_alone_and_in_company_get_one_forecast(
    run: Runner, best: str, tmp_path: Path
) -> None:
    """F01: a scaler fitted anew at prediction gives other units, without an error."""
    alone = predict(run, best, FIVE)
    other_level = hours([50_000 + 7 * (h % 24) for h in range(720)], building=2, air=30)
    rows = list(csv.reader(FIVE.open()))[1:]
    company = predict(run, best, write_rows(tmp_path / "company.csv", [*other_level, *rows]))
    assert len(alone) == 1
    assert len(company) == 717
    ((key, forecast),) = alone.items()
    assert company[key] == pytest.approx(forecast, rel=1e-6)
    assert company["2", "0", "2016-01-30 23:00:00"] > 1000 * forecast


@pytest.mark.parametrize("transform", ["log1p", "none"])
def test_forecasts_are_in_the_units_of_the_readings(
    run: Runner, persistent: Callable[..., str], tmp_path: Path, transform: str
) -> None:
    """F01 and checklist 43: forecasts stay in normalised units."""
    transformed = f"--model.transform={transform}"
    readings = [3000.0, 12.5, 0.0, 880.25, 41.75, 7.5, 96000.0, 0.25]
    path = write_rows(tmp_path / "levels.csv", hours(readings))
    checkpoint = persistent(transformed)
    found = predict(run, checkpoint, path, transformed)
    # The model was made to forecast the last reading, and that is what must stand in the file.
    assert list(found.values()) == pytest.approx(readings[3:-1], rel=1e-5, abs=1e-4)
    scored = run("test", "--ckpt_path", checkpoint, *one_file(path), AIR, transformed)
    errors = [math.log1p(a) - math.log1p(b) for a, b in pairwise(readings[3:])]
    expected = math.sqrt(sum(error**2 for error in errors) / len(errors))
    value = scored.cli.trainer.callback_metrics["test/rmsle"].item()
    assert value == pytest.approx(expected, rel=1e-5)
    if transform == "none":  # the table leads with RMSE
        squares = [(a - b) ** 2 for a, b in pairwise(readings[3:])]
        expected = math.sqrt(sum(squares) / len(squares))
    shown = f"{expected:.4f}" if transform == "log1p" else f"{expected:,.0f}"
    assert re.search(rf"all +4 +{shown} +{shown} ", scored.text)


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_checkpoint_without_scaling_is_refused(
    run: Runner, best: str, tmp_path: Path, subcommand: str
) -> None:
    """F01: weights without the scaling that they were trained with give forecasts in no unit."""
    checkpoint = torch.load(best, weights_only=True)
    checkpoint["state_dict"]["forecaster.fitted"].fill_(False)
    bare = tmp_path / "bare.ckpt"
    torch.save(checkpoint, bare)
    refused = run(subcommand, "--ckpt_path", str(bare), *NINE)
    assert refused.code == 2
    assert "holds no scaling" in refused.text
    assert "Traceback" not in refused.text


# -- F02: covariates -------------------------------------------------------------------------------


def test_covariates_come_from_the_checkpoint(run: Runner, tmp_path: Path) -> None:
    """F02: without the option, the default's covariates would be looked for, in another number."""
    chosen = "--data.covariates=[humidity,air_temperature]"
    trained = run(*one_file(EXTRA), chosen)
    assert trained.code == 0
    done = run("predict", "--ckpt_path", trained.best, f"--data.predict_path={EXTRA}")
    assert done.code == 0
    assert done.data.covariates == ("humidity", "air_temperature")
    assert forecasts(done) == pytest.approx(forecasts(trained), rel=1e-6)


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_contradicting_covariates_are_refused_with_both_lists(
    run: Runner, best: str, subcommand: str
) -> None:
    """F02: another number of covariates ends in a size mismatch or in skipped layers."""
    other = "--data.covariates=[air_temperature,humidity]"
    refused = run(subcommand, "--ckpt_path", best, *one_file(EXTRA), other)
    assert refused.code == 2
    assert "['air_temperature', 'humidity']" in refused.text
    assert "['air_temperature']" in refused.text
    assert len(refused.text.splitlines()) <= 3


def test_permuted_columns_give_the_same_forecasts(run: Runner, tmp_path: Path) -> None:
    """F02: columns taken by position feed one covariate into another's weights."""
    trained = run(*one_file(EXTRA), "--data.covariates=[air_temperature,humidity]")
    lines = [line.split(",") for line in EXTRA.read_text().splitlines()]
    for number, line in enumerate(lines[1:]):
        line[5] = str(0.1 * number)  # the file's humidity is constant and would hide a mix-up
    straight = write_rows(tmp_path / "straight.csv", lines[1:], lines[0])
    turned = [[line[i] for i in (5, 3, 0, 4, 2, 1)] for line in lines]
    permuted = write_rows(tmp_path / "permuted.csv", turned[1:], turned[0])
    found = [predict(run, trained.best, path) for path in (straight, permuted)]
    assert found[0] == found[1]
    assert len(found[0]) == 6


@pytest.fixture
def without_humidity(run: Runner) -> Run:
    """A prediction from a file that lacks a column of the checkpoint."""
    trained = run(*one_file(EXTRA), "--data.covariates=[air_temperature,humidity]")
    return run("predict", "--ckpt_path", trained.best, f"--data.predict_path={FIVE}")


def test_missing_covariate_is_told(without_humidity: Run) -> None:
    """F02: a column that the new file lacks ends in a traceback, or is taken as 0 in silence."""
    assert without_humidity.code == 0
    assert "humidity: no such column in" in without_humidity.text
    assert "the training mean stands in" in without_humidity.text
    assert len(forecasts(without_humidity)) == 1


def test_missing_covariate_is_told_with_the_file(without_humidity: Run) -> None:
    """F02: of several files, nobody knows which one lacks the column."""
    (told,) = [line for line in without_humidity.text.splitlines() if "humidity" in line]
    assert FIVE.name in told


# -- F04: machines and kernels ---------------------------------------------------------------------


def test_checkpoint_predicts_on_a_cpu_and_names_the_kernel(run: Runner, best: str) -> None:
    """F04 and checklist 39: a checkpoint does not load where there is no GPU."""
    checkpoint = torch.load(best, map_location="cpu", weights_only=True)
    assert {t.device.type for t in checkpoint["state_dict"].values()} == {"cpu"}
    done = run("predict", "--ckpt_path", best, f"--data.predict_path={FIVE}")
    assert done.code == 0
    assert "kernel: pytorch on cpu" in done.text
    assert len(forecasts(done)) == 1


def test_checkpoint_brings_no_kernel_along(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """F04 and checklist 32: the kernel of a training on a GPU is asked for on a CPU."""
    with second_kernel(monkeypatch) as ran:
        trained = run(*NINE, "--kernel=elsewhere")
    assert "kernel: elsewhere, of a test on cpu" in trained.text
    assert ran == {"elsewhere"}
    checkpoint = torch.load(trained.best, weights_only=True)
    assert checkpoint.pop("notes")["kernel"] == "elsewhere"
    assert "elsewhere" not in str(checkpoint)
    for subcommand in ("validate", "test", "predict"):
        done = run(subcommand, "--ckpt_path", trained.best, *NINE)
        assert done.code == 0
        assert "kernel: pytorch on cpu" in done.text


# -- F05: names with spaces, brackets and equals signs ---------------------------------------------


def test_odd_folder_names_work_everywhere(run: Runner, tmp_path: Path) -> None:
    """F05: spaces, "=" and "[ ]" in a path cut it, or a metric's "/" makes a folder."""
    runs = tmp_path / "my runs [v1]" / "epoch=3"
    output = runs / "out [1] a=b" / "fore casts.csv"
    odd = [*one_file(ODD), AIR, f"--runs={runs}"]
    trained = run("fit", *odd)
    assert trained.code == 0
    assert trained.folder == runs / "version_0"
    below = {str(p.relative_to(runs)) for p in runs.rglob("*") if "events" not in p.name}
    checkpoints = {"best.ckpt", "last.ckpt"}
    files = {"config.yaml", "hparams.yaml", "predictions.csv", "report.html", "scores.csv"}
    assert below == {
        "version_0",
        "version_0/checkpoints",
        *(f"version_0/checkpoints/{name}" for name in checkpoints),
        *(f"version_0/{name}" for name in files),
    }
    for subcommand in ("validate", "test"):
        assert run(subcommand, *odd, "--ckpt_path", trained.best).code == 0
    done = run("predict", *odd, "--ckpt_path", trained.best, "--output", output)
    assert done.code == 0
    assert forecasts(done, output) == forecasts(trained)
    assert str(output) in done.text
    again = run("fit", *odd, "--ckpt_path", trained.best, "--trainer.max_epochs=2")
    assert again.code == 0
    assert Path(again.best).is_file()
    assert len(forecasts(trained)) == 6


def test_printed_commands_work(run: Runner, tmp_path: Path) -> None:
    """F05: a printed command with a space in a path cannot be pasted."""
    runs = tmp_path / "my runs [v1]" / "epoch=3"
    trained = run("fit", *one_file(ODD), AIR, f"--runs={runs}")
    lines = [shlex.split(line) for line in trained.text.split("next:\n")[1].splitlines() if line]
    board, *own = lines
    assert board[1:] == ["-m", "tensorboard.main", "--logdir", str(runs)]
    assert [words[2] for words in own] == ["test", "predict"]
    for words in own:
        assert Path(words[0]).is_file()
        assert Path(words[1]).name == "train.py"
        done = run(*words[2:], tiny=False)
        assert done.code == 0, done.text
    assert forecasts(done) == pytest.approx(forecasts(trained), rel=1e-6)


@pytest.mark.parametrize("name", ["[v1]", "2016", "a: b", "null", "{x}"])
def test_names_that_look_like_yaml_are_names(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """F05: a path that YAML reads as a list or a number is refused or turned into another one."""
    monkeypatch.chdir(tmp_path)
    folder = Path(name)
    folder.mkdir()
    shutil.copy(ODD, folder / "x.csv")
    trained = run(*one_file(folder / "x.csv"), AIR, f"--runs={name}/runs", f"--output={name}/o.csv")
    assert trained.code == 0, trained.text
    assert (folder / "o.csv").is_file()
    assert (folder / "runs" / "version_0" / "checkpoints" / "best.ckpt").is_file()


# -- F07, F08: which row a forecast belongs to -----------------------------------------------------


def test_shuffled_rows_give_the_same_table(run: Runner, tmp_path: Path) -> None:
    """F07: forecasts cannot be matched to rows, or come in the order of the file."""
    trained = run(*one_file(INPUTS / "A05_sorted.csv"), AIR)
    output = tmp_path / "table.csv"
    tables = []
    for name in ("A05_sorted.csv", "A05_unsorted.csv"):
        predict_path = f"--data.predict_path={INPUTS / name}"
        run("predict", "--ckpt_path", trained.best, predict_path, "--output", output)
        tables.append(output.read_text())
    assert tables[0] == tables[1]
    head, *rows = [line.split(",") for line in tables[0].replace('"', "").splitlines()]
    assert head == ["building_id", "meter", "timestamp", "prediction"]
    assert [row[:3] for row in rows] == [
        [building, "0", f"2016-01-01 {hour}:00:00"] for building in "12" for hour in ("04", "05")
    ]
    assert all(math.isfinite(float(row[3])) for row in rows)


def test_parquet_holds_the_same_table(run: Runner, best: str, tmp_path: Path) -> None:
    """F07: another file format comes with other columns or other times."""
    path = tmp_path / "table.parquet"
    trained = run("predict", "--ckpt_path", best, *NINE)
    run("predict", "--ckpt_path", best, *NINE, "--output", path)
    rows = pq.read_table(path).to_pylist()
    found = {
        (str(row["building_id"]), str(row["meter"]), str(row["timestamp"])): row["prediction"]
        for row in rows
    }
    assert found == pytest.approx(forecasts(trained), rel=1e-6)


def test_a_perfect_oracle_scores_zero_beside_blank_cells(
    run: Runner, best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F08: the truth is taken from a table with other rows than the forecasts have."""
    start = 403_224  # 2016-01-01 00:00 in hours since 1970
    readings = [100 + 3 * h + (h % 5) ** 2 for h in range(40)]
    rows = [[*row[:4], "" if i % 2 else row[4]] for i, row in enumerate(hours(readings))]
    path = write_rows(tmp_path / "half.csv", rows)
    truth = torch.tensor(readings, dtype=torch.float32)

    def oracle(self: S4ConvDModule, reading: Any, covariates: Any, minute: Any, *_: Any) -> Any:
        return truth[minute // 60 - start].view(-1, 1, 1)

    monkeypatch.setattr(S4ConvDModule, "forward", oracle)
    scored = run("test", "--ckpt_path", best, *one_file(path), AIR)
    assert scored.code == 0
    assert "air_temperature: 20 of 40 values missing" in scored.text
    metrics = scored.cli.trainer.callback_metrics
    assert [metrics[f"test/{name}"].item() for name in ("rmsle", "mae", "rmse")] == [0, 0, 0]
    assert re.search(r"all +36 +0\.0000 ", scored.text)
    found = predict(run, best, path)
    assert found == {("1", "0", row[0]): float(row[3]) for row in rows[4:]}


# -- checklist 46: the future ----------------------------------------------------------------------


def test_blank_reading_at_the_end_is_predicted(run: Runner, best: str, tmp_path: Path) -> None:
    """Checklist 46: a forecast asks for the target that it is to forecast."""
    blank = [*hours([10, 11, 12, 13, 14, ""]), *hours([20, 21, 22, 23, 24, 25, ""], building=2)]
    found = predict(run, best, write_rows(tmp_path / "blank.csv", blank))
    assert [(building, stamp[11:13]) for building, _, stamp in found] == [
        ("1", "04"),
        ("1", "05"),
        ("2", "04"),
        ("2", "05"),
        ("2", "06"),
    ]
    filled = [[*row[:3], row[3] or 999, row[4]] for row in blank]
    # What stands in the cell to be forecast has no say in the forecast.
    assert found == predict(run, best, write_rows(tmp_path / "filled.csv", filled))


def test_beyond_end_adds_the_hour_after_each_series(run: Runner, best: str, tmp_path: Path) -> None:
    """Checklist 46: the hour that nobody has read yet cannot be asked for."""
    rows = [*hours([10, 11, 12, 13, 14]), *hours([20, 21, 22, 23, 24, 25], building=2)]
    path = write_rows(tmp_path / "series.csv", rows)
    without = predict(run, best, path)
    found = predict(run, best, path, "--data.beyond_end=true")
    extra = [("1", "0", "2016-01-01 05:00:00"), ("2", "0", "2016-01-01 06:00:00")]
    assert set(found) - set(without) == set(extra)
    assert {key: found[key] for key in without} == pytest.approx(without, rel=1e-6)
    longer = [*rows, ["2016-01-01 05:00:00", 1, 0, "", 5.0], ["2016-01-01 06:00:00", 2, 0, "", 5.0]]
    written = predict(run, best, write_rows(tmp_path / "longer.csv", longer))
    assert written == pytest.approx(found, rel=1e-6)
