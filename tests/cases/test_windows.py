"""Which windows there are: cases (a) of series, splits, fractions and memory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch

from data import synthetic
from tests.cases.meter_files import (
    ROOT,
    SIX,
    RunTrain,
    batches,
    hours,
    predictions,
    rows,
    same_data,
    write,
)
from tests.conftest import INPUTS, assert_refused, one_file


def test_a05_row_order_does_not_matter(run: RunTrain) -> None:
    """A05: unsorted rows and interleaved series gave other windows without a word."""
    ordered = run(*one_file(INPUTS / "A05_sorted.csv"))
    shuffled = run(*one_file(INPUTS / "A05_unsorted.csv"))
    assert batches(ordered).target.flatten().tolist() == [14, 15, 540, 550]
    assert same_data(ordered, shuffled)


def test_a06_an_identical_duplicate_is_dropped(run: RunTrain) -> None:
    """A06: an hour written twice counted twice."""
    r = run(*one_file(INPUTS / "A06_dup_identical.csv"))
    assert "1 duplicate row dropped" in r.text
    assert batches(r).target.flatten().tolist() == [14, 15]
    assert r.data.windows["train"].series.reading.tolist() == SIX


def test_a06_contradicting_duplicates_are_refused(run: RunTrain) -> None:
    """A06: of two readings for one hour a random one won."""
    path = INPUTS / "A06_dup_conflict.csv"
    assert_refused(
        run(*one_file(path)),
        *(path, "line 4 and line 5", "building 1", "meter 0", "2016-01-01 02:00", "12 and 99"),
        "--data.duplicates",
    )


@pytest.mark.parametrize(("rule", "kept"), [("first", 12), ("last", 99), ("mean", 55.5)])
def test_a06_duplicates_are_resolved_as_told(run: RunTrain, rule: str, kept: float) -> None:
    """A06: the documented ways out of two readings for one hour."""
    r = run(*one_file(INPUTS / "A06_dup_conflict.csv"), "--data.duplicates", rule)
    assert r.data.windows["train"].series.reading.tolist() == [10, 11, kept, 13, 14, 15]
    assert f"1 duplicate row dropped; 1 contradicted another, resolved by '{rule}'" in r.text


def test_a08_windows_stay_inside_one_building(run: RunTrain) -> None:
    """A08: windows ran over the end of one building into the next (7 windows for 3)."""
    r = run(*one_file(INPUTS / "A08_two_series.csv"))
    for split in ("train", "val", "test", "predict"):
        assert len(r.data.windows[split]) == 3
        seen = batches(r, split)
        values = torch.cat([seen.reading, seen.target], dim=1)
        assert values.tolist() == [[1, 2, 3, 4, 5], [2, 3, 4, 5, 6], [1001, 1002, 1003, 1004, 1005]]
    assert predictions(r)["building_id"] == [1, 1, 2]


def test_a08_a_series_that_ends_early_does_not_run_into_the_next(
    run: RunTrain, tmp_path: Path
) -> None:
    """A08: as above, where nothing but the series' own end stops a window."""
    early, late = rows(range(1, 7)), rows(range(1001, 1006), start="2016-01-03 00", building=2)
    r = run(*one_file(write(tmp_path / "x.csv", early, late)))
    for split in ("train", "predict"):
        seen = batches(r, split)
        assert seen.target.flatten().tolist() == [5, 6, 1005]
        assert (seen.reading.diff() == 1).all()


def test_a09_meters_of_one_building_are_series_of_their_own(run: RunTrain) -> None:
    """A09: the meters of a building share their stamps and were taken as one series."""
    r = run(*one_file(INPUTS / "A09_mixed_meters.csv"), "--model.transform", "none")
    seen = batches(r)
    assert seen.target.flatten().tolist() == [14, 15, 16, 5004, 5005, 5006]
    assert ((seen.reading > 1000) == (seen.target > 1000)).all()
    assert (seen.reading.diff() == 1).all()
    assert predictions(r)["meter"] == [0, 0, 0, 1, 1, 1]
    # One mean and deviation over the training rows of all series.
    everything = [*range(10, 17), *range(5000, 5007)]
    assert r.data.scaling.reading_mean == pytest.approx(np.mean(everything))
    assert r.data.scaling.reading_std == pytest.approx(np.std(everything))


@pytest.mark.parametrize(("length", "count"), [(4, 1), (3, 2), (2, 3)])
def test_a10_the_last_complete_window_is_there(run: RunTrain, length: int, count: int) -> None:
    """A10: the last complete window was lost: n rows have n - L windows."""
    r = run(*one_file(INPUTS / "A10_exact_fit_5rows.csv"), "--data.window", length)
    for split in ("train", "val", "test", "predict"):
        seen = batches(r, split)
        assert len(seen.target) == count
        assert seen.target[-1] == 50
    assert str(predictions(r)["timestamp"][-1]) == "2016-01-01 04:00:00"


def test_a11_a_series_that_is_too_short_is_refused(run: RunTrain) -> None:
    """A11: fewer rows than a window ended in `__len__() should return >= 0`."""
    path = INPUTS / "A11_too_short_4rows.csv"
    assert_refused(run(*one_file(path)), path, "rows=4", "needed=5", "building 1, electricity")


def test_a11_a_short_series_beside_long_ones_is_skipped(run: RunTrain, tmp_path: Path) -> None:
    """A11: one short series stopped everything."""
    path = write(tmp_path / "x.csv", rows([1, 2, 3, 4], building=7), rows(SIX, building=3))
    r = run(*one_file(path))
    assert "1 series shorter than 5 rows are skipped" in r.text
    assert batches(r).target.flatten().tolist() == [14, 15]
    assert predictions(r)["building_id"] == [3, 3]


@pytest.mark.parametrize(
    ("file", "train_end", "val_end", "split"),
    [
        ("A05_sorted.csv", "2017-01-31", "2017-02-28", "'val' (2017-02-01 00:00 to 2017-02-28"),
        ("A22_year_end.csv", "2016-12-31 08:00", "2016-12-31", "'test' (2017-01-01 00:00 to"),
        ("A22_year_end.csv", "2016-12-31 08:00", "2016-12-31 20:00", "'test' (2016-12-31 21:00"),
        ("A22_year_end.csv", "2016-12-31 20:00", "2016-12-31 08:00", "'val' (2016-12-31 21:00 to"),
    ],
)
def test_a12_an_empty_split_is_named(
    run: RunTrain, file: str, train_end: str, val_end: str, split: str
) -> None:
    """A12: an empty split surfaced as `num_samples should be a positive integer`."""
    ends = ["--data.train_end", train_end, "--data.val_end", val_end]
    r = run("--data.train_path", INPUTS / file, *ends)
    span = {
        "A05_sorted.csv": "from 2016-01-01 00:00 to 2016-01-01 05:00",
        "A22_year_end.csv": "from 2016-12-30 20:00 to 2016-12-31 23:00",
    }
    assert_refused(r, f"split {split}", f"the data run {span[file]}", "--data.val_end")


def ten_buildings(path: Path) -> Path:
    """10 buildings x 200 h; each reading tells building and hour, so that a jump shows."""
    parts = [rows(range(b * 1000, b * 1000 + 200), building=b) for b in range(1, 11)]
    return write(path, *parts)


@pytest.mark.parametrize(("fraction", "buildings"), [(0.1, 1), (1.0, 10)])
def test_a18_a_fraction_takes_whole_series(
    run: RunTrain, tmp_path: Path, fraction: float, buildings: int
) -> None:
    """A18: "1 % of the data" drew random rows before windows were cut: no two neighbours left."""
    path = ten_buildings(tmp_path / "x.csv")
    options = ["--data.train_path", path, "--data.batch_size", 2000]
    r = run(*options, "--data.fraction", fraction)
    seen = batches(r)
    assert len(seen.target) == buildings * (140 - 4)
    values = torch.cat([seen.reading, seen.target], dim=1)
    assert (values.diff() == 1).all()
    assert torch.equal(seen.minute // 60 - hours("2016-01-01 00"), seen.target[:, 0].long() % 1000)
    assert len(set((seen.target[:, 0] // 1000).tolist())) == buildings
    for split in ("val", "test"):  # scored on all, whatever was trained on
        assert len(set((batches(r, split).target[:, 0] // 1000).tolist())) == 10


def test_a18_the_seed_decides_which_series(run: RunTrain, tmp_path: Path) -> None:
    """A18: the draw could not be repeated."""
    options = [
        "--data.train_path",
        ten_buildings(tmp_path / "x.csv"),
        "--trainer.fast_dev_run=true",
    ]

    def drawn(seed: int) -> list[int]:
        r = run(*options, "--data.fraction=0.2", "--seed_everything", seed)
        assert "training on 2 of 10 series" in r.text
        return sorted(set((batches(r).target.flatten() // 1000).int().tolist()))

    first = drawn(1)
    assert len(first) == 2
    assert drawn(1) == first
    assert any(drawn(seed) != first for seed in (2, 3))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Where other programs hold the cores, threads wait for each other, whatever they do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_a19_memory_and_time_at_two_million_rows(
    run: RunTrain, tmp_path: Path, one_thread: None
) -> None:
    """A19: each worker grew its own copy of a table, three times the memory."""
    synthetic.write(tmp_path / "big", buildings=150, sites=4)
    synthetic.write(tmp_path / "small", buildings=2, sites=1, hours=1200)
    with (tmp_path / "big" / "train.csv").open("rb") as file:
        assert sum(1 for _ in file) > 2_000_000
    options = ["--data.window=48", "--data.batch_size=256", "--trainer.max_steps=2"]
    options += [f"--trainer.limit_{part}_batches=2" for part in ("val", "test", "predict")]
    command = [sys.executable, "train.py", "--data.root", tmp_path / "big", *options]
    command += ["--runs", tmp_path / "runs", "--trainer.accelerator=cpu", "--model.channels=4"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    _, status, usage = os.wait4(process.pid, 0)  # of this one child
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (tmp_path / "log").read_text()
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    times = {}
    for size in ("big", "small"):
        r = run("--data.root", tmp_path / size, *options)
        windows = r.data.windows["train"]
        source = r.data.device_series(windows.series)
        draw = np.random.default_rng(0)
        taken = []
        for _ in range(100):
            cell = torch.from_numpy(draw.choice(windows.cell, 256))
            began = perf_counter()
            source.gather(cell)
            taken.append(perf_counter() - began)
        times[size] = min(taken)  # other programs only add to a time
        if size == "big":
            series = windows.series
            assert peak < 3 * (series.reading.nbytes + series.covariates.nbytes) + 2e9
            assert windows.cell.ndim == 1  # a window is where it starts, not a copy
    assert times["big"] < 10 * times["small"]


def test_a22_an_end_date_is_the_whole_day(run: RunTrain, tmp_path: Path) -> None:
    """A22: an end given as a date kept 00:00 of that day and lost 23 hours (5 of 28 rows left)."""
    file = INPUTS / "A22_year_end.csv"
    r = run(
        *("--data.train_path", file, "--data.train_end", "2016-12-31 05:00"),
        *("--data.val_end", "2016-12-31 12:00", "--data.test_end", "2016-12-31"),
    )
    assert batches(r, "test").target.flatten().tolist() == list(range(22, 29))
    assert str(predictions(r)["timestamp"][-1]) == "2016-12-31 23:00:00"

    longer = write(tmp_path / "x.csv", file.read_text().splitlines()[1:])
    with longer.open("a") as lines:
        lines.write("\n".join(rows(range(29, 53), start="2017-01-01 00")) + "\n")
    r = run(
        *("--data.train_path", longer, "--data.train_end", "2016-12-31"),
        *("--data.val_end", "2017-01-01 11:00"),
    )
    seen = batches(r)  # all 28 rows, and no more
    assert seen.target.flatten().tolist() == list(range(5, 29))
    assert int(seen.minute[-1]) == 60 * hours("2016-12-31 23")


def test_checklist_46_the_future_target_is_not_needed(run: RunTrain, tmp_path: Path) -> None:
    """Checklist 46: prediction asked for the reading that it was to predict."""
    best = run(*one_file(INPUTS / "B04_nine_windows.csv")).best
    four = write(tmp_path / "four.csv", rows([10, 11, 12, 13]))
    blank = write(tmp_path / "blank.csv", rows([10, 11, 12, 13, ""]))
    command = ["predict", "--ckpt_path", best, "--data.predict_path"]
    ahead = predictions(run(*command, four, "--data.beyond_end", "true"))
    known = predictions(run(*command, blank))
    assert [str(stamp) for stamp in ahead["timestamp"]] == ["2016-01-01 04:00:00"]
    assert ahead == known
    assert np.isfinite(ahead["prediction"]).all()
    assert_refused(run(*command, four), four, "rows=4", "needed=5")
