"""Tables in their owners' layouts: columns by role, long and wide, times as people write them."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Run, assert_refused
from tests.data.tables import COLUMNS, LONG, day_month_year, long_table, times

RunTrain = Callable[..., Run]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def series_of(r: Run) -> Any:
    return r.data.windows["train"].series


def test_columns_play_the_parts_that_they_are_given(run: RunTrain, tmp_path: Path) -> None:
    """A table with semicolons, decimal commas and names of its own; forecasts carry its ids."""
    table = long_table(tmp_path / "strom.csv")
    r = run("--data.path", table, *COLUMNS, "--data.covariates=[Temp]")
    assert r.code == 0, r.text
    assert "separator ';' and decimal mark ','" in r.text
    series = series_of(r)
    assert series.ids["Kunde"].tolist() == ["K 2", "Müller & Co"]
    assert series.reading[:LONG].tolist() == pytest.approx([200 + n for n in range(LONG)])
    assert series.reading[LONG:].tolist() == pytest.approx([n + 0.5 for n in range(LONG)])
    assert series.covariates[:3, 0].tolist() == pytest.approx([0.1, 1.1, 2.1])
    assert "data: 2 series, 2023-03-11 00:00" in r.text
    forecasts = read(r.folder / "predictions.csv")
    assert list(forecasts[0]) == ["Kunde", "timestamp", "prediction"]
    assert {row["Kunde"] for row in forecasts} == {"K 2", "Müller & Co"}
    assert list(read(r.folder / "scores.csv")[0])[:2] == ["Kunde", "forecast"]
    assert "electricity" not in r.text
    again = run("predict", "--config", r.folder / "config.yaml", "--ckpt_path", r.best)
    assert again.code == 0, again.text
    assert read(again.folder / "predictions.csv") == forecasts


def test_several_columns_name_a_series_or_none(run: RunTrain, tmp_path: Path) -> None:
    lines = ["town,meter,timestamp,kwh"]
    lines += [f"{t},{m},{time},{n}" for t in "AB" for m in "xy" for n, time in times(LONG)]
    path = tmp_path / "many.csv"
    path.write_text("\n".join(lines))
    common = ["--data.path", path, "--data.target=kwh", "--data.covariates=[]"]
    r = run(*common, "--data.id=[town,meter]")
    assert r.code == 0, r.text
    names = [series_of(r).name(s) for s in range(4)]
    assert names == [f"town {t}, meter {m}" for t in "AB" for m in "xy"]
    alone = tmp_path / "alone.csv"
    alone.write_text("\n".join([lines[0], *lines[1 : 1 + LONG]]))
    r = run("--data.path", alone, *common[2:], "--data.id=[]")
    assert r.code == 0, r.text
    assert series_of(r).name(0) == "the series"
    assert list(read(r.folder / "predictions.csv")[0]) == ["timestamp", "prediction"]


def test_numbers_of_meters_are_no_codes_of_what_is_metered(run: RunTrain, tmp_path: Path) -> None:
    """A column 'meter' without a building's is a name: 0 is not electricity."""
    lines = [f"{m},{time},{n}" for m in (0, 7) for n, time in times(LONG)]
    path = tmp_path / "meters.csv"
    path.write_text("\n".join(["meter,timestamp,kwh", *lines]))
    r = run("--data.path", path, "--data.id=meter", "--data.target=kwh")
    assert r.code == 0, r.text
    assert [series_of(r).name(s) for s in range(2)] == ["meter 0", "meter 7"]
    assert "electricity" not in r.text


def test_a_wide_table_is_the_long_one(run: RunTrain, tmp_path: Path) -> None:
    """A column for each series; blanks are hours without a reading, not another series."""
    long = run("--data.path", long_table(tmp_path / "long.csv"), *COLUMNS, "--data.covariates=[]")
    wide = tmp_path / "wide.csv"
    rows = [f"{time};{200 + n};{n},5;aside" for n, time in times(LONG)]
    wide.write_text("\n".join(["Zeit;K 2;Müller & Co;Notiz", *rows]))
    options = ["--data.path", wide, "--data.layout=wide", "--data.timestamp=Zeit"]
    refused = run(*options, "--data.covariates=[]")
    assert_refused(refused, "wide.csv", "column Notiz", "'aside'")
    r = run(*options, "--data.covariates=[]", "--data.series=[K 2,Müller & Co]")
    assert r.code == 0, r.text
    assert series_of(r).ids["series"].tolist() == ["K 2", "Müller & Co"]
    assert np.array_equal(series_of(r).reading, series_of(long).reading)
    assert [row["prediction"] for row in read(r.folder / "predictions.csv")] == [
        row["prediction"] for row in read(long.folder / "predictions.csv")
    ]


def test_a_wide_tables_contradiction_is_found_by_line(run: RunTrain, tmp_path: Path) -> None:
    wide = tmp_path / "wide.csv"
    rows = [f"{time},{n},{n}" for n, time in times(LONG)]
    wide.write_text("\n".join(["time,a,b", *rows, rows[4].rsplit(",", 1)[0] + ",9"]))
    options = ["--data.path", wide, "--data.layout=wide", "--data.timestamp=time"]
    refused = run(*options, "--data.covariates=[]")
    assert_refused(refused, "line 6", f"line {LONG + 2}", "b has two readings", "4 and 9")


@pytest.mark.parametrize("written", ["%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y %I:%M %p"])
def test_times_are_read_as_people_write_them(run: RunTrain, tmp_path: Path, written: str) -> None:
    plain = run("--data.path", long_table(tmp_path / "iso.csv"), *COLUMNS, "--data.covariates=[]")
    table = long_table(tmp_path / "other.csv", written)
    r = run("--data.path", table, *COLUMNS, "--data.covariates=[]")
    assert r.code == 0, r.text
    assert f"column Zeit: read as {written}" in r.text
    assert series_of(r).first_tick.tolist() == series_of(plain).first_tick.tolist()
    assert np.array_equal(series_of(r).reading, series_of(plain).reading)


def test_a_date_that_can_be_two_is_asked_for(run: RunTrain, tmp_path: Path) -> None:
    """11 March or 3 November: nothing is guessed."""
    table = day_month_year(tmp_path / "either.csv", hours=40)
    options = ["--data.path", table, *COLUMNS, "--data.covariates=[]"]
    both = ("'%d/%m/%Y %H:%M'", "'%m/%d/%Y %H:%M'", "--data.time_format")
    assert_refused(run(*options), "column Zeit", "'11/03/2023 00:00'", *both)
    r = run(*options, "--data.time_format=%d/%m/%Y %H:%M")
    assert r.code == 0, r.text
    assert series_of(r).first_tick[0] == np.datetime64("2023-03-11T00", "h").astype(np.int64)
    refused = run(*options, "--data.time_format=%d.%m.%Y")
    assert_refused(refused, "line 2", "'11/03/2023 00:00'", "--data.time_format '%d.%m.%Y'")


@pytest.mark.parametrize(
    ("stamp", "told"),
    [
        ("2023-03-01 {h:02}:{m:02}Z", ["carries a zone", "local times"]),
        ("2023-03-01 {h:02}:00:30", ["line 2", "2023-03-01 00:00:30", "not a whole minute"]),
        ("noon of {d}", ["line 2", "'noon of 1' is not readable"]),
    ],
)
def test_times_that_are_not_whole_minutes_of_local_time_are_refused(
    run: RunTrain, tmp_path: Path, stamp: str, told: list[str]
) -> None:
    path = tmp_path / "table.csv"
    rows = [f"a,{stamp.format(h=n, m=0, d=n + 1)},{n}" for n in range(20)]
    path.write_text("\n".join(["id,timestamp,target", *rows]))
    config = ["--config", Path(__file__).parents[2] / "configs" / "own_data.yaml"]
    assert_refused(run(*config, "--data.path", path), "table.csv", *told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], ["'building_id'", "Zeit, Kunde, kWh, Temp", "--data.id", "--data.layout wide"]),
        ([*COLUMNS[:2], "--data.target=KWH"], ["no column 'KWH'"]),
        ([*COLUMNS, "--data.meters=[0]"], ["--data.meters", "GEPIII's"]),
        ([*COLUMNS, "--data.rules=gepiii"], ["--data.rules gepiii"]),
        ([*COLUMNS, "--data.series=[a]"], ["--data.series", "wide"]),
        ([*COLUMNS, "--data.id=prediction"], ["'prediction'"]),
        ([*COLUMNS, "--data.train_path=x.csv"], ["--data.path", "--data.train_path"]),
    ],
)
def test_what_does_not_fit_the_table_is_named(
    run: RunTrain, tmp_path: Path, options: list[str], told: list[str]
) -> None:
    table = long_table(tmp_path / "strom.csv")
    refused = run("--data.path", table, "--data.covariates=[]", *options)
    assert_refused(refused, *told)


def test_the_weather_of_a_building_needs_its_id(run: RunTrain, tmp_path: Path) -> None:
    table = long_table(tmp_path / "strom.csv")
    sites = tmp_path / "sites.csv"
    sites.write_text("site_id,building_id\n0,1\n")
    options = ["--data.path", table, *COLUMNS, "--data.metadata_path", sites]
    assert_refused(run(*options), "sites.csv", "building_id", "--data.id")


# -- inspect -----------------------------------------------------------------------------------


def test_inspect_says_what_was_understood_and_trains_nothing(run: RunTrain, tmp_path: Path) -> None:
    table = long_table(tmp_path / "strom.csv", gap=range(3, 5))
    options = ["--data.path", table, *COLUMNS, "--data.covariates=[Temp]"]
    r = run("inspect", *options)
    assert r.code == 0, r.text
    text = " ".join(r.text.split())
    assert "2 series, a row every hour" in text
    assert f"Kunde K 2 2023-03-11 00:00 {LONG} 2 " in text
    assert f"Kunde Müller & Co 2023-03-11 00:00 {LONG} 0 " in text
    windows = {split: len(found) for split, found in r.data.windows.items()}
    for split in ("train", "val", "test"):
        assert f"{split} " in text
        assert f" {windows[split]:,}" in text
    assert "id: [Kunde] target: kWh covariates: [Temp]" in text
    assert "go on with:" in text
    assert max(map(len, r.text[: r.text.index("go on with:")].splitlines())) <= 100
    assert not (tmp_path / "runs").exists()
    # The settings, as they were printed, are what fit takes.
    printed = r.text[r.text.index("data:\n  timestamp") : r.text.index("\n\ngo on with:")]
    config = tmp_path / "mine.yaml"
    config.write_text(printed)
    fitted = run("--config", config, "--data.path", table)
    assert fitted.code == 0, fitted.text
    assert series_of(fitted).labels() == r.data.windows["train"].series.labels()


def test_inspect_leaves_out_no_setting(run: RunTrain, tmp_path: Path) -> None:
    """What it prints for --config reads the same table in the same way."""
    wide = tmp_path / "wide.csv"
    rows = [f"{time},{n},{2 * n},aside" for n, time in times(40, "%d/%m/%Y %H:%M")]
    wide.write_text("\n".join(["Zeit,a,b,Notiz", *rows]))
    options = ["--data.layout=wide", "--data.timestamp=Zeit", "--data.series=[b,a]"]
    r = run("inspect", "--data.path", wide, *options, "--data.time_format=%d/%m/%Y %H:%M")
    assert r.code == 0, r.text
    config = tmp_path / "mine.yaml"
    start = r.text.index("data:\n  timestamp")
    config.write_text(r.text[start : r.text.index("\n\ngo on with:")])
    again = run("inspect", "--config", config, "--data.path", wide)
    assert again.code == 0, again.text
    assert again.data.roles == r.data.roles


def test_inspect_shows_a_table_that_is_too_short(run: RunTrain, tmp_path: Path) -> None:
    """What was understood is seen even so."""
    table = long_table(tmp_path / "strom.csv")
    r = run("inspect", "--data.path", table, *COLUMNS, "--data.covariates=[]", "--data.window=90")
    assert r.code == 2
    assert "Kunde K 2" in r.text
    assert "too short for --data.window 90" in r.text


def test_inspect_has_a_help_of_its_own(run: RunTrain) -> None:
    r = run("inspect", "--help", tiny=False)
    assert r.code == 0
    assert "usage: python train.py inspect" in r.text


def test_a_table_has_no_covariates_but_those_that_are_named(run: RunTrain, tmp_path: Path) -> None:
    """GEPIII's three would be columns of nothing; a checkpoint's are its own."""
    table = ["--data.path", long_table(tmp_path / "strom.csv"), *COLUMNS]
    r = run(*table)
    assert r.code == 0, r.text
    assert (r.data.covariates, r.cli.model.hparams["covariates"]) == ((), [])
    assert "no such column" not in r.text
    warm = run(*table, "--data.covariates=[Temp]")
    again = run("predict", *table, "--ckpt_path", warm.best)
    assert again.code == 0, again.text
    assert again.data.covariates == ("Temp",)
