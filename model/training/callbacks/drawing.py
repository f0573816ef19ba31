"""Forecast panels as image tensors, drawn with Pillow and tiled with torchvision."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

import numpy as np
import torch
from PIL import Image, ImageDraw
from torchvision.transforms.functional import pil_to_tensor
from torchvision.utils import make_grid

from model.canvas import FAINT, FRAME, INK, MUTED, ORANGE, SCALE, Font, Point, default_font, shorten
from model.canvas import compact as _compact
from model.canvas import round_ticks as _round_ticks

BAND = "#ffe3c2"
NOWHERE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Band:
    """Where a reading is likely to lie, named for the legend; (n,) each, both or neither NaN."""

    name: str
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Panel:
    """One series to draw; the arrays share the shape (n,).

    hours: ascending hours since 1970-01-01, local time.
    actual, forecast: floats in the unit of the meter, NaN where missing.
    step: hours from one reading to the next; a line breaks where more lie between two.
    band: shaded behind the lines.
    starts: (k,) hours where another forecast begins than the one that the line comes from.
    """

    title: str
    subtitle: str
    hours: np.ndarray
    actual: np.ndarray
    forecast: np.ndarray
    step: float = 1.0
    band: Band | None = None
    starts: np.ndarray = field(default_factory=lambda: NOWHERE)


@dataclass(frozen=True)
class _Axes:
    """The plot area in supersampled pixels and the data range that it shows."""

    left: float
    top: float
    right: float
    bottom: float
    hours: tuple[float, float]
    ticks: tuple[float, ...]

    def x(self, hour: float) -> float:
        first, last = self.hours
        return self.left + (self.right - self.left) * (hour - first) / (last - first)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.bottom - (self.bottom - self.top) * (value - low) / (high - low)


def draw_panel(panel: Panel, width: int = 480, height: int = 240, density: int = 1) -> torch.Tensor:
    """Draw one panel as a uint8 RGB image of shape (3, density * height, density * width)."""
    image = Image.new("RGB", (width * SCALE, height * SCALE), "white")
    draw = ImageDraw.Draw(image)
    axes = _fit_axes(panel, image.size)
    has_data = _has_values(panel.actual) or _has_values(panel.forecast)
    _draw_header(draw, panel, image.width)
    if has_data:
        _draw_y_ticks(draw, axes)
        _draw_days(draw, axes, image.width)
    box = (axes.left, axes.top, axes.right, axes.bottom)
    draw.rectangle(box, outline=FRAME, width=SCALE)
    if has_data:
        if panel.band is not None:
            _draw_band(draw, axes, panel, panel.band)
        _draw_series(draw, axes, panel, panel.actual, INK, 4)
        _draw_series(draw, axes, panel, panel.forecast, ORANGE, 5, panel.starts)
    else:
        middle = ((axes.left + axes.right) / 2, (axes.top + axes.bottom) / 2)
        draw.text(middle, "no data", MUTED, _font(13), anchor="mm")
    size = (width * density, height * density)
    return pil_to_tensor(image.resize(size, Image.Resampling.LANCZOS))


def draw_grid(panels: Sequence[Panel], columns: int = 2) -> torch.Tensor:
    """Tile at least one panel, row by row, into a uint8 RGB image of shape (3, H, W)."""
    images = torch.stack([draw_panel(panel) for panel in panels])
    return make_grid(images, nrow=columns, padding=8, pad_value=255)


def _font(size: int) -> Font:
    return default_font(size * SCALE)


def _has_values(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).any())


def _fit_axes(panel: Panel, size: tuple[int, int]) -> _Axes:
    """Place the plot area so that the widest y label fits to its left."""
    band = [] if panel.band is None else [panel.band.low, panel.band.high]
    values = np.concatenate([panel.actual, panel.forecast, *band]).astype(np.float64)
    ticks = _round_ticks(values[np.isfinite(values)])
    label = max(_font(10).getlength(_compact(tick)) for tick in ticks)
    return _Axes(
        left=max(label + 22 * SCALE, 40 * SCALE),
        top=50 * SCALE,
        right=size[0] - 16 * SCALE,
        bottom=size[1] - 28 * SCALE,
        hours=_hour_range(panel.hours),
        ticks=ticks,
    )


def _hour_range(hours: np.ndarray) -> tuple[float, float]:
    """First and last hour to show, at least a day apart so that one midnight is in view."""
    first, last = (float(hours[0]), float(hours[-1])) if len(hours) else (0.0, 0.0)
    lack = max(0.0, 24 - (last - first))
    return first - lack // 2, last + lack - lack // 2


def _draw_header(draw: ImageDraw.ImageDraw, panel: Panel, width: int) -> None:
    """Title and legend at the left, subtitle at the right; a long title is cut short."""
    margin, line = 16 * SCALE, 16 * SCALE
    title_font, font = _font(13), _font(11)
    room = width - 3 * margin - font.getlength(panel.subtitle)
    title = shorten(panel.title, title_font, room)
    # The default font has no bold face: a hairline stroke gives the title its weight.
    draw.text((margin, line), title, INK, title_font, anchor="lm", stroke_width=0.5)
    draw.text((width - margin, line), panel.subtitle, MUTED, font, anchor="rm")
    _draw_legend(draw, panel, margin, 36 * SCALE)


def _draw_legend(draw: ImageDraw.ImageDraw, panel: Panel, x: float, y: float) -> None:
    """A swatch and a name for each series that has values."""
    font = _font(10)
    rows = (("actual", panel.actual, INK), ("forecast", panel.forecast, ORANGE))
    for name, values, colour in rows:
        if _has_values(values):
            draw.line((x, y, x + 16 * SCALE, y), colour, 2 * SCALE)
            draw.text((x + 21 * SCALE, y), name, MUTED, font, anchor="lm")
            x += 35 * SCALE + font.getlength(name)
    if panel.band is not None and _has_values(panel.band.low):
        draw.rectangle((x, y - 4 * SCALE, x + 16 * SCALE, y + 4 * SCALE), BAND)
        draw.text((x + 21 * SCALE, y), panel.band.name, MUTED, font, anchor="lm")


def _draw_y_ticks(draw: ImageDraw.ImageDraw, axes: _Axes) -> None:
    for tick in axes.ticks:
        y = axes.y(tick)
        draw.line((axes.left, y, axes.right, y), FAINT, SCALE)
        draw.text((axes.left - 6 * SCALE, y), _compact(tick), MUTED, _font(10), anchor="rm")


def _draw_days(draw: ImageDraw.ImageDraw, axes: _Axes, width: int) -> None:
    """Mark midnights and label as many of them as there is room for."""
    font = _font(10)
    first, last = math.ceil(axes.hours[0] / 24), math.floor(axes.hours[1] / 24)
    label_width = font.getlength("Wed 30 Nov")
    stride = math.ceil((label_width + 14 * SCALE) / (axes.x(24) - axes.x(0)))
    for day in range(first, last + 1, stride if stride > 3 else 1):
        x = axes.x(24 * day)
        draw.line((x, axes.top, x, axes.bottom), FAINT, SCALE)
        if (day - first) % stride == 0:
            # A midnight at the right edge has its label moved inwards to stay whole.
            x = min(x, width - 2 * SCALE - label_width / 2)
            draw.text((x, axes.bottom + 16 * SCALE), _day_label(day), MUTED, font, anchor="ms")


def _day_label(day: int) -> str:
    when = date(1970, 1, 1) + timedelta(days=day)
    return f"{when:%a} {when.day} {when:%b}"


def _draw_series(
    draw: ImageDraw.ImageDraw,
    axes: _Axes,
    panel: Panel,
    values: np.ndarray,
    colour: str,
    thickness: int,
    starts: np.ndarray = NOWHERE,
) -> None:
    """Draw values (n,) as one line per unbroken run; a lone one becomes a dot, as does a start."""
    for run in _runs(panel.hours, values, panel.step, starts):
        points: list[Point] = [(axes.x(hour), axes.y(value)) for hour, value in run]
        if len(points) == 1 or run[0][0] in starts:
            draw.circle(points[0], 1.5 * thickness, colour)
        if len(points) > 1:
            draw.line(points, colour, thickness, joint="curve")


def _draw_band(draw: ImageDraw.ImageDraw, axes: _Axes, panel: Panel, band: Band) -> None:
    """Shade between low and high (n,), likewise by unbroken runs."""
    high = dict(zip(panel.hours.tolist(), band.high.tolist(), strict=True))
    for run in _runs(panel.hours, band.low, panel.step, panel.starts):
        under: list[Point] = [(axes.x(hour), axes.y(low)) for hour, low in run]
        over: list[Point] = [(axes.x(hour), axes.y(high[hour])) for hour, _ in run]
        edge = under + over[::-1]
        draw.polygon(edge, BAND)
        draw.line(edge, BAND, SCALE)  # a lone one has no area


def _runs(
    hours: np.ndarray, values: np.ndarray, step: float, starts: np.ndarray = NOWHERE
) -> Iterator[list[Point]]:
    """Split into runs of finite values a step apart, as (hour, value) pairs.

    A run also ends before each of `starts`.
    """
    kept = np.isfinite(values)
    hours, values = hours[kept], values[kept]
    if len(hours):
        cuts = np.flatnonzero((np.diff(hours) > 1.5 * step) | np.isin(hours[1:], starts)) + 1
        for h, v in zip(np.split(hours, cuts), np.split(values, cuts), strict=True):
            yield list(zip(h.tolist(), v.tolist(), strict=True))
