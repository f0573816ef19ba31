"""The tables of scores at a run's end, and the file of scores by meter."""

import csv
from collections.abc import Callable

import numpy as np
import pytest

from data.scores import scores
from model.training.callbacks.scores import measure_table, score_table
from tests.conftest import INPUTS, Run, one_file

Runner = Callable[..., Run]
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
BASELINES = ("persistence", "yesterday", "last week", "linear")


def test_final_table_names_model_and_baselines(run: Runner) -> None:
    """Checklist: the table at the end hides a baseline, or breaks in a terminal of 80 columns."""
    lines = run(*NINE).text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("test RMSLE"))
    head, row = lines[start : start + 2]
    for name in ("S4ConvD", *BASELINES):
        assert f"  {name}" in head
    label, rows, *scores = row.split()
    assert (label, rows, len(scores)) == ("all", "9", 5)
    assert float(scores[0]) > 0
    assert scores[2:4] == ["-", "-"]  # 13 hours have no yesterday
    assert max(map(len, lines[start : start + 5])) <= 80
    assert any(line.startswith("last week: scored without 9 rows") for line in lines)


def test_table_of_many_rows_fits_a_terminal() -> None:
    """Checklist: large numbers run into each other, or past column 80."""
    count = 1_234_567
    actual = np.full(count, 1e5, dtype=np.float32)
    names = ["S4ConvD", "persistence", "same hour yesterday", "same hour last week", "linear"]
    meter = np.arange(count) % 5
    text = score_table(actual, {name: np.zeros_like(actual) for name in names}, meter)
    head, *rows = text.splitlines()
    assert len(rows) == 6  # all, and the five meter types
    assert {len(line) for line in (head, *rows)} == {len(head)}
    assert len(head) <= 80
    assert rows[0].split() == ["all", "1,234,567", *["11.5129"] * 5]


@pytest.mark.usefixtures("with_lightgbm")
def test_the_extra_baseline_stands_beside_the_others(run: Runner) -> None:
    """Six columns in a terminal of 80."""
    done = run(*NINE)
    assert done.code == 0, done.text
    assert "LightGBM: fitting" in done.text
    lines = done.text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("test RMSLE"))
    end = next(i for i, line in enumerate(lines) if line.startswith("limits: "))
    assert lines[start].split()[-1] == "LightGBM"
    assert float(lines[start + 1].split()[-1]) > 0
    assert max(map(len, lines[start:end])) <= 80


def test_the_second_table_fits_a_terminal() -> None:
    """Large errors, and more meters than fit a column."""
    count, meters = 30_000, 12_000
    actual = np.full(count, 1e6)
    owner = np.arange(count) % meters
    names = ["S4ConvD", "persistence", "same hour yesterday", "same hour last week", "linear"]
    bad = scores(np.full(count, 3e6), actual, owner, np.full(meters, 5e5))
    good = scores(np.full(count, 1.1e6), actual, owner, np.full(meters, 5e5))
    lines = measure_table({name: good if name == "S4ConvD" else bad for name in names}).splitlines()
    assert max(map(len, lines)) <= 80
    table = {line[:15].strip(): line[15:].split() for line in lines}
    assert table["MAE"] == ["100,000", *["2.00e+06"] * 4]
    assert table["CV(RMSE), %"] == ["10.00", *["200.0"] * 4]
    assert table["MASE"] == ["0.2000", *["4.000"] * 4]
    assert table["in the limits"] == ["12,000", *["0"] * 4]
    assert table["median meter"][:2] == ["of", "12,000"]


def test_scores_by_meter_are_a_file(run: Runner) -> None:
    """Which meter is forecast badly cannot be told from a score of all."""
    done = run("test", "--ckpt_path", run(*NINE).best, *NINE)
    with (done.folder / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["forecast"] for row in rows] == ["S4ConvD", "persistence", "linear"]  # a day short
    for row in rows:
        assert (row["building_id"], row["meter"], row["rows"]) == ("1", "0", "9")
    logged = done.cli.trainer.callback_metrics
    for name in ("rmsle", "mae", "rmse"):
        assert float(rows[0][name]) == pytest.approx(float(logged[f"test/{name}"]), rel=1e-6)
    assert rows[0]["mase"] == ""
    assert str(done.folder / "scores.csv") in done.text
