"""Which windows exist, and batches of them gathered on the device where the model runs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from data.series import SeriesSet


class Batch(NamedTuple):
    """B windows of L ticks and the `horizon` after each, in the user's units."""

    reading: torch.Tensor  # (B, L) float32
    covariates: torch.Tensor  # (B, L, W) float32, NaN = missing
    # (B, L + horizon - 1, K) float32, of the tick after each, what is static behind; NaN = missing
    known: torch.Tensor
    minute: torch.Tensor  # (B,) int64, since 1970-01-01, of the first tick after the window
    target: torch.Tensor  # (B, horizon) float32, the readings after it, NaN = not known
    cell: torch.Tensor  # (B,) int64, the window's first cell: its name in the data set
    key: torch.Tensor  # (B,) int64, its meter's, see `SeriesSet.keys`

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What a forecast is made from, in the order in which `Forecaster` takes it."""
        return self.reading, self.covariates, self.minute, self.key, self.known


@dataclass(frozen=True)
class Windows:
    """Windows of one split."""

    series: SeriesSet
    cell: np.ndarray  # (n,) int64, first cell of each window, by series and time
    length: int  # L
    horizon: int = 1  # ticks to predict

    def __len__(self) -> int:
        return self.cell.size

    def targets(self) -> np.ndarray:
        """(n, horizon) float32, the readings to predict, NaN where not known."""
        cells = self.cell[:, None] + self.length + np.arange(self.horizon)
        end = self.series.offset[1:][self.series.series_of(self.cell)]
        inside = cells < end[:, None]
        return np.where(inside, self.series.reading[np.where(inside, cells, 0)], np.float32(np.nan))

    def kept(self, chosen: np.ndarray | slice) -> "Windows":
        """Some of them, by a mask, a slice or their numbers."""
        return replace(self, cell=self.cell[chosen])


def find_windows(
    series: SeriesSet,
    length: int,
    first_tick: int,
    last_tick: int,
    *,
    horizon: int = 1,
    target_known: bool = True,
    beyond_end: bool = False,
) -> Windows:
    """All windows within one series that lie in [first_tick, last_tick] with what they predict.

    No reading of a window is missing; nor is one of its targets, if `target_known`. `beyond_end`
    adds those that predict ticks after the series' end.
    """
    missing = np.isnan(series.reading)
    before = np.zeros(missing.size + 1, dtype=np.int32)  # missing readings before each cell
    np.cumsum(missing, out=before[1:])
    need = length + horizon * target_known
    found: list[np.ndarray] = []
    for s in range(len(series)):
        low, high = int(series.offset[s]), int(series.offset[s + 1])
        shift = int(series.first_tick[s]) - low  # tick of a cell = cell + shift
        start = max(low, first_tick - shift)
        # The last predicted tick is within the split and within the series.
        end = high + horizon * (beyond_end and not target_known)
        stop = min(end, last_tick - shift + 1) - length - (horizon - 1)
        if stop > start:
            whole = before[start + need : stop + need] == before[start:stop]
            found.append(start + np.flatnonzero(whole))
    cells = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    return Windows(series, cells.astype(np.int64), length, horizon)


class DeviceSeries:
    """A `SeriesSet` as tensors on one device, and the gather that makes batches of it.

    Args:
        series: the data; its last `known` covariates are those known ahead.
        length: L.
        device: where the batches are to lie.
        horizon: ticks to predict.
        known: how many those are.
        static: (S, .) what is known of each series at all times.
    """

    def __init__(
        self,
        series: SeriesSet,
        length: int,
        device: torch.device,
        horizon: int = 1,
        known: int = 0,
        static: np.ndarray | None = None,
    ) -> None:
        self.length, self.horizon = length, horizon

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
        past = series.covariates.shape[1] - known
        self.covariate_windows = _row_windows(put(series.covariates[:, :past]), length)
        # Beyond the last row nothing is known; a window may reach there.
        beyond = np.full((horizon, known), np.nan, dtype=np.float32)
        extended = np.concatenate([series.covariates[:, past:], beyond])
        self.known_windows = _row_windows(put(extended), length + horizon - 1)
        nothing = np.zeros((len(series), 0), dtype=np.float32)
        self.static = put(nothing if static is None else static)
        self.ahead = torch.arange(horizon, device=device)

    def gather(self, cell: torch.Tensor) -> Batch:
        """The windows that start at `cell` (B,), int64 on this device."""
        series = torch.bucketize(cell, self.end, right=True)
        first = cell + self.length
        target_cell = first.unsqueeze(1) + self.ahead  # (B, horizon)
        inside = target_cell < self.end[series].unsqueeze(1)
        target = self.reading[target_cell.clamp_max(self.reading.numel() - 1)]
        row = cell + self.covariate_shift[series]
        known = self.known_windows[row + 1]
        if known.shape[2]:  # what follows the end of a series is another's
            known[:, self.length - 1 :].masked_fill_(~inside.unsqueeze(2), torch.nan)
        if self.static.shape[1]:
            static = self.static[series].unsqueeze(1).expand(-1, known.shape[1], -1)
            known = torch.cat([known, static], dim=2)
        return Batch(
            reading=self.reading_windows[cell],
            covariates=self.covariate_windows[row],
            known=known,
            minute=first * self.step + self.minute_shift[series],
            target=torch.where(inside, target, torch.nan),
            cell=cell,
            key=self.key[series],
        )


def _row_windows(rows: torch.Tensor, length: int) -> torch.Tensor:
    """(n, W) -> (n - length + 1, length, W), a view: row i begins at row i."""
    n, width = rows.shape
    return rows.as_strided((max(0, n - length + 1), length, width), (width, width, 1))


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
