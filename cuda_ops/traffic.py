"""What each path of each kernel moves and computes, from its shape alone: no profiler, no GPU.

Three numbers of bytes are told apart, and a rate always says of which it is:

    compulsory   the large tensors of the path, each read or written once. Over the time this is
                 the effective bandwidth, the same measure for whatever computes the operator.
    requested    what the threads' loads and stores ask for, before lanes of a warp that ask for
                 the same are served at once, and before any cache. Over the time this says how
                 hard the caches work; it is no bandwidth of memory.
    DRAM         what is read from and written to memory while the kernel runs: what a profiler
                 counts there. It starts from an L2 that holds nothing of the tensors.

`cuda_ops.validate_traffic` holds the last against counters: at the study's shape all twelve are
within 3 % on an H200 (records/h200_counters.json). Not modelled is that shared stages its rows once
more for every 64 taps, of which the L2 holds a part only: at L = 96 its weight gradient read 29 %
more than is said here.

arXiv 2604.25422 counts about twice the compulsory bytes in its Table III: its rates have to be
halved before they are set beside an effective bandwidth of this project.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from cuda_ops.ceilings import TENSORS
from cuda_ops.contenders import Size
from cuda_ops.jit import VARIANTS
from cuda_ops.mapping import (
    LANES,
    Case,
    Mapping,
    coalesced_rows,
    coalesced_weight_grad,
    naive_rows,
    naive_trips,
    naive_weight_grad,
)
from cuda_ops.mapping_staged import (
    shared_rows,
    shared_weight_grad,
    tiled_rows,
    tiled_weight_grad,
)
from cuda_ops.report import LABELS

PATHS = ("forward", "input_grad", "weight_grad")

LONGEST_ROW = 4096
"""Bytes of a row that the model holds for. Up to there all rows that are worked on at a time fit
the L2 (132 multiprocessors * 64 warps * 4 KB = 35 MB in coalesced), so that only the first read of
a number is from DRAM, and warp_tiled has room for its rows in shared memory."""

RETAINED = 72
"""Percent of the L2 that holds, when a kernel ends, what the kernel touched last. Where it reads as
much as it writes, half of that is output that has not been written to DRAM yet. Measured on an H200
(60 MiB) at the study's shape: 18.7 MB were missing from 402.7 MB of output of a thread for each
element, 26.7 MB of a warp for each row, which makes 59 and 85 %; this is the mean."""

_MAPPINGS = {
    "naive": (naive_rows, naive_weight_grad),
    "coalesced": (coalesced_rows, coalesced_weight_grad),
    "shared": (shared_rows, shared_weight_grad),
    "warp_tiled": (tiled_rows, tiled_weight_grad),
}
"""Variant -> the formulas of the forward path and input gradient, and of the weight gradient."""


@dataclass(frozen=True)
class Traffic:
    """One call of a path, in bytes and operations.

    Args:
        compulsory: of the large tensors, as `cuda_ops.ceilings` counts them.
        loaded: asked for by loads from global memory.
        stored: asked for by stores to it.
        dram_read: from memory.
        dram_written: to memory, before the kernel ends.
        left_in_l2: results that the L2 has still to write then.
        flops: of the operator, two for each multiply-add.
        computed: flops of the kernel, padding included; 0 where tensor cores make them, for which
            no ceiling is measured.
        operands: what the L1 or shared memory could deliver during the reads that feed the
            multiply-adds, each 32 lanes wide.
        warps: that share the work.
    """

    variant: str
    path: str
    compulsory: int
    loaded: int = 0
    stored: int = 0
    dram_read: int = 0
    dram_written: int = 0
    left_in_l2: int = 0
    flops: int = 0
    computed: int = 0
    operands: int = 0
    warps: int = 0

    @property
    def requested(self) -> int:
        """Bytes that the threads' loads and stores ask for."""
        return self.loaded + self.stored

    @property
    def dram(self) -> int:
        """Bytes read from and written to memory while the kernel runs."""
        return self.dram_read + self.dram_written

    @property
    def intensity(self) -> float:
        """FLOP for each compulsory byte: the operator's, whatever computes it."""
        return self.flops / self.compulsory if self.compulsory else 0.0

    def effective_gb_s(self, ms: float) -> float:
        """Effective bandwidth, in GB/s (10^9): compulsory bytes over the time."""
        return self.compulsory / ms / 1e6

    def requested_gb_s(self, ms: float) -> float:
        """Requested bytes over the time, in GB/s (10^9)."""
        return self.requested / ms / 1e6


def traffic(variant: str, path: str, size: Size, dtype: torch.dtype, l2_bytes: int) -> Traffic:
    """The model's numbers for one call of a path: forward, input_grad or weight_grad.

    Args:
        size: B, H, L and K; B = 0 moves nothing.
        l2_bytes: size of the L2 cache.

    Raises:
        ValueError: a row is longer than the model holds for.
    """
    case = Case(size, dtype)
    if size.length * case.item > LONGEST_ROW:
        raise ValueError(
            f"the traffic model holds for rows of up to {LONGEST_ROW} bytes; L = {size.length} in "
            f"{dtype} makes {size.length * case.item}"
        )
    tensor = case.elements * case.item
    if tensor == 0:
        return Traffic(variant, path, compulsory=0)
    rows, weight_grad = _MAPPINGS[variant]
    mapping = weight_grad(case) if path == "weight_grad" else rows(case, path == "input_grad")
    held = l2_bytes * RETAINED // 100
    if path == "weight_grad":
        read, written, left = _weight_grad_dram(variant, case, mapping, held)
    else:
        # Each input once and each filter once: their other reads come while they are in the L2.
        read = tensor + size.channels * case.taps * case.item
        left = _share_held(tensor, read + tensor, held)
        written = tensor - left
    return Traffic(
        variant,
        path,
        compulsory=TENSORS[path] * tensor,
        loaded=mapping.loaded,
        stored=mapping.stored,
        dram_read=read,
        dram_written=written,
        left_in_l2=left,
        flops=2 * case.rows * case.macs,
        computed=2 * mapping.macs,
        operands=mapping.operands,
        warps=mapping.warps,
    )


def _weight_grad_dram(
    variant: str, case: Case, mapping: Mapping, held: int
) -> tuple[int, int, int]:
    """Bytes read, bytes written, and bytes left in the L2.

    A part's sums are written when it ends. Those that end early are pushed out by what is read
    after them, and read again for the last step; the warps of warp_tiled begin and end together, so
    its sums are still there. The gradient itself comes last and stays.
    """
    inputs = 2 * case.elements * case.item
    if variant == "naive":
        inputs += _read_again(case, held)
    partials = mapping.parts * case.size.channels * case.taps * case.wide
    if variant == "warp_tiled":
        kept = min(partials, held)
    else:
        kept = _share_held(partials, inputs + partials, held)
    evicted = partials - kept
    gradient = case.size.channels * case.size.taps * case.item
    left = min(kept + gradient, held)
    return inputs + evicted, partials + gradient - left, left


def _read_again(case: Case, held: int) -> int:
    """Bytes that naive's weight gradient reads twice: warps of a channel walk at their own pace.

    A warp whose least tap is j takes L - j steps for a sample, so it runs ahead of the channel's
    slowest warp, further with every sample. What it has read is gone from the L2 when the slowest
    comes by, once the samples between them are more than the L2 holds. In the other variants a part
    of the batch ends before that happens.
    """
    size = case.size
    threads = size.channels * size.taps
    sample = 2 * size.channels * size.length * case.item
    twice = 0.0
    for begin in range(0, threads, size.taps):  # of a channel
        reach: dict[int, int] = {}  # pace, in steps for a sample -> steps that meet this channel
        for warp in range(begin // LANES * LANES, begin + size.taps, LANES):
            pace = naive_trips(case, warp % size.taps, min(LANES, threads - warp))
            reach[pace] = max(reach.get(pace, 0), size.length - max(0, warp - begin))
        slowest = max(reach)
        for pace, steps in reach.items():
            ahead = sample * (slowest - pace) / slowest * size.batch  # bytes, in the end
            if ahead > held and pace > 0:
                twice += 2 * steps * case.item * size.batch * (1 - held / ahead)
    return round(twice)


def _share_held(part: int, whole: int, held: int) -> int:
    """Bytes of `part` among the last `held` ones, where it is spread evenly over `whole`."""
    return part * min(held, whole) // max(1, whole)


def markdown(size: Size, dtype: torch.dtype, l2_bytes: int) -> str:
    """All variants and paths at one shape, in Markdown."""
    return "\n".join(_markdown_lines(size, dtype, l2_bytes))


def _markdown_lines(size: Size, dtype: torch.dtype, l2_bytes: int) -> Iterator[str]:
    titles = [f"{size}, {str(dtype).removeprefix('torch.')}", "path", "compulsory", "requested"]
    titles += ["DRAM read", "DRAM written", "GFLOP", "FLOP/byte"]
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for variant in VARIANTS:
        for path in PATHS:
            row = traffic(variant, path, size, dtype, l2_bytes)
            cells = [variant if path == PATHS[0] else "", LABELS[path]]
            for number in (row.compulsory, row.requested, row.dram_read, row.dram_written):
                cells.append(f"{number / 1e6:,.1f}")
            cells += [f"{row.flops / 1e9:.3g}", f"{row.intensity:.3g}"]
            yield f"| {' | '.join(cells)} |"
    yield (
        "\nIn MB (10^6). Compulsory bytes are the large tensors once; requested is what "
        "the threads ask for, mostly of the caches; DRAM is what the memory should see. FLOP/byte "
        "is for the compulsory bytes. arXiv 2604.25422 counts about twice these in its Table III: "
        "halve its rates before they are set beside an effective bandwidth."
    )
