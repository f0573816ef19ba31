"""Which column plays which part, and the one error that bad data raise."""

BUILDING, METER, TIME, READING, SITE = (
    "building_id",
    "meter",
    "timestamp",
    "meter_reading",
    "site_id",
)

METER_NAMES = {0: "electricity", 1: "chilled water", 2: "steam", 3: "hot water"}
"""GEPIII's meter codes. Other codes are kept as they are and shown as `meter 4`."""


class DataError(ValueError):
    """The data, or what was asked of them, cannot be used; the message says what to do."""


def meter_label(code: int) -> str:
    """A meter code in words."""
    return METER_NAMES.get(code, f"meter {code}")


def meter_code(name: str) -> int | None:
    """The code behind a meter's name or number in writing, None if there is none."""
    plain = name.strip().lower().replace("_", " ")
    by_name = {label: code for code, label in METER_NAMES.items()}
    by_name |= {label.replace(" ", ""): code for label, code in by_name.items()}
    if plain.lstrip("-").isdigit():
        return int(plain)
    return by_name.get(plain)


def require_columns(path: object, present: list[str], needed: tuple[str, ...]) -> None:
    """Raise a `DataError` that names the columns of `path` that are needed and not there."""
    missing = [name for name in needed if name not in present]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(map(repr, missing))}; the file's columns are "
            f"{', '.join(present)}. Rename the column, or name another file."
        )
    twice = [name for name in needed if present.count(name) > 1]
    if twice:
        raise DataError(
            f"{path}: the header names {', '.join(map(repr, twice))} twice; rename one of them"
        )
