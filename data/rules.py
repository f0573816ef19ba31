"""What is known to be wrong with a named data set, and the rule that mends it.

A rule belongs to its data set: without a name none runs, so that other people's files are never
"corrected" by GEPIII's errors. Each rule notes how many readings it changed.
"""

from collections.abc import Callable

import numpy as np

from data.columns import BUILDING, DataError
from data.grid import HOUR, every
from data.series import SeriesSet

KBTU_TO_KWH = 0.2931

# Hours to add to the UTC stamps of GEPIII's weather, sites 0 to 15, as three of the top public
# solutions use them. Building 1298 (site 14) behaves as if its readings were in UTC too, so the
# offset can be set a site with --data.utc_offset.
GEPIII_UTC_OFFSET = dict(enumerate((-5, 0, -7, -5, -8, 0, -5, -5, -5, -6, -7, -5, 0, -6, -5, -5)))


def _minute(text: str) -> int:
    return int(np.datetime64(text, "m").astype(np.int64))


def _cells(series: SeriesSet, hours: int) -> int:
    """How many readings are so many hours."""
    if series.step > HOUR:
        raise DataError(
            "--data.rules is for readings every hour or more often, and there is one "
            f"{every(series.step)}; leave it out"
        )
    return -(-hours * HOUR // series.step)


def _runs(series: SeriesSet) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of each run of one value within one series; a missing reading ends a run."""
    value = series.reading
    change = np.r_[True, value[1:] != value[:-1]]  # NaN differs from NaN
    change[series.offset[:-1]] = True
    start = np.flatnonzero(change)
    return start, np.diff(np.r_[start, value.size])


def _blank_runs(series: SeriesSet, start: np.ndarray, length: np.ndarray, what: str) -> None:
    """Mark whole runs missing."""
    edge = np.zeros(series.reading.size + 1, dtype=np.int8)
    edge[start] += 1
    edge[start + length] -= 1
    _blank(series, np.cumsum(edge[:-1], dtype=np.int8) > 0, what)


def _blank(series: SeriesSet, cells: np.ndarray, what: str) -> None:
    count = int((cells & ~np.isnan(series.reading)).sum())
    series.reading[cells] = np.nan
    series.notes.append(f"rule: {count:,} readings taken as missing: {what}")


def long_zero_runs(series: SeriesSet, hours: int, *, keep_seasonal: bool = False) -> None:
    """Zero for `hours` and more is missing; unless seasonal, if `keep_seasonal`.

    Seasonal is a run of steam or hot water whose middle lies in May to September, or of chilled
    water whose middle lies in October to April (all sites are on the northern half of the Earth).
    """
    start, length = _runs(series)
    chosen = (series.reading[start] == 0) & (length >= _cells(series, hours))
    start, length = start[chosen], length[chosen]
    what = f"zero for {hours} h and more"
    if keep_seasonal:
        middle = series.minute(series.cell_ticks()[start + length // 2])
        month = middle.astype("datetime64[m]").astype("datetime64[M]").astype(np.int64) % 12 + 1
        warm = (month >= 5) & (month <= 9)
        meter = series.meter[series.cell_series()[start]]
        off_season = np.where(meter == 1, ~warm, np.isin(meter, (2, 3)) & warm)
        start, length = start[~off_season], length[~off_season]
        what += ", out of season"
    _blank_runs(series, start, length, what)


def stuck_runs(series: SeriesSet, hours: int) -> None:
    """One value other than zero for `hours` and more is a stuck meter."""
    start, length = _runs(series)
    chosen = (length >= _cells(series, hours)) & (series.reading[start] != 0)
    _blank_runs(series, start[chosen], length[chosen], f"one value for {hours} h and more")


def gepiii(series: SeriesSet) -> None:
    """GEPIII's known errors, by the rules that the best public solutions agree on."""
    buildings = series.ids.get(BUILDING)
    if buildings is None or buildings.dtype.kind not in "iu":
        raise DataError("--data.rules gepiii is for GEPIII's own building numbers; use none")
    building = buildings[series.cell_series()]
    meter = series.meter[series.cell_series()]
    site_0 = (building <= 104) & (meter == 0)
    _blank(
        series,
        site_0 & (series.minute(series.cell_ticks()) < _minute("2016-05-20T18:00")),
        "electricity of buildings 0-104 before 2016-05-20 18:00",
    )
    series.reading[site_0] *= KBTU_TO_KWH
    series.notes.append(
        f"rule: {int((site_0 & ~np.isnan(series.reading)).sum()):,} readings of buildings 0-104, "
        f"electricity, from kBTU to kWh (x {KBTU_TO_KWH})"
    )
    _blank(
        series,
        (building == 1099) & (meter == 2) & (series.reading > 3e4),
        "steam of building 1099 above 30,000",
    )
    _blank(series, (meter == 0) & (series.reading == 0), "zero electricity")
    long_zero_runs(series, 48, keep_seasonal=True)
    stuck_runs(series, 24)


def cambridge(series: SeriesSet) -> None:
    """The archive writes 0 for missing: zero for a day and more is taken as that."""
    long_zero_runs(series, 24)


def recorded_units(series: SeriesSet, rule: str) -> np.ndarray:
    """(S,) what brings a rule's readings back to the units that they were recorded in."""
    if rule != "gepiii":
        return np.ones(len(series))
    site_0 = (series.ids[BUILDING] <= 104) & (series.meter == 0)
    return np.where(site_0, 1 / KBTU_TO_KWH, 1)


RULES: dict[str, Callable[[SeriesSet], None]] = {
    "none": lambda series: None,
    "gepiii": gepiii,
    "cambridge": cambridge,
}
