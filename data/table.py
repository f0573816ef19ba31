"""The files of a table, or a frame, into readings, each of which can be found again."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from data.columns import (
    GEPIII_ROLES,
    METER,
    SERIES,
    DataError,
    Roles,
    files_words,
    require_columns,
    series_words,
)
from data.frame import Frame, Piece
from data.read import Kind, column_names, read_columns, row_name

NAME_THEM = (
    "Rename the column, or say which is what: --data.timestamp, --data.target and, for what names "
    "a series, --data.id (or --data.layout wide, if each series has a column)."
)


TRAINED_ON = "The model was trained on a table with such a column."


@dataclass(frozen=True)
class Source:
    """Files of one data set, or a frame, and how they are to be read."""

    table: tuple[Piece, ...]  # of the readings
    roles: Roles = GEPIII_ROLES
    weather_path: Path | None = None
    metadata_path: Path | None = None
    covariates: tuple[str, ...] = ()
    static: tuple[str, ...] = ()  # columns, of the table or of the metadata, see `data.static`
    meters: tuple[int, ...] | None = None  # meter codes to keep, None for all
    duplicates: str = "error"  # two readings for one time: error, first, last or mean
    utc_offset: tuple[tuple[str, int], ...] = ()  # hours to add to the weather of a site, or of "*"

    @property
    def words(self) -> str:
        """What the table is called in an error."""
        return files_words(self.table)

    @property
    def paths(self) -> list[Path]:
        """The files of this source."""
        pieces = (*self.table, self.weather_path, self.metadata_path)
        return [piece for piece in pieces if isinstance(piece, Path)]


@dataclass
class Readings:
    """The n readings of a table, file by file, each in the order of its file."""

    files: tuple[Piece, ...]
    lines: list[int]  # rows of each file
    sizes: list[int]  # readings of each: reading i of a file is from its row i modulo its rows
    time: str  # the column of times
    ids: dict[str, np.ndarray]  # column -> (n,)
    columns: tuple[str, ...]  # what the numbers in `ids` stand for, in a wide table
    minute: np.ndarray  # (n,) int64, since 1970-01-01
    reading: np.ndarray  # (n,) float64
    covariates: dict[str, np.ndarray]  # column -> (n,)
    static: dict[str, np.ndarray]  # column -> (n,) float64 or text
    notes: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """What the table is called in an error."""
        return files_words(self.files)

    @property
    def name(self) -> str:
        """What it is called in a note."""
        return files_words((self.files[0].name, *self.files[1:]))

    def place(self, index: int) -> tuple[Piece, str]:
        """Where a person finds a reading: its file, and the row in it."""
        ends = np.cumsum(self.sizes)
        number = int(np.searchsorted(ends, index, side="right"))
        within = int(index) - int(ends[number]) + self.sizes[number]
        path = self.files[number]
        return path, row_name(path, within % self.lines[number])

    def pair(self, first: int, second: int) -> str:
        """Where two readings are, the file named once if it is one."""
        (path, row), (other, other_row) = self.place(first), self.place(second)
        return f"{path}, {row} and {other_row if other == path else f'{other}, {other_row}'}"

    def label(self, index: int) -> str:
        """What names the series of a reading."""
        ids = {name: values[index] for name, values in self.ids.items()}
        if self.columns:
            ids = {name: self.columns[number] for name, number in ids.items()}
        return series_words(ids)


def read_table(source: Source) -> Readings:
    """All files of a table, as one.

    Raises:
        DataError: a cell or a column that cannot be used.
    """
    read = _read_wide if source.roles.wide else _read_long
    parts = [read(source, path) for path in source.table]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Readings]) -> Readings:
    """Several files' readings, one behind the other."""
    first = parts[0]
    for part in parts[1:]:
        if _layout(part) != _layout(first):
            raise DataError(
                f"{part.words} has other columns than {first.words}; the files of one table have "
                "the same covariates, and the same series in the same order, if each has a column"
            )
    return replace(
        first,
        files=tuple(path for part in parts for path in part.files),
        lines=[part.lines[0] for part in parts],
        sizes=[part.sizes[0] for part in parts],
        ids={name: np.concatenate([part.ids[name] for part in parts]) for name in first.ids},
        minute=np.concatenate([part.minute for part in parts]),
        reading=np.concatenate([part.reading for part in parts]),
        covariates={
            name: np.concatenate([part.covariates[name] for part in parts])
            for name in first.covariates
        },
        static={
            name: np.concatenate([part.static[name] for part in parts]) for name in first.static
        },
        notes=[note for part in parts for note in part.notes],
    )


def _remedy(path: Piece) -> str:
    """What to do about a column that is not there."""
    return TRAINED_ON if isinstance(path, Frame) else NAME_THEM


def _layout(part: Readings) -> tuple[object, ...]:
    """What the files of one table have in common."""
    kinds = {name: values.dtype.kind for name, values in part.static.items()}
    return part.columns, part.covariates.keys(), kinds


def _read_long(source: Source, path: Piece) -> Readings:
    """A file with a row for each reading."""
    roles = source.roles
    present = column_names(path)
    as_gepiii = roles == GEPIII_ROLES
    needed = (*roles.id, roles.timestamp, roles.target)
    require_columns(path, present, needed, _remedy(path))
    kinds: dict[str, Kind] = dict.fromkeys(roles.id, "id")
    if as_gepiii:
        kinds[METER] = "meter"
    kinds |= {roles.timestamp: "time", roles.target: "number"}
    own = [name for name in source.covariates if name in present]
    kinds |= dict.fromkeys(own, "number")
    static = [name for name in source.static if name in present]
    kinds |= dict.fromkeys(static, "any")
    columns, notes = read_columns(path, kinds, roles.time_format)
    return Readings(
        files=(path,),
        lines=[columns[roles.target].size],
        sizes=[columns[roles.target].size],
        time=roles.timestamp,
        ids={name: columns[name] for name in roles.id},
        columns=(),
        minute=columns[roles.timestamp],
        reading=columns[roles.target],
        covariates={name: columns[name] for name in own},
        static={name: columns[name] for name in static},
        notes=notes,
    )


def _read_wide(source: Source, path: Piece) -> Readings:
    """A file with a row for each time and a column for each series."""
    roles = source.roles
    present = column_names(path)
    others = {roles.timestamp, *source.covariates}
    names = roles.series or tuple(name for name in present if name not in others)
    require_columns(path, present, (roles.timestamp, *names), _remedy(path))
    if not names:
        raise DataError(f"{path}: no column is left for a series. {_remedy(path)}")
    own = [name for name in source.covariates if name in present]
    kinds: dict[str, Kind] = {roles.timestamp: "time"}
    kinds |= dict.fromkeys([*names, *own], "number")
    columns, notes = read_columns(path, kinds, roles.time_format)
    minute = columns[roles.timestamp]
    return Readings(
        files=(path,),
        lines=[minute.size],
        sizes=[minute.size * len(names)],
        time=roles.timestamp,
        ids={SERIES: np.repeat(np.arange(len(names)), minute.size)},
        columns=tuple(names),
        minute=np.tile(minute, len(names)),
        reading=np.concatenate([columns[name] for name in names]),
        covariates={name: np.tile(columns[name], len(names)) for name in own},
        static={},  # a column of its own is a series
        notes=notes,
    )
