"""What drawings with Pillow share: a palette, a font, round ticks, a canvas with smooth edges."""

import math
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms.functional import pil_to_tensor

# Pillow draws shapes without antialiasing: draw larger by this factor, then downsample.
SCALE = 3
INK, MUTED, FRAME, FAINT = "#263238", "#66757f", "#cfd6da", "#edf0f2"
ORANGE = "#f57c00"
ROUND_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)

DRAWN = "°·"  # beyond ASCII, by the one font
DASH = 8  # pixels from one to the next

Point = tuple[float, float]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@cache
def default_font(pixels: int) -> Font:
    """The one font that is there wherever Pillow is. It has ASCII and little else."""
    return ImageFont.load_default(size=pixels)


def drawable(text: str) -> str:
    """A user's words in letters that the font has: accents are left out, others become '?'."""
    plain = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    letters = (letter for letter in plain if not unicodedata.combining(letter))
    return "".join(letter if letter.isascii() or letter in DRAWN else "?" for letter in letters)


def compact(value: float) -> str:
    """A tick label of at most four significant digits, such as 12k or 2.5M."""
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= abs(value) < 1e15:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}"


def shorten(text: str, letters: Font, room: float) -> str:
    """Text in letters that the font has, cut to fit into as many pixels, dots included."""
    text = drawable(text)
    if letters.getlength(text) <= room:
        return text
    while text and letters.getlength(text + "...") > room:
        text = text[:-1]
    return text.rstrip() + "..."


def round_ticks(values: np.ndarray, most: int = 4) -> tuple[float, ...]:
    """Equally spaced round ticks, `most` or a few less, that enclose the finite values (m,)."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    # A span under 1 % of the level would give ticks whose compact labels look the same.
    span = max(high - low, 0.01 * max(abs(low), abs(high))) or 1.0
    lack = (span - (high - low)) / 2
    low, high = low - lack, high + lack
    # As many parts of the span are the smallest step that can do; the next decade always does.
    decade = math.floor(math.log10(span / (most - 1)))
    steps = [step * 10.0**power for power in (decade, decade + 1) for step in ROUND_STEPS]
    fits = (_multiples(low, high, step) for step in steps)
    return next(ticks for ticks in fits if len(ticks) <= most)


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    """The multiples of a step from just below low to just above high."""
    return tuple(k * step for k in range(math.floor(low / step), math.ceil(high / step) + 1))


class Canvas:
    """A white picture, drawn on in its own pixels, whole or not.

    Args:
        height: the most that it can have; see `tensor`.
        density: how many times as many pixels as that it has in the end, each way.
    """

    def __init__(self, width: int, height: int, density: int = 1) -> None:
        self.width, self.height = width, height
        self._density, self._scale = density, SCALE * density
        large = (width * self._scale, height * self._scale)
        self._image = Image.new("RGB", large, "white")
        self._draw = ImageDraw.Draw(self._image)

    def tensor(self, height: float) -> torch.Tensor:
        """What was drawn down to this height, as a uint8 RGB image of shape (3, H, W)."""
        size = self.width * self._density, round(height) * self._density
        part = self._image.crop((0, 0, size[0] * SCALE, size[1] * SCALE))
        return pil_to_tensor(part.resize(size, Image.Resampling.BOX))

    def box(self, left: float, top: float, right: float, bottom: float, fill: str) -> None:
        """A filled rectangle; none where it would be narrower than a pixel of the large picture."""
        x0, y0, x1, y1 = (round(self._scale * at) for at in (left, top, right, bottom))
        if x1 > x0 and y1 > y0:
            self._draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill)

    def polygon(self, points: Sequence[Point], fill: str) -> None:
        """A filled one."""
        self._draw.polygon(self._large(points), fill)

    def line(self, points: Sequence[Point], colour: str, width: float = 1) -> None:
        """Through two or more points."""
        self._draw.line(self._large(points), colour, round(width * self._scale), joint="curve")

    def rule(
        self, start: Point, end: Point, colour: str, width: int = 1, dashed: bool = False
    ) -> None:
        """A level or upright line, to the right or downwards, on whole pixels to be sharp."""
        (x0, y0), (x1, y1) = (
            [round(at * self._density) / self._density for at in point] for point in (start, end)
        )
        level = y0 == y1
        begin, last = (x0, x1) if level else (y0, y1)
        stride = DASH if dashed else max(last - begin, 1)
        while begin < last:
            until = min(last, begin + (0.6 * stride if dashed else stride))
            if level:
                self.box(begin, y0, until, y0 + width, colour)
            else:
                self.box(x0, begin, x0 + width, until, colour)
            begin += stride

    def dot(self, at: Point, radius: float, colour: str) -> None:
        """A filled circle."""
        self._draw.circle(self._large([at])[0], radius * self._scale, colour)

    def text(
        self,
        at: Point,
        words: str,
        colour: str = MUTED,
        size: float = 12,
        anchor: str = "lm",
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """One line; `anchor` as in Pillow. A halo parts it from what lies below."""
        words = drawable(words)
        point, letters = self._large([at])[0], default_font(round(size * self._scale))
        if halo:
            self._draw.text(
                point, words, "white", letters, anchor=anchor, stroke_width=2 * self._scale
            )
        # The font has no bold face: a hairline stroke gives it its weight.
        weight = self._scale / 6 if bold else 0
        self._draw.text(point, words, colour, letters, anchor=anchor, stroke_width=weight)

    def length(self, words: str, size: float = 12) -> float:
        """How wide a text is."""
        return default_font(round(size * self._scale)).getlength(drawable(words)) / self._scale

    def _large(self, points: Sequence[Point]) -> list[Point]:
        return [(x * self._scale, y * self._scale) for x, y in points]
