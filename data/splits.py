"""Where training, validation and test begin and end, given as dates or as shares of time."""

import numpy as np

from data.columns import DataError
from data.series import SeriesSet

SPLITS = ("train", "val", "test")
Range = tuple[int, int]
"""First and last hour, both included."""


def end_hour(flag: str, text: str) -> int:
    """Last hour of an end bound; a date without a time means the whole of that day."""
    try:
        hour = int(np.datetime64(text.strip().replace(" ", "T"), "h").astype(np.int64))
        whole_day = np.datetime64(text.strip().replace(" ", "T")).dtype == np.dtype("datetime64[D]")
    except ValueError as error:
        raise DataError(
            f"--data.{flag}: {text!r} is not a date; write 2016-07-31 or 2016-07-31 12:00"
        ) from error
    return hour + 23 if whole_day else hour


def split_ranges(
    series: SeriesSet,
    ends: dict[str, str | None],
    val_fraction: float,
    test_fraction: float,
) -> dict[str, Range]:
    """The three ranges of one data set; one of them may hold no hour of it.

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
    final = last if test_end is None else end_hour("test_end", test_end)
    if (train_end is None) != (val_end is None):
        raise DataError("give --data.train_end and --data.val_end together, or neither")
    if train_end is not None and val_end is not None:
        cuts = [end_hour("train_end", train_end), end_hour("val_end", val_end)]
    else:
        hours = final - first + 1
        cuts = [
            first + round(hours * (1 - val_fraction - test_fraction)) - 1,
            first + round(hours * (1 - test_fraction)) - 1,
        ]
    return {
        "train": (first, cuts[0]),
        "val": (cuts[0] + 1, cuts[1]),
        "test": (cuts[1] + 1, final),
    }
