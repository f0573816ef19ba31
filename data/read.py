"""A file or a frame into typed columns; a bad cell is named by file, column and row."""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from data.columns import METER_NAMES, DataError, meter_code
from data.frame import Frame, Piece

SEPARATORS = ",;\t|"
NULLS = ["", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "null", "NULL", "None"]
HEADER_LINE = 1

Kind = Literal["time", "meter", "id", "number", "any"]

DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d")
CLOCKS = ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p")
TIME_FORMATS = (*(f"{date} {clock}" for date in DATES for clock in CLOCKS), *DATES)
"""What is tried where times are not written as in ISO 8601, 2016-12-31 23:00."""

ZONE = re.compile(r":\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)$")


def column_names(path: Piece) -> list[str]:
    """The names in a file's header, or a frame's."""
    if isinstance(path, Frame):
        return path.table.column_names
    with _naming(path):
        if _is_parquet(path):
            return list(pq.read_schema(path).names)
        return _csv_dialect(path)[0]


def read_columns(
    path: Piece, wanted: dict[str, Kind], time_format: str | None = None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Read some columns of a csv, csv.gz or Parquet file, or of a frame.

    Args:
        path: the file, or the frame.
        wanted: names, all present, and what they are. A time becomes int64 minutes since 1970-01-01
            (of the time as written), a meter its int64 code, an id int64 (or text, where some are
            no whole numbers), a number float64, NaN for a blank, a null word or a value beyond
            float32. Any column is one of numbers where all of it is, and of text elsewhere, ""
            for a blank.
        time_format: how times are written; None: as ISO 8601 has it, or another of the world's
            ways that fits all of them and is the only one.

    Returns:
        The columns by name, each (rows,), and notes on what was decided while reading.

    Raises:
        DataError: a cell that cannot be read, with file, column and row.
    """
    notes: list[str] = []
    with _naming(path):
        if isinstance(path, Frame):
            table = path.table
        elif _is_parquet(path):
            table = pq.read_table(path, columns=list(wanted))
        else:
            table = _read_csv(path, wanted, notes)
    columns: dict[str, np.ndarray] = {}
    for name, kind in wanted.items():
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
            column = pc.cast(column, pa.string())
        where = f"{path}, column {name}"
        if kind == "time":
            columns[name] = _minutes(column, where, path, time_format, notes)
        elif kind == "meter":
            columns[name] = _meter_codes(column, where, path)
        elif kind == "id":
            columns[name] = _identifiers(column, where, path)
        elif kind == "any" and not _is_numeric(column.type):
            text = pc.utf8_trim_whitespace(pc.cast(column, pa.string()))
            columns[name] = pc.fill_null(text, "").to_numpy().astype(np.str_)
        else:
            columns[name] = _numbers(column, where, path, notes)
    return columns, notes


def _is_numeric(kind: pa.DataType) -> bool:
    """A column of blanks alone is, too."""
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    return any(is_one(kind) for is_one in numbers)


def row_name(path: Piece, index: int) -> str:
    """How a person finds row `index` (from 0) again: a text file's line, a Parquet file's row."""
    if isinstance(path, Frame):
        return f"row {index} (from 0)"
    return f"row {index + 1}" if _is_parquet(path) else f"line {index + 1 + HEADER_LINE}"


@contextmanager
def _naming(path: Piece) -> Iterator[None]:
    """Name the file in what goes wrong while it is opened and decoded."""
    try:
        yield
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise DataError(
            f"{path}: cannot be read: {' '.join(str(error).split())}; mend or replace the file"
        ) from error


def _is_parquet(path: Path) -> bool:
    return path.suffix in (".parquet", ".pq")


def _csv_dialect(path: Path) -> tuple[list[str], str, str]:
    """Column names, separator and decimal mark of a csv file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", errors="replace", newline=None) as file:
        lines = [line.rstrip("\n") for _, line in zip(range(50), file, strict=False)]
    if not lines or not lines[0].strip():
        raise DataError(f"{path}: the file is empty; it needs a header line and rows")
    header, body = lines[0], lines[1:]
    separator = max(SEPARATORS, key=header.count)
    comma = separator != "," and any("," in line for line in body)
    names = next(csv.reader([header], delimiter=separator, skipinitialspace=True))
    return [name.strip() for name in names], separator, "," if comma else "."


def _read_csv(path: Path, wanted: dict[str, Kind], notes: list[str]) -> pa.Table:
    names, separator, decimal = _csv_dialect(path)
    if (separator, decimal) != (",", "."):
        notes.append(f"{path.name}: read with separator {separator!r} and decimal mark {decimal!r}")
    types = {"number": pa.float64(), "time": pa.timestamp("s")}
    options = pacsv.ConvertOptions(
        column_types={name: types[kind] for name, kind in wanted.items() if kind in types},
        null_values=NULLS,
        strings_can_be_null=True,
        decimal_point=decimal,
        include_columns=list(wanted),
    )
    read = pacsv.ReadOptions(column_names=names, skip_rows=HEADER_LINE)
    parse = pacsv.ParseOptions(delimiter=separator)
    try:
        return pacsv.read_csv(path, read, parse, options)
    except pa.ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise
    # Some cell is not of its column's type: as text, every cell can be looked at and named.
    options.column_types = dict.fromkeys(wanted, pa.string())
    table = pacsv.read_csv(path, read, parse, options)
    if decimal == ",":
        for name in (name for name, kind in wanted.items() if kind == "number"):
            plain = pc.replace_substring(table.column(name), ",", ".")
            table = table.set_column(table.schema.get_field_index(name), name, plain)
    return table


def _first_bad(column: pa.ChunkedArray, target: pa.DataType) -> int:
    """Index of the first cell that does not cast to `target`, found by halving."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pc.cast(column.slice(low, middle - low), target)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _cast(column: pa.ChunkedArray, target: pa.DataType, where: str, path: Piece, remedy: str):
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
    try:
        return pc.cast(column, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if isinstance(error, pa.ArrowNotImplementedError):
            raise DataError(f"{where}: type {column.type} is not supported; {remedy}") from error
        bad = _first_bad(column, target)
        raise DataError(
            f"{where}, {row_name(path, bad)}: {column[bad].as_py()!r} is not readable; {remedy}"
        ) from error


def _refuse_nulls(column: pa.ChunkedArray, where: str, path: Piece) -> None:
    if column.null_count:
        bad = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise DataError(
            f"{where}, {row_name(path, bad)}: the cell is blank; fill it or drop the row"
        )


def _minutes(
    column: pa.ChunkedArray, where: str, path: Piece, time_format: str | None, notes: list[str]
) -> np.ndarray:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        raise DataError(
            f"{where}: the times carry the zone {column.type.tz}; write local times without a zone"
        )
    remedy = "write local times as 2016-12-31 23:00:00, without a zone"
    _refuse_nulls(column, where, path)
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = _parsed(column, where, path, time_format, notes)
    seconds = _cast(column, pa.timestamp("s"), where, path, remedy).to_numpy().astype(np.int64)
    odd = np.flatnonzero(seconds % 60)
    if odd.size:
        time = str(np.datetime64(int(seconds[odd[0]]), "s")).replace("T", " ")
        raise DataError(
            f"{where}, {row_name(path, int(odd[0]))}: {time} is not a whole minute; round the "
            "times to minutes, with one reading for each"
        )
    return seconds // 60


def _parsed(
    column: pa.ChunkedArray, where: str, path: Piece, time_format: str | None, notes: list[str]
) -> pa.ChunkedArray:
    """Times that were written in another way than ISO 8601's; others as they are."""
    if time_format is None:
        try:
            return pc.cast(column, pa.timestamp("s"))
        except pa.ArrowInvalid:
            pass
        zoned = next((text for text in column.slice(0, 1).to_pylist() if ZONE.search(text)), None)
        if zoned is not None:
            raise DataError(
                f"{where}, {row_name(path, 0)}: {zoned!r} carries a zone; write local times "
                "without a zone, where the hour that a clock change doubles has one reading"
            )
    fitting = {}
    for known in TIME_FORMATS if time_format is None else (time_format,):
        times = pc.strptime(column, known, unit="s", error_is_null=True)
        if not times.null_count:
            fitting[known] = times
        elif time_format is not None:
            bad = int(np.flatnonzero(times.is_null().to_numpy())[0])
            raise DataError(
                f"{where}, {row_name(path, bad)}: {column[bad].as_py()!r} is not written as "
                f"--data.time_format {time_format!r} has it"
            )
    if len(fitting) > 1:
        raise DataError(
            f"{where}: {column[0].as_py()!r} may be read as {' or '.join(map(repr, fitting))}; say "
            "which with --data.time_format"
        )
    if time_format is None and fitting:
        notes.append(f"{where}: read as {next(iter(fitting))}")
    return next(iter(fitting.values()), column)


def _meter_codes(column: pa.ChunkedArray, where: str, path: Piece) -> np.ndarray:
    _refuse_nulls(column, where, path)
    if not pa.types.is_string(column.type):
        return _cast(column, pa.int64(), where, path, "write a meter's code or name").to_numpy()
    encoded = column.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = [meter_code(name) for name in names]
    for name, code in zip(names, codes, strict=True):
        if code is None:
            known = ", ".join(f"{code} {label}" for code, label in METER_NAMES.items())
            raise DataError(f"{where}: {name!r} is not a meter; write one of: {known}")
    return np.array(codes, dtype=np.int64)[encoded.indices.to_numpy()]


def _identifiers(column: pa.ChunkedArray, where: str, path: Piece) -> np.ndarray:
    _refuse_nulls(column, where, path)
    if pa.types.is_string(column.type):
        return column.to_numpy().astype(np.str_)
    return _cast(column, pa.int64(), where, path, "write a whole number or a name").to_numpy()


def _numbers(column: pa.ChunkedArray, where: str, path: Piece, notes: list[str]) -> np.ndarray:
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        null = pc.is_in(column, value_set=pa.array(NULLS))
        column = pc.if_else(null, None, column)
    numbers = _cast(column, pa.float64(), where, path, "write a number, or leave the cell blank")
    values = numbers.to_numpy()
    infinite = np.abs(values) > np.finfo(np.float32).max
    if infinite.any():
        values = np.where(infinite, np.nan, values)
        first = row_name(path, int(infinite.argmax()))
        notes.append(
            f"{where}: {int(infinite.sum())} infinite or too large value(s) read as missing, "
            f"first in {first}"
        )
    return values
