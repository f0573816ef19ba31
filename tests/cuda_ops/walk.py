"""Walks through the loops of csrc/ warp by warp, as the kernels do, and counts what they ask for.

Slow and simple: for small shapes, to hold the formulas of `cuda_ops.mapping` against.
"""

from collections.abc import Callable, Iterable, Iterator

import torch

from cuda_ops.contenders import Size

LANES = 32


class Walk:
    """Counts accesses, by tensor; in the input gradient, x and y stand for gy and gx."""

    def __init__(self, size: Size, dtype: torch.dtype) -> None:
        self.b, self.h, self.length, self.k = size.batch, size.channels, size.length, size.taps
        self.taps = min(self.k, self.length)
        self.item = dtype.itemsize
        self.wide = torch.promote_types(dtype, torch.float32).itemsize
        self.loaded = self.stored = self.operands = self.macs = self.warps = 0
        self.sectors = 0  # of 32 bytes that a warp's accesses touch, one access after the other
        self.read: set[tuple[str, int]] = set()
        self.written: set[tuple[str, int]] = set()

    def load(self, tensor: str, at: Iterable[int], numbers: int = 1) -> None:
        """A load by the lanes of a warp, each of so many neighbouring numbers of global memory."""
        at = list(at)
        width = self.wide if tensor == "partials" else self.item
        self.loaded += len(at) * numbers * width
        self.sectors += len({a * width // 32 for a in at})
        self.read |= {(tensor, a + n) for a in at for n in range(numbers)}

    def operand(self, tensor: str, at: Iterable[int]) -> None:
        """A load that feeds multiply-adds."""
        self.load(tensor, at)
        self.operands += LANES * max(self.item, 4)

    def operand_of_shared(self, bytes_of_lane: int, lanes: int = LANES) -> None:
        self.operands += lanes * bytes_of_lane

    def store(self, tensor: str, at: Iterable[int], numbers: int = 1) -> None:
        at = list(at)
        width = self.wide if tensor == "partials" else self.item
        self.stored += len(at) * numbers * width
        self.sectors += len({a * width // 32 for a in at})
        self.written |= {(tensor, a + n) for a in at for n in range(numbers)}

    def in_warps(self, numbers: Iterable[int]) -> Iterable[list[int]]:
        numbers = list(numbers)
        return [numbers[i : i + LANES] for i in range(0, len(numbers), LANES)]

    def sum_partials(self, parts: int) -> None:
        n = self.h * self.taps
        for i in range(n):
            for part in range(parts):
                self.load("partials", [part * n + i])
            self.store("gk", [i // self.taps * self.k + i % self.taps])

    # -- naive.cu --------------------------------------------------------------------------------

    def naive_rows(self, mirrored: bool) -> None:
        for warp in self.in_warps(range(self.b * self.h * self.length)):
            self.warps += 1
            for j in range(self.k):
                active = [
                    i
                    for i in warp
                    if j <= (self.length - 1 - i % self.length if mirrored else i % self.length)
                ]
                if active:
                    self.operand("k", [i // self.length % self.h * self.k + j for i in active])
                    self.operand("x", [i + j if mirrored else i - j for i in active])
                    self.macs += len(active)
            self.store("y", warp)

    def naive_weight_grad(self) -> None:
        for warp in self.in_warps(range(self.h * self.k)):
            self.warps += 1
            for b in range(self.b):
                for n in range(self.length):  # the n-th round of every lane's loop
                    active = [i for i in warp if i % self.k + n < self.length]
                    if active:
                        rows = {i: (b * self.h + i // self.k) * self.length for i in active}
                        self.operand("gy", [rows[i] + i % self.k + n for i in active])
                        self.operand("x", [rows[i] + n for i in active])
                        self.macs += len(active)
            self.store("gk", warp)

    # -- coalesced.cu ----------------------------------------------------------------------------

    def coalesced_rows(self, mirrored: bool) -> None:
        length = self.length
        for row in range(self.b * self.h):
            self.warps += 1
            for start in range(0, length, 64):
                taps = min(self.k, length - start if mirrored else min(start + 64, length))
                for j in range(taps):
                    self.operand("k", [row % self.h * self.k + j] * LANES)
                    for r in range(2):
                        times = range(start + 32 * r, start + 32 * r + 32)
                        inputs = [(t, t + j if mirrored else t - j) for t in times]
                        active = [at for t, at in inputs if t < length and 0 <= at < length]
                        if active:
                            self.operand("x", [row * length + at for at in active])
                            self.macs += len(active)
                for r in range(2):
                    times = range(start + 32 * r, start + 32 * r + 32)
                    self.store("y", [row * length + t for t in times if t < length])

    def coalesced_weight_grad(self) -> None:
        parts, groups = -(-self.b // 512), -(-self.taps // 8)
        for unit in range(parts * self.h * groups):
            h, part = unit // groups % self.h, unit // groups // self.h
            for warp in range(8):
                j = unit % groups * 8 + warp
                if j >= self.taps:
                    continue
                self.warps += 1
                for b in range(part * 512, min((part + 1) * 512, self.b)):
                    row = (b * self.h + h) * self.length
                    for s in range(0, self.length - j, LANES):
                        active = range(s, min(s + LANES, self.length - j))
                        self.operand("gy", [row + at + j for at in active])
                        self.operand("x", [row + at for at in active])
                        self.macs += len(active)
                self.store("partials", [(part * self.h + h) * self.taps + j])
        self.sum_partials(parts)

    # -- shared.cu -------------------------------------------------------------------------------

    def stage(
        self, tensor: str, rows: int, first: int, width: int, row: Callable[[int], int]
    ) -> None:
        for r in range(rows):
            for i in range(0, width, LANES):
                self.load(tensor, [row(r) + first + n for n in range(i, min(i + LANES, width))])

    def shared_rows(self, mirrored: bool) -> None:
        length, tile, all_rows = self.length, 64 if self.wide == 4 else 32, self.b * self.h
        stretches = -(-length // 64)
        for block in range(-(-all_rows // 32) * stretches):
            self.warps += 8
            row0, start = block // stretches * 32, block % stretches * 64
            rows, end = min(32, all_rows - row0), min(start + 64, length)
            taps = min(self.k, length - start if mirrored else end)
            for j0 in range(0, taps, tile):
                j1 = min(j0 + tile, taps)
                first = max(0, start + j0 if mirrored else start - (j1 - 1))
                last = min(length, end + (j1 - 1 if mirrored else -j0))
                self.stage("x", rows, first, last - first, lambda r, o=row0: (o + r) * length)
                self.stage("k", rows, j0, j1 - j0, lambda r, o=row0: (o + r) % self.h * self.k)
                for t in range(start, end):
                    for _ in range(j0, min(j1, length - t if mirrored else t + 1)):
                        self.operand_of_shared(2 * self.wide)
                        self.macs += rows
            for r in range(rows):
                for t in range(start, end, LANES):
                    self.store(
                        "y", [(row0 + r) * length + n for n in range(t, min(t + LANES, end))]
                    )

    def shared_weight_grad(self) -> None:
        length, pitch = self.length, self.h * self.length
        parts, tiles = -(-self.b // 256), -(-self.taps // 64)
        for unit in range(parts * self.h * tiles):
            self.warps += 8
            j0 = unit % tiles * 64
            own = min(64, self.taps - j0)
            h, part = unit // tiles % self.h, unit // tiles // self.h
            end, steps = min((part + 1) * 256, self.b), min(128, length)
            widest = min(length, steps + own - 1)
            slices = min(256 // own, 4096 // (steps + widest))
            for b in range(part * 256, end, slices):
                samples = min(slices, end - b)
                for t0 in range(0, length, steps):
                    t1 = min(t0 + steps, length)
                    first = max(0, t0 - (j0 + own - 1))
                    last = max(first, t1 - j0)
                    sample = b * pitch + h * length
                    for tensor, at, width in (("gy", t0, t1 - t0), ("x", first, last - first)):
                        self.stage(tensor, samples, at, width, lambda r, s=sample: s + r * pitch)
                    for warp in self.in_warps(range(256)):
                        busy = [j0 + n % own for n in warp if n // own < samples]
                        trips = [max(0, t1 - max(t0, j)) for j in busy]
                        self.macs += sum(trips)
                        for _ in range(max(trips, default=0)):
                            self.operand_of_shared(2 * self.wide)
            self.store("partials", [(part * self.h + h) * self.taps + j0 + j for j in range(own)])
        self.sum_partials(parts)

    # -- warp_tiled.cu, tiles.cuh, toeplitz.cuh --------------------------------------------------

    def tile(self, act: Callable[..., None], tensor: str, first: int, count: int) -> None:
        """`for_tile`: 16 bytes at a time, and single numbers at the ends of an unaligned run."""
        unit = 16 // self.item
        head = 0 if self.length * self.item % 16 == 0 else min(count, -first % unit)
        units = (count - head) // unit
        tail = head + units * unit
        act(tensor, range(first, first + head))
        act(tensor, range(first + head, first + tail, unit), unit)
        act(tensor, range(first + tail, first + count))

    def multiply(self, with_far: bool) -> None:
        for j in range(16):
            for i in range(16):
                self.macs += with_far or 0 <= i - j < 16

    def chunk(self, lane_bytes: int) -> None:
        self.operand_of_shared(16 * lane_bytes, lanes=1)

    def output_chunk(self, o: int) -> None:
        self.chunk(self.item)
        tap_chunks = -(-self.taps // 16)
        for _ in range(min(o, tap_chunks)):
            self.chunk(self.wide)
            self.chunk(self.item)
            self.multiply(True)
        if o < tap_chunks:
            self.chunk(self.wide)
            self.multiply(False)

    def input_grad_chunk(self, o: int) -> None:
        last = -(-self.length // 16) - 1
        c = min(last - o, -(-self.taps // 16) - 1)
        if o + c == last:
            self.chunk(self.wide)
            self.chunk(self.item)
            self.multiply(False)
            c -= 1
        else:
            self.chunk(self.item)
        for _ in range(c + 1):
            self.chunk(self.wide)
            self.chunk(self.item)
            self.multiply(True)

    def tap_chunk(self, c: int) -> None:
        m = -(-self.length // 16) - 1 - c
        for step in range(m + 1):
            self.chunk(self.item)
            self.chunk(self.item)
            self.multiply(step < m)

    def groups(self, rows: int) -> list[tuple[int, int]]:
        """(first channel, channels) of each group, where a warp takes up to so many rows."""
        groups = -(-self.h // rows)
        of_group = -(-self.h // groups)
        return [(h0, min(of_group, self.h - h0)) for h0 in range(0, of_group * groups, of_group)]

    def warp_tiled_rows(self, mirrored: bool) -> None:
        if self.item == 2 and self.length in (16, 32, 48, 64):
            self.matrix_rows(mirrored)
            return
        parts, groups = -(-self.b // 16), self.groups(32)
        for block in range(parts * len(groups)):
            part, (h0, rows) = block // len(groups), groups[block % len(groups)]
            self.warps += 4
            for h in range(rows):
                for j in range(self.taps):
                    self.load("k", [(h0 + h) * self.k + j])
            for warp in range(4):
                for b in range(part * 4 + warp, self.b, parts * 4):
                    first, count = (b * self.h + h0) * self.length, rows * self.length
                    self.tile(self.load, "x", first, count)
                    for _ in range(rows):
                        for o in range(-(-self.length // 16)):
                            (self.input_grad_chunk if mirrored else self.output_chunk)(o)
                    self.tile(self.store, "y", first, count)

    def warp_tiled_weight_grad(self) -> None:
        if self.item == 2 and self.length in (16, 32, 48, 64):
            self.matrix_weight_grad()
            return
        tap_chunks, rows_of_warp = -(-self.taps // 16), 32
        while rows_of_warp > 1 and tap_chunks > 32 // rows_of_warp * (2 if self.wide == 8 else 4):
            rows_of_warp //= 2
        parts = -(-self.b // (16 if self.b < 256 * 64 else 64))
        for part in range(parts):
            for h0, rows in self.groups(rows_of_warp):
                self.warps += 1
                for b in range(part, self.b, parts):
                    for tensor in ("gy", "x"):
                        first = (b * self.h + h0) * self.length
                        self.tile(self.load, tensor, first, rows * self.length)
                    for _ in range(rows):
                        for c in range(tap_chunks):
                            self.tap_chunk(c)
                for r in range(rows):
                    at = (part * self.h + h0 + r) * self.taps
                    self.store("partials", range(at, at + self.taps))
        self.sum_partials(parts)

    # -- matrix.cuh ------------------------------------------------------------------------------

    def fetch(self, tensor: str, b: int, end: int, h0: int, channels: int) -> None:
        for sample in range(b, min(b + 16, end)):
            first = (sample * self.h + h0) * self.length
            self.load(tensor, range(first, first + channels * self.length, 8), 8)

    def load_four(self) -> None:
        self.operand_of_shared(16)

    def channel_groups(self) -> Iterator[tuple[int, int]]:
        for h0 in range(0, self.h, 8):
            yield h0, min(8, self.h - h0)

    def matrix_rows(self, mirrored: bool) -> None:
        for first in range(0, self.b, 32):
            end = min(self.b, first + 32)
            for h0, channels in self.channel_groups():
                self.warps += 8
                for warp in range(channels):
                    for e in range(self.length // 8):
                        lanes = [(lane // 4, lane % 4) for lane in range(LANES)]
                        if mirrored:
                            taps = [8 * e + 2 * t - g for g, t in lanes]
                            others = [j + 1 for j in taps]
                        else:
                            taps = [8 * e + g - 2 * t for g, t in lanes]
                            others = [j - 1 for j in taps]
                        for tap in (taps, others):
                            inside = [j for j in tap if 0 <= j < self.taps]
                            self.load("k", [(h0 + warp) * self.k + j for j in inside])
                for b in range(first, end, 16):
                    self.fetch("x", b, end, h0, channels)
                    for _ in range(channels):
                        for _ in range(self.length // 16):
                            self.load_four()
                    for sample in range(b, min(b + 16, end)):
                        row = (sample * self.h + h0) * self.length
                        self.store("y", range(row, row + channels * self.length, 8), 8)

    def matrix_weight_grad(self) -> None:
        parts = -(-self.b // (32 if self.b < 32 * 344 else 344))
        for part in range(parts):
            for h0, channels in self.channel_groups():
                self.warps += 8
                for b in range(part * 16, self.b, parts * 16):
                    for tensor in ("gy", "x"):
                        self.fetch(tensor, b, self.b, h0, channels)
                        for _ in range(channels):
                            for _ in range(self.length // 16):
                                self.load_four()
                for warp in range(channels):
                    at = (part * self.h + h0 + warp) * self.taps
                    self.store("partials", range(at, at + self.taps))
        self.sum_partials(parts)


def walk(variant: str, path: str, size: Size, dtype: torch.dtype) -> Walk:
    """All threads of a path, one after another."""
    walked = Walk(size, dtype)
    if path == "weight_grad":
        getattr(walked, f"{variant}_weight_grad")()
    else:
        getattr(walked, f"{variant}_rows")(path == "input_grad")
    return walked
