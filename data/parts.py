"""What splits are made of, the windows that lie in them, and why there may be none."""

from dataclasses import dataclass

from data.columns import DataError
from data.grid import every
from data.series import SeriesSet
from data.splits import Range
from data.windows import Windows, find_windows


@dataclass(frozen=True)
class Cut:
    """How windows are cut.

    Attributes:
        length: readings of a window.
        horizon: readings to predict.
        look_back: whether a window may begin before the part that it predicts.
        beyond_end: whether what is to be predicted may lie after the end of a series.
    """

    length: int
    horizon: int
    look_back: bool
    beyond_end: bool

    @property
    def need(self) -> int:
        """Readings that a series must have for one window."""
        return self.length + self.horizon


@dataclass(frozen=True)
class Part:
    """What a split is made of: the ticks `reach` of the series of a table."""

    series: SeriesSet
    reach: Range
    table: str  # its name, for messages

    def windows(self, cut: Cut) -> Windows:
        """Those whose targets are known."""
        return self._windows(cut, target_known=True)

    def windows_to_predict(self, cut: Cut) -> Windows:
        """Those from which something can be predicted.

        Raises:
            DataError: there are none.
        """
        found = self._windows(cut, target_known=False)
        if not len(found):
            self.short_series(cut)
            start, end = map(self.series.stamp, self.reach)
            raise DataError(
                f"{self.table}: no {cut.length} consecutive times with readings lie between "
                f"{start} and {end}: there is nothing to predict from"
            )
        return found

    def _windows(self, cut: Cut, target_known: bool) -> Windows:
        first, last = self.reach
        beyond = cut.beyond_end and not target_known
        return find_windows(
            self.series,
            cut.length,
            first - cut.length * cut.look_back,  # of training, that is before the first reading
            last + cut.horizon * beyond,
            horizon=cut.horizon,
            target_known=target_known,
            beyond_end=beyond,
        )

    def short_series(self, cut: Cut) -> int:
        """How many series are too short for a window.

        Raises:
            DataError: all of them.
        """
        series = self.series
        short = int((series.length < cut.need).sum())
        if short == len(series):
            longest = int(series.length.argmax())
            raise DataError(
                f"{self.table}: every series is too short for --data.window {cut.length}: rows="
                f"{series.length[longest]}, needed={cut.need} ({series.name(longest)})"
            )
        return short


def refuse_empty(split: str, part: Part, windows: Windows, cut: Cut) -> None:
    """A split without a window could not be trained on, or scored.

    Raises:
        DataError: there is none.
    """
    if len(windows):
        return
    first, last = map(part.series.stamp, part.reach)
    start, end = map(part.series.stamp, part.series.span())
    raise DataError(
        f"split '{split}' ({first} to {last}) holds no window of {cut.length} + {cut.horizon} "
        f"consecutive times with readings; the data run from {start} to {end}. Move "
        "--data.train_end, --data.val_end and --data.test_end, or shorten --data.window."
    )


def refuse_steps(parts: list[Part]) -> None:
    """One model forecasts at one step.

    Raises:
        DataError: the parts have several.
    """
    first = parts[0]
    for part in parts:
        if part.series.step != first.series.step:
            raise DataError(
                f"{part.table} has a reading {every(part.series.step)}, and {first.table} "
                f"{every(first.series.step)}; bring the files to one step"
            )
