"""What bounds each path of each kernel, in words, from its time and the ceilings of the same run.

Three floors are held against the time: that of the bytes at the rate of the pass over memory that
fits the path, that of the multiply-adds at the rate of a kernel that does nothing else, and that of
the reads that feed them, from the L1 cache or shared memory. The rules, in this order:

    a floor is at least NEAR of the time         bound by it, and near its floor
    a weight gradient with fewer warps than      reduction-bound: most of the GPU looks on while
    the GPU has schedulers                       few threads add up the batch
    the largest floor is at least PART of it     bound by it, in part: it is not overlapped with
                                                 the rest
    otherwise                                    latency-bound: the time goes into waiting, and
                                                 into instructions that no floor counts
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cuda_ops.ceilings import CEILING
from cuda_ops.contenders import Size
from cuda_ops.report import LABELS
from cuda_ops.traffic import LONGEST_ROW, PATHS, Traffic, traffic

NEAR = 0.8
"""Of the time. The rest goes into starting, ending and uneven work; no kernel measured here has
left less than a tenth to them."""

PART = 0.4
"""Of the time. Where the three kinds of work are done one after another, the largest takes more
than a third; one that takes less than two fifths explains no more than waiting does."""

SCHEDULERS = 4
"""Of a multiprocessor, since compute capability 5.0 (but 2 in 6.0). Each issues for warps of its
own, and one without a warp does nothing."""

FEW_FMA_UNITS = ("6.0", "7.0", "7.2", "7.5", "8.0")
"""Compute capabilities with 64 float32 units in a multiprocessor; the others have 128. From the
table of arithmetic throughput in NVIDIA's CUDA C++ Programming Guide."""

WORK = {"memory": "bytes", "compute": "multiply-adds", "on-chip": "reads on chip"}
"""Floor -> the work that it is the least time of."""

OVERLAP = {
    "memory": "fetch the next rows while these are computed",
    "compute": "copy and compute at the same time, then tensor cores",
    "on-chip": "a tile of sums in registers, for more multiply-adds with each number read",
}
"""What to try where one kind of work takes most of the time, but not all of it."""


@dataclass(frozen=True)
class Ceilings:
    """Rates, measured in the same run, in 10^9 a second.

    Args:
        copy: bytes of a pass that reads one tensor and writes one.
        read: bytes of a pass that reads.
        add: bytes of a pass that reads two tensors and writes one.
        fma: float32 FLOP of multiply-adds, two each.
        on_chip: bytes from the L1 cache or shared memory.
    """

    copy: float
    read: float
    add: float
    fma: float
    on_chip: float


@dataclass(frozen=True)
class Verdict:
    """What bounds a path.

    Args:
        bound: "memory-bound", "compute-bound", "on-chip-bound", "reduction-bound" or
            "latency-bound".
        shares: floor -> its part of the time, for "memory", "compute" and "on-chip".
        floor_ms: the larger of the floors that no kernel can go below, memory and compute.
        sentence: what bounds it, how far it is from the floor, and what to try next.
    """

    bound: str
    shares: dict[str, float]
    floor_ms: float
    sentence: str


def ceilings_of(record: dict[str, Any], run: dict[str, Any]) -> Ceilings:
    """The ceilings of a run in the bench's record.

    In the cycle in which its units make 128 (or 64) multiply-adds, a multiprocessor reads 128 bytes
    from the L1 cache or shared memory: so the one rate follows from the other, at the clock of the
    measurement.
    """
    copy, read, add = (
        max(each["gb_s"] for each in run["ceilings"] if each["kind"] == kind)
        for kind in ("copy", "read", "add")
    )
    fma = record["fma"]["gflop_s"]
    units = 64 if record["device"]["capability"] in FEW_FMA_UNITS else 128
    return Ceilings(copy, read, add, fma, on_chip=fma / (2 * units) * 128)


def floors_ms(work: Traffic, ceilings: Ceilings) -> dict[str, float]:
    """Milliseconds that the bytes, the multiply-adds and their reads take at the least.

    What stays in the L2 counts as moved: the pass that the rate is from leaves as much behind.
    """
    moved = work.dram + work.left_in_l2
    return {
        "memory": moved / _rate(work, ceilings) / 1e6,
        "compute": work.computed / ceilings.fma / 1e6,
        "on-chip": work.operands / ceilings.on_chip / 1e6,
    }


def judge(work: Traffic, ms: float, ceilings: Ceilings, multiprocessors: int) -> Verdict:
    """The verdict on a path that took this long, at a shape with work to do (B > 0)."""
    shares = {name: floor / ms for name, floor in floors_ms(work, ceilings).items()}
    largest = max(shares, key=lambda name: shares[name])
    share = shares[largest]
    schedulers = SCHEDULERS * multiprocessors
    floor_ms = work.compulsory / _rate(work, ceilings) / 1e6
    if work.computed:
        floor_ms = max(floor_ms, work.flops / ceilings.fma / 1e6)
    bound, why = f"{largest}-bound", f"{WORK[largest]}: {share:.0%} of the time"
    if share >= NEAR:
        words, then = bound, _less(largest, work, ceilings)
    elif work.path == "weight_grad" and work.warps < schedulers:
        words = bound = "reduction-bound"
        why = f"{work.warps} warps for {schedulers} schedulers"
        then = "cut the batch into parts, each summed by warps of its own"
    elif share >= PART:
        words, then = f"{bound} in part", OVERLAP[largest]
    elif work.warps < schedulers:
        words = bound = "latency-bound"
        why = f"{work.warps} warps for {schedulers} schedulers"
        then = "a larger batch, or a CUDA graph of many calls"
    else:
        words = bound = "latency-bound"
        why = f"no work above {share:.0%} of the time"
        then = "more loads in flight in each warp, and fewer instructions for each"
    far = f"{ms / floor_ms:.3g} times the floor of {floor_ms:.3g} ms"
    return Verdict(bound, shares, floor_ms, f"{words}, {far} ({why}); next: {then}")


def _rate(work: Traffic, ceilings: Ceilings) -> float:
    return getattr(ceilings, CEILING[work.path])


def _less(largest: str, work: Traffic, ceilings: Ceilings) -> str:
    """What to try where a kernel is near its floor: less of the work that bounds it."""
    if largest == "compute":
        return "tensor cores, or the FFT"
    if largest == "on-chip":
        return OVERLAP[largest]
    if work.path == "forward":
        half = "half precision, or " if work.computed else ""  # which tensor cores compute in
        return f"fewer bytes: {half}one kernel with the operation before or after"
    two = work.compulsory / ceilings.copy / 1e6 + work.compulsory / ceilings.read / 1e6
    one = 1.5 * work.compulsory / ceilings.add / 1e6
    return f"both gradients in one pass, {one:.3g} ms at the least where two take {two:.3g}"


def markdown(record: dict[str, Any]) -> str:
    """The verdicts on the kernels of a record, in Markdown: a table for each shape.

    float64 has none, as the ceiling of the multiply-adds is that of float32, nor have rows that are
    too long for the traffic model.
    """
    return "\n\n".join("\n".join(_markdown_lines(record, run)) for run in record["runs"])


def _markdown_lines(record: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    size, dtype = Size(**run["shape"]), getattr(torch, run["dtype"])
    if dtype == torch.float64 or size.length * dtype.itemsize > LONGEST_ROW:
        yield f"{size}, {run['dtype']}: no verdicts."
        return
    device, ceilings = record["device"], ceilings_of(record, run)
    titles = [f"{size}, {run['dtype']}", "path", "ms", "effective GB/s", "requested GB/s"]
    titles += [f"{name}, %" for name in WORK] + ["verdict"]
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in run["rows"]:
        for path in PATHS if row["kind"] == "kernel" else ():
            work = traffic(row["name"], path, size, dtype, device["l2_bytes"])
            ms = row["paths"][path]["ms"]
            verdict = judge(work, ms, ceilings, device["multiprocessors"])
            cells = [row["name"] if path == PATHS[0] else "", LABELS[path], f"{ms:.3g}"]
            cells += [f"{rate(ms):,.0f}" for rate in (work.effective_gb_s, work.requested_gb_s)]
            cells += [f"{100 * share:.0f}" for share in verdict.shares.values()]
            yield f"| {' | '.join([*cells, verdict.sentence])} |"
    yield (
        f"\nCeilings of the same run: copy {ceilings.copy:,.0f}, read {ceilings.read:,.0f}, three "
        f"streams {ceilings.add:,.0f} GB/s; float32 multiply-adds {ceilings.fma / 1e3:.1f} "
        f"TFLOP/s, so {ceilings.on_chip / 1e3:.1f} TB/s of reads on chip. Effective is compulsory "
        "bytes over the time, requested what the threads ask for, mostly of the caches; the "
        "percentages are of the time. arXiv 2604.25422 counts about twice the compulsory bytes in "
        "its Table III: halve its rates before they are set beside the effective ones."
    )
