"""Which windows exist, and batches of them gathered on the device where the model runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from data.series import SeriesSet


class Batch(NamedTuple):
    """B windows of L readings, in the user's units."""

    reading: torch.Tensor  # (B, L) float32
    covariates: torch.Tensor  # (B, L, W) float32, NaN = missing
    minute: torch.Tensor  # (B,) int64, since 1970-01-01, of the tick after the window
    target: torch.Tensor  # (B,) float32, the reading of that tick, NaN = not known
    cell: torch.Tensor  # (B,) int64, the window's first cell: its name in the data set
    key: torch.Tensor  # (B,) int64, its meter's, see `SeriesSet.keys`


@dataclass(frozen=True)
class Windows:
    """Windows of one split."""

    series: SeriesSet
    cell: np.ndarray  # (n,) int64, first cell of each window, by series and time
    length: int  # L

    def __len__(self) -> int:
        return self.cell.size


def find_windows(
    series: SeriesSet,
    length: int,
    first_tick: int,
    last_tick: int,
    *,
    target_known: bool = True,
    beyond_end: bool = False,
) -> Windows:
    """All windows within one series whose ticks and predicted tick lie in [first_tick, last_tick].

    No reading of a window is missing; nor is its target, if `target_known`. `beyond_end` adds the
    window whose predicted tick is the one after the series' end.
    """
    missing = np.isnan(series.reading)
    before = np.zeros(missing.size + 1, dtype=np.int32)  # missing readings before each cell
    np.cumsum(missing, out=before[1:])
    need = length + target_known
    found: list[np.ndarray] = []
    for s in range(len(series)):
        low, high = int(series.offset[s]), int(series.offset[s + 1])
        shift = int(series.first_tick[s]) - low  # tick of a cell = cell + shift
        start = max(low, first_tick - shift)
        # The predicted tick, `length` cells on, is within the split and within the series.
        stop = min(high + (beyond_end and not target_known), last_tick - shift + 1) - length
        if stop > start:
            whole = before[start + need : stop + need] == before[start:stop]
            found.append(start + np.flatnonzero(whole))
    cells = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    return Windows(series, cells.astype(np.int64), length)


class DeviceSeries:
    """A `SeriesSet` as tensors on one device, and the gather that makes batches of it."""

    def __init__(self, series: SeriesSet, length: int, device: torch.device) -> None:
        self.length = length

        def put(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        self.reading = put(series.reading)
        self.end = put(series.offset[1:])
        self.step = series.step
        self.minute_shift = put(series.minute(series.first_tick - series.offset[:-1]))
        self.key = put(series.keys())
        self.covariate_shift = put(series.covariate_start - series.offset[:-1])
        # Overlapping views: row i is the window that starts at cell i. A gather then copies whole
        # rows, and no (B, L) table of indices is made.
        self.reading_windows = self.reading.unfold(0, length, 1)
        covariates = put(series.covariates)
        rows, width = covariates.shape
        self.covariate_windows = covariates.as_strided(
            (max(0, rows - length + 1), length, width), (width, width, 1)
        )

    def gather(self, cell: torch.Tensor) -> Batch:
        """The windows that start at `cell` (B,), int64 on this device."""
        series = torch.bucketize(cell, self.end, right=True)
        target_cell = cell + self.length
        known = target_cell < self.end[series]
        target = self.reading[target_cell.clamp_max(self.reading.numel() - 1)]
        return Batch(
            reading=self.reading_windows[cell],
            covariates=self.covariate_windows[cell + self.covariate_shift[series]],
            minute=target_cell * self.step + self.minute_shift[series],
            target=torch.where(known, target, torch.nan),
            cell=cell,
            key=self.key[series],
        )


# Windows that are gathered at once, where batches are smaller: a gather is a dozen operations.
GATHERED = 16_384


class WindowLoader:
    """Iterates over the batches of a split; the last, short batch is kept.

    With several processes each takes every `world`-th window. All take the same number of batches,
    which the collective calls of a loop need: for training the shares are filled up with windows
    from the start of the order; otherwise a process may end on an empty batch, and no window is
    seen twice.

    The order of an epoch follows from `seed` and the epoch's number alone. The state can be saved
    and loaded in the middle of an epoch: a resumed run sees exactly the batches that were left.
    """

    def __init__(
        self,
        source: DeviceSeries,
        cell: np.ndarray,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.source = source
        self.cell = torch.from_numpy(cell).to(source.reading.device)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world = world
        self.epoch = -1
        self.done = 0  # batches of the running epoch that were handed out
        self.resuming = False

    def __len__(self) -> int:
        share = -(-self.cell.numel() // self.world)
        return -(-share // self.batch_size)

    @property
    def gathered(self) -> int:
        """Windows of the batches that are made in one go."""
        return self.batch_size * max(1, GATHERED // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if not self.resuming:
            self.epoch, self.done = self.epoch + 1, 0
        self.resuming = False
        share = self._share()
        size, together = self.batch_size, self.gathered // self.batch_size
        for first in range(self.done, len(self), together):
            many = self.source.gather(share[first * size :][: self.gathered])
            for number in range(min(together, len(self) - first)):
                self.done = first + number + 1
                rows = slice(number * size, (number + 1) * size)
                yield Batch(*(tensor[rows] for tensor in many))

    def _share(self) -> torch.Tensor:
        """This process's windows, in this epoch's order."""
        if not self.shuffle:
            return self.cell[self.rank :: self.world].contiguous()
        generator = torch.Generator(self.cell.device)
        generator.manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(self.cell.numel(), generator=generator, device=self.cell.device)
        order = torch.cat([order, order[: -order.numel() % self.world]])
        return self.cell[order[self.rank :: self.world]]

    def state_dict(self) -> dict[str, Any]:
        """Which epoch runs, and how many of its batches were handed out."""
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the batch that `state_dict` was taken at."""
        self.epoch, self.done = state["epoch"], state["done"]
        self.resuming = 0 < self.done < len(self)
