"""Covariates beside the readings: joined by site and local hour, gaps interpolated in time."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from data.columns import SITE, TIME, DataError, require_columns
from data.read import Kind, column_names, read_columns
from data.series import SeriesSet


def add_covariates(
    series: SeriesSet,
    names: tuple[str, ...],
    own: dict[str, np.ndarray],
    cell: np.ndarray,
    meters_path: Path,
    weather_path: Path | None,
    utc_offset: tuple[tuple[str, int], ...],
) -> None:
    """Fill `series.covariates` with the columns `names`, in that order.

    A column of the meter file itself goes before one of the weather file. Gaps between two values
    are interpolated; what is left is NaN, for which the model puts in its training mean.

    Args:
        series: its `covariates` and `covariate_start` are set, its notes added to.
        names: W column names.
        own: those of them that the meter file has, name -> (rows,).
        cell: (rows,) the cell of each row.
        meters_path: the meter file, for messages.
        weather_path: a weather file of the GEPIII layout, or None.
        utc_offset: hours to add to the stamps of a site's weather, by site; "*" is any other site.
    """
    series.covariates, series.covariate_start, start, absent = _weather(
        series, names, weather_path, dict(utc_offset)
    )
    if own:
        series.covariates = series.covariates[series.covariate_cells()]
        series.covariate_start, start = series.offset[:-1].copy(), series.offset[:-1]
        for name, values in own.items():
            series.covariates[cell, names.index(name)] = values
    for column, name in enumerate(names):
        if name in absent and name not in own:
            files = " or ".join(path.name for path in (meters_path, weather_path) if path)
            series.notes.append(f"{name}: no such column in {files}; the training mean stands in")
        else:
            values = series.covariates[:, column]
            missing = int(np.isnan(values).sum())
            filled = _interpolate(values, np.r_[start, values.size])
            if missing:
                series.notes.append(
                    f"{name}: {missing:,} of {values.size:,} hours missing, {filled:,} "
                    f"interpolated, {missing - filled:,} set to the training mean"
                )


def _weather(
    series: SeriesSet, names: tuple[str, ...], path: Path | None, utc_offset: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, set[str]]:
    """Weather on an hourly grid, one stretch a site as long as the site's series reach.

    Returns:
        The grid (M, W), the row of each series' first hour (S,), the row of each site's first hour,
        and the names that the file does not have.
    """
    sites, site_of = np.unique(series.site, return_inverse=True)
    first, last = np.full(len(sites), np.iinfo(np.int64).max), np.zeros(len(sites), dtype=np.int64)
    np.minimum.at(first, site_of, series.first_tick)
    np.maximum.at(last, site_of, series.first_tick + series.length)
    start = np.r_[0, np.cumsum(last - first)]
    grid = np.full((start[-1], len(names)), np.nan, dtype=np.float32)
    series_start = start[site_of] + series.first_tick - first[site_of]
    if path is None:
        return grid, series_start, start[:-1], set(names)

    present = column_names(path)
    require_columns(path, present, (SITE, TIME))
    found = [name for name in names if name in present]
    kinds: dict[str, Kind] = {SITE: "id", TIME: "time"}
    columns, notes = read_columns(path, kinds | dict.fromkeys(found, "number"))
    series.notes += notes
    if columns[SITE].dtype.kind != sites.dtype.kind:
        raise DataError(f"{path}: column {SITE} and that of the metadata are not of one type")
    index = np.searchsorted(sites, columns[SITE]).clip(max=len(sites) - 1)
    known = sites[index] == columns[SITE]
    offset = np.array([utc_offset.get(str(site), utc_offset.get("*", 0)) for site in sites])
    tick = columns[TIME] + offset[index]
    used = known & (tick >= first[index]) & (tick < last[index])
    row = (start[index] + tick - first[index])[used]
    for name in found:
        grid[row, names.index(name)] = columns[name][used]
    repeated = row.size - np.unique(row).size
    if repeated:
        series.notes.append(f"{path.name}: {repeated} repeated hours, the last row of each kept")
    without = [str(site) for site in sites[~np.isin(sites, columns[SITE])]]
    if without:
        series.notes.append(f"{path.name}: no row for site {', '.join(without)}")
    return grid, series_start, start[:-1], set(names) - set(found)


def _interpolate(values: np.ndarray, bounds: np.ndarray) -> int:
    """Fill, in place, the gaps between two values of each stretch; return how many were filled."""
    filled = 0
    for low, high in pairwise(bounds):
        stretch = values[low:high]
        missing = np.isnan(stretch)
        there = np.flatnonzero(~missing)
        if not missing.any() or not there.size:
            continue
        gaps = np.flatnonzero(missing)
        gaps = gaps[(gaps > there[0]) & (gaps < there[-1])]
        stretch[gaps] = np.interp(gaps, there, stretch[there])
        filled += gaps.size
    return filled
