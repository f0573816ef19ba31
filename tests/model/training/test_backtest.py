"""`train.py backtest`: growing histories, each scored on the block after it."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Run, assert_refused
from tests.data.test_own_tables import read

RunTrain = Callable[..., Run]
HOURS = 240
COLUMNS = ["--data.id=[]", "--data.timestamp=time", "--data.target=kwh"]


def table(path: Path, late: int = 0) -> Path:
    """10 days of a wave with noise; the last 3 have `late` more."""
    hour = np.arange(HOURS)
    noise = np.random.default_rng(0).integers(0, 9, HOURS)
    kwh = np.round(50 + 20 * np.sin(2 * np.pi * hour / 24)) + noise + late * (hour >= HOURS - 72)
    times = np.datetime64("2023-03-01T00") + hour
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["time", "kwh"], *zip(times, kwh.astype(int), strict=True)])
    return path


def test_each_fold_is_a_longer_history_and_the_block_after_it(
    run: RunTrain, tmp_path: Path
) -> None:
    """3 blocks of 80 hours, 25 % of each history for validation; persistence by value."""
    path = table(tmp_path / "table.csv")
    r = run("backtest", "--folds=2", "--data.path", path, *COLUMNS, "--data.val_fraction=0.25")
    assert r.code == 0, r.text
    folder = tmp_path / "runs" / "backtest_0"
    rows = read(folder / "backtest.csv")
    methods = ["S4ConvD", "persistence", "same hour yesterday", "same hour last week", "linear"]
    assert [(row["fold"], row["forecast"]) for row in rows] == [
        (fold, method) for fold in "12" for method in methods
    ]
    ends = {tuple(row[f"{of}_end"] for of in ("train", "val", "test")) for row in rows}
    assert ends == {
        ("2023-03-03 11:00", "2023-03-04 07:00", "2023-03-07 15:00"),
        ("2023-03-05 23:00", "2023-03-07 15:00", "2023-03-10 23:00"),
    }
    kwh = np.array([float(row["kwh"]) for row in read(path)])
    for fold, row in enumerate([row for row in rows if row["forecast"] == "persistence"], 1):
        block = kwh[80 * fold + 3 : 80 * fold + 80]  # the window of 4 lies in it, too
        assert float(row["mae"]) == pytest.approx(np.abs(np.diff(block)).mean())
        assert int(row["rows"]) == 76
    scores = [float(row["rmsle"]) for row in rows if row["forecast"] == "S4ConvD"]
    printed = re.search(r"RMSLE +history to +S4ConvD.*\nfold 1 .*\nfold 2 .*\nmean (.*)", r.text)
    assert printed is not None
    assert float(printed[1].split()[0]) == pytest.approx(np.mean(scores), abs=6e-5)
    spread = re.search(r"\nspread +([\d.]+)", r.text)
    assert spread is not None
    assert float(spread[1]) == pytest.approx(np.std(scores, ddof=1), abs=6e-5)
    for left in ("report.html", "checkpoints/best.ckpt"):
        assert (folder / "fold_2" / left).is_file()
    assert [path.name for path in folder.parent.iterdir()] == ["backtest_0"]


def test_no_fold_sees_what_comes_after_it(run: RunTrain, tmp_path: Path) -> None:
    """Other readings in the last days change the last fold's scores alone."""
    found = []
    for late in (0, 40):
        path = table(tmp_path / f"late_{late}.csv", late)
        r = run(
            "backtest", "--folds=2", "--data.path", path, *COLUMNS, f"--runs={tmp_path / str(late)}"
        )
        assert r.code == 0, r.text
        found.append(read(tmp_path / str(late) / "backtest_0" / "backtest.csv"))
    half = len(found[0]) // 2
    assert found[0][:half] == found[1][:half]
    assert found[0][half]["rmsle"] != found[1][half]["rmsle"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--folds=1"], ["--folds must be 2 or more, not 1"]),
        (["--folds=60"], ["holds no window"]),
        (["--data.val_path=x.csv"], ["leave --data.val_path out"]),
        (["--ckpt_path=x.ckpt"], ["leave --ckpt_path out"]),
        (["--fold=3"], ["unknown option --fold", "--folds"]),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(
    run: RunTrain, tmp_path: Path, options: list[str], told: list[str]
) -> None:
    path = table(tmp_path / "table.csv")
    assert_refused(run("backtest", "--data.path", path, *COLUMNS, *options), *told)
    assert not (tmp_path / "runs").exists()


def test_dates_of_a_configuration_are_idle(run: RunTrain, tmp_path: Path) -> None:
    """But for the end of the last block."""
    path = table(tmp_path / "table.csv")
    dates = (
        "--data.train_end=2023-03-02",
        "--data.val_end=2023-03-03",
        "--data.test_end=2023-03-09",
    )
    r = run("backtest", "--folds=2", "--data.path", path, *COLUMNS, *dates)
    assert r.code == 0, r.text
    assert "idle: --data.train_end, --data.val_end" in r.text
    rows = read(tmp_path / "runs" / "backtest_0" / "backtest.csv")
    assert rows[-1]["test_end"] == "2023-03-09 23:00"
    help_text = run("backtest", "--help", tiny=False)
    assert "--folds N" in help_text.text
