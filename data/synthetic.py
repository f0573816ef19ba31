"""Seeded stand-in for the GEPIII building data, in the same three files and columns.

`data.building_physics` makes the true weather and loads; this module adds the dirt and writes.

Which dirt. In train.csv: outages (rows absent), dead meters (zeros for 48 h and more), values
stuck for 24 h and more, single zeros, tenfold spikes, exact duplicate rows (always at least one,
never conflicting). In the other files: blank weather cells, missing weather hours, blank
year_built and floor_count. Like the numbers of the physics, its rates were set before any training;
none has been or may be tuned against a forecaster.

Timestamps are the site's local time in train.csv AND in weather_train.csv, without daylight
saving (the real weather file is in UTC). Readings are kWh per hour.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from data.building_physics import (
    SITE_STREAM,
    SQUARE_METRES,
    Clock,
    Floats,
    Ints,
    draw_building,
    meter_kinds,
    meter_loads,
    metered,
    site_weather,
)

Bools = npt.NDArray[np.bool_]

YEAR = 8784  # hours of 2016, the span that all yearly rates below refer to
CHUNK = 744  # hours written at once: a month of all meters fits easily in memory

# Dirt: (events a year and meter, shortest, longest hours). Outages remove GEPIII's 3.3 % of rows.
OUTAGES, DEAD, STUCK = (6.0, 2, 240), (0.10, 48, 336), (0.10, 24, 168)
ZEROS, SPIKES, DUPLICATES = 1.0, 0.5, 0.2  # single hours a year and meter: glitches are rare
SPIKE_FACTOR = 10.0  # a slipped decimal point
WEATHER_GAPS = (12.0, 1, 12)  # 0.5 % of the hours, as in GEPIII
BLANK_YEAR, BLANK_FLOORS = 0.53, 0.75  # as in GEPIII
# Blank cells by column, as in GEPIII.
WEATHER_BLANKS = {
    "air_temperature": 0.0004,
    "cloud_coverage": 0.49,
    "dew_temperature": 0.0008,
    "precip_depth_1_hr": 0.36,
    "sea_level_pressure": 0.076,
    "wind_direction": 0.045,
    "wind_speed": 0.002,
}


@dataclass(frozen=True)
class Meter:
    """One meter's year; `copies` says how often each hour's row is written (0 is an outage)."""

    building: int
    kind: int
    readings: Floats  # (hours,)
    copies: npt.NDArray[np.int8]  # (hours,)


def _spans(rng: np.random.Generator, hours: int, kind: tuple[float, int, int]) -> Bools:
    """Marks random stretches, log-uniform in length; none where two would not fit."""
    rate, shortest, longest = kind
    hit = np.zeros(hours, dtype=np.bool_)
    if hours < 2 * shortest:
        return hit
    ends = np.log([shortest, min(longest, hours // 2)])
    for _ in range(rng.poisson(rate * hours / YEAR)):
        length = round(float(np.exp(rng.uniform(*ends))))
        first = int(rng.integers(hours - length + 1))
        hit[first : first + length] = True
    return hit


def _hits(rng: np.random.Generator, hours: int, rate: float) -> Ints:
    """Draws single hours at `rate` a year."""
    return rng.integers(hours, size=rng.poisson(rate * hours / YEAR))


def _weather_table(seed: int, site: int, clock: Clock, weather: dict[str, Floats]) -> pa.Table:
    """Returns the site's weather as the file has it: hours missing, cells blank."""
    # A stream of its own, so that the dirt leaves the weather itself alone.
    rng, hours = np.random.default_rng([seed, SITE_STREAM + site, 1]), len(clock.hour)
    kept = ~_spans(rng, hours, WEATHER_GAPS)
    columns = {
        "site_id": pa.array(np.full(kept.sum(), site)),
        "timestamp": pa.array(clock.stamps[kept]),
    }
    for name, values in weather.items():
        blank = rng.random(hours) < WEATHER_BLANKS[name]
        # Adding zero turns the -0.0 of rounding into 0.0, which the file shows as 0.
        columns[name] = pa.array(values[kept] + 0.0, mask=blank[kept])
    return pa.table(columns)


def _meter(rng: np.random.Generator, building: int, kind: int, kilowatts: Floats) -> Meter:
    """Reads a true load with noise and dirt."""
    hours = len(kilowatts)
    readings = metered(rng, kilowatts)
    stuck = _spans(rng, hours, STUCK)
    last_good = np.maximum.accumulate(np.where(stuck, 0, np.arange(hours)))
    readings = readings[last_good]
    readings[_hits(rng, hours, SPIKES)] *= SPIKE_FACTOR
    readings[_hits(rng, hours, ZEROS)] = 0.0
    readings[_spans(rng, hours, DEAD)] = 0.0
    copies = np.where(_spans(rng, hours, OUTAGES), 0, 1).astype(np.int8)
    present = np.flatnonzero(copies)
    twice = rng.poisson(DUPLICATES * hours / YEAR) + int(building == 0 and kind == 0)
    copies[rng.permutation(present)[:twice]] = 2
    return Meter(building, kind, np.round(readings, 2), copies)


def _building(
    seed: int, number: int, site: int, air: Floats, clock: Clock
) -> tuple[dict[str, object], list[Meter]]:
    """Returns a building's metadata row and its meters, from the building's own stream."""
    rng = np.random.default_rng([seed, number])
    use, area = draw_building(rng)
    year, floors = int(rng.integers(1900, 2016)), 1 + int(rng.poisson(3))
    row = {
        "site_id": site,
        "building_id": number,
        "primary_use": use.name,
        "square_feet": area,
        "year_built": None if rng.random() < BLANK_YEAR else year,
        "floor_count": None if rng.random() < BLANK_FLOORS else floors,
    }
    loads = meter_loads(rng, use, meter_kinds(seed, number), air, clock)
    scale = area * SQUARE_METRES / 1000  # W per square metre to kW
    return row, [_meter(rng, number, kind, scale * load) for kind, load in loads.items()]


def _write_csv(path: Path, tables: Sequence[pa.Table]) -> None:
    """Appends tables to a file, with a plain header if it is new (pyarrow would quote it)."""
    with path.open("ab") as out:
        for table in tables:
            if out.tell() == 0:
                out.write((",".join(table.column_names) + "\n").encode())
            options = pacsv.WriteOptions(include_header=False, quoting_style="none")
            pacsv.write_csv(table, out, options)


def _train_table(meters: Sequence[Meter], clock: Clock, span: slice) -> pa.Table:
    """Returns the rows of the hours in `span`, by timestamp, then building, then meter."""
    copies = np.stack([meter.copies[span] for meter in meters], axis=1)  # (hours, meters)
    readings = np.stack([meter.readings[span] for meter in meters], axis=1)  # (hours, meters)
    cells = np.repeat(np.arange(copies.size), copies.ravel())  # (rows,)
    hour, column = np.divmod(cells, len(meters))
    return pa.table(
        {
            "building_id": np.array([meter.building for meter in meters])[column],
            "meter": np.array([meter.kind for meter in meters])[column],
            "timestamp": clock.stamps[span][hour],
            "meter_reading": readings.ravel()[cells],
        }
    )


def _fill(folder: Path, seed: int, buildings: int, sites: int, clock: Clock) -> tuple[int, int]:
    """Writes the three files; returns rows of train.csv and meters."""
    weather = [site_weather(seed, site, clock) for site in range(sites)]
    tables = [_weather_table(seed, site, clock, weather[site]) for site in range(sites)]
    _write_csv(folder / "weather_train.csv", tables)
    rows: list[dict[str, object]] = []
    meters: list[Meter] = []
    for number in range(buildings):
        # Sites in turn: a building keeps its site, whatever the number of buildings.
        site = number % sites
        row, own = _building(seed, number, site, weather[site]["air_temperature"], clock)
        rows.append(row)
        meters.extend(own)
    _write_csv(folder / "building_metadata.csv", [pa.Table.from_pylist(rows)])
    for first in range(0, len(clock.hour), CHUNK):
        chunk = _train_table(meters, clock, slice(first, first + CHUNK))
        _write_csv(folder / "train.csv", [chunk])
    return sum(int(meter.copies.sum()) for meter in meters), len(meters)


def _write(
    *, root: Path, seed: int, buildings: int, sites: int, start: str, hours: int
) -> tuple[int, int]:
    """Does the work of `write`; returns rows of train.csv and meters."""
    if min(buildings, sites, hours) < 1:
        raise ValueError("buildings, sites and hours must be at least 1")
    root = root.resolve()
    if root.exists() and any(root.iterdir()):
        raise FileExistsError(f"{root} exists and is not empty")
    root.parent.mkdir(parents=True, exist_ok=True)
    # One folder deeper than the temporary one, whose permissions are for its owner only.
    with tempfile.TemporaryDirectory(prefix=f".{root.name}.", dir=root.parent) as temporary:
        stage = Path(temporary) / root.name
        stage.mkdir()
        counts = _fill(stage, seed, buildings, sites, Clock.of(start, hours))
        stage.replace(root)
    return counts


def write(
    root: Path,
    *,
    seed: int = 0,
    buildings: int = 24,
    sites: int = 3,
    start: str = "2016-01-01",
    hours: int = 8784,
) -> None:
    """Writes train.csv, building_metadata.csv and weather_train.csv into `root`, all or nothing.

    The same arguments give the same bytes. A building's own data do not change with `buildings`.

    Args:
        root: Folder to create; may exist if empty.
        seed: Seed of everything random, 0 or more.
        buildings: Number of buildings; 1,449 gives about GEPIII's 20.2 million rows.
        sites: Number of sites; building b stands on site b modulo `sites`.
        start: First hour, ISO date or date and hour.
        hours: Number of hours.

    Raises:
        FileExistsError: `root` holds files already.
        ValueError: An argument is out of range.
    """
    _write(root=root, seed=seed, buildings=buildings, sites=sites, start=start, hours=hours)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write seeded synthetic data in GEPIII's layout.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--start", default="2016-01-01")
    for name, default in (("seed", 0), ("buildings", 24), ("sites", 3), ("hours", 8784)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(argv)
    began = time.perf_counter()
    try:
        rows, meters = _write(**vars(args))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    took = f"{args.hours} hours, {time.perf_counter() - began:.1f} s"
    print(f"{args.root}: {rows} rows, {args.buildings} buildings, {meters} meters, {took}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
