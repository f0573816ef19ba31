"""The Cambridge archive's files into GEPIII's layout: `python -m data.cambridge ARCHIVE FOLDER`.

ARCHIVE is a copy of the Cambridge University Estates building energy archive (Langtry and
Choudhary, v2.1, doi 10.5281/zenodo.10955332): hourly kWh in UTC, whose missing readings were
replaced by 0. Nothing is cleaned here; `--data.rules cambridge` takes long runs of zeros as
missing. Its weather is the Met Office's (MIDAS Open).
"""

import argparse
import csv
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from data.columns import BUILDING, METER, READING, SITE, TIME, DataError

SOURCE = "https://github.com/EECi/Cambridge-Estates-Building-Energy-Archive"
METERS = {"electricity": (0, "train.csv"), "gas": (4, "train_gas.csv")}
"""Folder of the archive -> the meter's code, gas being none of GEPIII's, and its file."""

BUILDINGS = (
    *(2, 5, 6, 10, 13, 14, 19, 21, 22, 23, 24, 25, 26, 27, 33, 35, 36, 37, 40, 41, 45, 46, 47, 52),
    *(54, 58, 59, 60, 62, 70, 71, 72, 84, 88, 89, 91, 92, 95, 96, 99, 103, 105, 106),
    *(114, 115, 116, 117, 118),
)
"""Those that the README's figures are of: 30 chosen for their dirt, 18 clean ones."""

WEATHER = {
    "air_temperature": "air_temperature",
    "cloud_coverage": "cld_ttl_amt_id",
    "dew_temperature": "dewpoint",
    "precip_depth_1_hr": None,  # not in the source
    "sea_level_pressure": "msl_pressure",
    "wind_direction": "wind_direction",
    "wind_speed": "wind_speed",
}
"""GEPIII's column -> the Met Office's."""

KNOT = 0.514444  # m/s
SQUARE_METRE = 10.76391  # square feet

Rows = Iterator[Sequence[object]]


def convert(archive: Path, folder: Path, year: int, buildings: Sequence[int]) -> list[str]:
    """Write train.csv, train_gas.csv, weather_train.csv and building_metadata.csv, all or nothing.

    Args:
        archive: the archive's top folder.
        folder: to be made.
        year: of the readings and the weather.
        buildings: the archive's numbers, those without a kind of meter being left out of its file.

    Returns:
        A line about each file.

    Raises:
        DataError: something of the archive is not there, or the folder is.
    """
    processed = archive / "building_data" / "processed_data"
    if not processed.is_dir():
        raise DataError(f"{archive}: no folder {processed}; a copy of the archive is at {SOURCE}")
    if folder.exists():
        raise DataError(f"{folder} exists; name a folder that does not")
    areas = processed / "building_floor_roof_areas.csv"
    if not areas.is_file():
        raise DataError(f"there is no file {areas}")
    weather = _weather_file(archive, year)
    folder.parent.mkdir(parents=True, exist_ok=True)
    told = []
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        made = Path(unfinished) / "made"
        made.mkdir()
        for kind, (code, name) in METERS.items():
            there = [b for b in buildings if _meter_file(processed, b, kind, year).is_file()]
            if kind == "electricity" and len(there) < len(buildings):
                lacking = ", ".join(str(b) for b in buildings if b not in there)
                raise DataError(f"{processed}: no electricity of {year} for building {lacking}")
            files = {b: _meter_file(processed, b, kind, year) for b in there}
            columns = (BUILDING, METER, TIME, READING)
            count = _write(made / name, columns, _readings(files, code))
            told.append(f"{name}: {count:,} rows of {len(there)} buildings, {kind}")
        count = _write(made / "weather_train.csv", (SITE, TIME, *WEATHER), _observations(weather))
        told.append(f"weather_train.csv: {count:,} rows")
        head = (SITE, BUILDING, "primary_use", "square_feet", "year_built", "floor_count")
        _write(made / "building_metadata.csv", head, _buildings(areas, buildings))
        told.append(f"building_metadata.csv: {len(buildings)} buildings")
        shutil.move(made, folder)
    return told


def _meter_file(processed: Path, building: int, kind: str, year: int) -> Path:
    return processed / f"UCam_Building_b{building}" / kind / f"{year}.csv"


def _weather_file(archive: Path, year: int) -> Path:
    hourly = archive / "aux_data" / "MetOffice Weather Data" / "raw_data" / "hourly_weather"
    found = sorted(hourly.glob(f"midas-open*_{year}.csv"))
    if not found:
        raise DataError(f"{hourly}: no weather of {year} (midas-open..._{year}.csv)")
    return found[0]


def _write(path: Path, head: Sequence[str], rows: Rows) -> int:
    """Returns how many rows there were."""
    count = 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        for row in rows:
            writer.writerow(row)
            count += 1
    return count


def _readings(files: dict[int, Path], code: int) -> Rows:
    """By hour, then by building, each as the archive has it."""
    columns = []
    for building, path in files.items():
        with path.open(newline="") as file:
            reader = csv.reader(file)
            next(reader)
            columns.append([(stamp, building, value) for stamp, value in reader])
    for stamp, building, value in sorted(row for column in columns for row in column):
        yield building, code, stamp, value


def _observations(path: Path) -> Rows:
    """Between `data` and `end data`, with NA for what is missing."""
    with path.open(newline="") as file:
        for line in file:
            if line.strip() == "data":
                break
        for row in csv.DictReader(file):
            if row["ob_time"] == "end data":
                return
            values = {name: row[theirs] if theirs else "NA" for name, theirs in WEATHER.items()}
            yield 0, row["ob_time"], *(_observed(name, value) for name, value in values.items())


def _observed(name: str, value: str) -> str:
    if value == "NA":
        return ""
    return f"{KNOT * float(value):.1f}" if name == "wind_speed" else str(float(value))


def _buildings(areas: Path, buildings: Sequence[int]) -> Rows:
    with areas.open(newline="") as file:
        known = {row["Building ID"]: row for row in csv.DictReader(file)}
    for building in buildings:
        row = known[f"b{building}"]
        feet = round(SQUARE_METRE * float(row["GIA (m2)"]))
        yield 0, building, "Education", feet, "", row["Number of floors"]


def main(words: Sequence[str] | None = None) -> None:
    """Convert; a user's mistake ends in one message and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m data.cambridge", description=__doc__)
    parser.add_argument("archive", type=Path, help="the archive's top folder")
    parser.add_argument("folder", type=Path, help="where the files are to stand; it is made")
    parser.add_argument("--year", type=int, default=2019, help="[2019]")
    parser.add_argument("--buildings", help="numbers, with commas [the 48 of the README]")
    options = parser.parse_args(words)
    try:
        buildings = _numbers(options.buildings) if options.buildings else BUILDINGS
        told = convert(options.archive, options.folder, options.year, buildings)
    except DataError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    train = ["python", "train.py", "--config", "configs/cambridge.yaml", "--data.root"]
    print("\n".join([*told, "next:", f"  {shlex.join([*train, str(options.folder)])}"]))


def _numbers(words: str) -> list[int]:
    try:
        return sorted({int(word) for word in words.split(",")})
    except ValueError as error:
        raise DataError(f"--buildings takes numbers with commas, not '{words}'") from error


if __name__ == "__main__":
    main()
