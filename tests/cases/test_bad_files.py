"""Files that cannot be used are refused by file, column, row and remedy."""

import gzip
from pathlib import Path

import pytest

from tests.cases.meter_files import (
    A04,
    AIR,
    GOOD,
    HEADER,
    SIX,
    RunTrain,
    batches,
    rows,
    write,
)
from tests.conftest import INPUTS, assert_refused, one_file

LOCAL = "write local times as 2016-12-31 23:00:00"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("04:00:00", "04:00:00+01:00", ["column timestamp, line 6", "+01:00", "without a zone"]),
        (":00:00,", ":00:00Z,", ["column timestamp, line 2", "00Z", "without a zone"]),
        (":00:00,", ":00:00 UTC,", ["column timestamp, line 2", "UTC", "without a zone"]),
        ("04:00:00", "04:30:00", ["column timestamp, line 6", "04:30 is not a whole hour", "mend"]),
        ("04:00:00", "04:00:30", ["column timestamp, line 6", "not a whole minute", "round"]),
        ("2016-01-01 04", "1.1.2016 04", ["column timestamp, line 6", "1.1.2016", LOCAL]),
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
    assert_refused(run(*one_file(path), *AIR), path, *words)


@pytest.mark.parametrize("name", ["x.csv.gz", "cut.csv.gz", "x.parquet"])
def test_checklist_45_a_broken_file_is_refused_by_name(
    run: RunTrain, tmp_path: Path, name: str
) -> None:
    """Checklist 45: a half-downloaded file ended in a traceback of the unpacker."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(GOOD.encode())[:-12] if name[:3] == "cut" else GOOD.encode())
    assert_refused(run(*one_file(path)), path, "cannot be read", "mend or replace")


def test_checklist_45_header_names_may_stand_in_blanks_and_quotes(
    run: RunTrain, tmp_path: Path
) -> None:
    """Checklist 45: `"meter" ` is not `meter`, and the column was not found."""
    header = '"timestamp"; "building_id" ;meter ;"meter_reading"; air_temperature'
    lines = [line.replace(",", ";") for line in rows(SIX)]
    r = run(*one_file(write(tmp_path / "x.csv", lines, header=header)), *AIR)
    assert batches(r).target.flatten().tolist() == [14, 15]
    assert (batches(r).covariates == 5).all()


def test_checklist_44_weather_cells_are_refused_by_name(run: RunTrain, tmp_path: Path) -> None:
    """Checklist 44: also the weather file's bad cells have a name."""
    weather = tmp_path / "weather.csv"
    text = (INPUTS / "A04_weather_train.csv").read_text()
    weather.write_text(text.replace(",28.00,", ",hot,"))
    r = run(*one_file(INPUTS / "A04_train.csv"), *A04, "--data.weather_path", weather)
    assert_refused(r, weather, "column air_temperature, line 24", "'hot'", "write a number")


def autumn(path: Path) -> Path:
    """The night when the clocks go back: 01:00 is there twice, with two readings."""
    night = rows([10, 11], start="2016-11-06 00") + rows([20, 13, 14, 15], start="2016-11-06 01")
    return write(path, night)


def test_checklist_44_the_repeated_hour_of_daylight_saving_is_refused(
    run: RunTrain, tmp_path: Path
) -> None:
    """Checklist 44: one of the two readings of the repeated hour won by chance."""
    path = autumn(tmp_path / "x.csv")
    assert_refused(
        run(*one_file(path)),
        *(path, "line 3 and line 4", "building 1", "2016-11-06 01:00", "11 and 20"),
        "--data.duplicates first, last or mean",
    )


def test_checklist_44_the_repeated_hour_can_be_averaged(run: RunTrain, tmp_path: Path) -> None:
    """Checklist 44: the documented way out."""
    r = run(*one_file(autumn(tmp_path / "x.csv")), "--data.duplicates", "mean")
    assert "resolved by 'mean'" in r.text
    assert r.data.windows["train"].series.reading[:2].tolist() == [10, 15.5]
