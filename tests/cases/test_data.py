"""Data as people really have them: each case runs through `train.py`, as a user would.

The ids are those of the collected reports; the docstrings name what went wrong elsewhere. With
windows of 4 hours a gap-free series of n hours has n - 4 windows.
"""

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import data.cache
from data import synthetic
from data.windows import Batch
from tests.conftest import INPUTS, Run, one_file

ROOT = Path(__file__).parents[2]
HEADER = "timestamp,building_id,meter,meter_reading,air_temperature"
AIR = ["--data.covariates", "[air_temperature]"]
A04 = ["--data.weather_path", INPUTS / "A04_weather_train.csv"]
A04 += ["--data.metadata_path", INPUTS / "A04_building_metadata.csv", *AIR]
SIX = [10, 11, 12, 13, 14, 15]

RunTrain = Callable[..., Run]


def rows(
    readings: Any, start: str = "2016-01-01 00", building: object = 1, air: object = 5
) -> list[str]:
    """Lines of a meter file, an hour each."""
    first = np.datetime64(start.replace(" ", "T"), "h")
    stamps = [
        str(first + np.timedelta64(n, "h")).replace("T", " ") + ":00:00"
        for n in range(len(readings))
    ]
    return [
        f"{stamp},{building},0,{reading},{air}"
        for stamp, reading in zip(stamps, readings, strict=True)
    ]


def write(path: Path, *parts: list[str], header: str = HEADER) -> Path:
    """A meter file of `parts`."""
    lines = [header, *(line for part in parts for line in part)]
    path.write_text("\n".join(lines) + "\n")
    return path


def hours(text: str) -> int:
    return int(np.datetime64(text.replace(" ", "T"), "h").astype(np.int64))


def batches(r: Run, split: str = "train") -> Batch:
    """All windows of a split as the model sees them, by series and time."""
    loader = getattr(r.data, f"{split}_dataloader")()
    whole = Batch(*(torch.cat(parts) for parts in zip(*loader, strict=True)))
    order = whole.cell.argsort()
    return Batch(*(part[order] for part in whole))


def predictions(r: Run) -> dict[str, list[Any]]:
    return pacsv.read_csv(r.folder / "predictions.csv").to_pydict()


def scores(r: Run) -> dict[str, list[float]]:
    """Everything that the run logged, by tag."""
    events = EventAccumulator(str(r.folder)).Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def losses_are_finite(r: Run) -> bool:
    logged = scores(r)
    return all(
        logged[tag] and np.isfinite(logged[tag]).all()
        for tag in ("train/loss", "val/rmsle", "test/rmsle")
    )


def complaint(r: Run, *words: object) -> None:
    """A refused run says one short message, which holds all `words`."""
    assert r.code == 2
    assert "Traceback" not in r.text
    message = r.text.partition("error: ")[2].strip()
    assert 1 <= len(message.splitlines()) <= 3
    assert [str(word) for word in words if str(word) not in message] == []
    assert "epoch" not in r.text  # nothing was trained


def same_data(left: Run, right: Run) -> bool:
    """Equal series, windows and forecasts, to the last bit."""
    a, b = left.data.windows["train"], right.data.windows["train"]
    names = ("building", "meter", "first_hour", "offset", "reading", "covariates")
    return (
        all(
            np.array_equal(getattr(a.series, name), getattr(b.series, name), equal_nan=True)
            for name in names
        )
        and np.array_equal(a.cell, b.cell)
        and predictions(left) == predictions(right)
    )


# -- (a) of the collected cases ------------------------------------------------------------------


def test_a01_excel_bom_and_crlf_load_like_the_plain_file(run: RunTrain) -> None:
    """A01: a byte-order mark glued itself to the first header: `timestamp` was not found."""
    plain = run(*one_file(INPUTS / "A01_plain.csv"), *AIR)
    excel = run(*one_file(INPUTS / "A01_bom_crlf.csv"), *AIR)
    assert "no such column" not in plain.text + excel.text
    assert len(plain.data.windows["train"]) == 2
    assert plain.data.windows["train"].series.reading.tolist() == SIX
    assert same_data(plain, excel)


def test_a02_semicolons_and_decimal_commas_are_read(run: RunTrain) -> None:
    """A02: a European export failed in the tokenizer, or its numbers stayed text."""
    r = run(*one_file(INPUTS / "A02_semicolon_decimal_comma.csv"), *AIR)
    series = r.data.windows["train"].series
    assert series.reading.tolist() == [10.5, 11.25, 1234.75, 13, 14.5, 15.5]
    assert series.covariates[:, 0].tolist() == [5, 5.5, 6, 6.5, 7, 7.5]
    assert "separator ';' and decimal mark ','" in r.text


@pytest.mark.parametrize(("offset", "peak", "missing"), [(-4, 15, 8), (None, 19, 12)])
def test_a04_weather_in_utc_is_shifted_to_local_time(
    run: RunTrain, offset: int | None, peak: int, missing: int
) -> None:
    """A04: UTC weather was joined to local meter hours by equal text, 4 to 8 hours wrong."""
    shift = [] if offset is None else ["--data.utc_offset", offset]
    r = run(*one_file(INPUTS / "A04_train.csv"), *A04, *shift)
    series = r.data.windows["train"].series
    air = series.covariates[series.covariate_cells(), 0]
    assert series.cell_hours()[air.argmax()] % 24 == peak
    assert air.max() == 28
    assert air[missing] == pytest.approx((air[missing - 1] + air[missing + 1]) / 2)
    assert "air_temperature: 1 of 24 hours missing, 1 interpolated" in r.text
    seen = batches(r)  # no row was lost, and the model sees the shifted weather
    assert seen.target.tolist() == list(range(104, 124))
    assert seen.covariates[peak - 3, 3, 0] == 28


def test_a04_an_offset_can_be_given_by_site_and_its_default_is_documented(
    run: RunTrain,
) -> None:
    """A04: the offset differs from site to site, and nobody could tell what held without one."""
    paths = one_file(INPUTS / "A04_train.csv")
    r = run(*paths, *A04, '--data.utc_offset={"3": -4, "5": 9}')
    series = r.data.windows["train"].series
    assert series.covariates[series.covariate_cells(), 0].argmax() == 15
    text = " ".join(run("fit", "--help", tiny=False).text.split())
    assert "hours to add to the weather's time stamps" in text
    assert "not given, 0" in text


def test_a05_row_order_does_not_matter(run: RunTrain) -> None:
    """A05: unsorted rows and interleaved series gave other windows without a word."""
    ordered = run(*one_file(INPUTS / "A05_sorted.csv"))
    shuffled = run(*one_file(INPUTS / "A05_unsorted.csv"))
    assert batches(ordered).target.tolist() == [14, 15, 540, 550]
    assert same_data(ordered, shuffled)


def test_a06_an_identical_duplicate_is_dropped(run: RunTrain) -> None:
    """A06: an hour written twice counted twice."""
    r = run(*one_file(INPUTS / "A06_dup_identical.csv"))
    assert "1 duplicate row dropped" in r.text
    assert batches(r).target.tolist() == [14, 15]
    assert r.data.windows["train"].series.reading.tolist() == SIX


def test_a06_contradicting_duplicates_are_refused(run: RunTrain) -> None:
    """A06: of two readings for one hour a random one won."""
    path = INPUTS / "A06_dup_conflict.csv"
    complaint(
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
        values = torch.cat([seen.reading, seen.target[:, None]], dim=1)
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
        assert seen.target.tolist() == [5, 6, 1005]
        assert (seen.reading.diff() == 1).all()


def test_a09_meters_of_one_building_are_series_of_their_own(run: RunTrain) -> None:
    """A09: the meters of a building share their stamps and were taken as one series."""
    r = run(*one_file(INPUTS / "A09_mixed_meters.csv"), "--model.transform", "none")
    seen = batches(r)
    assert seen.target.tolist() == [14, 15, 16, 5004, 5005, 5006]
    assert ((seen.reading > 1000) == (seen.target[:, None] > 1000)).all()
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
    complaint(run(*one_file(path)), path, "rows=4", "needed=5", "building 1, electricity")


def test_a11_a_short_series_beside_long_ones_is_skipped(run: RunTrain, tmp_path: Path) -> None:
    """A11: one short series stopped everything."""
    path = write(tmp_path / "x.csv", rows([1, 2, 3, 4], building=7), rows(SIX, building=3))
    r = run(*one_file(path))
    assert "1 series shorter than 5 hours are skipped" in r.text
    assert batches(r).target.tolist() == [14, 15]
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
    complaint(r, f"split {split}", f"the data run {span[file]}", "--data.val_end")


def test_a13_a_constant_column_scales_to_zero(run: RunTrain) -> None:
    """A13: a constant column divided by its deviation of 0, and every prediction was NaN."""
    path = INPUTS / "A13_constant_feature.csv"
    r = run(*one_file(path), *AIR, "--model.transform", "none")
    scaling, forecaster = r.data.scaling, r.cli.model.forecaster
    assert "air_temperature is constant (21.5)" in r.text
    scaled = forecaster.scale_covariates(batches(r).covariates)
    assert (scaled == 0).all()
    assert scaling.covariate_mean[0] + 0 * scaling.covariate_std[0] == 21.5
    assert losses_are_finite(r)
    assert np.isfinite(predictions(r)["prediction"]).all()


def test_a13_constant_readings_train_too(run: RunTrain) -> None:
    """A13: a meter that never moves has a deviation of 0 as well."""
    r = run(*one_file(INPUTS / "B02_constant100.csv"))
    assert "the readings are constant" in r.text
    assert losses_are_finite(r)
    assert np.isfinite(predictions(r)["prediction"]).all()


def test_a14_blank_and_infinite_cells_are_missing(run: RunTrain) -> None:
    """A14: blank, NA, null and inf cells gave a NaN loss, or their rows' removal glued hours."""
    r = run(*one_file(INPUTS / "A14_nan_inf.csv"), *AIR)
    seen = batches(r)
    # The stated policy: covariates are interpolated, a missing reading is in no window.
    assert seen.target.tolist() == [16, 17, 18, 19, 20]
    assert (seen.reading.diff() == 1).all()
    assert (seen.covariates == 5).all()
    assert np.flatnonzero(np.isnan(r.data.windows["train"].series.reading)).tolist() == [1]
    assert "0 hours have no row and 1 rows no reading" in r.text
    assert "air_temperature: 4 of 11 hours missing, 4 interpolated" in r.text
    assert "column air_temperature: 2 infinite" in r.text
    assert losses_are_finite(r)


@pytest.mark.parametrize("cell", ["inf", "-inf", "1e39", "", "NA", "NaN", "null", None])
def test_a14_no_window_spans_a_missing_reading(
    run: RunTrain, tmp_path: Path, cell: str | None
) -> None:
    """A14, checklist 41: rows on both sides of a gap were taken as neighbours."""
    lines = rows([*range(10, 16), "" if cell is None else cell, *range(17, 24)])
    if cell is None:  # the whole row is absent
        del lines[6]
    r = run(*one_file(write(tmp_path / "x.csv", lines)))
    for split in ("train", "predict"):
        seen = batches(r, split)
        assert torch.isfinite(seen.reading).all()
        assert (seen.reading.diff() == 1).all()
    assert batches(r).target.tolist() == [14, 15, 21, 22, 23]
    expected = "1 hours have no row and 0" if cell is None else "0 hours have no row and 1"
    assert f"{expected} rows no reading" in r.text
    assert losses_are_finite(r)


def test_a15_negative_readings_are_reported_and_set_to_zero(run: RunTrain) -> None:
    """A15: negative readings made RMSLE NaN at the very end."""
    r = run(*one_file(INPUTS / "A15_negative.csv"))
    assert "2 negative readings, the first is -3.2 in line 4; set to 0" in r.text
    assert r.data.windows["train"].series.reading.tolist() == [10, 11, 0, 13, 14, 0, 15, 16]
    assert losses_are_finite(r)
    assert min(predictions(r)["prediction"]) >= 0


def test_a15_a_forecast_below_minus_one_has_a_score(run: RunTrain, tmp_path: Path) -> None:
    """A15: RMSLE was NaN for a raw prediction below -1."""
    path = write(tmp_path / "x.csv", rows([-50, -52, -54, -51, -53, -50, -52]))
    r = run(*one_file(path), "--model.transform", "none")
    assert "7 negative readings, the first is -50 in line 2; kept" in r.text
    assert max(predictions(r)["prediction"]) < -1
    assert losses_are_finite(r)
    assert scores(r)["test/mae"][0] < 20  # the units are the file's


def test_a16_the_scaling_is_of_the_training_rows(run: RunTrain, tmp_path: Path) -> None:
    """A16: the scaler was fitted on all data, or on each split by itself (-1.43 for 101)."""
    test = INPUTS / "A16_test.csv"
    train = ["--data.train_path", INPUTS / "A16_train.csv"]
    train += ["--data.val_path", test, "--model.transform", "none", *AIR]
    r = run(*train, "--data.test_path", test)
    assert r.data.scaling.reading_mean == 4.5
    assert r.data.scaling.reading_std == pytest.approx(2.2913, abs=1e-4)
    forecaster = r.cli.model.forecaster  # what the model itself uses
    assert float((101 - forecaster.reading_mean) / forecaster.reading_std) == pytest.approx(
        42.1161, abs=1e-3
    )
    assert forecaster.covariate_mean.tolist() == [6.75]
    # In the file's units, not 42 of the scaled ones.
    assert np.allclose(predictions(r)["prediction"], batches(r, "test").target, atol=15)

    edited = tmp_path / "edited.csv"
    edited.write_text(test.read_text().replace(",101,5.0", ",9999,-40"))
    assert run(*train, "--data.test_path", edited).data.scaling == r.data.scaling


def test_a16_hours_after_the_training_part_do_not_touch_the_scaling(
    run: RunTrain, tmp_path: Path
) -> None:
    """A16, checklist 42: statistics that saw the future, where one file is split by time."""
    past = rows(range(1, 29), air=5)  # 70 % of 40 hours
    found = []
    for name, level, air in (("a", 30, 6), ("b", 5000, -30)):
        future = rows(range(level, level + 12), start="2016-01-02 04", air=air)
        path = write(tmp_path / f"{name}.csv", past, future)
        r = run("--data.train_path", path, *AIR, "--model.transform", "none")
        assert [len(r.data.windows[s]) for s in ("train", "val", "test")] == [24, 2, 2]
        assert float(r.cli.model.forecaster.reading_mean) == r.data.scaling.reading_mean
        found.append(r.data.scaling)
    assert found[0] == found[1]
    assert found[0].reading_mean == 14.5
    assert found[0].covariate_mean == [5]


def test_a17_large_readings_survive(run: RunTrain) -> None:
    """A17: memory-saving casts to float16 and int8 turned readings into inf, ids into others."""
    r = run(*one_file(INPUTS / "A17_large_values.csv"), *AIR)
    reading = batches(r).reading[0]
    assert reading.dtype == torch.float32
    assert reading.tolist() == [21904700, 21000000, 70000, 65504]
    assert torch.log1p(reading)[0].item() == pytest.approx(16.9022, abs=1e-4)
    scaling = r.data.scaling
    statistics = [scaling.reading_mean, scaling.reading_std, *scaling.covariate_mean]
    assert np.isfinite(statistics).all()
    assert set(predictions(r)["building_id"]) == {1099}
    assert np.isfinite(predictions(r)["prediction"]).all()
    assert losses_are_finite(r)


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
    values = torch.cat([seen.reading, seen.target[:, None]], dim=1)
    assert (values.diff() == 1).all()
    assert torch.equal(seen.hour - hours("2016-01-01 00"), seen.target.long() % 1000)
    assert len(set((seen.target // 1000).tolist())) == buildings
    for split in ("val", "test"):  # scored on all, whatever was trained on
        assert len(set((batches(r, split).target // 1000).tolist())) == 10


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
        return sorted(set((batches(r).target // 1000).int().tolist()))

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


def test_a21_parquet_with_odd_types(run: RunTrain) -> None:
    """A21: decimal, dictionary and nullable integer columns failed to become tensors."""
    path = INPUTS / "A21_decimal_dict_nullable.parquet"
    r = run(*one_file(path), "--data.covariates", "[air_temperature,floor_count]")
    series = r.data.windows["train"].series
    assert series.reading.tolist() == [10.5, 11, 12, 13, 14, 15, 16, 17.25]
    assert series.meter.tolist() == [0]
    assert series.covariates[:-1, 1].tolist() == [3] * 7
    assert np.isnan(series.covariates[-1, 1])
    assert "floor_count: 1 of 8 hours missing, 0 interpolated, 1 set to the training mean" in r.text
    assert len(batches(r).target) == 4
    assert losses_are_finite(r)


SIX_HOURS = pa.array(np.arange(6) * 3600 + 1_451_606_400, pa.timestamp("s"))


def parquet(path: Path, **columns: pa.Array) -> Path:
    """A Parquet file of six hours with some columns in another type."""
    plain = {"timestamp": SIX_HOURS, "building_id": pa.array([1] * 6), "meter": pa.array([0] * 6)}
    pq.write_table(pa.table(plain | {"meter_reading": pa.array(SIX)} | columns), path)
    return path


@pytest.mark.parametrize(
    ("column", "values", "shown"),
    [
        ("meter_reading", pa.array([[1.0]] * 6), "list<"),
        ("meter_reading", pa.array([{"kwh": 1.0}] * 6), "struct<"),
        ("building_id", pa.array([[1]] * 6), "list<"),
        ("timestamp", pa.array([0.0] * 6), "double"),
        ("timestamp", SIX_HOURS.cast(pa.timestamp("us", "Europe/Berlin")), "Europe/Berlin"),
        ("meter", pa.array(["gas"] * 6), "'gas' is not a meter; write one of: 0 electricity"),
    ],
)
def test_a21_unsupported_types_are_named(
    run: RunTrain, tmp_path: Path, column: str, values: pa.Array, shown: str
) -> None:
    """A21: an unsupported type ended in a traceback far away."""
    path = parquet(tmp_path / "x.parquet", **{column: values})
    complaint(run(*one_file(path)), path, f"column {column}", shown)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a21_text_of_every_parquet_type_is_text(
    run: RunTrain, tmp_path: Path, kind: pa.DataType
) -> None:
    """A21, checklist 45: what pandas and polars write as text is not Arrow's plain string."""
    texts = {"building_id": ["B7"] * 6, "meter": ["hot_water"] * 6, "meter_reading": map(str, SIX)}
    columns = {name: pa.array(list(text)).cast(kind) for name, text in texts.items()}
    r = run(*one_file(parquet(tmp_path / "x.parquet", **columns)))
    assert batches(r).target.tolist() == [14, 15]
    assert predictions(r)["building_id"] == ["B7", "B7"]
    assert predictions(r)["meter"] == [3, 3]


def test_a22_an_end_date_is_the_whole_day(run: RunTrain, tmp_path: Path) -> None:
    """A22: an end given as a date kept 00:00 of that day and lost 23 hours (5 of 28 rows left)."""
    file = INPUTS / "A22_year_end.csv"
    r = run(
        *("--data.train_path", file, "--data.train_end", "2016-12-31 05:00"),
        *("--data.val_end", "2016-12-31 12:00", "--data.test_end", "2016-12-31"),
    )
    assert batches(r, "test").target.tolist() == list(range(22, 29))
    assert str(predictions(r)["timestamp"][-1]) == "2016-12-31 23:00:00"

    longer = write(tmp_path / "x.csv", file.read_text().splitlines()[1:])
    with longer.open("a") as lines:
        lines.write("\n".join(rows(range(29, 53), start="2017-01-01 00")) + "\n")
    r = run(
        *("--data.train_path", longer, "--data.train_end", "2016-12-31"),
        *("--data.val_end", "2017-01-01 11:00"),
    )
    seen = batches(r)  # all 28 rows, and no more
    assert seen.target.tolist() == list(range(5, 29))
    assert int(seen.hour[-1]) == hours("2016-12-31 23")


@pytest.mark.parametrize(("rules", "reading"), [("gepiii", 29.31), ("none", 100)])
def test_a23_site_0_electricity_is_in_kbtu(
    run: RunTrain, tmp_path: Path, rules: str, reading: float
) -> None:
    """A23: GEPIII's site 0 has its electricity in kBTU, and nobody said so."""
    for name in ("building_metadata", "weather_train"):
        lines = (INPUTS / f"A04_{name}.csv").read_text().splitlines()
        moved = ["0" + line.removeprefix("3") if line[:2] == "3," else line for line in lines]
        assert moved != lines
        (tmp_path / f"{name}.csv").write_text("\n".join(moved) + "\n")
    r = run(
        *one_file(INPUTS / "A04_train.csv"),
        *("--data.weather_path", tmp_path / "weather_train.csv"),
        *("--data.metadata_path", tmp_path / "building_metadata.csv", *AIR, "--data.rules", rules),
    )
    series = r.data.windows["train"].series
    assert series.site.tolist() == [0]
    assert series.reading[0] == pytest.approx(reading)
    assert ("from kBTU to kWh (x 0.2931)" in r.text) == (rules == "gepiii")
    assert predictions(r)["prediction"][0] == pytest.approx(reading, rel=0.3)
    assert yaml.safe_load((r.folder / "config.yaml").read_text())["data"]["rules"] == rules
    # The rule set brings the site's offset along: 19:00 UTC is 14:00 at site 0.
    air = series.covariates[series.covariate_cells(), 0]
    assert air.argmax() == (14 if rules == "gepiii" else 19)


def test_x01_gzip_loads_like_the_plain_file(run: RunTrain) -> None:
    """X01: a compressed file is the same file."""
    plain = run(*one_file(INPUTS / "A01_plain.csv"), *AIR)
    packed = run(*one_file(INPUTS / "X01_train.csv.gz"), *AIR)
    assert len(batches(packed).target) == 2
    assert same_data(plain, packed)


def test_x02_an_unseen_building_is_predicted(run: RunTrain, tmp_path: Path) -> None:
    """X02: a building that training never saw has no learned id to fail on."""
    best = run(*one_file(INPUTS / "A10_exact_fit_5rows.csv")).best
    stranger = write(tmp_path / "x.csv", rows([500, 501, 502, 503, 504], building=77))
    r = run("predict", "--ckpt_path", best, "--data.predict_path", stranger)
    assert predictions(r)["building_id"] == [77]
    assert 50 < predictions(r)["prediction"][0] < 5000  # near its own level


def test_x02_a_building_without_metadata_is_refused(run: RunTrain, tmp_path: Path) -> None:
    """X02: without its site nobody knows a building's weather."""
    path = write(tmp_path / "x.csv", rows(SIX, building=77))
    r = run(*one_file(path), *A04)
    complaint(r, INPUTS / "A04_building_metadata.csv", "no row for building 77", path)


def test_x03_blank_metadata_loses_no_row(run: RunTrain, tmp_path: Path) -> None:
    """X03: year_built and floor_count are mostly blank in GEPIII; dropping such rows lost most."""
    metadata = tmp_path / "metadata.csv"
    text = (INPUTS / "A04_building_metadata.csv").read_text()
    metadata.write_text(text.replace(",1999,", ",,"))
    assert metadata.read_text().rstrip().endswith("Office,10000,,")
    r = run(*one_file(INPUTS / "A04_train.csv"), *A04, "--data.metadata_path", metadata)
    assert batches(r).target.tolist() == list(range(104, 124))


# -- what else the checklist names ---------------------------------------------------------------

GOOD = "\n".join([HEADER, *rows(SIX)]) + "\n"
WHOLE_HOURS = "write whole hours of local time"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("04:00:00", "04:00:00+01:00", ["column timestamp, line 6", "+01:00", "without a zone"]),
        (":00:00,", ":00:00Z,", ["column timestamp, line 2", "00Z", "without a zone"]),
        (":00:00,", ":00:00 UTC,", ["column timestamp, line 2", "UTC", "without a zone"]),
        ("04:00:00", "04:30:00", ["column timestamp, line 6", "not a whole hour", WHOLE_HOURS]),
        ("2016-01-01 04", "1.1.2016 04", ["column timestamp, line 6", "1.1.2016", WHOLE_HOURS]),
        ("2016-01-01 04:00:00", "", ["column timestamp, line 6", "blank", "fill it or drop"]),
        ("04:00:00,1", "04:00:00,", ["column building_id, line 6", "blank", "fill it or drop"]),
        ("04:00:00,1,0", "04:00:00,1,", ["column meter, line 6", "blank", "fill it or drop"]),
        (",14,", ",fourteen,", ["column meter_reading, line 6", "'fourteen'", "write a number"]),
        (",14,5", ",14,warm", ["column air_temperature, line 6", "'warm'", "write a number"]),
        (",14,5", ",14", ["Expected 5 columns, got 4", "04:00:00,1,0,14"]),
        (",meter_reading", ",kwh", ["no column 'meter_reading'", ", kwh,", "Rename the column"]),
        ("air_temperature", "meter", ["names 'meter' twice", "rename one"]),
        (GOOD, HEADER + "\n", ["a header and no rows", "name one with readings"]),
        (GOOD, "", ["the file is empty", "needs a header line and rows"]),
    ],
)
def test_checklist_44_bad_cells_are_refused_by_name(
    run: RunTrain, tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    """Checklist 44: time zones, half hours, text, blanks, empty files: file, row and remedy."""
    path = tmp_path / "mine.csv"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    complaint(run(*one_file(path), *AIR), path, *words)


@pytest.mark.parametrize("name", ["x.csv.gz", "cut.csv.gz", "x.parquet"])
def test_checklist_45_a_broken_file_is_refused_by_name(
    run: RunTrain, tmp_path: Path, name: str
) -> None:
    """Checklist 45: a half-downloaded file ended in a traceback of the unpacker."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(GOOD.encode())[:-12] if name[:3] == "cut" else GOOD.encode())
    complaint(run(*one_file(path)), path, "cannot be read", "mend or replace")


def test_checklist_45_header_names_may_stand_in_blanks_and_quotes(
    run: RunTrain, tmp_path: Path
) -> None:
    """Checklist 45: `"meter" ` is not `meter`, and the column was not found."""
    header = '"timestamp"; "building_id" ;meter ;"meter_reading"; air_temperature'
    lines = [line.replace(",", ";") for line in rows(SIX)]
    r = run(*one_file(write(tmp_path / "x.csv", lines, header=header)), *AIR)
    assert batches(r).target.tolist() == [14, 15]
    assert (batches(r).covariates == 5).all()


def test_checklist_44_weather_cells_are_refused_by_name(run: RunTrain, tmp_path: Path) -> None:
    """Checklist 44: also the weather file's bad cells have a name."""
    weather = tmp_path / "weather.csv"
    text = (INPUTS / "A04_weather_train.csv").read_text()
    weather.write_text(text.replace(",28.00,", ",hot,"))
    r = run(*one_file(INPUTS / "A04_train.csv"), *A04, "--data.weather_path", weather)
    complaint(r, weather, "column air_temperature, line 24", "'hot'", "write a number")


def autumn(path: Path) -> Path:
    """The night when the clocks go back: 01:00 is there twice, with two readings."""
    night = rows([10, 11], start="2016-11-06 00") + rows([20, 13, 14, 15], start="2016-11-06 01")
    return write(path, night)


def test_checklist_44_the_repeated_hour_of_daylight_saving_is_refused(
    run: RunTrain, tmp_path: Path
) -> None:
    """Checklist 44: one of the two readings of the repeated hour won by chance."""
    path = autumn(tmp_path / "x.csv")
    complaint(
        run(*one_file(path)),
        *(path, "line 3 and line 4", "building 1", "2016-11-06 01:00", "11 and 20"),
        "--data.duplicates first, last or mean",
    )


def test_checklist_44_the_repeated_hour_can_be_averaged(run: RunTrain, tmp_path: Path) -> None:
    """Checklist 44: the documented way out."""
    r = run(*one_file(autumn(tmp_path / "x.csv")), "--data.duplicates", "mean")
    assert "resolved by 'mean'" in r.text
    assert r.data.windows["train"].series.reading[:2].tolist() == [10, 15.5]


def test_checklist_46_the_future_target_is_not_needed(run: RunTrain, tmp_path: Path) -> None:
    """Checklist 46: prediction asked for the reading that it was to predict."""
    best = run(*one_file(INPUTS / "B04_nine_windows.csv")).best
    four = write(tmp_path / "four.csv", rows([10, 11, 12, 13]))
    blank = write(tmp_path / "blank.csv", rows([10, 11, 12, 13, ""]))
    command = ["predict", "--ckpt_path", best, "--data.predict_path"]
    ahead = predictions(run(*command, four, "--data.next_hour", "true"))
    known = predictions(run(*command, blank))
    assert [str(stamp) for stamp in ahead["timestamp"]] == ["2016-01-01 04:00:00"]
    assert ahead == known
    assert np.isfinite(ahead["prediction"]).all()
    complaint(run(*command, four), four, "rows=4", "needed=5")


# -- the input folder and the cache --------------------------------------------------------------


def test_a_read_only_folder_is_enough(run: RunTrain, tmp_path: Path) -> None:
    """Data often lie on a share that nobody may write to."""
    folder = tmp_path / "share"
    folder.mkdir()
    path = Path(shutil.copy(INPUTS / "A10_exact_fit_5rows.csv", folder / "train.csv"))
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        r = run("--data.root", folder, *one_file(path))
        assert batches(r).target.tolist() == [50]
        assert [entry.name for entry in folder.iterdir()] == ["train.csv"]
    finally:
        folder.chmod(0o755)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "s4convd"


def test_a_file_is_parsed_once(run: RunTrain, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run takes the series, and what was said about them, from the cache."""
    first = run(*one_file(INPUTS / "A14_nan_inf.csv"), *AIR)

    def fail(source: object) -> None:
        raise AssertionError(f"read again: {source}")

    monkeypatch.setattr(data.cache, "load_series", fail)
    second = run(*one_file(INPUTS / "A14_nan_inf.csv"), *AIR)
    assert same_data(first, second)
    assert "4 of 11 hours missing" in second.text
    with pytest.raises(AssertionError, match="read again"):  # other options are another entry
        run(*one_file(INPUTS / "A14_nan_inf.csv"), "--data.covariates", "[humidity]")


def test_an_edited_file_is_read_anew(run: RunTrain, cache: Path, tmp_path: Path) -> None:
    """An edit that leaves name, size and time of the file as they were is seen."""
    path = tmp_path / "x.csv"
    path.write_text(GOOD)
    was = path.stat()
    assert batches(run(*one_file(path))).target.tolist() == [14, 15]
    path.write_text(GOOD.replace(",15,", ",99,"))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert path.stat().st_size == was.st_size
    assert batches(run(*one_file(path))).target.tolist() == [14, 99]
    assert len(list(cache.glob("series-*.npz"))) == 2


@pytest.mark.parametrize("damage", ["emptied", "cut", "overwritten", "flipped"])
def test_a_damaged_cache_entry_is_made_anew(run: RunTrain, cache: Path, damage: str) -> None:
    """A killed run or a full disk left half an entry, and every later run failed on it."""
    first = run(*one_file(INPUTS / "A05_sorted.csv"))
    (entry,) = cache.glob("series-*.npz")
    whole = entry.read_bytes()
    at = whole.index(np.float32([500, 510]).tobytes())
    entry.write_bytes(
        {
            "emptied": b"",
            "cut": whole[: len(whole) // 2],
            "overwritten": b"no archive at all",
            "flipped": whole[:at] + b"\xff" + whole[at + 1 :],
        }[damage]
    )
    second = run(*one_file(INPUTS / "A05_sorted.csv"))
    assert second.code == 0
    assert same_data(first, second)
    assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_a_note(
    run: RunTrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full or foreign home folder is no reason not to train."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    r = run(*one_file(INPUTS / "A10_exact_fit_5rows.csv"))
    assert "no cache was written" in r.text
    assert batches(r).target.tolist() == [50]
