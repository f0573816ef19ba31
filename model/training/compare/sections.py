"""The sections of a report: a heading, a picture that is explained, tables and words each."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from cuda_ops import roofline
from cuda_ops.report import LABELS
from cuda_ops.traffic import LONGEST_ROW, PATHS, traffic
from model.training import page
from model.training.compare import study
from model.training.compare.charts import PARTS
from model.training.compare.figures import (
    FAST,
    OTHER_MASKS,
    KernelFigures,
    about_tf32,
    has_other_masks,
    reference,
)
from model.training.compare.roofline_chart import can_draw
from model.training.compare.words import (
    NO_PATHS,
    amdahl,
    gibibytes,
    milliseconds,
    number,
    percent,
    shape_of,
    speed_up,
)

DENSITY = 2  # of the pictures, which is sharp on a phone and on most laptops
NO_OPERATOR = (
    "The convolution was not measured on its own, so there are no ceilings, no roofline and no "
    "comparison with PyTorch's path by path. That takes an NVIDIA GPU with enough memory."
)

Drawn = dict[str, torch.Tensor]
"""The pictures of `model.training.compare.charts`, at `DENSITY`."""


def step(record: dict[str, Any], found: Sequence[KernelFigures], drawn: Drawn) -> Iterator[str]:
    """What a step consists of, and what it makes of training."""
    yield page.element("h2", "What a step costs")
    yield page.figure(
        drawn["step breakdown"],
        DENSITY,
        "A bar for each kernel: the parts of a training step in milliseconds.",
        "Each bar is one training step, from batch to batch. The warm colours are the "
        "convolution, all that a kernel changes; grey is the network around it, the optimiser "
        "and the wait for data. A shorter bar trains faster.",
    )
    shown = [part for part in PARTS if any(part in of.ms for of in found)]
    yield page.table(
        "Milliseconds of a step: medians over its steady steps, and over the rounds. Each is for "
        "itself, so they need not add up.",
        ["", *(PARTS[part][0] for part in shown), "convolution's share"],
        (
            [of.name]
            + [_part(of, part) for part in shown]
            + [NO_PATHS if of.share is None else percent(of.share)]
            for of in found
        ),
    )
    on_gpu = any(of.peak_memory is not None for of in found)
    titles = ["", "ms a step", "rounds, least to most", "speed-up", "windows a second"]
    titles += ["s an epoch"] + ["peak memory"] * on_gpu
    yield page.table(
        "What that makes of training. An epoch is counted without its validation.",
        titles,
        (
            [*_training(of), *([gibibytes(of.peak_memory)] if of.peak_memory else [])]
            for of in found
        ),
    )
    if not on_gpu:
        yield page.element("p", "Peak memory is measured on a GPU only.", "note")
    paths = [row for of in found for row in _paths(of)]
    if paths:
        caption = "The times include the wait for the host, where there is one."
        titles = ["", "path", "ms a step", "effective GB/s", "of the ceiling"]
        yield page.folded(
            "The convolution inside the step, path by path", page.table(caption, titles, paths)
        )


def _part(of: KernelFigures, part: str) -> str:
    if part in of.ms:
        return number(of.ms[part])
    return NO_PATHS if "operator" not in of.ms else page.NONE


def _training(of: KernelFigures) -> list[str]:
    least, most = of.spread["step"]
    cells = [number(of.ms["step"], 4), f"{number(least, 4)} to {number(most, 4)}"]
    cells += [speed_up(of.step_speedup), f"{of.windows_per_s:,.0f}"]
    return [of.name, *cells, number(of.epoch_s)]


def _paths(of: KernelFigures) -> Iterator[list[str]]:
    for path, figure in of.paths.items():
        ceiling = "not measured" if figure.of_ceiling is None else percent(figure.of_ceiling)
        rate = number(figure.effective_gb_s)
        yield [of.name, PARTS[path][0], number(figure.ms), rate, ceiling]


def speed_ups(found: Sequence[KernelFigures], drawn: Drawn) -> Iterator[str]:
    """The operator and the step beside Amdahl's limit."""
    yield page.element("h2", "How far a faster convolution carries")
    if "speed-up" in drawn:
        words = f"How many times as fast as {found[0].name}. The axis is logarithmic: each upright "
        words += "line is a multiple of the one before it."
        if found[0].limit is not None:
            words += (
                " However long an orange bar grows, the convolution's, the grey one of the whole "
                "step stops at the blue line: the rest of the step takes as long as before."
            )
        shows = "Two bars for each kernel: speed-up of the convolution and of the training step."
        yield page.figure(drawn["speed-up"], DENSITY, shows, words)
    yield page.element("p", amdahl(found))


def bounds(record: dict[str, Any], drawn: Drawn) -> Iterator[str]:
    """The roofline, and a verdict on each path."""
    yield page.element("h2", "What bounds the convolution")
    if record["operator"] is None:
        yield page.element("p", NO_OPERATOR)
        return
    if not can_draw(record):
        yield page.element(
            "p",
            "There is no roofline and no verdict here: they are for rows of up to "
            f"{LONGEST_ROW:,} bytes, in float32, float16 and bfloat16.",
        )
        return
    yield page.figure(
        drawn["roofline"],
        DENSITY,
        "Roofline: rate of each path of each kernel, below the limits of memory and arithmetic.",
        "Higher is faster, and the roof is as high as this GPU can go: on its slope the "
        "memory is the limit, on its level the multiply-adds. Both were measured in the same run. "
        "All paths do the same work with the same bytes, so they share one column, in which they "
        "stand side by side only to be seen. Both axes are logarithmic.",
    )
    yield from _verdicts(record)


def _verdicts(record: dict[str, Any]) -> Iterator[str]:
    """What bounds each path of each kernel, in a sentence."""
    run, device, size = record["operator"], record["device"], shape_of(record)
    ceilings = roofline.ceilings_of(record, run)
    dtype = getattr(torch, run["dtype"])
    for row in run["rows"]:
        if row["kind"] != "kernel":
            continue
        lines = []
        for path in PATHS:
            work = traffic(row["name"], path, size, dtype, device["l2_bytes"])
            ms = row["paths"][path]["ms"]
            verdict = roofline.judge(work, ms, ceilings, device["multiprocessors"])
            name = page.element("div", LABELS[path])
            lines.append(f"<dt>{name}{page.element('span', milliseconds(ms))}</dt>")
            lines.append(page.element("dd", f"{verdict.sentence}."))
        yield page.element("h3", row["name"]) + f'<dl class="verdicts">{"".join(lines)}</dl>'
    yield page.element(
        "p",
        "A floor is the least time that the bytes or the multiply-adds of a path can take. "
        "PyTorch's own formulation has no verdict: how it moves its bytes is not known here.",
        "note",
    )


def beside_the_study(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[str]:
    """The study's Tables II and III, and the same of this comparison."""
    yield page.element("h2", "Beside the study")
    yield (
        f"<p>{page.paper(study.NUMBER)} wrote the same four kernels for a Tesla P100 and found "
        "3.26x on the operator and 1.29x end to end. An epoch here is of other data than there, "
        "so only the ratios can be compared.</p>"
    )
    if not study.same_work(record):
        words = f"The work differs, too: {shape_of(record)} in {record['dtype']} here, "
        words += f"{study.STUDY} in float32 there."
        yield page.element("p", words)
    columns = list(study.TITLES)
    yield page.table(
        "Table II: ms of a call of the operator, and seconds of an epoch of training.",
        ["", *columns, "speed-up", "epoch", "end to end"],
        study.table_ii(record, found),
    )
    yield page.table(
        "Table III: effective bandwidth, GB/s, compulsory bytes over the times of Table II.",
        ["", *columns, "share", "the study's own, halved"],
        study.table_iii(record),
    )
    yield page.element(
        "p",
        "Compulsory bytes are the large tensors of a path, each read or written once. The study's "
        "own Table III counts about twice as many, so its rates have to be halved before they are "
        "compared.",
        "note",
    )
    if record["operator"] is None:
        words = "The calls of this comparison were not measured on their own, see above."
        yield page.element("p", words, "note")


def agreement(
    record: dict[str, Any], found: Sequence[KernelFigures], drawn: Drawn
) -> Iterator[str]:
    """Losses, and fast_p."""
    yield page.element("h2", "Whether they compute the same")
    true = reference(record)["name"]
    if len(found) > 1:
        words = (
            "Every kernel starts from the same weights and sees the same batches, so the curves "
            "should lie one inside the other. Below is what parts them, relative to the loss, on a "
            f"logarithmic axis: rounding alone is about one in the last bit of a {record['dtype']}."
        )
    else:
        words = "The loss of each training step. With one kernel there is nothing to compare."
    shows = "The loss of each step for each kernel, and relative differences between them."
    yield page.figure(drawn["losses"], DENSITY, shows, words)
    repeats = [kernel["repeat"] for kernel in record["kernels"]]
    yield page.table(
        f"Largest relative difference of the losses, over {record['steps']} steps.",
        ["", f"from {true}", "from its own, in other rounds"],
        (
            [of.name, "the reference" if of.name == true else _apart(of.apart), _again(again)]
            for of, again in zip(found, repeats, strict=True)
        ),
    )
    if has_other_masks(record):
        yield page.element("p", OTHER_MASKS, "note")
    if words := about_tf32(record):
        yield page.element("p", words, "note")
    rows = [[of.name, *(percent(of.fast[p]) for p in FAST)] for of in found if of.fast is not None]
    if rows:
        yield page.element("h3", "fast_p")
        yield (
            "<p>fast_p is the share of a kernel's three paths, forward and the two gradients, that "
            "are right and more than p times as fast as PyTorch's own "
            f"({page.paper('2502.10517')}).</p>"
        )
        yield page.table("Share of the paths.", ["", *(f"p = {p}" for p in FAST)], rows)


def _again(value: float | None) -> str:
    return "one round only" if value is None else _apart(value)


def _apart(value: float) -> str:
    return f"{value:.1e}" if value else "none"
