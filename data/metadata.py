"""The file of buildings: a row for each, found by its name."""

import numpy as np

from data.columns import BUILDING, SERIES, DataError, require_columns
from data.read import Kind, column_names, read_columns
from data.series import SeriesSet
from data.table import Source


def of_buildings(
    source: Source, series: SeriesSet, wanted: dict[str, Kind]
) -> dict[str, np.ndarray]:
    """Columns of the metadata file for each series, name -> (S,).

    The buildings of a wide table are its columns.

    Args:
        source: names the file.
        series: whose buildings to look up.
        wanted: names of the columns, and what they are.

    Raises:
        DataError: the file lacks a column or a building, or the series have no buildings.
    """
    path = source.metadata_path
    assert path is not None
    building = SERIES if source.roles.wide else BUILDING
    if building not in series.ids:
        raise DataError(
            f"{path}: names the site of a {BUILDING}, and {source.words} has no such id; "
            f"add --data.id {BUILDING}, or leave the file out"
        )
    require_columns(path, column_names(path), (BUILDING, *wanted))
    columns, notes = read_columns(path, {BUILDING: "id", **wanted})
    series.notes += [note for note in notes if note not in series.notes]
    # As text: a header's names are, also where they are numbers.
    row = {str(name): number for number, name in enumerate(columns[BUILDING].tolist())}
    buildings = [str(name) for name in series.ids[building].tolist()]
    strangers = sorted({name for name in buildings if name not in row})
    if strangers:
        raise DataError(
            f"{path}: no row for building {', '.join(strangers[:5])}"
            f"{' and others' if len(strangers) > 5 else ''}, which {source.words} names; "
            "add it, so that its site and weather are known"
        )
    rows = np.array([row[name] for name in buildings])
    return {name: columns[name][rows] for name in wanted}
