"""What a comparison says: the figures of arXiv 2604.25422 and some more, from its record.

A record is plain data, as JSON holds it:

    device, versions, commit, date    see `cuda_ops.bench.environment`; of a CPU, device holds the
                name alone
    settings    option -> value, of the runs
    command     the command line
    shape       batch, channels, length, taps: what the operator works on
    blocks      calls of the operator in a step, for each path
    dtype       of the operator's tensors, such as "float32"
    steps       of a run
    rounds      runs of each kernel, in turns
    kernels     a list in the order asked for, the first of which is the baseline:
                  name
                  tf32         whether its matrix products were in TF32
                  summaries    of each round, a `StepSummary`
                  losses       of each step in the first round
                  repeat       largest relative difference from them in the other rounds; None
                               where there was one round
    operator    on a GPU what `cuda_ops.measure.measure` found at this shape, in the same process;
                otherwise None
    fma         on a GPU what `cuda_ops.ceilings.multiply_adds` found; otherwise None

Speed-ups are ratios to the baseline. Times of a kernel are medians over its rounds of the medians
over their steady steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from cuda_ops.ceilings import CEILING, TENSORS
from cuda_ops.contenders import BACKEND
from model.training.callbacks.step_table import MEASURED_AS

FAST = (1, 2, 10)
"""The p of fast_p, the share of paths that are right and more than p times as fast as PyTorch's
(KernelBench, arXiv 2502.10517)."""

REFERENCE = "pytorch"
"""Whose losses the others' are held against, where it takes part and draws the same dropout."""

OTHER_MASKS = (
    "Dropout parts the losses: a mask follows the layout in memory, which is not the same in all "
    "of these. --model.dropout 0 compares the arithmetic alone."
)


@dataclass(frozen=True)
class Path:
    """One path of the operator within a training step.

    Attributes:
        ms: of a step, all blocks together; includes the wait for the host, where there is one.
        effective_gb_s: compulsory bytes over the time (10^9 a second).
        of_ceiling: that over the rate of the pass that fits the path; None on a CPU.
    """

    ms: float
    effective_gb_s: float
    of_ceiling: float | None


@dataclass(frozen=True)
class KernelFigures:
    """One kernel of a comparison.

    Attributes:
        name: of the kernel.
        ms: name of a time, see `step_table.LABELS` -> milliseconds of a step. No "operator" where
            the paths could not be told apart from the rest of the step.
        spread: the same names -> least and largest median of a round.
        paths: forward and the gradients; both_gradients where they are one.
        epoch_s: of an epoch of training, without validation.
        windows_per_s: trained on.
        peak_memory: bytes on the GPU; None on a CPU.
        operator_speedup: of the operator in the step; None where it has no time.
        step_speedup: end to end.
        share: of the step that is the operator; None likewise.
        limit: the most that the step could become faster by if the operator took no time.
        apart: largest relative difference of its losses from the reference's.
        fast: p -> share of its paths that are right and more than p times as fast as PyTorch's;
            None where either was not measured on its own, and for PyTorch itself.
    """

    name: str
    ms: dict[str, float]
    spread: dict[str, tuple[float, float]]
    paths: dict[str, Path]
    epoch_s: float
    windows_per_s: float
    peak_memory: int | None
    operator_speedup: float | None
    step_speedup: float
    share: float | None
    limit: float | None
    apart: float
    fast: dict[int, float] | None


def figures(record: dict[str, Any]) -> list[KernelFigures]:
    """The figures of each kernel, in the record's order."""
    base = _times(record["kernels"][0])[0]
    return [_figures(record, kernel, base) for kernel in record["kernels"]]


def reference(record: dict[str, Any]) -> dict[str, Any]:
    """The kernel whose losses the others' are held against."""
    kernels, masks = record["kernels"], has_other_masks(record)
    return next((each for each in kernels if (each["name"] == REFERENCE) != masks), kernels[0])


def has_other_masks(record: dict[str, Any]) -> bool:
    """Whether some are another network than the others, for their dropout."""
    own = {REFERENCE, "fused", "published"}  # each has a layout of its own, the kernels one
    layouts = {name if name in own else "" for name in _names(record)}
    return record["settings"].get("model.dropout", 0) > 0 and len(layouts) > 1


def about_tf32(record: dict[str, Any]) -> str:
    """What parts the losses beside rounding to the operator's type; empty if nothing does."""
    rounded = ", ".join(kernel["name"] for kernel in record["kernels"] if kernel["tf32"])
    words = "Matrix products in TF32, which keeps 10 bits of each factor: "
    return f"{words}{rounded}." if rounded else ""


def _names(record: dict[str, Any]) -> list[str]:
    return [kernel["name"] for kernel in record["kernels"]]


def fastest(found: Sequence[KernelFigures]) -> KernelFigures:
    """The one with the shortest step."""
    return min(found, key=lambda of: of.ms["step"])


def _figures(
    record: dict[str, Any], kernel: dict[str, Any], base: dict[str, float]
) -> KernelFigures:
    ms, ranges = _times(kernel)
    summaries = kernel["summaries"]
    operator, step = ms.get("operator"), ms["step"]
    shown = operator is not None
    peaks = [each["peak_memory"] for each in summaries if each["peak_memory"] is not None]
    return KernelFigures(
        name=kernel["name"],
        ms=ms,
        spread=ranges,
        paths=dict(_paths(record, ms)) if shown else {},
        epoch_s=summaries[0]["epoch_steps"] * step / 1e3,
        windows_per_s=median(each["windows_per_s"] for each in summaries),
        peak_memory=max(peaks) if peaks else None,
        operator_speedup=base["operator"] / operator if operator and "operator" in base else None,
        step_speedup=base["step"] / step,
        share=operator / step if operator is not None else None,
        limit=step / (step - operator) if operator is not None else None,
        apart=apart(kernel["losses"], reference(record)["losses"]),
        fast=_fast(record, kernel["name"]),
    )


def _times(kernel: dict[str, Any]) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Medians over the rounds, and their ranges, of what every round shows."""
    rounds = [{name: of["ms"] for name, of in each["ms"].items()} for each in kernel["summaries"]]
    values = {
        name: [each[name] for each in rounds]
        for name in rounds[0]
        if all(name in each for each in rounds)
    }
    medians = {name: median(of) for name, of in values.items()}
    return medians, {name: (min(of), max(of)) for name, of in values.items()}


def _paths(record: dict[str, Any], ms: dict[str, float]) -> Iterator[tuple[str, Path]]:
    shape = record["shape"]
    tensor = shape["batch"] * shape["channels"] * shape["length"]
    tensor *= getattr(torch, record["dtype"]).itemsize
    for path, kind in MEASURED_AS.items():
        if path in ms:
            rate = record["blocks"] * TENSORS[kind] * tensor / ms[path] / 1e6
            ceiling = ceiling_gb_s(record, kind)
            yield path, Path(ms[path], rate, rate / ceiling if ceiling else None)


def ceiling_gb_s(record: dict[str, Any], path: str) -> float | None:
    """The rate of the pass that fits a path of `cuda_ops.contenders.PATHS`, if it was measured."""
    run = record["operator"]
    if run is None:
        return None
    return max(each["gb_s"] for each in run["ceilings"] if each["kind"] == CEILING[path])


def apart(losses: Sequence[float], of_reference: Sequence[float]) -> float:
    """The largest relative difference of losses, none of which is 0, from the reference's."""
    pairs = zip(losses, of_reference, strict=True)
    return max((abs(found - true) / abs(true) for found, true in pairs), default=0.0)


def _fast(record: dict[str, Any], name: str) -> dict[int, float] | None:
    """Right is what the bench let through: it stops at the first wrong result."""
    run = record["operator"]
    rows = {row["name"]: row["paths"] for row in run["rows"]} if run else {}
    pytorch = rows.get(BACKEND.name)
    if name == BACKEND.name or name not in rows or pytorch is None:
        return None
    times = [
        pytorch[path]["ms"] / rows[name][path]["ms"]
        for path in ("forward", "input_grad", "weight_grad")
    ]
    return {p: sum(ratio > p for ratio in times) / len(times) for p in FAST}
