"""GEPIII's test file, which asks for the readings of two years, and the answer to it.

Its 41.7 million rows are read and written in pieces: they are never all in memory.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from data.columns import BUILDING, METER, READING, SITE, TIME, DataError, require_columns
from data.frame import Frame
from data.read import Kind, column_names, read_columns
from data.series import SeriesSet
from data.weather import add_covariates

ROW = "row_id"
BLOCK = 32 << 20  # bytes of a csv file that are read at once
ROWS = 1 << 20  # of a Parquet file
KINDS: dict[str, Kind] = {ROW: "id", BUILDING: "id", METER: "meter", TIME: "time"}


def asked(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """The columns of `KINDS` of a test file, piece by piece, each (rows,).

    Raises:
        DataError: a column is missing, or a cell cannot be read.
    """
    require_columns(path, column_names(path), tuple(KINDS))
    names, done = list(KINDS), 0
    if path.suffix == ".parquet":
        pieces = pq.ParquetFile(path).iter_batches(ROWS, columns=names)
    else:
        only = pacsv.ConvertOptions(include_columns=names)
        pieces = pacsv.open_csv(path, pacsv.ReadOptions(block_size=BLOCK), convert_options=only)
    for piece in pieces:
        table = pa.Table.from_batches([piece])
        columns, _ = read_columns(Frame(table, f"{path}, from row {done} on"), KINDS)
        done += table.num_rows
        yield columns


def extended(series: SeriesSet, last_tick: int) -> SeriesSet:
    """The same series, each up to a tick, without covariates: NaN where nothing was read."""
    length = np.maximum(series.length, last_tick + 1 - series.first_tick)
    offset = np.r_[0, np.cumsum(length)]
    reading = np.full(offset[-1], np.nan, dtype=np.float32)
    shift = np.repeat(offset[:-1] - series.offset[:-1], series.length)
    reading[np.arange(series.reading.size) + shift] = series.reading
    return replace(series, offset=offset, reading=reading, notes=[])


def add_weather(
    series: SeriesSet,
    names: tuple[str, ...],
    paths: list[Path],
    utc_offset: tuple[tuple[str, int], ...],
) -> None:
    """Fill the covariates of `series` from several weather files, one behind the other."""
    parts = []
    for path in paths:
        present = column_names(path)
        require_columns(path, present, (SITE, TIME))
        kinds: dict[str, Kind] = {SITE: "id", TIME: "time"}
        kinds |= {name: "number" for name in names if name in present}
        columns, notes = read_columns(path, kinds)
        columns[TIME] = columns[TIME].astype("datetime64[m]").astype("datetime64[s]")
        series.notes += notes
        parts.append(pa.table(columns))
    weather = None
    if parts:
        weather = Frame(pa.concat_tables(parts, promote_options="default"), "the weather")
    add_covariates(
        series, names, {}, np.zeros(0, dtype=np.int64), "the weather", weather, utc_offset
    )


def write_answer(
    path: Path, output: Path, series: SeriesSet, reading: np.ndarray, otherwise: np.ndarray
) -> tuple[int, int]:
    """Write row_id and meter_reading for each row of a test file, in its order.

    Args:
        path: the test file.
        output: a csv file.
        series: GEPIII's, by building and meter.
        reading: (N,) of each cell of theirs; NaN where there is none.
        otherwise: (S,) what is written where there is none. A stranger's rows get 0.

    Returns:
        How many rows were written, and how many of them are of meters that are no series.
    """
    if any(series.ids[name].dtype.kind not in "iu" for name in (BUILDING, METER)):
        raise DataError(f"{path}: a submission is of GEPIII's own building numbers")
    meters = int(series.ids[METER].max()) + 1
    names = series.ids[BUILDING] * meters + series.ids[METER]  # ascending
    rows = strangers = 0
    schema = pa.schema({ROW: pa.int64(), READING: pa.float32()})
    with pacsv.CSVWriter(output, schema) as writer:
        for columns in asked(path):
            name = columns[BUILDING] * meters + columns[METER]
            owner = np.searchsorted(names, name).clip(max=len(series) - 1)
            known = (names[owner] == name) & (columns[METER] < meters)
            ahead = series.tick_at(columns[TIME]) - series.first_tick[owner]
            inside = (ahead >= 0) & (ahead < series.length[owner])
            value = reading[np.where(inside, series.offset[owner] + ahead, 0)]
            value = np.where(inside & ~np.isnan(value), value, otherwise[owner])
            value = np.where(known, value, 0).astype(np.float32)
            writer.write_table(pa.table([columns[ROW], value], schema=schema))
            rows, strangers = rows + name.size, strangers + int((~known).sum())
    return rows, strangers
