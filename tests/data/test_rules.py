"""Each rule changes what it names, to the hour, and nothing else."""

from collections.abc import Sequence

import numpy as np
import pytest

from data.columns import DataError
from data.rules import RULES, long_zero_runs, stuck_runs
from data.series import SeriesSet

NAN = float("nan")


def series_set(
    readings: Sequence[Sequence[float]],
    meters: Sequence[int],
    buildings: Sequence[int] = (),
    start: str = "2016-07-01T00",
) -> SeriesSet:
    """Series without covariates, all from the same hour on."""
    count = len(readings)
    first = int(np.datetime64(start, "h").astype(np.int64))
    return SeriesSet(
        ids={
            "building_id": np.array(buildings or [500 + i for i in range(count)]),
            "meter": np.array(meters),
        },
        site=np.zeros(count, dtype=np.int64),
        first_tick=np.full(count, first),
        offset=np.r_[0, np.cumsum([len(r) for r in readings])],
        reading=np.concatenate([np.asarray(r, dtype=np.float32) for r in readings]),
        covariates=np.zeros((sum(map(len, readings)), 0), dtype=np.float32),
        covariate_start=np.zeros(count, dtype=np.int64),
    )


def missing(series: SeriesSet) -> list[int]:
    return np.flatnonzero(np.isnan(series.reading)).tolist()


def test_zero_runs_are_missing_from_their_length_on() -> None:
    series = series_set([[1, 0, 0, 2, 0, 0, 0, 3]], [0])
    long_zero_runs(series, 3)
    assert missing(series) == [4, 5, 6]
    assert "3 readings taken as missing: zero for 3 h and more" in series.notes[0]


def test_a_run_ends_with_its_series_and_at_a_gap() -> None:
    series = series_set([[1, 0, 0], [0, 0, 1], [0, 0, NAN, 0, 0]], [0, 0, 0])
    long_zero_runs(series, 3)
    assert missing(series) == [8]  # the gap that was there before


def test_stuck_runs_are_missing_from_their_length_on_and_zeros_are_not() -> None:
    series = series_set([[5, 5, 5, 6, 6, 0, 0, 0, 0]], [0])
    stuck_runs(series, 3)
    assert missing(series) == [0, 1, 2]


@pytest.mark.parametrize(
    ("meter", "start", "kept"),
    [
        (1, "2016-07-01T00", False),  # chilled water, dead in summer
        (1, "2016-12-01T00", True),  # off in winter
        (2, "2016-07-01T00", True),  # steam, off in summer
        (3, "2016-05-01T00", True),
        (3, "2016-12-01T00", False),  # hot water, dead in winter
        (0, "2016-07-01T00", False),
        (0, "2016-12-01T00", False),
    ],
)
def test_seasonal_zeros_stay(meter, start, kept) -> None:
    series = series_set([[0] * 48 + [1]], [meter], start=start)
    long_zero_runs(series, 48, keep_seasonal=True)
    assert missing(series) == ([] if kept else list(range(48)))


def test_gepiii_mends_its_known_errors() -> None:
    varied = np.arange(1.0, 7.0)
    series = series_set(
        [varied, varied, varied, varied * 1e4, varied * 1e4, [1, 0, 2, 3, 4, 5]],
        [0, 0, 1, 2, 2, 0],
        [104, 105, 104, 1099, 1098, 700],
        start="2016-05-20T15",
    )
    RULES["gepiii"](series)
    grid = series.reading.reshape(6, 6)
    # Dead until 18:00, then kBTU.
    np.testing.assert_allclose(grid[0], [NAN] * 3 + [4 * 0.2931, 5 * 0.2931, 6 * 0.2931], rtol=1e-6)
    np.testing.assert_array_equal(grid[1], varied)  # another site
    np.testing.assert_array_equal(grid[2], varied)  # another meter
    np.testing.assert_array_equal(grid[3], [1e4, 2e4, 3e4, NAN, NAN, NAN])
    np.testing.assert_array_equal(grid[4], varied * 1e4)  # another building
    np.testing.assert_array_equal(grid[5], [1, NAN, 2, 3, 4, 5])


def test_gepiii_is_for_its_own_building_numbers() -> None:
    series = series_set([[1, 2]], [0])
    series.ids["building_id"] = np.array(["Town Hall"])
    with pytest.raises(DataError, match=r"--data\.rules gepiii"):
        RULES["gepiii"](series)


def test_cambridge_and_none() -> None:
    readings = [[1] + [0] * 24 + [1] + [0] * 23 + [1]]
    for rule, expected in (("cambridge", list(range(1, 25))), ("none", [])):
        series = series_set(readings, [0])
        RULES[rule](series)
        assert missing(series) == expected
