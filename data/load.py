"""Files of the GEPIII layout into a `SeriesSet`: read, order, refuse or repair, lay out by hour."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.columns import BUILDING, METER, READING, SITE, TIME, DataError, require_columns
from data.read import column_names, read_columns, row_name
from data.series import SeriesSet, stamp
from data.weather import add_covariates

KEYS = (BUILDING, METER, TIME, READING)


@dataclass(frozen=True)
class Source:
    """Files of one data set, and how they are to be read."""

    meters_path: Path
    weather_path: Path | None = None
    metadata_path: Path | None = None
    covariates: tuple[str, ...] = ()
    meters: tuple[int, ...] | None = None  # meter codes to keep, None for all
    duplicates: str = "error"  # two readings for one hour: error, first, last or mean
    negative: str = "clip"  # readings below zero: clip or keep
    utc_offset: tuple[tuple[str, int], ...] = ()  # hours to add to the weather of a site, or of "*"

    @property
    def paths(self) -> list[Path]:
        """The files of this source."""
        return [p for p in (self.meters_path, self.weather_path, self.metadata_path) if p]


def load_series(source: Source) -> SeriesSet:
    """Read the files of `source`.

    Raises:
        DataError: what cannot be used, with file, column, row and remedy.
    """
    path = source.meters_path
    names = column_names(path)
    require_columns(path, names, KEYS)
    own = [name for name in source.covariates if name in names]
    columns, notes = read_columns(path, [*KEYS, *own])
    kept = _kept_rows(source, columns)
    order = _resolve_duplicates(source, columns, *_order(columns, kept), notes)
    series, cell = _lay_out(columns, order, notes)
    _clip_negative(source, columns[READING], kept, series)
    _add_sites(source, series)
    own_values = {name: columns[name][order] for name in own}
    add_covariates(
        series, source.covariates, own_values, cell, path, source.weather_path, source.utc_offset
    )
    return series


def _kept_rows(source: Source, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Indices of the rows of the meters asked for."""
    path, meter = source.meters_path, columns[METER]
    if not meter.size:
        raise DataError(f"{path}: the file has a header and no rows; name one with readings")
    if source.meters is None:
        return np.arange(meter.size)
    kept = np.flatnonzero(np.isin(meter, source.meters))
    if not kept.size:
        present = ", ".join(str(code) for code in np.unique(meter))
        raise DataError(f"{path}: no row of meter {list(source.meters)}; the file has {present}")
    return kept


def _order(columns: dict[str, np.ndarray], kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows by building, meter and hour, and one ascending key of the three for each."""
    building, meter, hour = (columns[name][kept] for name in (BUILDING, METER, TIME))
    # Ranks by bisection: `np.unique` with its inverse sorts all rows, and takes four times as long.
    building = np.searchsorted(np.unique(building), building)
    meter = np.searchsorted(np.unique(meter), meter)
    hour -= hour.min()
    key = (building * (meter.max() + 1) + meter) * (hour.max() + 1) + hour
    order = np.argsort(key, kind="stable")
    return kept[order], key[order]


def _resolve_duplicates(
    source: Source,
    columns: dict[str, np.ndarray],
    order: np.ndarray,
    key: np.ndarray,
    notes: list[str],
) -> np.ndarray:
    """One row an hour: equal ones are dropped, contradicting ones refused unless told otherwise."""
    new = np.r_[True, key[1:] != key[:-1]]
    if new.all():
        return order
    path, reading = source.meters_path, columns[READING]
    start = np.flatnonzero(new)
    hour_of_row = np.cumsum(new) - 1
    first = order[start][hour_of_row]
    blank = np.isnan(reading[order])
    clash = np.flatnonzero((reading[order] != reading[first]) & ~(blank & np.isnan(reading[first])))
    if clash.size and source.duplicates == "error":
        a, b = first[clash[0]], order[clash[0]]
        raise DataError(
            f"{path}, {row_name(path, a)} and {row_name(path, b)}: "
            f"building {columns[BUILDING][a]}, meter {columns[METER][a]} "
            f"has two readings at {stamp(columns[TIME][a])}, "
            f"{reading[a]:g} and {reading[b]:g}; {clash.size} row(s) contradict another. "
            "Mend the file or pass --data.duplicates first, last or mean."
        )
    dropped = order.size - start.size
    note = f"{path.name}: {dropped:,} duplicate {'row' if dropped == 1 else 'rows'} dropped"
    if clash.size:
        note += f"; {clash.size} contradicted another, resolved by '{source.duplicates}'"
    notes.append(note)
    if source.duplicates == "mean":
        count = np.bincount(hour_of_row, ~blank)
        total = np.bincount(hour_of_row, np.nan_to_num(reading[order]))
        columns[READING] = reading = reading.copy()  # what was read may be read-only
        reading[order[start]] = total / np.where(count, count, np.nan)
    last = np.r_[start[1:], order.size] - 1
    return order[last if source.duplicates == "last" else start]


def _lay_out(
    columns: dict[str, np.ndarray], order: np.ndarray, notes: list[str]
) -> tuple[SeriesSet, np.ndarray]:
    """The series on their hourly grid, and the cell of each ordered row."""
    building, meter, hour, reading = (columns[name][order] for name in KEYS)
    new = np.r_[True, (building[1:] != building[:-1]) | (meter[1:] != meter[:-1])]
    start = np.flatnonzero(new)
    last = np.r_[start[1:], order.size] - 1
    first_hour = hour[start]
    offset = np.r_[0, np.cumsum(hour[last] - first_hour + 1)]
    of_row = np.cumsum(new) - 1
    cell = hour + (offset[:-1] - first_hour)[of_row]
    grid = np.full(offset[-1], np.nan, dtype=np.float32)
    grid[cell] = reading
    blank = int(np.isnan(reading).sum())
    if grid.size - order.size + blank:
        notes.append(
            f"readings: {grid.size - order.size:,} hours have no row and {blank:,} rows no "
            "reading; windows that need one are left out"
        )
    series = SeriesSet(
        building=building[start],
        meter=meter[start],
        site=np.zeros(start.size, dtype=np.int64),
        first_hour=first_hour,
        offset=offset,
        reading=grid,
        covariates=np.empty((0, 0), dtype=np.float32),
        covariate_start=np.zeros(start.size, dtype=np.int64),
        notes=notes,
    )
    return series, cell


def _clip_negative(
    source: Source, reading: np.ndarray, kept: np.ndarray, series: SeriesSet
) -> None:
    """Energy is not negative, and the logarithm ends at -1: set to zero, unless told to keep."""
    negative = kept[reading[kept] < 0]
    if not negative.size:
        return
    first = int(negative[0])
    note = (
        f"{source.meters_path.name}: {negative.size:,} negative readings, the first is "
        f"{reading[first]:g} in {row_name(source.meters_path, first)}; "
    )
    if source.negative == "clip":
        np.maximum(series.reading, 0, out=series.reading)
        series.notes.append(note + "set to 0 (--model.transform none keeps them)")
    else:
        series.notes.append(note + "kept")


def _add_sites(source: Source, series: SeriesSet) -> None:
    """Look each building's site up in the metadata; without metadata all stand at site 0."""
    path = source.metadata_path
    if path is None:
        return
    require_columns(path, column_names(path), (BUILDING, SITE))
    columns, _ = read_columns(path, [BUILDING, SITE])
    site = dict(zip(columns[BUILDING].tolist(), columns[SITE].tolist(), strict=True))
    strangers = sorted({b for b in series.building.tolist() if b not in site})
    if strangers:
        raise DataError(
            f"{path}: no row for building {', '.join(map(str, strangers[:5]))}"
            f"{' and others' if len(strangers) > 5 else ''}, which {source.meters_path} names; "
            "add it, so that its site and weather are known"
        )
    series.site = np.array([site[b] for b in series.building.tolist()])
