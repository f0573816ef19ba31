"""Names as people write them, in pictures whose one font has few letters."""

import numpy as np
import pytest

from model.canvas import default_font, drawable
from model.training.callbacks.drawing import Panel, draw_panel


@pytest.mark.parametrize(
    ("written", "drawn"),
    [
        ("Bäckerei Süd", "Backerei Sud"),
        ("Straße 5 · Ångström", "Strasse 5 · Angstrom"),
        ("21 °C", "21 °C"),
        ("学校 A", "?? A"),
        ("meter 7, 100 %", "meter 7, 100 %"),
    ],
)
def test_every_letter_is_one_that_the_font_has(written: str, drawn: str) -> None:
    assert drawable(written) == drawn
    font = default_font(20)
    box = bytes(font.getmask("\uffff"))  # what stands for a letter that is not there
    assert all(bytes(font.getmask(letter)) != box for letter in drawable(written) if letter != " ")


def test_a_panel_has_the_same_title_either_way() -> None:
    hours, values = np.arange(48), np.arange(48.0)
    written, plain = (
        draw_panel(Panel(title, "", hours, values, values)) for title in ("Süd ß", "Sud ss")
    )
    assert (written == plain).all()
