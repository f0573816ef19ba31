"""Tables as their owners have them."""

from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np

LONG = 60  # hours of each series
COLUMNS = ["--data.id=Kunde", "--data.timestamp=Zeit", "--data.target=kWh"]


def times(hours: int, written: str = "%Y-%m-%d %H:%M") -> Iterator[tuple[int, str]]:
    """Number and text of each hour from 11 March 2023 on; on the third day it is no month."""
    first = np.datetime64("2023-03-11T00", "h")
    for n in range(hours):
        yield n, (first + np.timedelta64(n, "h")).astype(object).strftime(written)


def long_table(
    path: Path,
    written: str = "%Y-%m-%d %H:%M",
    hours: int = LONG,
    gap: Container[int] = (),
) -> Path:
    """Two customers, of whom one has a gap, with semicolons and decimal commas."""
    lines = ["Zeit;Kunde;kWh;Temp"]
    lines += [f"{time};Müller & Co;{n},5;{n},1" for n, time in times(hours, written)]
    rows = [f"{time};K 2;{200 + n},0;{n},1" for n, time in times(hours, written)]
    lines += [row for n, row in enumerate(rows) if n not in gap]
    path.write_text("\n".join(lines) + "\n")
    return path


def day_month_year(path: Path, hours: int) -> Path:
    """Dates of which nobody knows whether the day comes first."""
    return long_table(path, "%d/%m/%Y %H:%M", hours)
