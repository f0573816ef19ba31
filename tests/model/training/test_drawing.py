"""The forecast panels hold what they should show, and nothing where there is nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import ImageColor

from model.training.callbacks.drawing import (
    BAND,
    Band,
    Panel,
    _compact,
    _round_ticks,
    _runs,
    draw_grid,
    draw_panel,
)

START = 409_848  # 3 October 2016, 00:00
WEEK = 168
# The rows of the plot area, clear of the legend above and of the day labels below.
PLOT = slice(52, 211)


def week_panel(**changes: Any) -> Panel:
    """A week of load with a daily shape, and a flat forecast in the middle of its range."""
    hours = START + np.arange(WEEK)
    actual = 100 + 50 * np.sin(2 * np.pi * hours / 24)
    parts: dict[str, Any] = {"title": "Site 3", "subtitle": "RMSLE 0.1", "hours": hours}
    parts |= {"actual": actual, "forecast": np.full(WEEK, 100.0)}
    return Panel(**(parts | changes))


def orange(image: torch.Tensor) -> torch.Tensor:
    """Mask (height, width) of pixels with any visible tint of the forecast line."""
    red, _, blue = image.int()
    return red - blue > 40


def dark(image: torch.Tensor) -> torch.Tensor:
    """Mask (height, width) of pixels of the actual line."""
    return (image.int() < 100).all(dim=0)


def missing() -> np.ndarray:
    return np.full(WEEK, np.nan)


@pytest.mark.parametrize(("width", "height"), [(480, 240), (640, 300)])
def test_panel_is_a_uint8_image_on_white(width: int, height: int) -> None:
    image = draw_panel(week_panel(), width, height)
    assert image.dtype == torch.uint8
    assert image.shape == (3, height, width)
    assert (image[:, [0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()


def test_both_series_are_drawn() -> None:
    image = draw_panel(week_panel())[:, PLOT]
    assert orange(image).any(dim=0).sum() > 400
    assert dark(image).any(dim=0).sum() > 300


def test_forecast_lies_over_actual() -> None:
    flat = np.full(WEEK, 100.0)
    image = draw_panel(week_panel(actual=flat, forecast=flat))[:, PLOT]
    assert orange(image).any()
    assert not dark(image).any()


def test_missing_forecast_leaves_no_orange_even_in_the_legend() -> None:
    image = draw_panel(week_panel(forecast=missing()))
    assert not orange(image).any()
    assert dark(image[:, PLOT]).any()


def test_missing_actual_leaves_no_dark_line() -> None:
    image = draw_panel(week_panel(actual=missing()))[:, PLOT]
    assert orange(image).any()
    assert not dark(image).any()


def columns_without_forecast(panel: Panel) -> torch.Tensor:
    """Columns between the first and the last orange pixel that hold no orange."""
    filled = orange(draw_panel(panel)[:, PLOT]).any(dim=0)
    first, last = filled.nonzero()[[0, -1], 0].tolist()
    return (~filled[first : last + 1]).nonzero()[:, 0]


def test_unbroken_forecast_has_no_blank_column() -> None:
    assert len(columns_without_forecast(week_panel())) == 0


def test_gap_of_missing_values_stays_blank() -> None:
    forecast = np.full(WEEK, 100.0)
    forecast[60:84] = np.nan
    blank = columns_without_forecast(week_panel(forecast=forecast))
    # 25 of the 167 steps of an hour, less the width of the two line ends.
    assert 55 <= len(blank) <= 66
    assert blank[-1] - blank[0] + 1 == len(blank)


def test_missing_rows_are_a_gap_too() -> None:
    panel = week_panel()
    kept = np.r_[0:60, 84:WEEK]
    parts = {"actual": panel.actual[kept], "forecast": panel.forecast[kept]}
    assert len(columns_without_forecast(week_panel(hours=panel.hours[kept], **parts))) >= 55


@pytest.mark.parametrize("step", [0.25, 0.5, 24.0])
def test_a_line_breaks_at_gaps_of_its_own_step(step: float) -> None:
    hours, values = START + step * np.arange(WEEK), np.arange(float(WEEK))
    gap = np.r_[:60, 61:WEEK]
    runs = list(_runs(hours[gap], values[gap], step))
    assert [len(run) for run in runs] == [60, WEEK - 61]
    draw_panel(week_panel(hours=hours, actual=values, forecast=values, step=step))


def test_lone_hour_between_gaps_is_a_dot() -> None:
    forecast = missing()
    forecast[80] = 100.0
    image = orange(draw_panel(week_panel(forecast=forecast))[:, PLOT])
    assert 4 <= image.sum() <= 64


def shaded(image: torch.Tensor) -> torch.Tensor:
    """Mask (height, width) of pixels of the band alone."""
    wanted = torch.tensor(ImageColor.getrgb(BAND), dtype=torch.uint8)
    return (image == wanted[:, None, None]).all(dim=0)


def flat_band(low: float, high: float) -> Band:
    return Band("8 of 10", np.full(WEEK, low), np.full(WEEK, high))


def test_a_band_is_shaded_between_its_ends_and_named() -> None:
    assert not shaded(draw_panel(week_panel())).any()
    image = draw_panel(week_panel(band=flat_band(75, 125)))
    rows = shaded(image[:, PLOT]).any(dim=1).nonzero()[:, 0]
    ticks = _round_ticks(np.array([50.0, 150.0]))
    share = (125 - 75) / (ticks[-1] - ticks[0])  # of the plot's height, 162 pixels
    assert int(rows[-1] - rows[0] + 1) == pytest.approx(162 * share, abs=3)
    assert shaded(image[:, PLOT]).any(dim=0).sum() > 400
    assert shaded(image[:, :50]).sum() > 40, "its swatch in the legend"


def test_the_axis_has_room_for_the_band() -> None:
    """A band that is wider than the lines is cut off at the frame."""
    image = shaded(draw_panel(week_panel(band=flat_band(-300, 800))))
    assert not image[:50, 40:].sum(dim=1).gt(20).any()
    assert not image[214:].any()


def test_another_forecast_begins_with_a_dot_after_a_break() -> None:
    day = slice(0, 25)
    parts: dict[str, Any] = {"hours": START + np.arange(25), "forecast": np.full(25, 100.0)}
    parts |= {"actual": missing()[day], "band": Band("b", np.full(25, 90.0), np.full(25, 110.0))}
    panels = [week_panel(**parts, starts=START + np.array(at)) for at in ([], [8, 16])]
    whole, broken = ((orange(i) | shaded(i)) for i in (draw_panel(p)[:, PLOT] for p in panels))
    columns = whole.any(dim=0).nonzero()[:, 0]
    first, last = int(columns[0]), int(columns[-1])
    assert whole[:, first : last + 1].any(dim=0).all()
    blank = (~broken[:, first : last + 1].any(dim=0)).nonzero()[:, 0] / ((last - first) / 24)
    assert 16 <= len(blank) <= 40
    inside = ((blank > 7) & (blank < 8)) | ((blank > 15) & (blank < 16))
    assert inside.all(), "nothing but the hour before a start"


def test_more_pixels_show_the_same() -> None:
    panel = week_panel(band=flat_band(75, 125))
    small, large = draw_panel(panel), draw_panel(panel, density=2)
    assert large.shape == (3, 480, 960)
    pool = torch.nn.functional.avg_pool2d
    assert (pool(large.float(), 40) - pool(small.float(), 20)).abs().max() < 12  # of 255


def test_no_hours_draws_frame_and_text_only() -> None:
    none = np.array([])
    image = draw_panel(week_panel(hours=none.astype(np.int64), actual=none, forecast=none))
    same = draw_panel(week_panel(actual=missing(), forecast=missing()))
    assert not orange(image).any()
    assert (image[:, 100:160, 200:320] < 200).any(), "the text in the middle"
    assert torch.equal(image, same), "hours without values look the same"


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(WEEK),
        np.full(WEEK, 1e7),
        np.full(WEEK, -3.5),
        1e7 + np.arange(WEEK) * 1e-6,
        np.linspace(-1e7, 1e7, WEEK),
        np.linspace(0, 1e-9, WEEK),
        np.exp(np.arange(WEEK)),
        np.r_[np.inf, -np.inf, np.ones(WEEK - 2)],
        np.arange(WEEK, dtype=np.float32),
    ],
    ids=["zero", "large", "negative", "level", "wide", "tiny", "diverged", "infinite", "float32"],
)
def test_extreme_values_are_drawn(values: np.ndarray) -> None:
    image = draw_panel(week_panel(actual=values, forecast=values))
    assert image.shape == (3, 240, 480)
    assert orange(image[:, 50:214]).any()


@pytest.mark.parametrize("hour", range(START, START + 24))
def test_one_point_is_drawn_with_a_day_label(hour: int) -> None:
    one = np.array([7.0])
    image = draw_panel(week_panel(hours=np.array([hour]), actual=one, forecast=one + 1))
    assert orange(image[:, PLOT]).any()
    assert (image[:, 217:] < 200).any()


@pytest.mark.parametrize("days", [1, 2, 7, 14, 60, 366])
def test_day_labels_do_not_touch(days: int) -> None:
    hours = START + np.arange(24 * days + 1)
    load = np.ones(len(hours))
    image = draw_panel(week_panel(hours=hours, actual=load, forecast=load))
    inked = (image[:, 217:].amin(dim=(0, 1)) < 230).nonzero()[:, 0]
    assert inked[0] > 0, "labels end inside the panel"
    assert inked[-1] < 479, "labels end inside the panel"
    # Blank stretches wider than a space between words part one label from the next.
    ends = (inked.diff() > 5).nonzero()[:, 0]
    widths = torch.tensor_split(inked, ends + 1)
    assert all(20 < part[-1] - part[0] < 62 for part in widths)


def test_long_title_stops_before_the_subtitle() -> None:
    short, long = (draw_panel(week_panel(title=title)) for title in ("Site 3", "Site 3 " * 40))
    assert torch.equal(short[:, :30, 405:], long[:, :30, 405:])
    assert not torch.equal(short, long)


@pytest.mark.parametrize(
    ("count", "shape"),
    [(1, (3, 240, 480)), (3, (3, 504, 984)), (6, (3, 752, 984))],
)
def test_grid_size(count: int, shape: tuple[int, int, int]) -> None:
    image = draw_grid([week_panel()] * count)
    assert image.dtype == torch.uint8
    # Eight pixels around and between panels; torchvision leaves a single one unpadded.
    assert image.shape == shape


def test_grid_columns_and_order() -> None:
    panels = [week_panel(title=str(k)) for k in range(3)]
    image = draw_grid(panels, columns=3)
    assert image.shape == (3, 256, 1472)
    for k, panel in enumerate(panels):
        left = 8 + 488 * k
        assert torch.equal(image[:, 8:248, left : left + 480], draw_panel(panel))


@pytest.mark.parametrize(
    ("value", "label"),
    [(0.0, "0"), (950.0, "950"), (12_000.0, "12k"), (-2.5e6, "-2.5M"), (1e18, "1e+18")],
)
def test_tick_labels_are_compact(value: float, label: str) -> None:
    assert _compact(value) == label


def test_ticks_enclose_the_values_with_distinct_labels() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        values = rng.normal(size=2) * 10.0 ** rng.uniform(-6, 12, size=2)
        ticks = _round_ticks(values)
        assert ticks[0] <= values.min()
        assert values.max() <= ticks[-1]
        assert 3 <= len(ticks) <= 4
        assert len({_compact(tick) for tick in ticks}) == len(ticks)
