"""How much the threads of naive and coalesced read, write and multiply, without running them.

A formula stands for the loops of a file of csrc/, and ends with the same numbers as walking through
them would. The constants are those of the sources. `cuda_ops.mapping_staged` has the other two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd

import torch

from cuda_ops.contenders import Size

LANES = 32  # of a warp
BANK = 4  # bytes that a lane gets from the L1 cache or shared memory in a cycle

COALESCED_OUTPUTS = 64  # kRuns * 32: computed at once, with one read of each tap
COALESCED_PART = 512  # kSamples


@dataclass(frozen=True)
class Case:
    """A shape and a type, and what all the formulas need of them; B H L > 0."""

    size: Size
    dtype: torch.dtype

    @property
    def item(self) -> int:
        """Bytes of a number in memory."""
        return self.dtype.itemsize

    @property
    def wide(self) -> int:
        """Bytes of a number in a sum: float32, or float64 for float64."""
        return torch.promote_types(self.dtype, torch.float32).itemsize

    @property
    def rows(self) -> int:
        """B H."""
        return self.size.batch * self.size.channels

    @property
    def elements(self) -> int:
        """B H L, of each large tensor."""
        return self.rows * self.size.length

    @property
    def taps(self) -> int:
        """Of a filter, without those past L, which meet nothing."""
        return min(self.size.taps, self.size.length)

    @property
    def macs(self) -> int:
        """Multiply-adds of a row: output t has min(t + 1, K) of them."""
        return self.taps * self.size.length - self.taps * (self.taps - 1) // 2


@dataclass(frozen=True)
class Mapping:
    """What the threads of one path do.

    Args:
        loaded: bytes that they ask of global memory: the width of each load, for each lane that
            takes part in it, whether or not lanes ask for the same, and whichever cache answers.
        stored: the same of their stores.
        operands: bytes that the L1 cache or shared memory could deliver during the reads that feed
            the multiply-adds: each is 32 lanes wide, whoever takes part in it. Lanes of a warp that
            loop differently are taken to keep step, which unrolled loops do not quite.
        macs: multiply-adds, those with padding among them; 0 where tensor cores make them.
        warps: that have work. For warp_tiled the fewest there can be: it takes more where fewer
            rows fit shared memory.
        parts: of the batch, each with partial sums of its own, (H, taps), in memory.
    """

    loaded: int
    stored: int
    operands: int
    macs: int
    warps: int
    parts: int = 0


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def over_warps(threads: int, period: int, trips: Callable[[int, int], int]) -> int:
    """Sum of trips(first, lanes) over warps of 32 neighbouring threads, the last one cut short.

    A warp's `first` is the number of its first thread, modulo the period.
    """
    full, rest = divmod(threads, LANES)
    cycle = [trips(LANES * w % period, LANES) for w in range(period // gcd(LANES, period))]
    repeats, others = divmod(full, len(cycle))
    last = trips(LANES * full % period, rest) if rest else 0
    return repeats * sum(cycle) + sum(cycle[:others]) + last


def with_partials(
    case: Case, parts: int, loaded: int, operands: int, macs: int, warps: int
) -> Mapping:
    """A weight gradient in parts: they write partial sums, and `sum_partials` reads them."""
    sums = case.size.channels * case.taps
    partials = parts * sums * case.wide
    stored = partials + sums * case.item
    return Mapping(loaded + partials, stored, operands, macs, warps, parts)


# -- naive: a thread for each output -----------------------------------------------------------


def naive_rows(case: Case, mirrored: bool) -> Mapping:
    """Each multiply-add loads a tap and an input; a warp loops for as long as its longest lane."""
    length, taps = case.size.length, case.taps

    def trips(first: int, lanes: int) -> int:
        """Of lanes at t = first and on; past L - 1 they are in the next row, at 0 and on."""
        if mirrored:  # s has min(L - s, K) taps, the most where s is least
            return taps if first + lanes > length else min(length - first, taps)
        return min(first + lanes, taps)  # t has min(t + 1, K)

    return Mapping(
        loaded=2 * case.rows * case.macs * case.item,
        stored=case.elements * case.item,
        operands=2 * over_warps(case.elements, length, trips) * LANES * max(case.item, BANK),
        macs=case.rows * case.macs,
        warps=ceil_div(case.elements, LANES),
    )


def naive_weight_grad(case: Case) -> Mapping:
    """A thread for each of H K taps walks over the batch; tap j meets L - j steps of a sample."""
    size = case.size
    threads = size.channels * size.taps
    steps = size.batch * over_warps(threads, size.taps, partial(naive_trips, case))
    return Mapping(
        loaded=2 * case.rows * case.macs * case.item,
        stored=threads * case.item,
        operands=2 * steps * LANES * max(case.item, BANK),
        macs=case.rows * case.macs,
        warps=ceil_div(threads, LANES),
    )


def naive_trips(case: Case, first: int, lanes: int) -> int:
    """Steps of a sample that a warp of the weight gradient loops over.

    Its lanes are at tap `first` and on, past K - 1 in the next channel: as many as the least needs.
    """
    length, taps = case.size.length, case.size.taps
    return length if first + lanes > taps else max(0, length - first)


# -- coalesced: a warp for each row ------------------------------------------------------------


def coalesced_rows(case: Case, mirrored: bool) -> Mapping:
    """For 64 outputs at once: each tap is loaded by all 32 lanes, then an input for each output.

    A load of inputs takes place where any of its 32 outputs has one to meet.
    """
    length = case.size.length
    tap_loads = input_loads = 0
    for start in range(0, length, COALESCED_OUTPUTS):
        end = min(start + COALESCED_OUTPUTS, length)
        tap_loads += min(case.taps, length - start if mirrored else end)
        for run in range(start, end, LANES):
            input_loads += min(case.taps, length - run if mirrored else min(run + LANES, length))
    return Mapping(
        loaded=case.rows * (LANES * tap_loads + case.macs) * case.item,
        stored=case.elements * case.item,
        operands=case.rows * (tap_loads + input_loads) * LANES * max(case.item, BANK),
        macs=case.rows * case.macs,
        warps=case.rows,
    )


def coalesced_weight_grad(case: Case) -> Mapping:
    """A warp for each tap of a part loads gy and x, 32 of a sample's L - j steps at a time."""
    parts = ceil_div(case.size.batch, COALESCED_PART)
    steps = sum(ceil_div(case.size.length - j, LANES) for j in range(case.taps))
    return with_partials(
        case,
        parts,
        loaded=2 * case.rows * case.macs * case.item,
        operands=2 * case.rows * steps * LANES * max(case.item, BANK),
        macs=case.rows * case.macs,
        warps=parts * case.size.channels * case.taps,
    )
