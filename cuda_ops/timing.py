"""Times of device work: one call between two CUDA events, from a cold L2, many times over."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch

from cuda_ops.contenders import Call, Inputs, matrix_products

WARM_UP = 2  # rounds before the first that counts
SLOW = 20.0  # ms; slower jobs take part in fewer rounds
FEWEST = 5  # rounds that every job takes part in, where there are as many


@dataclass(frozen=True)
class Spread:
    """Milliseconds of repeated calls: median, first and last decile."""

    ms: float
    p10: float
    p90: float
    samples: int


def spread(times: Sequence[float]) -> Spread:
    """The statistics of two or more times."""
    deciles = quantiles(times, n=10, method="inclusive")  # never beyond what was measured
    return Spread(median(times), deciles[0], deciles[-1], len(times))


@dataclass
class Job:
    """One thing to time.

    Args:
        prepare: returns, for a set of inputs, the call to time; it may work as long as it likes.
        finish: told what the last timed call returned.
        tf32: whether matrix products may round their float32 inputs to TF32.
    """

    prepare: Callable[[Inputs], Call]
    finish: Callable[[Any], None] = lambda result: None
    tf32: bool = False
    every: int = 1  # takes part in every second, third, ... round
    times: list[float] = field(default_factory=list)


def eviction_buffer(device: torch.device, l2_bytes: int) -> torch.Tensor:
    """Memory far larger than the L2: once it is read, nothing else is left there.

    A gigabyte also keeps the device busy for so long that the host has queued the call before the
    clock starts.
    """
    return torch.zeros(max(2**30, 4 * l2_bytes) // 4, device=device)


def poison(like: torch.Tensor) -> None:
    """Fill with NaN the memory that PyTorch hands out next for a tensor of this size."""
    torch.full_like(like, math.nan)


def once(job: Job, inputs: Inputs, evict: torch.Tensor) -> tuple[float, Any]:
    """Milliseconds of one call and what it returned.

    Its outputs land in poisoned memory, and the L2 holds nothing of its inputs and nothing that is
    still to be written back.
    """
    with matrix_products(job.tf32):
        call = job.prepare(inputs)
        poison(inputs.x)
        evict.sum()  # overwrites a little of the memory for small tensors
        poison(inputs.k)
        return timed(call)


def timed(call: Call) -> tuple[float, Any]:
    """Milliseconds on the device between the start and the end of one call, and its result."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end), result


def time_rounds(
    jobs: Sequence[Job], sets: Sequence[Inputs], rounds: int, evict: torch.Tensor
) -> None:
    """Fill in the times of `jobs`, all in turn, so that a drift of the clocks hits all alike.

    Each round begins with another job, and the calls of a job take turns among the input sets; the
    last call of each is on `sets[0]`.
    """
    for job in jobs:
        for _ in range(WARM_UP):
            ms, _ = once(job, sets[0], evict)
        job.every = max(1, min(math.ceil(ms / SLOW), rounds // FEWEST))
    for left in reversed(range(rounds)):
        first = left % len(jobs)
        for job in [*jobs[first:], *jobs[:first]]:
            if left % job.every == 0:
                inputs = sets[left // job.every % len(sets)]
                ms, result = once(job, inputs, evict)
                job.times.append(ms)
                if left == 0:
                    job.finish(result)


def tell(news: str) -> None:
    """Progress, for whoever waits."""
    print(f"bench: {news}", file=sys.stderr, flush=True)
