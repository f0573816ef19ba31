"""The grid that times lie on: how many minutes from one to the next, and where it begins.

Times are minutes since 1970-01-01, local time. A tick t of a grid is `t * step + phase` of them.
"""

import numpy as np

HOUR, DAY, WEEK = 60, 24 * 60, 7 * 24 * 60
"""In minutes."""

LONGEST = 366 * DAY  # between two readings; what is longer is a gap
MONTH = (28 * DAY, 31 * DAY)


def stamp(minute: int) -> str:
    """A time as text."""
    return str(np.datetime64(int(minute), "m")).replace("T", " ")


def every(step: int) -> str:
    """How often there is a reading, in words: every hour, every 30 minutes, every 2 days."""
    for length, name in ((WEEK, "week"), (DAY, "day"), (HOUR, "hour"), (1, "minute")):
        if step % length == 0:
            count = step // length
            return f"every {name}" if count == 1 else f"every {count} {name}s"
    raise ValueError(step)


def differences(minute: np.ndarray, new: np.ndarray) -> np.ndarray:
    """From each time to the next of the same series; `new` is where a series begins, (n,) each."""
    return np.diff(minute)[~new[1:]]


def common_step(between: np.ndarray, otherwise: int) -> int:
    """The commonest of some differences of times, (n,), the shortest of several.

    A difference that is there only once says nothing: `otherwise` is taken, if there is no other.
    """
    counts = np.bincount(between[between <= LONGEST], minlength=1)
    step = int(counts.argmax())
    return step if counts[step] > 1 else otherwise


def common_phase(minute: np.ndarray, step: int) -> int:
    """Where in a step most of the times (n,) lie, in minutes."""
    return int(np.bincount(minute % step).argmax())


def are_months(between: np.ndarray) -> bool:
    """Whether most of the differences are months, which are not of one length."""
    usual = between[between <= LONGEST]
    of_a_month = usual[(usual >= MONTH[0]) & (usual <= MONTH[1])]
    return 2 * of_a_month.size > usual.size and np.unique(of_a_month).size > 1
