"""Bars are as high as their values, and the band lies where its percentiles are."""

import numpy as np
import pytest
import torch
from PIL import ImageColor

from model.canvas import ORANGE
from model.training.callbacks.drawing import BAND
from model.training.report.charts import LEFT, NAIVE, PLOT, bars, temperature
from model.training.report.errors import ByTemperature


def mask(image: torch.Tensor, colour: str) -> torch.Tensor:
    """(H, W): the pixels of just this colour, below the legend."""
    wanted = torch.tensor(ImageColor.getrgb(colour), dtype=torch.uint8)
    found = (image == wanted[:, None, None]).all(dim=0)
    found[:90] = False
    return found


def test_bars_are_as_high_as_their_values() -> None:
    """The axis ends at 0.4: half of the plot is 0.2."""
    values = {"model": np.array([0.1, 0.4, 0.2]), "naive": np.array([0.4, 0.2, np.nan])}
    image = bars("Errors", "of something", ["a", "b", "c"], values)
    group = (560 - 16 - LEFT) / 3
    for colour, heights in ((ORANGE, values["model"]), (NAIVE, values["naive"])):
        found = mask(image, colour)
        for k, value in enumerate(heights):
            part = found[:, round(LEFT + group * k) : round(LEFT + group * (k + 1))]
            rows = int(part.any(dim=1).sum())
            assert rows == pytest.approx(0 if np.isnan(value) else PLOT * value / 0.4, abs=2)


def test_bars_of_a_group_stand_side_by_side() -> None:
    image = bars("E", "e", ["a"], {"model": np.array([1.0]), "naive": np.array([1.0])})
    ours, naive = (mask(image, colour).any(dim=0).nonzero()[:, 0] for colour in (ORANGE, NAIVE))
    assert 0 < int(naive[0]) - int(ours[-1]) <= 2
    assert len(ours) == pytest.approx(len(naive), abs=2)


def ranges(*of: tuple[float, float, float, float]) -> ByTemperature:
    middle, low, mean, high = np.array(of).T
    return ByTemperature("air_temperature", middle, mean, low, high)


def test_the_band_lies_between_its_percentiles() -> None:
    """The axis runs from -0.2 to 0.2, 180 pixels."""
    image = temperature(ranges((0, -0.1, 0, 0.2), (10, -0.2, 0, 0.1)), "told")
    band = mask(image, BAND)
    columns = band.any(dim=0).nonzero()[:, 0]
    left, right = (band[:, column].nonzero()[:, 0] for column in (columns[2], columns[-3]))
    assert int(left[-1] - left[0]) == pytest.approx(0.3 / 0.4 * PLOT, abs=4)
    assert int(right[0] - left[0]) == pytest.approx(0.1 / 0.4 * PLOT, abs=4)
    assert mask(image, ORANGE).any()


@pytest.mark.parametrize(
    "found",
    [
        ranges((20.5, 0.1, 0.2, 0.3)),
        ranges((-40, -3, -2.5, -2), (40, -3, -2.5, 9)),
        ranges((1, 0, 0, 0), (2, 0, 0, 0)),
    ],
    ids=["one range", "wide", "no error"],
)
def test_nothing_is_cut_off(found: ByTemperature) -> None:
    nothing = np.full(7, np.nan)
    images = [
        temperature(found, "told"),
        bars("E", "e", list("abcdefg"), {"model": nothing, "naive": nothing}),
        bars("E", "e", list("abcdefg"), {"model": nothing, "naive": np.full(7, 1e7)}),
    ]
    for image in images:
        edges = [image[:, :4], image[:, -4:], image[:, :, :4], image[:, :, -4:]]
        assert all((edge == 255).all() for edge in edges)
    assert mask(images[0], ORANGE).any()


def test_more_pixels_show_the_same() -> None:
    found = ranges((0, -0.1, 0, 0.2), (10, -0.2, 0, 0.1))
    small, large = temperature(found, "told"), temperature(found, "told", density=2)
    assert large.shape == (3, 2 * small.shape[1], 2 * small.shape[2])
