"""What is one value a series, a floor area or a use, as numbers that the network is told.

The names of these numbers say how they are made, so that a model which knows the names makes them
of any data as it did in training: `floors` is the column, `log1p(square_feet)` its logarithm, and
`primary_use=Office` is 1 where the column has that word, and 0 elsewhere.
"""

import re

import numpy as np

from data.columns import DataError
from data.metadata import of_buildings
from data.series import SeriesSet
from data.table import Readings, Source

Raw = dict[str, np.ndarray]
"""Column -> (S,) float64, NaN for a blank; or text, "" for one."""

MOST_WORDS = 20
OTHER = "other"  # stands for all words that have no number of their own
SPREAD = 100  # a column whose largest value is more than so many times its least is a logarithm
NAME = re.compile(r"log1p\((?P<log>.+)\)|(?P<words>[^=]+)=(?P<word>.+)|(?P<plain>.+)")


def column_of(name: str) -> str:
    """The column that a number is made of."""
    parts = NAME.fullmatch(name)
    assert parts is not None
    return parts["log"] or parts["words"] or parts["plain"]


def columns_of(names: list[str]) -> list[str]:
    """The columns that some numbers are made of, each once."""
    return list(dict.fromkeys(map(column_of, names)))


# -- reading -----------------------------------------------------------------------------------


def read_static(
    source: Source, table: Readings, order: np.ndarray, series: SeriesSet, cell: np.ndarray
) -> Raw:
    """The columns `source.static` of the table itself, or else of the metadata.

    Args:
        source: the files.
        table: its readings.
        order: (n,) those of them that were kept, by series and time.
        series: what they were laid out as.
        cell: (n,) the cell of each.

    Raises:
        DataError: there is no such column, or it has several values for a series.
    """
    owner = series.series_of(cell)
    found = {name: _of_each(table, name, order, owner, len(series)) for name in table.static}
    others = [name for name in source.static if name not in found]
    if others and source.metadata_path is None:
        raise DataError(
            f"--data.static: {source.words} has no column {others[0]!r}, and there is no file of "
            "buildings that could; name one with --data.metadata_path"
        )
    return found | (of_buildings(source, series, dict.fromkeys(others, "any")) if others else {})


def _of_each(
    table: Readings, name: str, order: np.ndarray, owner: np.ndarray, count: int
) -> np.ndarray:
    """(count,) the one value of each series in a column of the table."""
    values = table.static[name][order]
    there = np.flatnonzero(~_blank(values))
    found = np.full(count, np.nan) if values.dtype.kind == "f" else np.zeros(count, values.dtype)
    found[owner[there]] = values[there]
    clash = there[values[there] != found[owner[there]]]
    if clash.size:
        row = int(order[clash[0]])
        path, line = table.place(row)
        raise DataError(
            f"{path}, column {name}, {line}: {table.label(row)} has {values[clash[0]]} there and "
            f"{found[owner[clash[0]]]} elsewhere; a column of --data.static is one value a series, "
            "and one that changes with time is for --data.covariates"
        )
    return found


def _blank(values: np.ndarray) -> np.ndarray:
    return np.isnan(values) if values.dtype.kind == "f" else values == ""


# -- numbers -----------------------------------------------------------------------------------


def name_numbers(raw: Raw) -> tuple[list[str], list[str]]:
    """How the columns of training data become numbers: their names, and a note on each."""
    names: list[str] = []
    notes: list[str] = []
    for column, values in raw.items():
        there = values[~_blank(values)]
        if there.dtype.kind == "f":
            above = there[there > 0]
            log = bool((there >= 0).all() and above.size and above.max() > SPREAD * above.min())
            names.append(f"log1p({column})" if log else column)
            notes += [f"{column}: used as log(1 + x), as it spreads widely"] * log
        else:
            words, count = np.unique(there, return_counts=True)
            kept = sorted(words[np.argsort(-count, kind="stable")][:MOST_WORDS].tolist())
            rest = [OTHER] if words.size > MOST_WORDS else []
            names += [f"{column}={word}" for word in [*kept, *rest]]
            told = f", the {words.size - MOST_WORDS} rarest as '{OTHER}'" if rest else ""
            notes.append(f"{column}: {words.size} categories{told}")
    return names, notes


def numbers(raw: Raw, names: list[str], count: int) -> tuple[np.ndarray, list[str]]:
    """What `names` say of each series, (count, K) float32, NaN for a blank number; and notes.

    A word that has no name of its own is `other`, where there is that, or else none of them.

    Raises:
        DataError: a column of numbers has become one of words.
    """
    made = np.zeros((count, len(names)), dtype=np.float32)
    strangers: dict[str, set[str]] = {}
    for k, name in enumerate(names):
        column = column_of(name)
        if f"{column}=" in name:
            listed = [n.removeprefix(f"{column}=") for n in names if n.startswith(f"{column}=")]
            words = _words(raw[column])
            known = np.isin(words, listed) | (words == "")
            strangers[column] = set(words[~known].tolist())
            word = name.removeprefix(f"{column}=")
            made[:, k] = (words == word) | (~known & (word == OTHER))
        elif raw[column].dtype.kind != "f":
            raise DataError(
                f"--data.static: column {column} holds words, {_words(raw[column])[0]!r} say, and "
                "held numbers where the model was trained"
            )
        else:
            made[:, k] = np.log1p(np.maximum(raw[column], 0)) if name != column else raw[column]
    notes = [
        f"{column}: {', '.join(map(repr, sorted(words)[:3]))} "
        f"{'and others are' if len(words) > 3 else 'is'} no category of the training data: "
        + (f"counted as '{OTHER}'" if f"{column}={OTHER}" in names else "none is set")
        for column, words in strangers.items()
        if words
    ]
    return made, notes


def _words(values: np.ndarray) -> np.ndarray:
    """As text, also where all words of a file are numbers."""
    if values.dtype.kind != "f":
        return values
    return np.array(["" if np.isnan(value) else f"{value:g}" for value in values])
