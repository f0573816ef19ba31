"""One shape measured: verified, timed beside the passes that bound it, and verified again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from cuda_ops.ceilings import CEILING, SUSPICIOUS, TENSORS, MemoryPass, bandwidth, passes_for
from cuda_ops.contenders import BACKEND, PATHS, Call, Contender, Inputs, Size, draw
from cuda_ops.launch import SCALARS
from cuda_ops.timing import Job, Spread, once, spread, tell, time_rounds
from cuda_ops.verify import LIMITS, Checks

SETS = 2  # of inputs, which take turns


@dataclass(frozen=True)
class Ceiling(Spread):
    """A pass over memory; `kind` is copy, read or add."""

    name: str
    kind: str
    tensors: int
    gb_s: float


@dataclass(frozen=True)
class Figure(Spread):
    """One path of a contender; `errors` are relative to float64, the worse of before and after."""

    gb_s: float
    of_ceiling: float
    suspicious: bool
    errors: dict[str, float]


@dataclass(frozen=True)
class Row:
    """A contender; the total is that of the forward path and both gradients."""

    name: str
    kind: str
    total_ms: float
    paths: dict[str, Figure]


@dataclass(frozen=True)
class Run:
    """All that was measured at one shape, from inputs of this seed."""

    shape: Size
    dtype: str
    seed: int
    rounds: int
    ceilings: list[Ceiling]
    rows: list[Row]


def measure(
    size: Size,
    dtype: torch.dtype,
    contenders: Sequence[Contender],
    rounds: int,
    evict: torch.Tensor,
) -> Run:
    """Verify and time the contenders at one shape, on the device of `evict`.

    Raises:
        WrongResultError: one of them computes something else than the operator.
        torch.OutOfMemoryError: the shape does not fit the device.
    """
    what = f"{size} {SCALARS[dtype]}"
    tell(f"{what}: inputs and their results in float64")
    generator = torch.Generator(evict.device)
    seed = generator.seed()
    sets = [draw(size, dtype, generator) for _ in range(SETS)]
    checks = Checks(size, sets[0])
    if dtype not in LIMITS:
        _checked_jobs(BACKEND, checks, sets[0], evict)
    jobs = {}
    for contender in contenders:
        tell(f"{what}: checking {contender.name}")
        try:
            jobs[contender] = _checked_jobs(contender, checks, sets[0], evict)
        except torch.OutOfMemoryError:
            if contender.kind == "kernel":
                raise
            tell(f"{what}: {contender.name} is left out, it needs more memory than there is")
            torch.cuda.empty_cache()
    checks.stop_if_wrong()

    out = torch.empty_like(sets[0].x)
    passes = {each: Job(partial(_pass_call, each, out)) for each in passes_for(out)}
    to_time = [*passes.values(), *(job for paths in jobs.values() for job in paths.values())]
    tell(f"{what}: timing {len(to_time)} calls in {rounds} rounds")
    time_rounds(to_time, sets, rounds, evict)
    checks.stop_if_wrong()

    ceilings = [_ceiling(each, out, job) for each, job in passes.items()]
    rates = {kind: max(c.gb_s for c in ceilings if c.kind == kind) for kind in CEILING.values()}
    rows = [_row(contender, paths, out, rates, checks) for contender, paths in jobs.items()]
    return Run(size, SCALARS[dtype], seed, rounds, ceilings, rows)


def _checked_jobs(
    contender: Contender, checks: Checks, inputs: Inputs, evict: torch.Tensor
) -> dict[str, Job]:
    """Path -> its job, whose call has been checked once, and will be when it is finished."""
    jobs = {}
    for path in PATHS:
        job = Job(
            prepare=partial(contender.prepare, path),
            finish=partial(checks.check, contender, path),
            tf32=contender.tf32,
        )
        job.finish(once(job, inputs, evict)[1])
        jobs[path] = job
    return jobs


def _pass_call(memory_pass: MemoryPass, out: torch.Tensor, inputs: Inputs) -> Call:
    return partial(memory_pass.run, inputs, out)


def _ceiling(memory_pass: MemoryPass, like: torch.Tensor, job: Job) -> Ceiling:
    times = spread(job.times)
    return Ceiling(
        **asdict(times),
        name=memory_pass.name,
        kind=memory_pass.kind,
        tensors=memory_pass.tensors,
        gb_s=bandwidth(like, memory_pass.tensors, times.ms),
    )


def _row(
    contender: Contender,
    jobs: dict[str, Job],
    like: torch.Tensor,
    rates: dict[str, float],
    checks: Checks,
) -> Row:
    """`rates` is GB/s by kind of pass."""
    figures = {}
    for path, job in jobs.items():
        times = spread(job.times)
        rate = bandwidth(like, TENSORS[path], times.ms)
        share = rate / rates[CEILING[path]]
        figures[path] = Figure(
            **asdict(times),
            gb_s=rate,
            of_ceiling=share,
            suspicious=share > SUSPICIOUS,
            errors=checks.errors[contender.name, path],
        )
    total = figures["forward"].ms + figures["both"].ms
    return Row(contender.name, contender.kind, total, figures)
