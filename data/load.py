"""A table of readings into a `SeriesSet`: read, order, refuse or repair, lay out on its grid."""

import numpy as np

from data.columns import GEPIII_ROLES, METER, SITE, DataError
from data.grid import HOUR, are_months, common_phase, common_step, differences, every, stamp
from data.metadata import of_buildings
from data.read import column_names
from data.series import SeriesSet
from data.static import read_static
from data.table import Readings, Source, read_table
from data.weather import add_covariates


def load_series(source: Source) -> SeriesSet:
    """Read the files of `source`.

    Raises:
        DataError: what cannot be used, with file, column, row and remedy.
    """
    table = read_table(source)
    kept = _kept_rows(source, table)
    _note_negative(table, kept)
    order = _resolve_duplicates(source, table, *_order(table, kept))
    series, cell = _lay_out(table, order)
    _add_sites(source, series)
    series.static = read_static(source, table, order, series, cell)
    own = {name: values[order] for name, values in table.covariates.items()}
    weather = source.weather_path
    add_covariates(series, source.covariates, own, cell, table.name, weather, source.utc_offset)
    return series


def _kept_rows(source: Source, table: Readings) -> np.ndarray:
    """Indices of the rows of the meters asked for."""
    if not table.reading.size:
        raise DataError(
            f"{table.files[0]}: the file has a header and no rows; name one with readings"
        )
    if source.meters is None:
        return np.arange(table.reading.size)
    if METER not in table.ids or source.roles != GEPIII_ROLES:
        raise DataError("--data.meters chooses by GEPIII's meter codes, which this table has not")
    meter = table.ids[METER]
    kept = np.flatnonzero(np.isin(meter, source.meters))
    if not kept.size:
        present = ", ".join(str(code) for code in np.unique(meter))
        raise DataError(
            f"{table.words}: no row of meter {list(source.meters)}; the file has {present}"
        )
    return kept


def _order(table: Readings, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows by series and time, and one ascending key of both for each."""
    minute = table.minute[kept]
    minute -= minute.min()
    key = np.zeros(kept.size, dtype=np.int64)
    for values in table.ids.values():
        values = values[kept]
        # Ranks by bisection: `np.unique` with its inverse sorts all rows, and takes four times as
        # long.
        present = np.unique(values)
        key = key * present.size + np.searchsorted(present, values)
    key = key * (minute.max() + 1) + minute
    order = np.argsort(key, kind="stable")
    return kept[order], key[order]


def _resolve_duplicates(
    source: Source, table: Readings, order: np.ndarray, key: np.ndarray
) -> np.ndarray:
    """One row a time: equal ones are dropped, contradicting ones refused unless told otherwise."""
    new = np.r_[True, key[1:] != key[:-1]]
    if new.all():
        return order
    reading = table.reading
    start = np.flatnonzero(new)
    time_of_row = np.cumsum(new) - 1
    first = order[start][time_of_row]
    blank = np.isnan(reading[order])
    clash = np.flatnonzero((reading[order] != reading[first]) & ~(blank & np.isnan(reading[first])))
    if clash.size and source.duplicates == "error":
        a, b = first[clash[0]], order[clash[0]]
        raise DataError(
            f"{table.pair(a, b)}: {table.label(a)} "
            f"has two readings at {stamp(table.minute[a])}, "
            f"{reading[a]:g} and {reading[b]:g}; {clash.size} row(s) contradict another. "
            "Mend the file or pass --data.duplicates first, last or mean."
        )
    dropped = order.size - start.size
    note = f"{table.name}: {dropped:,} duplicate {'row' if dropped == 1 else 'rows'} dropped"
    if clash.size:
        note += f"; {clash.size} contradicted another, resolved by '{source.duplicates}'"
    table.notes.append(note)
    if source.duplicates == "mean":
        count = np.bincount(time_of_row, ~blank)
        total = np.bincount(time_of_row, np.nan_to_num(reading[order]))
        table.reading = reading = reading.copy()  # what was read may be read-only
        reading[order[start]] = total / np.where(count, count, np.nan)
    last = np.r_[start[1:], order.size] - 1
    return order[last if source.duplicates == "last" else start]


def _lay_out(table: Readings, order: np.ndarray) -> tuple[SeriesSet, np.ndarray]:
    """The series on their grid of times, and the cell of each ordered row."""
    ids = {name: values[order] for name, values in table.ids.items()}
    minute, reading = table.minute[order], table.reading[order]
    new = np.r_[True, np.zeros(order.size - 1, dtype=bool)]
    for values in ids.values():
        new[1:] |= values[1:] != values[:-1]
    start = np.flatnonzero(new)
    last = np.r_[start[1:], order.size] - 1
    step, phase = _find_grid(table, order, minute, new)
    tick = (minute - phase) // step
    first_tick = tick[start]
    offset = np.r_[0, np.cumsum(tick[last] - first_tick + 1)]
    of_row = np.cumsum(new) - 1
    cell = tick + (offset[:-1] - first_tick)[of_row]
    grid = np.full(offset[-1], np.nan, dtype=np.float32)
    grid[cell] = reading
    blank = int(np.isnan(reading).sum())
    if grid.size - order.size + blank:
        table.notes.append(
            f"readings: {grid.size - order.size:,} times have no row and {blank:,} rows no "
            "reading; windows that need one are left out"
        )
    of_series = {name: values[start] for name, values in ids.items()}
    if table.columns:
        names = np.array(table.columns)
        of_series = {name: names[values] for name, values in of_series.items()}
    series = SeriesSet(
        ids=of_series,
        site=np.zeros(start.size, dtype=np.int64),
        first_tick=first_tick,
        offset=offset,
        reading=grid,
        covariates=np.empty((0, 0), dtype=np.float32),
        covariate_start=np.zeros(start.size, dtype=np.int64),
        notes=table.notes,
        step=step,
        phase=phase,
    )
    return series, cell


def _find_grid(
    table: Readings, order: np.ndarray, minute: np.ndarray, new: np.ndarray
) -> tuple[int, int]:
    """Step and phase that all times have in common.

    Args:
        table: for messages.
        order: (n,) the rows by series and time, one for each.
        minute: (n,) their times.
        new: (n,) where a series begins.

    Raises:
        DataError: a time is off the grid of most others.
    """
    between = differences(minute, new)
    step = common_step(between, otherwise=HOUR)
    phase = common_phase(minute, step)
    stray = np.flatnonzero(minute % step != phase)
    if are_months(between):
        raise DataError(
            f"{table.words}, column {table.time}: there is a reading every month, and months are "
            "not of one length; use readings at equal steps, every day or every week say"
        )
    if stray.size:
        row = int(order[stray].min())
        path, line = table.place(row)
        raise DataError(
            f"{path}, column {table.time}, {line}: "
            f"{_off_grid(int(table.minute[row]), step, phase)}; mend the time or drop the row; a "
            "table of several steps has to be brought to one"
        )
    if step != HOUR:
        table.notes.append(f"{table.name}: a reading {every(step)}")
    return step, phase


def _off_grid(minute: int, step: int, phase: int) -> str:
    """What is wrong with a time, in words."""
    before = minute - (minute - phase) % step
    if (step, phase) == (HOUR, 0):
        return f"{stamp(minute)} is not a whole hour, and there is a reading every hour"
    return (
        f"{stamp(minute)} lies between {stamp(before)} and {stamp(before + step)}, and there is a "
        f"reading {every(step)}"
    )


def _note_negative(table: Readings, kept: np.ndarray) -> None:
    """Of energy they are slips; what becomes of them is not decided here."""
    negative = kept[table.reading[kept] < 0]
    if negative.size:
        first = int(negative[0])
        path, row = table.place(first)
        where = row if len(table.files) == 1 else f"{path}, {row}"
        table.notes.append(
            f"{table.name}: {negative.size:,} negative readings, the first is "
            f"{table.reading[first]:g} in {where}"
        )


def _add_sites(source: Source, series: SeriesSet) -> None:
    """Look each building's site up in the metadata; without metadata all stand at site 0."""
    path = source.metadata_path
    if path is None or (source.weather_path is None and SITE not in column_names(path)):
        return
    series.site = of_buildings(source, series, {SITE: "id"})[SITE]
