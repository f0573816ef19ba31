"""The losses of all kernels, one over the other, and how far they are apart."""

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import torch

from model.canvas import FRAME, INK, MUTED, Canvas, compact, round_ticks
from model.training.axes import (
    MARGIN,
    TOP,
    WIDTH,
    Axis,
    decades,
    heading,
    legend,
    x_ticks,
    y_ticks,
)
from model.training.compare.colours import KERNELS
from model.training.compare.figures import reference

UPPER, LOWER = 170, 150  # pixels
BAND, LEAST_BAND = 7, 28  # pixels for each kernel, where losses are equal, and for all
LEFT = 62


def draw(record: dict[str, Any], density: int = 1) -> torch.Tensor:
    """The loss of each step; below, if there are others, their differences to the reference's."""
    kernels = record["kernels"]
    true = reference(record)
    others = [kernel for kernel in kernels if kernel is not true]
    canvas = Canvas(WIDTH, TOP + UPPER + LOWER + BAND * len(others) + 220, density)
    told = "one line inside the other: they should coincide" if others else "of the first round"
    heading(canvas, "The loss, step by step", told)
    entries = [(kernel["name"], KERNELS[kernel["name"]]) for kernel in kernels]
    top = legend(canvas, entries, TOP) + 14
    steps = Axis(1, max(2, len(true["losses"])), LEFT, WIDTH - MARGIN)
    _losses(canvas, kernels, steps, top)
    bottom = top + UPPER
    if others:
        words = f"Relative difference to {true['name']}"
        canvas.text((MARGIN, bottom + 46), words, INK, 13, bold=True)
        unit = torch.finfo(getattr(torch, record["dtype"])).eps
        bottom = _differences(canvas, others, true["losses"], steps, bottom + 66, unit)
    canvas.text(((LEFT + WIDTH - MARGIN) / 2, bottom + 34), "step", anchor="mm")
    return canvas.tensor(bottom + 50)


def _losses(canvas: Canvas, kernels: Sequence[dict[str, Any]], steps: Axis, top: float) -> None:
    values = np.array([kernel["losses"] for kernel in kernels])
    ticks = round_ticks(values, most=5)
    axis = Axis(ticks[0], ticks[-1], top + UPPER, top)
    y_ticks(canvas, axis, [(tick, compact(tick)) for tick in ticks], LEFT, WIDTH - MARGIN)
    x_ticks(canvas, steps, _step_ticks(steps), top, top + UPPER)
    canvas.rule((LEFT, top + UPPER), (WIDTH - MARGIN, top + UPPER), FRAME)
    for k, kernel in enumerate(kernels):
        points = [(steps.at(n), axis.at(loss)) for n, loss in enumerate(kernel["losses"], 1)]
        # Each on top of the one before and thinner, so that all can be seen where they coincide.
        canvas.line(points, KERNELS[kernel["name"]], 1.7 * (len(kernels) - k))


def _differences(
    canvas: Canvas,
    kernels: Sequence[dict[str, Any]],
    true: Sequence[float],
    steps: Axis,
    top: float,
    unit: float,
) -> float:
    """On a logarithmic axis, and in rows below it those that are none; returns the plot's end.

    `unit` is the relative distance from one number of the operator's type to the next.
    """
    apart = {
        kernel["name"]: [
            abs(found - right) / abs(right)
            for found, right in zip(kernel["losses"], true, strict=True)
        ]
        for kernel in kernels
    }
    some = [value for values in apart.values() for value in values if value]
    ticks = decades(min(some), max(some)) if some else [1e-8, 1e-7]
    axis = Axis(ticks[0], ticks[-1], top + LOWER, top, log=True)
    stride = math.ceil(len(ticks) / 6)
    labels = [(tick, f"{tick:.0e}".replace("e-0", "e-")) for tick in ticks[::stride]]
    band = max(BAND * (len(kernels) + 1), LEAST_BAND)
    bottom = top + LOWER + band
    x_ticks(canvas, steps, _step_ticks(steps), top, bottom)
    y_ticks(canvas, axis, labels, LEFT, WIDTH - MARGIN)
    canvas.text((LEFT - 7, (top + LOWER + bottom) / 2), "equal", MUTED, 11, "rm")
    canvas.rule((LEFT, bottom), (WIDTH - MARGIN, bottom), FRAME)
    if axis.low <= unit <= axis.high:
        y = axis.at(unit)
        canvas.rule((LEFT, y), (WIDTH - MARGIN, y), MUTED, dashed=True)
        words = "dashes: one in the last bit"
        canvas.text((WIDTH - MARGIN, top - 20), words, MUTED, 11, "rm")
    for row, (name, values) in enumerate(apart.items(), 1):
        for step, value in enumerate(values, 1):
            y = axis.at(value) if value else top + LOWER + band * row / (len(kernels) + 1)
            canvas.dot((steps.at(step), y), 2.2, KERNELS[name])
    return bottom


def _step_ticks(steps: Axis) -> list[tuple[float, str]]:
    """The first step, and a few round ones."""
    stride = next(
        digit * 10**power
        for power in count()
        for digit in (1, 2, 5)
        if steps.high <= 6 * digit * 10**power
    )
    shown = {1, *range(stride, round(steps.high) + 1, stride)}
    return [(step, f"{step:,}") for step in sorted(shown)]
