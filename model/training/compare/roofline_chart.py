"""The roofline: what each path of each kernel reaches, under what the GPU allows.

At one shape all paths have one arithmetic intensity, so their points would lie in one column and
over each other. The three paths stand side by side in it, and each point, or several of a kernel
that are as fast, has its name at the end of a line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuda_ops.contenders import Size
from cuda_ops.report import LABELS
from cuda_ops.roofline import Ceilings, ceilings_of
from cuda_ops.traffic import LONGEST_ROW, PATHS, traffic
from model.canvas import FRAME, INK, MUTED, Canvas, Point
from model.training.axes import (
    MARGIN,
    TOP,
    WIDTH,
    Axis,
    decades,
    heading,
    x_ticks,
    y_ticks,
)
from model.training.compare.colours import KERNELS
from model.training.compare.words import number, on_device

LEFT, HEIGHT = 46, 480
BEYOND, COLUMN_COLOUR = "#f3f5f6", "#eef4fa"
COLUMN = 15  # pixels from one path to the next
HALF = 1.5 * COLUMN + 3  # of the column's width
MARK = 5  # half the width of a point
APART = 17  # pixels from one label to the next
TOGETHER = 7  # pixels; points of a kernel that are nearer share a label


@dataclass(frozen=True)
class Mark:
    """A point of the roofline: a path of a kernel, in FLOP a byte and 10^12 FLOP a second."""

    kernel: str
    path: str
    intensity: float
    tflop_s: float


def can_draw(record: dict[str, Any]) -> bool:
    """Whether the operator was measured in a type and at a length that have a roofline here.

    The ceiling of the multiply-adds is that of float32, and the traffic model has a longest row.
    """
    run = record["operator"]
    if run is None or run["dtype"] == "float64":
        return False
    item = getattr(torch, run["dtype"]).itemsize
    return run["shape"]["batch"] > 0 and run["shape"]["length"] * item <= LONGEST_ROW


def marks(record: dict[str, Any]) -> list[Mark]:
    """The points of all kernels of the comparison that the operator's measurement holds."""
    run = record["operator"]
    size, dtype = Size(**run["shape"]), getattr(torch, run["dtype"])
    found = []
    for row in run["rows"]:
        for path in PATHS:
            # The work that has to be done is the same whatever computes it.
            work = traffic("naive", path, size, dtype, record["device"]["l2_bytes"])
            reached = work.flops / row["paths"][path]["ms"] / 1e9
            found.append(Mark(row["name"], path, work.intensity, reached))
    return found


@dataclass(frozen=True)
class Plot:
    """Its two axes, both logarithmic, and the roof: memory up to the ridge, arithmetic beyond."""

    x: Axis
    y: Axis
    gb_s: float
    tflop_s: float

    @property
    def ridge(self) -> float:
        """The FLOP a byte at which the roofs meet."""
        return 1e3 * self.tflop_s / self.gb_s

    def roof(self, intensity: float) -> float:
        """10^12 FLOP a second."""
        return min(self.tflop_s, intensity * self.gb_s / 1e3)

    def height(self, x: float) -> float:
        """The pixel of the roof above a pixel of the horizontal axis."""
        part = (x - self.x.start) / (self.x.end - self.x.start)
        return self.y.at(self.roof(self.x.low * (self.x.high / self.x.low) ** part))

    def at(self, mark: Mark) -> Point:
        """The point's place, moved aside within its column."""
        aside = COLUMN * (PATHS.index(mark.path) - 1)
        return self.x.at(mark.intensity) + aside, self.y.at(mark.tflop_s)


def plot(points: Sequence[Mark], ceilings: Ceilings) -> Plot:
    """Axes that hold the points, the ridge and the roof above them."""
    tflop_s = ceilings.fma / 1e3
    ridge = ceilings.fma / ceilings.copy
    intensities = [ridge, *(mark.intensity for mark in points)]
    reached = [mark.tflop_s for mark in points]
    return Plot(
        Axis(min(intensities) / 4, max(intensities) * 6, LEFT, WIDTH - MARGIN, log=True),
        Axis(min(reached) / 2, max(tflop_s, *reached) * 1.7, HEIGHT - 56, TOP + 32, log=True),
        ceilings.copy,
        tflop_s,
    )


def draw(record: dict[str, Any], density: int = 1) -> torch.Tensor:
    """The picture of a record that `can_draw` lets through."""
    points = marks(record)
    ceilings = ceilings_of(record, record["operator"])
    shown = plot(points, ceilings)
    canvas = Canvas(WIDTH, HEIGHT, density)
    heading(canvas, f"The roofline {on_device(record)}", "TFLOP/s reached, and what the GPU allows")
    _legend(canvas)
    _axes(canvas, shown)
    intensity = points[0].intensity
    roof, column = _outline(shown, intensity), shown.x.at(intensity)
    canvas.polygon([*roof, (shown.x.end, shown.y.end), (shown.x.start, shown.y.end)], BEYOND)
    level = shown.y.at(shown.roof(intensity))
    canvas.box(column - HALF, level, column + HALF, shown.y.start, COLUMN_COLOUR)
    canvas.text((column, shown.y.start - 11), number(intensity, 2), INK, 11, "mm")
    _names(canvas, shown)
    _labels(canvas, shown, points)
    for mark in points:
        _mark(canvas, mark.path, shown.at(mark), MARK + 1, "white")
        _mark(canvas, mark.path, shown.at(mark), MARK, KERNELS[mark.kernel])
    canvas.line(roof, INK, 2)
    return canvas.tensor(HEIGHT)


def _legend(canvas: Canvas) -> None:
    x = float(MARGIN)
    for path in PATHS:
        _mark(canvas, path, (x + MARK, TOP + 10), MARK, MUTED)
        canvas.text((x + 17, TOP + 10), LABELS[path])
        x += 35 + canvas.length(LABELS[path])


def _axes(canvas: Canvas, shown: Plot) -> None:
    top, bottom = shown.y.end, shown.y.start
    x_ticks(canvas, shown.x, _within(shown.x, (1, 2, 5)), top, bottom)
    y_ticks(canvas, shown.y, _within(shown.y, (1,)), LEFT, shown.x.end)
    canvas.rule((LEFT, top), (LEFT, bottom), FRAME)
    canvas.rule((LEFT, bottom), (shown.x.end, bottom), FRAME)
    middle = (shown.x.start + shown.x.end) / 2
    canvas.text((middle, bottom + 36), "FLOP for each byte that has to move", anchor="mm")


def _within(axis: Axis, digits: Sequence[int]) -> list[tuple[float, str]]:
    """Multiples of the powers of ten that lie on an axis, and their labels."""
    ticks = [digit * power for power in decades(axis.low, axis.high) for digit in digits]
    return [(tick, f"{tick:g}") for tick in ticks if axis.low <= tick <= axis.high]


def _outline(shown: Plot, intensity: float) -> list[Point]:
    """The roof from left to right; level across the column, which is one intensity."""
    middle, ridge = shown.x.at(intensity), shown.x.at(shown.ridge)
    left, right = middle - HALF, middle + HALF
    level = shown.y.at(shown.roof(intensity))
    before = [x for x in (shown.x.start, ridge, left) if x <= left]
    after = [x for x in (right, ridge, shown.x.end) if x >= right]
    return [
        *((x, shown.height(x)) for x in before),
        (left, level),
        (right, level),
        *((x, shown.height(x)) for x in after),
    ]


def _names(canvas: Canvas, shown: Plot) -> None:
    """Of the two roofs, above them."""
    words = f"multiply-adds, {number(shown.tflop_s)} TFLOP/s"
    x = shown.x.end - 6
    canvas.text((x, shown.height(x) - 11), words, INK, anchor="rm")
    words = f"memory, {shown.gb_s:,.0f} GB/s"
    x = shown.x.start + 10
    canvas.text((x, shown.height(x + canvas.length(words)) - 12), words, INK)


def _labels(canvas: Canvas, shown: Plot, points: Sequence[Mark]) -> None:
    """Names at the side of the column that has more room, with lines to what they name."""
    groups = sorted(_groups(shown, points), key=lambda group: shown.at(group[0])[1])
    wanted = [sum(shown.at(mark)[1] for mark in group) / len(group) for group in groups]
    column = shown.x.at(points[0].intensity)
    side = 1 if column < (shown.x.start + shown.x.end) / 2 else -1
    edge = column + side * (HALF + 12)
    for group, y, at in zip(groups, _spread(wanted, shown.y.start - 10), wanted, strict=True):
        ends = [side * shown.at(mark)[0] for mark in group]
        path = [(side * max(ends), at), (edge, at), (edge + side * 14, y), (edge + side * 20, y)]
        canvas.line(path, FRAME)
        _label(canvas, group, (edge + side * 24, y), side)


def _label(canvas: Canvas, group: Sequence[Mark], at: Point, side: int) -> None:
    name = group[0].kernel
    paths = "all three paths" if len(group) == len(PATHS) else _listed(group)
    x, space = at[0], 7
    if side < 0:
        x -= canvas.length(name) + space + canvas.length(paths)
    canvas.text((x, at[1]), name, KERNELS[name], bold=True, halo=True)
    canvas.text((x + canvas.length(name) + space, at[1]), paths, halo=True)


def _listed(group: Sequence[Mark]) -> str:
    return ", ".join(LABELS[mark.path] for mark in group)


def _groups(shown: Plot, points: Sequence[Mark]) -> list[list[Mark]]:
    """Points of a kernel that lie level with each other, in the order of the paths."""
    groups: list[list[Mark]] = []
    for mark in points:
        y = shown.at(mark)[1]
        near = next(
            (
                group
                for group in groups
                if group[0].kernel == mark.kernel and abs(shown.at(group[0])[1] - y) < TOGETHER
            ),
            None,
        )
        if near is None:
            groups.append([mark])
        else:
            near.append(mark)
    return groups


def _spread(wanted: Sequence[float], lowest: float) -> list[float]:
    """Ascending pixels as near to those wanted as the room between them allows."""
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + APART) if placed else y)
    for k in reversed(range(len(placed))):
        placed[k] = min(placed[k], lowest - APART * (len(placed) - 1 - k))
    return placed


def _mark(canvas: Canvas, path: str, at: Point, radius: float, colour: str) -> None:
    """A shape for each path."""
    x, y = at
    if path == "forward":
        canvas.dot(at, radius, colour)
    elif path == "input_grad":
        high = radius * math.sqrt(3) / 1.5
        canvas.polygon(
            [(x, y - high), (x + 1.15 * radius, y + high / 2), (x - 1.15 * radius, y + high / 2)],
            colour,
        )
    else:
        side = 0.88 * radius
        canvas.box(x - side, y - side, x + side, y + side, colour)
