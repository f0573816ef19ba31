"""The errors of a test as pictures: bars by hour and weekday, a band over temperature."""

from collections.abc import Sequence

import numpy as np
import torch

from model.canvas import FRAME, MUTED, ORANGE, Canvas, compact, round_ticks
from model.training.axes import MARGIN, TOP, WIDTH, Axis, heading, legend, x_ticks, y_ticks
from model.training.callbacks.drawing import BAND
from model.training.report.errors import ByTemperature

PLOT = 180  # pixels, the height of a plot
LEFT = 62
NAIVE = "#90a4ae"
FILL = 0.78  # of a group's width, the bars


def bars(
    title: str,
    subtitle: str,
    labels: Sequence[str],
    heights: dict[str, np.ndarray],
    density: int = 1,
) -> torch.Tensor:
    """Two bars side by side in each group, as a uint8 RGB image (3, H, W).

    Args:
        labels: (k,) of the groups; "" for none.
        heights: the model's name and the baseline's -> (k,) values; no bar where NaN.
        density: how many times as many pixels as at 1, each way.
    """
    canvas = Canvas(WIDTH, TOP + PLOT + 120, density)
    heading(canvas, title, subtitle)
    colours = dict(zip(heights, (ORANGE, NAIVE), strict=True))
    top = legend(canvas, list(colours.items()), TOP) + 14
    bottom = top + PLOT
    values = np.concatenate(list(heights.values()))
    ticks = round_ticks(np.r_[0.0, values[np.isfinite(values)]], most=6)
    y = Axis(ticks[0], ticks[-1], bottom, top)
    y_ticks(canvas, y, [(tick, compact(tick)) for tick in ticks], LEFT, WIDTH - MARGIN)
    group = (WIDTH - MARGIN - LEFT) / len(labels)
    for k, label in enumerate(labels):
        middle = LEFT + group * (k + 0.5)
        canvas.text((middle, bottom + 14), label, MUTED, 11, "mm")
        left, width = middle - group * FILL / 2, group * FILL / len(heights)
        for j, (name, of) in enumerate(heights.items()):
            if np.isfinite(of[k]):
                begin = left + j * width
                canvas.box(begin, y.at(of[k]), begin + width, bottom, colours[name])
    canvas.rule((LEFT, bottom), (WIDTH - MARGIN, bottom), FRAME)
    return canvas.tensor(bottom + 34)


def temperature(found: ByTemperature, subtitle: str, density: int = 1) -> torch.Tensor:
    """Mean and spread of the errors by temperature, as a uint8 RGB image (3, H, W)."""
    canvas = Canvas(WIDTH, TOP + PLOT + 120, density)
    heading(canvas, f"Too high or too low, by {found.name}", subtitle)
    entries = [("mean", ORANGE), ("8 of 10 forecasts", BAND)]
    top = legend(canvas, entries, TOP) + 14
    bottom = top + PLOT
    ticks = round_ticks(np.r_[0.0, found.low, found.high, found.mean], most=6)
    y = Axis(ticks[0], ticks[-1], bottom, top)
    y_ticks(canvas, y, [(tick, compact(tick)) for tick in ticks], LEFT, WIDTH - MARGIN)
    places = round_ticks(found.middle, most=9)
    x = Axis(places[0], places[-1], LEFT, WIDTH - MARGIN)
    x_ticks(canvas, x, [(tick, compact(tick)) for tick in places], top, bottom)
    over = [(x.at(m), y.at(v)) for m, v in zip(found.middle, found.high, strict=True)]
    under = [(x.at(m), y.at(v)) for m, v in zip(found.middle, found.low, strict=True)]
    points = [(x.at(m), y.at(v)) for m, v in zip(found.middle, found.mean, strict=True)]
    canvas.polygon(over + under[::-1], BAND)
    canvas.line(over + under[::-1], BAND, 2)  # a lone range has no area
    canvas.rule((LEFT, y.at(0)), (WIDTH - MARGIN, y.at(0)), MUTED)
    canvas.rule((LEFT, bottom), (WIDTH - MARGIN, bottom), FRAME)
    canvas.line(points, ORANGE, 1.7)
    for point in points:
        canvas.dot(point, 3, ORANGE)
    canvas.text(((LEFT + WIDTH - MARGIN) / 2, bottom + 34), found.name, anchor="mm")
    return canvas.tensor(bottom + 52)
