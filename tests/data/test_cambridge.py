"""The Cambridge archive's layout becomes GEPIII's, and nothing is lost on the way."""

import csv
import gzip
from pathlib import Path

import pytest

from data import cambridge
from data.columns import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"
SLICE, WHOLE = SHARED / "cambridge_raw", SHARED / "cambridge2019"
METER = "datetime,load [kWh]\n2019-01-01 00:00:00,{a}\n2019-01-01 01:00:00,{b}\n"
WEATHER = """\
Conventions,G,BADC-CSV,1
data
ob_time,air_temperature,cld_ttl_amt_id,dewpoint,msl_pressure,wind_direction,wind_speed
2019-01-01 00:00:00,8.2,8,5.4,1033.7,270.0,6.0
2019-01-01 02:00:00,NA,9,NA,1033.7,NA,NA
end data
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Of two buildings, one with gas."""
    processed = tmp_path / "archive" / "building_data" / "processed_data"
    for building, kind, a, b in (
        (7, "electricity", "1.5", "0.0"),
        (12, "electricity", "20.0", "21.5"),
        (12, "gas", "3.0", "4.0"),
    ):
        path = processed / f"UCam_Building_b{building}" / kind / "2019.csv"
        path.parent.mkdir(parents=True)
        path.write_text(METER.format(a=a, b=b))
    areas = "Building ID,GIA (m2),Number of floors,Approx RA (m2)\nb7,100.0,2,50.0\nb12,10.0,1,10\n"
    (processed / "building_floor_roof_areas.csv").write_text(areas)
    hourly = tmp_path / "archive" / "aux_data" / "MetOffice Weather Data"
    hourly = hourly / "raw_data" / "hourly_weather"
    hourly.mkdir(parents=True)
    (hourly / "midas-open_uk-hourly-weather-obs_bedford_2019.csv").write_text(WEATHER)
    return tmp_path / "archive"


def test_all_files(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a new" / "folder"
    cambridge.main([str(archive), str(folder), "--buildings=12,7"])
    assert (folder / "train.csv").read_text().splitlines() == [
        "building_id,meter,timestamp,meter_reading",
        "7,0,2019-01-01 00:00:00,1.5",
        "12,0,2019-01-01 00:00:00,20.0",
        "7,0,2019-01-01 01:00:00,0.0",
        "12,0,2019-01-01 01:00:00,21.5",
    ]
    assert (folder / "train_gas.csv").read_text().splitlines()[1:] == [
        "12,4,2019-01-01 00:00:00,3.0",
        "12,4,2019-01-01 01:00:00,4.0",
    ]
    assert (folder / "weather_train.csv").read_text().splitlines()[1:] == [
        "0,2019-01-01 00:00:00,8.2,8.0,5.4,,1033.7,270.0,3.1",
        "0,2019-01-01 02:00:00,,9.0,,,1033.7,,",
    ]
    assert (folder / "building_metadata.csv").read_text().splitlines()[1:] == [
        "0,7,Education,1076,,2",
        "0,12,Education,108,,1",
    ]
    told = capsys.readouterr().out
    assert "train_gas.csv: 2 rows of 1 buildings, gas" in told
    assert f"--data.root '{folder}'" in told
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["absent", "new"], "https://github.com/EECi"),
        (["archive", "archive"], "exists"),
        (["archive", "new", "--year=2011", "--buildings=7"], "no weather of 2011"),
        (["archive", "new", "--buildings=7,8"], "no electricity of 2019 for building 8"),
        (["archive", "new", "--buildings=seven"], "--buildings takes numbers"),
        (["archive", "new"], "for building 2, 5, 6"),
    ],
)
@pytest.mark.usefixtures("archive")
def test_a_mistake_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    paths = [str(tmp_path / word) for word in words[:2]]
    with pytest.raises(SystemExit) as end:
        cambridge.main([*paths, *words[2:]])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert told in message
    assert not (tmp_path / "new").exists()


def test_nothing_is_left_of_a_conversion_that_failed(archive: Path, tmp_path: Path) -> None:
    (archive / "building_data" / "processed_data" / "building_floor_roof_areas.csv").unlink()
    with pytest.raises(DataError, match=r"building_floor_roof_areas\.csv"):
        cambridge.convert(archive, tmp_path / "new", 2019, [7])
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.skipif(not SLICE.is_dir(), reason="the archive's slice is not at hand")
def test_the_real_files(tmp_path: Path) -> None:
    """As another program converted them, row for row."""
    kept = {"2", "5", "60"}
    cambridge.convert(SLICE, tmp_path / "new", 2019, [2, 5, 60])

    def rows(path: Path, column: int | None) -> list[list[str]]:
        """Those of the three buildings, by the column that names them."""
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            head, *body = csv.reader(file)
            return [head, *(row for row in body if column is None or row[column] in kept)]

    for name, column in (("train", 0), ("weather_train", None)):
        found = rows(tmp_path / "new" / f"{name}.csv", column)
        assert found == rows(WHOLE / f"{name}.csv.gz", column)
        assert len(found) > 8000
    name = "building_metadata.csv"
    assert rows(tmp_path / "new" / name, 1) == rows(WHOLE / name, 1)
    gas = [row for row in rows(WHOLE / "train_gas.csv.gz", 0) if row[0] != "60"]  # not in the slice
    assert rows(tmp_path / "new" / "train_gas.csv", 0) == gas
    with (WHOLE / name).open() as file:
        assert [int(row[1]) for row in list(csv.reader(file))[1:]] == list(cambridge.BUILDINGS)
