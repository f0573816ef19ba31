"""Where training, validation and test begin and end, given as dates or as shares of time."""

import numpy as np

from data.columns import DataError
from data.grid import DAY
from data.series import SeriesSet

SPLITS = ("train", "val", "test")
Range = tuple[int, int]
"""First and last tick, both included."""


def end_tick(series: SeriesSet, flag: str, text: str) -> int:
    """Last tick of an end bound; a date without a time means the whole of that day."""
    try:
        time = np.datetime64(text.strip().replace(" ", "T"))
        minute = int(time.astype("datetime64[m]").astype(np.int64))
    except ValueError as error:
        raise DataError(
            f"--data.{flag}: {text!r} is not a date; write 2016-07-31 or 2016-07-31 12:00"
        ) from error
    if time.dtype == np.dtype("datetime64[D]"):
        minute += DAY - 1
    return int(series.tick_at(np.array(minute)))


def split_ranges(
    series: SeriesSet,
    ends: dict[str, str | None],
    val_fraction: float,
    test_fraction: float,
) -> dict[str, Range]:
    """The three ranges of one data set; one of them may hold no tick of it.

    Args:
        series: the data; their span is what the shares are of.
        ends: train_end, val_end and test_end as dates, or None.
        val_fraction: share of the span for validation, where no dates are given.
        test_fraction: likewise for test, at the end.

    Raises:
        DataError: only one of train_end and val_end is given, or one is no date.
    """
    first, last = series.span()
    train_end, val_end, test_end = (ends[f"{split}_end"] for split in SPLITS)
    final = last if test_end is None else end_tick(series, "test_end", test_end)
    if (train_end is None) != (val_end is None):
        raise DataError("give --data.train_end and --data.val_end together, or neither")
    if train_end is not None and val_end is not None:
        cuts = [end_tick(series, "train_end", train_end), end_tick(series, "val_end", val_end)]
    else:
        ticks = final - first + 1
        cuts = [
            first + round(ticks * (1 - val_fraction - test_fraction)) - 1,
            first + round(ticks * (1 - test_fraction)) - 1,
        ]
    return {
        "train": (first, cuts[0]),
        "val": (cuts[0] + 1, cuts[1]),
        "test": (cuts[1] + 1, final),
    }
