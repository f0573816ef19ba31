"""A comparison in pictures, for TensorBoard and for the report."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from model.canvas import FRAME, INK, MUTED, ORANGE, Canvas, compact, round_ticks
from model.training.axes import MARGIN, TOP, WIDTH, Axis, heading, legend, x_ticks
from model.training.compare import loss_chart, roofline_chart
from model.training.compare.figures import KernelFigures, figures
from model.training.compare.words import milliseconds, on_device, speed_up

PARTS = {
    "data": ("data wait", "#b0bec5"),
    "forward": ("forward", "#ffb74d"),
    "input_grad": ("input gradient", ORANGE),
    "weight_grad": ("weight gradient", "#bf360c"),
    "both_gradients": ("both gradients in one", "#d84315"),
    "gradient_copy": ("copy of a gradient", "#8d6e63"),
    "optimizer": ("optimiser", "#455a64"),
    "rest": ("rest", "#d5dde1"),
}
"""What a step consists of, in its order: name and colour. The convolution is in warm colours."""

OPERATOR, STEP, LIMIT = ORANGE, "#455a64", "#1e88e5"


def pictures(record: dict[str, Any], density: int = 1) -> dict[str, torch.Tensor]:
    """Tag -> uint8 RGB image (3, H, W), of what the record has something to show of.

    Args:
        density: how many times as many pixels as at 1, each way; 2 is sharp on most screens.
    """
    found = figures(record)
    where = on_device(record)
    drawn = {"step breakdown": breakdown(found, where, density)}
    if len(found) > 1:
        drawn["speed-up"] = speed_ups(found, density)
    if roofline_chart.can_draw(record):
        drawn["roofline"] = roofline_chart.draw(record, density)
    return drawn | {"losses": loss_chart.draw(record, density)}


# -- where a step goes -------------------------------------------------------------------------

ROW, BAR = 38, 22


def breakdown(found: Sequence[KernelFigures], where: str, density: int = 1) -> torch.Tensor:
    """A bar for each kernel, as long as its step and divided into its parts."""
    hidden = [of.name for of in found if "operator" not in of.ms]
    shown = [part for part in PARTS if any(of.ms.get(part) for of in found)]
    canvas = Canvas(WIDTH, 200 + ROW * len(found), density)
    heading(canvas, "Where a training step goes", f"median ms of a step {where}")
    top = legend(canvas, [PARTS[part] for part in shown], TOP) + 12
    bottom = top + ROW * len(found)
    left = MARGIN + max(canvas.length(of.name) for of in found) + 10
    ticks = round_ticks(np.array([0.0, max(_bars(of)[-1][2] for of in found)]), most=6)
    axis = Axis(0, ticks[-1], left, WIDTH - MARGIN - canvas.length("000.0 ms"))
    x_ticks(canvas, axis, [(tick, compact(tick)) for tick in ticks], top, bottom)
    for k, of in enumerate(found):
        y = top + ROW * k + ROW / 2
        canvas.text((left - 10, y), of.name, INK, anchor="rm")
        for part, begin, end in _bars(of):
            box = (axis.at(begin), y - BAR / 2, axis.at(end), y + BAR / 2)
            canvas.box(*box, PARTS[part][1])
        end = axis.at(_bars(of)[-1][2])
        canvas.text((end + 6, y), milliseconds(of.ms["step"]), INK, 12, bold=True, halo=True)
    canvas.rule((left, top), (left, bottom), FRAME)
    if hidden:
        note = f"{', '.join(hidden)}: the convolution is hidden in the rest"
        canvas.text((MARGIN, bottom + 40), note, MUTED, 11)
    return canvas.tensor(bottom + (58 if hidden else 34))


def _bars(of: KernelFigures) -> list[tuple[str, float, float]]:
    """Part, and where it begins and ends in ms.

    Medians of parts need not add up to that of the step: the rest is what is left of the step.
    """
    bars, begin = [], 0.0
    for part in PARTS:
        if part in of.ms:
            end = max(begin, of.ms["step"]) if part == "rest" else begin + of.ms[part]
            bars.append((part, begin, end))
            begin = end
    return bars


# -- speed-ups ---------------------------------------------------------------------------------

GROUP, THIN = 50, 15
MOST_LINES = 9  # about as many as have room for their labels


def speed_ups(found: Sequence[KernelFigures], density: int = 1) -> torch.Tensor:
    """Two bars for each kernel but the baseline, from once as fast; two or more kernels."""
    base, others = found[0], found[1:]
    limit = base.limit
    canvas = Canvas(WIDTH, 160 + GROUP * len(others), density)
    entries = [("convolution", OPERATOR)] if any(of.operator_speedup for of in others) else []
    entries += [("whole training step", STEP)]
    top = legend(canvas, entries, TOP) + 28
    bottom = top + GROUP * len(others)
    left = MARGIN + max(canvas.length(of.name) for of in others) + 10
    values = [v for of in others for v in (of.operator_speedup, of.step_speedup) if v]
    ticks = _doublings([*values, limit] if limit else values)
    each = f"each upright line is {ticks[1] / ticks[0]:g} times the one before it"
    heading(canvas, f"Speed-up over {base.name}", each)
    axis = Axis(ticks[0], ticks[-1], left, WIDTH - MARGIN - canvas.length("00.00x"), log=True)
    x_ticks(canvas, axis, [(tick, f"{tick:g}x") for tick in ticks], top, bottom)
    labels = []
    for k, of in enumerate(others):
        y = top + GROUP * k + GROUP / 2
        canvas.text((left - 10, y), of.name, INK, anchor="rm")
        bars = [(of.operator_speedup, OPERATOR)] if of.operator_speedup else []
        bars += [(of.step_speedup, STEP)]
        for j, (value, colour) in enumerate(bars):
            begin = y + THIN * (j - len(bars) / 2)
            ends = sorted([axis.at(1), axis.at(value)])
            canvas.box(ends[0], begin + 0.5, ends[1], begin + THIN - 0.5, colour)
            labels.append(((ends[1] + 6, begin + THIN / 2), speed_up(value)))
    canvas.rule((axis.at(1), top), (axis.at(1), bottom), MUTED)
    if limit:
        _limit(canvas, axis, limit, top, bottom)
    for at, words in labels:
        canvas.text(at, words, INK, 11, halo=True)
    return canvas.tensor(bottom + 34)


def _limit(canvas: Canvas, axis: Axis, limit: float, top: float, bottom: float) -> None:
    """A line that the step's bars cannot pass, and its name above it."""
    x = axis.at(limit)
    canvas.rule((x, top - 8), (x, bottom), LIMIT, 2, dashed=True)
    words = f"Amdahl's limit of the step, {speed_up(limit)}"
    half = canvas.length(words) / 2
    middle = min(max(x, MARGIN + half), WIDTH - MARGIN - half)
    canvas.text((middle, top - 17), words, LIMIT, anchor="mm")


def _doublings(values: Sequence[float]) -> list[float]:
    """Powers of two, or of four or more if those are many, that enclose the values and 1."""
    low, high = math.log2(min([1.0, *values])), math.log2(max([1.0, *values]))
    step = math.ceil((high - low + 1) / MOST_LINES)
    last = max(math.ceil(high / step), math.floor(low / step) + 1)
    return [2.0 ** (step * power) for power in range(math.floor(low / step), last + 1)]
