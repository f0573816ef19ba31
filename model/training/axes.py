"""What the pictures of reports share: headings, legends, and data to pixels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from model.canvas import FAINT, INK, MUTED, Canvas, default_font, shorten

WIDTH = 560  # of each picture: two thirds of a laptop's page, and still legible on a phone
MARGIN = 16
TOP = 58  # below the title and the line under it


@dataclass(frozen=True)
class Axis:
    """From data to pixels: `low` lies at `start` and `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value, a positive one on a logarithmic axis."""
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * part


def decades(low: float, high: float) -> list[float]:
    """The powers of ten from just below low to just above high, two or more of them."""
    first = math.floor(math.log10(low))
    last = max(math.ceil(math.log10(high)), first + 1)
    return [10.0**power for power in range(first, last + 1)]


def heading(canvas: Canvas, title: str, subtitle: str) -> None:
    """A title and, below it, what the axes show; both are cut where they are too long."""
    room = canvas.width - 2 * MARGIN
    canvas.text((MARGIN, 20), shorten(title, default_font(15), room), INK, 15, bold=True)
    canvas.text((MARGIN, 40), shorten(subtitle, default_font(12), room))


def legend(
    canvas: Canvas, entries: Sequence[tuple[str, str]], top: float, left: float = MARGIN
) -> float:
    """A swatch of its colour before each name, in as many rows as that takes; returns their end."""
    x, y = left, top + 10
    for name, colour in entries:
        room = 16 + canvas.length(name)
        if x > left and x + room > canvas.width - MARGIN:
            x, y = left, y + 20
        canvas.box(x, y - 5, x + 10, y + 5, colour)
        canvas.text((x + 16, y), name)
        x += room + 18
    return y + 10


def x_ticks(
    canvas: Canvas, axis: Axis, ticks: Sequence[tuple[float, str]], top: float, bottom: float
) -> None:
    """Upright lines through a plot, and their labels below it."""
    for value, label in ticks:
        x = axis.at(value)
        canvas.rule((x, top), (x, bottom), FAINT)
        inside = canvas.width - 6 - canvas.length(label, 11) / 2
        canvas.text((min(x, inside), bottom + 14), label, MUTED, 11, "mm")


def y_ticks(
    canvas: Canvas, axis: Axis, ticks: Sequence[tuple[float, str]], left: float, right: float
) -> None:
    """Level lines through a plot, and their labels at its left."""
    for value, label in ticks:
        y = axis.at(value)
        canvas.rule((left, y), (right, y), FAINT)
        canvas.text((left - 7, y), label, MUTED, 11, "rm")
