"""Which column plays which part, and the one error that bad data raise."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BUILDING, METER, TIME, READING, SITE = (
    "building_id",
    "meter",
    "timestamp",
    "meter_reading",
    "site_id",
)

NO_METER = -1
"""Stands for a meter's code in tables that have no column of them."""

METER_NAMES = {0: "electricity", 1: "chilled water", 2: "steam", 3: "hot water"}
"""GEPIII's meter codes. Other codes are kept as they are and shown as `meter 4`."""


SERIES = "series"
"""What the id of a wide table's series is called: there, the header's names are the ids."""


@dataclass(frozen=True)
class Roles:
    """Which columns of a table play which part; as they are, those of GEPIII's meter file.

    Args:
        id: columns that name a series together; with none the table is one series.
        timestamp: when a reading was taken.
        target: the reading.
        wide: a column for each series, under its name; `id` and `target` then mean nothing.
        series: those columns of a wide table; None for all that play no other part.
        time_format: how the times are written, as strptime has it; None to find it out.
    """

    id: tuple[str, ...] = (BUILDING, METER)
    timestamp: str = TIME
    target: str = READING
    wide: bool = False
    series: tuple[str, ...] | None = None
    time_format: str | None = None

    @property
    def words(self) -> str:
        """The columns in words."""
        if self.wide:
            return f"timestamp {self.timestamp}, each series in a column"
        ids = f"id {', '.join(self.id)}" if self.id else "no id"
        return f"{ids}, timestamp {self.timestamp}, target {self.target}"


GEPIII_ROLES = Roles()


Files = tuple[Path, ...]
"""Those of one table, which may be in pieces: a file a year, a file a building."""


class DataError(ValueError):
    """The data, or what was asked of them, cannot be used; the message says what to do."""


def files_words(files: tuple[object, ...]) -> str:
    """A table by its files, or what else it was read from."""
    more = len(files) - 1
    return f"{files[0]}" + (f" and {more} more file{'s' * (more > 1)}" if more else "")


def series_words(ids: Mapping[str, object]) -> str:
    """What names a series, column -> value, in words."""
    told = {BUILDING: "building ", SERIES: ""}
    return ", ".join(f"{told.get(k, f'{k} ')}{v}" for k, v in ids.items()) or "the series"


def meter_label(code: int) -> str:
    """A meter code in words."""
    return "series" if code == NO_METER else METER_NAMES.get(code, f"meter {code}")


def meter_code(name: str) -> int | None:
    """The code behind a meter's name or number in writing, None if there is none."""
    plain = name.strip().lower().replace("_", " ")
    by_name = {label: code for code, label in METER_NAMES.items()}
    by_name |= {label.replace(" ", ""): code for label, code in by_name.items()}
    if plain.lstrip("-").isdigit():
        return int(plain)
    return by_name.get(plain)


def require_columns(
    path: object,
    present: list[str],
    needed: tuple[str, ...],
    remedy: str = "Rename the column, or name another file.",
) -> None:
    """Raise a `DataError` that names the columns of `path` that are needed and not there."""
    missing = [name for name in needed if name not in present]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(map(repr, missing))}; its columns are "
            f"{', '.join(present)}. {remedy}"
        )
    twice = [name for name in needed if present.count(name) > 1]
    if twice:
        raise DataError(
            f"{path}: the header names {', '.join(map(repr, twice))} twice; rename one of them"
        )
