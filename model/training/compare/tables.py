"""A comparison as text: the study's Tables II and III, and what follows from them."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cuda_ops.ceilings import CEILING
from cuda_ops.report import LABELS
from cuda_ops.traffic import PATHS
from model.training.callbacks.step_table import MEASURED_AS
from model.training.compare import study
from model.training.compare.figures import (
    OTHER_MASKS,
    KernelFigures,
    about_tf32,
    ceiling_gb_s,
    figures,
    has_other_masks,
    reference,
)
from model.training.compare.words import amdahl, device_name, percent, shape_of

WIDTH = 80
MISSING = "-"


def text(record: dict[str, Any]) -> str:
    """The record as text, at most 80 columns wide."""
    found = figures(record)
    parts = [
        _head(record),
        _block(_times(record, found), _times_notes(record, found)),
        _block(_bandwidths(record, found), _bandwidth_notes(record, found)),
        _block(_others(record, found), _others_notes(record, found)),
    ]
    if {row.name for row in study.ROWS} <= {of.name for of in found}:
        parts.append(_block(_study({of.name: of for of in found})))
    return "\n\n".join([*parts, _wrapped(amdahl(found))])


def _head(record: dict[str, Any]) -> str:
    versions = record["versions"]
    names = ", ".join(kernel["name"] for kernel in record["kernels"])
    rounds = f"{record['rounds']} round" + ("s" if record["rounds"] > 1 else "")
    return _wrapped(
        f"{names} on {device_name(record)}, torch {versions['torch']}, {record['date']}. The "
        f"operator works on {shape_of(record)} {record['dtype']}, {record['blocks']} times a step; "
        f"{rounds} of {record['steps']} steps each."
    )


# -- Table II ----------------------------------------------------------------------------------


def _times(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[str]:
    yield "Table II: a training step in ms, an epoch in s, and speed-ups"
    yield _row("", ["", "input", "weight", "", "", "", "operator", "end to"])
    yield _row("", ["forward", "grad", "grad", "total", "step", "epoch", "speed-up", "end"])
    for of in found:
        one = "both_gradients" in of.ms
        times = [_time(of.ms.get(name)) for name in (*PATHS, "operator", "step")]
        if one:
            times[1:3] = ["", f"{_time(of.ms['both_gradients'])} *"]
        operator = MISSING if of.operator_speedup is None else _ratio(of.operator_speedup)
        yield _row(of.name, [*times, _short(of.epoch_s), operator, _ratio(of.step_speedup)])


def _times_notes(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[str]:
    summary = record["kernels"][0]["summaries"][0]
    if any("both_gradients" in of.ms for of in found):
        yield "* both gradients in one go, which cannot be told apart."
    if hidden := [of.name for of in found if "operator" not in of.ms]:
        yield (
            f"{MISSING} {', '.join(hidden)}: the operator ran in compiled or captured code, in "
            "which it cannot be told from the rest of the step."
        )
    copied = any(of.ms.get("gradient_copy") for of in found)
    copies = ", with the copies of strided gradients that it asks for" if copied else ""
    steps = summary["epoch_steps"]
    notes = (
        f"Medians by {summary['clock']}, of all calls in a step, each for itself, so they need not "
        f"add up; total is the operator{copies}. Speed-ups are over {found[0].name}. An epoch is "
        f"{steps:,} step{'s' if steps > 1 else ''}, without validation."
    )
    if record["rounds"] > 1:
        apart = max(high / low - 1 for of in found for low, high in [of.spread["step"]])
        notes += f" The rounds' own medians of a step differ by {percent(apart)} at most."
    yield notes


# -- Table III ---------------------------------------------------------------------------------


def _bandwidths(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[str]:
    title = "Table III: effective bandwidth in the step, GB/s"
    yield title + (", and its share of the ceiling" if record["operator"] else "")
    shown = {
        name: kind for name, kind in MEASURED_AS.items() if any(name in of.paths for of in found)
    }
    if not shown:
        yield "Not known, as no kernel's paths have times."
        return
    yield _row("", [LABELS[kind] for kind in shown.values()], 17)
    for of in found:
        yield _row(of.name, [_rate(of, name) for name in shown], 17)
    if record["operator"]:
        rates = [f"{ceiling_gb_s(record, kind):,.0f} {CEILING[kind]:>5}" for kind in shown.values()]
        yield _row("ceiling", rates, 17)


def _rate(of: KernelFigures, name: str) -> str:
    path = of.paths.get(name)
    if path is None:
        return MISSING
    share = "" if path.of_ceiling is None else f" {percent(path.of_ceiling):>5}"
    return f"{_rounded(path.effective_gb_s)}{share}"


def _bandwidth_notes(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[str]:
    if record["operator"] is None:
        on_cpu = record["kernels"][0]["summaries"][0]["peak_memory"] is None
        yield (
            "Times are the host's; no ceilings are measured on a CPU."
            if on_cpu
            else "The operator was not measured on its own: there are no ceilings."
        )
    yield (
        "Effective bandwidth is the bytes that a path cannot do without over its time in the step. "
        "The study's Table III counts about twice as many: halve its rates to compare."
    )


# -- the rest ----------------------------------------------------------------------------------


def _others(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[str]:
    yield "Throughput, memory, agreement of the losses, and fast_p"
    titles = ["windows/s", "peak GiB", "apart", "repeat", "fast_1", "fast_2", "fast_10"]
    yield _row("", titles, 9.8)
    compared = reference(record)
    for of, kernel in zip(found, record["kernels"], strict=True):
        memory = MISSING if of.peak_memory is None else f"{of.peak_memory / 2**30:.2f}"
        apart = "reference" if kernel is compared else _difference(of.apart)
        fast = [MISSING] * 3 if of.fast is None else [f"{share:.2f}" for share in of.fast.values()]
        cells = [f"{of.windows_per_s:,.0f}", memory, apart, _difference(kernel["repeat"]), *fast]
        yield _row(of.name, cells, 9.8)


def _others_notes(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[str]:
    if all(of.peak_memory is None for of in found):
        yield "Memory is measured on a GPU alone."
    name = reference(record)["name"]
    notes = f"apart: the largest relative difference of a step's loss from that of {name}"
    if record["rounds"] > 1:
        yield f"{notes}; repeat: from that of the same kernel in the other rounds."
    else:
        yield f"{notes}; repeat: not known after a single round."
    if has_other_masks(record):
        yield OTHER_MASKS
    if words := about_tf32(record):
        yield words
    if any(of.fast for of in found):
        yield (
            "fast_p: the share of the operator's three paths that are right and more than p times "
            "as fast as pytorch's, each measured on its own."
        )
    elif record["operator"] is None:
        yield "fast_p needs the operator measured on its own, on a GPU."
    else:
        yield "fast_p needs pytorch and a kernel to hold against it."


def _study(found: dict[str, KernelFigures]) -> Iterator[str]:
    yield "Beside the study's Table II (P100, its own data: compare ratios), over naive"
    yield _row("", ["total, ms", "epoch, s", "operator", "end to end"], 17)
    yield _row("", ["here   study"] * 4, 17)
    first, base = study.ROWS[0], found[study.ROWS[0].name]
    for its in study.ROWS:
        of = found[its.name]
        ours, of_base = of.ms.get("operator"), base.ms.get("operator")
        ratio = of_base / ours if ours and of_base else None
        pairs = (
            (_time(ours), f"{its.total_ms:.2f}"),
            (_short(of.epoch_s), f"{its.epoch_s:.2f}"),
            (
                MISSING if ratio is None else _ratio(ratio),
                _ratio(first.total_ms / its.total_ms),
            ),
            (_ratio(base.ms["step"] / of.ms["step"]), _ratio(first.epoch_s / its.epoch_s)),
        )
        yield _row(its.name, [f"{here} {theirs:>7}" for here, theirs in pairs], 17)


# -- cells -------------------------------------------------------------------------------------


def _block(lines: Iterable[str], notes: Iterable[str] = ()) -> str:
    return "\n".join([*lines, *(_wrapped(note) for note in notes)])


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH)


def _row(label: str, cells: Sequence[str], width: float = 8.6) -> str:
    """A label of 11 columns, and cells of so many on average."""
    line, end = f"{label:<11}", 11.0
    for cell in cells:
        end += width
        line += " " + cell.rjust(int(end) - len(line) - 1)
    return line


def _time(ms: float | None) -> str:
    if ms is None:
        return MISSING
    return f"{ms:.3f}" if ms < 10 else f"{ms:.2f}" if ms < 1000 else f"{ms:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _difference(value: float | None) -> str:
    return MISSING if value is None else "0" if value == 0 else f"{value:.1e}"
