"""Series of readings at equal steps of time, all in one flat array.

The series lie one after the other, a step a cell, NaN where nothing was read. A window is then a
range of cells, and a data set of 20 million rows is 80 MB. When a cell is, its tick says: tick t is
`t * step + phase` minutes since 1970-01-01, local time.
"""

import hashlib
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from data.columns import BUILDING, METER, NO_METER, meter_label, series_words
from data.grid import HOUR, stamp

ID, STATIC = "id ", "static "  # before a column's name, in the file that `SeriesSet.save` writes
OTHERS = ("ids", "static", "notes", "step", "phase")  # fields that are no arrays


@dataclass
class SeriesSet:
    """S series of readings on one grid of times, N cells in all, with W covariates.

    Covariates from the weather are stored once a site, those of the meter file once a series:
    `covariate_start` says where a series' first cell stands in either case.
    """

    ids: dict[str, np.ndarray]  # column -> (S,) int64 or text; all of them together name a series
    site: np.ndarray  # (S,) int64 or text
    first_tick: np.ndarray  # (S,) int64
    offset: np.ndarray  # (S + 1,) int64; series s is cells offset[s] to offset[s + 1]
    reading: np.ndarray  # (N,) float32, NaN = missing
    covariates: np.ndarray  # (M, W) float32, NaN = missing
    covariate_start: np.ndarray  # (S,) int64
    static: dict[str, np.ndarray] = field(default_factory=dict)  # column -> (S,), see data.static
    notes: list[str] = field(default_factory=list)  # what was dropped, filled or repaired
    step: int = HOUR  # minutes from a tick to the next
    phase: int = 0  # minutes from 1970-01-01 00:00 to tick 0, less than a step

    def __len__(self) -> int:
        return self.offset.size - 1

    @property
    def meter(self) -> np.ndarray:
        """(S,) int64, GEPIII's codes; `NO_METER` where the table has no column of them."""
        codes = self.ids.get(METER)
        if codes is None or BUILDING not in self.ids or codes.dtype.kind not in "iu":
            return np.full(len(self), NO_METER)
        return codes

    @property
    def length(self) -> np.ndarray:
        """(S,) cells of each series."""
        return np.diff(self.offset)

    def series_of(self, cell: np.ndarray) -> np.ndarray:
        """The series of each of some cells, (n,)."""
        return np.searchsorted(self.offset, cell, side="right") - 1

    def tick_of(self, cell: np.ndarray) -> np.ndarray:
        """The tick of each of some cells, (n,) int64."""
        return cell + (self.first_tick - self.offset[:-1])[self.series_of(cell)]

    def minute(self, tick: np.ndarray) -> np.ndarray:
        """Minutes since 1970-01-01 of some ticks, (n,) int64."""
        return tick * self.step + self.phase

    def tick_at(self, minute: np.ndarray) -> np.ndarray:
        """The last tick that is not after each of some times, (n,) int64 minutes."""
        return (minute - self.phase) // self.step

    def stamp(self, tick: int) -> str:
        """The time of a tick as text."""
        return stamp(int(tick) * self.step + self.phase)

    def cell_series(self) -> np.ndarray:
        """(N,) the series of each cell."""
        return np.repeat(np.arange(len(self)), self.length)

    def cell_ticks(self) -> np.ndarray:
        """(N,) the tick of each cell, int64."""
        shift = self.first_tick - self.offset[:-1]
        return np.arange(self.reading.size) + np.repeat(shift, self.length)

    def covariate_cells(self) -> np.ndarray:
        """(N,) the row of `covariates` that belongs to each cell."""
        shift = self.covariate_start - self.offset[:-1]
        return np.arange(self.reading.size) + np.repeat(shift, self.length)

    def span(self) -> tuple[int, int]:
        """First and last tick of all series."""
        return int(self.first_tick.min()), int((self.first_tick + self.length).max()) - 1

    def name(self, series: int) -> str:
        """What the columns call a series, in words."""
        ids = {name: values[series] for name, values in self.ids.items()}
        code = int(self.meter[series])
        if code == NO_METER:
            return series_words(ids)
        del ids[METER]
        return f"{series_words(ids)}, {meter_label(code)}"

    def counted(self) -> str:
        """How many series there are, in words."""
        if BUILDING in self.ids:
            return f"{len(self)} meters of {np.unique(self.ids[BUILDING]).size} buildings"
        return f"{len(self)} series"

    def labels(self) -> list[str]:
        """(S,) the columns' values as one text, the same for a series in any file."""
        if not self.ids:
            return [""] * len(self)
        return ["\0".join(map(str, values)) for values in zip(*self.ids.values(), strict=True)]

    def keys(self) -> np.ndarray:
        """(S,) int64, a number for each series that follows from its labels alone."""
        digests = b"".join(
            hashlib.blake2b(label.encode(), digest_size=8).digest() for label in self.labels()
        )
        return np.frombuffer(digests, dtype="<i8").astype(np.int64)

    def clip(self) -> bool:
        """Set readings below zero to 0, as energy has it; whether there were any."""
        negative = self.reading < 0
        self.reading[negative] = 0
        return bool(negative.any())

    def save(self, path: Path) -> None:
        """Write everything to an uncompressed .npz file."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in OTHERS}
        arrays |= {ID + name: values for name, values in self.ids.items()}
        arrays |= {STATIC + name: values for name, values in self.static.items()}
        arrays["notes"] = np.array(self.notes, dtype=np.str_)
        arrays["grid"] = np.array([self.step, self.phase])
        with path.open("wb") as file:  # a file object: savez would add a suffix to a name
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> "SeriesSet":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as stored:
            arrays = {f.name: stored[f.name] for f in fields(cls) if f.name not in OTHERS}
            ids = {name.removeprefix(ID): stored[name] for name in stored if name.startswith(ID)}
            static = {
                name.removeprefix(STATIC): stored[name]
                for name in stored
                if name.startswith(STATIC)
            }
            step, phase = stored["grid"].tolist()
            notes = stored["notes"].tolist()
            return cls(ids=ids, static=static, notes=notes, step=step, phase=phase, **arrays)
