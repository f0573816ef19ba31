"""A table in memory, which is read as a file is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from data.columns import DataError


@dataclass(frozen=True)
class Frame:
    """A table in memory; where a message names a file, it says `the frame`."""

    table: pa.Table
    name: str = "the frame"

    def __str__(self) -> str:
        return self.name


Piece = Path | Frame
"""What is read in one go: a file, or a table in memory."""


def frame_of(columns: Any) -> Frame:
    """A pyarrow Table, a pandas DataFrame, a dict of columns, or what else speaks Arrow (Polars).

    Of a DataFrame's index the levels that have a name are columns.

    Raises:
        DataError: it is no table.
    """
    try:
        if hasattr(columns, "columns") and hasattr(columns, "index"):
            named = any(name is not None for name in columns.index.names)
            return Frame(pa.Table.from_pandas(columns, preserve_index=named))
        if isinstance(columns, Mapping):
            columns = dict(columns)
        return Frame(columns if isinstance(columns, pa.Table) else pa.table(columns))
    except (TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise DataError(
            f"the frame: {' '.join(str(error).split())}; give a pyarrow Table, a pandas DataFrame "
            "or a dict of columns"
        ) from error
