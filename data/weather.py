"""Covariates beside the readings: joined by site and local time, gaps interpolated in time."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from data.columns import SITE, TIME, DataError, require_columns
from data.frame import Piece
from data.grid import HOUR, common_phase, common_step, differences, every
from data.read import Kind, column_names, read_columns
from data.series import SeriesSet


def add_covariates(
    series: SeriesSet,
    names: tuple[str, ...],
    own: dict[str, np.ndarray],
    cell: np.ndarray,
    table: str,
    weather_path: Piece | None,
    utc_offset: tuple[tuple[str, int], ...],
) -> None:
    """Fill `series.covariates` with the columns `names`, in that order.

    A column of the meter file itself goes before one of the weather file. Weather at shorter steps
    than the readings' is averaged over each of theirs, from its tick on. Gaps between two values
    are interpolated, those of weather at longer steps among them; what is left is NaN, for which
    the model puts in its training mean.

    Args:
        series: its `covariates` and `covariate_start` are set, its notes added to.
        names: W column names.
        own: those of them that the meter file has, name -> (rows,).
        cell: (rows,) the cell of each row.
        table: the name of the meter file, for messages.
        weather_path: a weather file or frame of the GEPIII layout, or None.
        utc_offset: hours to add to the stamps of a site's weather, by site; "*" is any other site.
    """
    weather = _weather(series, names, weather_path, dict(utc_offset))
    series.covariates, series.covariate_start = weather.grid, weather.series_start
    start, due = weather.start, weather.due
    if own:
        rows = series.covariate_cells()
        series.covariates, due = weather.grid[rows], weather.due[rows]
        series.covariate_start, start = series.offset[:-1].copy(), series.offset[:-1]
        for name, values in own.items():
            series.covariates[cell, names.index(name)] = values
    for column, name in enumerate(names):
        if name in weather.absent and name not in own:
            files = f"{table} or {weather_path.name}" if weather_path else table
            series.notes.append(f"{name}: no such column in {files}; the training mean stands in")
        else:
            expected = np.ones_like(due) if name in own else due
            bounds = np.r_[start, len(series.covariates)]
            _fill(series, column, name, bounds, expected)


def _fill(
    series: SeriesSet, column: int, name: str, bounds: np.ndarray, expected: np.ndarray
) -> None:
    """Interpolate one covariate, and note what was missing where a value was `expected` (M,)."""
    values = series.covariates[:, column]
    missing = np.isnan(values)
    _interpolate(values, bounds)
    left = np.isnan(values)
    missing &= expected | left
    count, unfilled = int(missing.sum()), int(left.sum())
    if count:
        series.notes.append(
            f"{name}: {count:,} of {values.size:,} values missing, {count - unfilled:,} "
            f"interpolated, {unfilled:,} set to the training mean"
        )


@dataclass(frozen=True)
class _Weather:
    """Weather on the readings' grid of times, one stretch a site as long as its series reach."""

    grid: np.ndarray  # (M, W) float32, NaN = missing
    series_start: np.ndarray  # (S,) the row of each series' first tick
    start: np.ndarray  # the row of each site's first tick
    due: np.ndarray  # (M,) bool, whether the file's own step leads one to expect a row
    absent: set[str]  # names that the file does not have


def _weather(
    series: SeriesSet, names: tuple[str, ...], path: Piece | None, utc_offset: dict[str, int]
) -> _Weather:
    sites, site_of = np.unique(series.site, return_inverse=True)
    first, last = np.full(len(sites), np.iinfo(np.int64).max), np.zeros(len(sites), dtype=np.int64)
    np.minimum.at(first, site_of, series.first_tick)
    np.maximum.at(last, site_of, series.first_tick + series.length)
    start = np.r_[0, np.cumsum(last - first)]
    grid = np.full((start[-1], len(names)), np.nan, dtype=np.float32)
    series_start = start[site_of] + series.first_tick - first[site_of]
    due = np.ones(len(grid), dtype=np.bool_)
    if path is None:
        return _Weather(grid, series_start, start[:-1], due, set(names))

    present = column_names(path)
    require_columns(path, present, (SITE, TIME))
    found = [name for name in names if name in present]
    kinds: dict[str, Kind] = {SITE: "id", TIME: "time"}
    columns, notes = read_columns(path, kinds | dict.fromkeys(found, "number"))
    series.notes += notes
    if columns[SITE].dtype.kind != sites.dtype.kind:
        raise DataError(f"{path}: column {SITE} and that of the metadata are not of one type")
    index = np.searchsorted(sites, columns[SITE]).clip(max=len(sites) - 1)
    offset = np.array([utc_offset.get(str(site), utc_offset.get("*", 0)) for site in sites])
    minute = columns[TIME] + HOUR * offset[index]
    tick = series.tick_at(minute)
    known = sites[index] == columns[SITE]
    used = np.flatnonzero(known & (tick >= first[index]) & (tick < last[index]))
    used = used[_last_of_each(index[used], minute[used], path, series.notes)]
    row = start[index[used]] + tick[used] - first[index[used]]
    for name in found:
        grid[:, names.index(name)] = _means(row, columns[name][used], len(grid))
    site_begins = np.diff(index[used], prepend=-1) != 0
    step = common_step(differences(minute[used], site_begins), otherwise=series.step)
    if step > series.step:
        ticks = np.arange(len(grid)) + np.repeat(first - start[:-1], last - first)
        phase = common_phase(minute[used], step)
        due = (phase - series.minute(ticks)) % step < series.step
        series.notes.append(f"{path.name}: a row {every(step)}, interpolated between")
    elif step < series.step:
        series.notes.append(f"{path.name}: a row {every(step)}, averaged over each reading's step")
    without = [str(site) for site in sites[~np.isin(sites, columns[SITE])]]
    if without:
        series.notes.append(f"{path.name}: no row for site {', '.join(without)}")
    return _Weather(grid, series_start, start[:-1], due, set(names) - set(found))


def _last_of_each(
    site: np.ndarray, minute: np.ndarray, path: Piece, notes: list[str]
) -> np.ndarray:
    """The last row for each site and time, by site and time."""
    order = np.lexsort((minute, site))  # stable: a later row stays behind an earlier one
    same = (np.diff(site[order]) == 0) & (np.diff(minute[order]) == 0)
    if same.any():
        notes.append(f"{path.name}: {same.sum()} repeated times, the last row of each kept")
    return order[~np.r_[same, False]] if order.size else order


def _means(row: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    """(rows,) the mean of the values of each row that are there, NaN where none is."""
    there = ~np.isnan(values)
    count = np.bincount(row[there], minlength=rows)
    total = np.bincount(row[there], values[there], minlength=rows)
    return total / np.where(count, count, np.nan)


def _interpolate(values: np.ndarray, bounds: np.ndarray) -> None:
    """Fill, in place, the gaps between two values of each stretch."""
    for low, high in pairwise(bounds):
        stretch = values[low:high]
        missing = np.isnan(stretch)
        there = np.flatnonzero(~missing)
        if not missing.any() or not there.size:
            continue
        gaps = np.flatnonzero(missing)
        gaps = gaps[(gaps > there[0]) & (gaps < there[-1])]
        stretch[gaps] = np.interp(gaps, there, stretch[there])
