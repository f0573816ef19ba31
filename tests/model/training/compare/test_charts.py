"""The pictures of a comparison: what is drawn lies where its number says, and all of it is seen."""

import json
import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from PIL import ImageColor

from cuda_ops.traffic import PATHS
from model.canvas import FAINT, INK
from model.training.callbacks.step_table import LABELS
from model.training.compare import charts, loss_chart, roofline_chart
from model.training.compare.charts import LIMIT, OPERATOR, PARTS, STEP, pictures
from model.training.compare.colours import KERNELS as COLOURS
from model.training.compare.figures import figures
from tests.model.training.compare.records import (
    KERNELS,
    STEPS,
    cpu_record,
    gpu_record,
    without_paths,
)

LADDER = ("naive", "coalesced", "shared", "warp_tiled")


def mask(image: torch.Tensor, colour: str) -> torch.Tensor:
    """(H, W): the pixels of just this colour."""
    wanted = torch.tensor(ImageColor.getrgb(colour), dtype=torch.uint8)
    return (image == wanted[:, None, None]).all(dim=0)


def spans(of: torch.Tensor) -> list[tuple[int, int]]:
    """First and last of each unbroken run of true values (n,)."""
    at = of.nonzero()[:, 0]
    cuts = (at.diff() > 1).nonzero()[:, 0] + 1
    return [(int(part[0]), int(part[-1])) for part in torch.tensor_split(at, cuts) if len(part)]


@cache
def drawn(density: int = 1) -> dict[str, torch.Tensor]:
    return pictures(gpu_record(), density)


def all_hidden() -> dict[str, Any]:
    record = gpu_record()
    for kernel in record["kernels"]:
        without_paths(kernel)
    record["device"]["name"] = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition " * 2
    return record


def slowest_last() -> dict[str, Any]:
    return gpu_record("warp_tiled", "naive")


def one_of_many_steps() -> dict[str, Any]:
    record = gpu_record("pytorch", "naive")
    for kernel in record["kernels"]:
        kernel["losses"] = [1e-4 * loss for loss in kernel["losses"]] * 250
    return record


# -- all of them -------------------------------------------------------------------------------


def test_a_record_has_the_pictures_that_it_has_numbers_for() -> None:
    assert list(drawn()) == ["step breakdown", "speed-up", "roofline", "losses"]
    assert list(pictures(cpu_record())) == ["step breakdown", "losses"]
    assert "roofline" not in pictures(gpu_record("naive") | {"operator": None, "fma": None})


@pytest.mark.parametrize(
    "make", [gpu_record, cpu_record, all_hidden, slowest_last, one_of_many_steps]
)
def test_nothing_is_cut_off(make: Callable[[], dict[str, Any]]) -> None:
    """A label runs out of the picture."""
    for tag, image in pictures(make()).items():
        assert image.dtype == torch.uint8
        assert image.shape[::2] == (3, 560), tag
        edges = [image[:, :4], image[:, -4:], image[:, :, :4], image[:, :, -4:]]
        assert all((edge == 255).all() for edge in edges), tag


def test_more_pixels_show_the_same() -> None:
    for tag, image in drawn().items():
        large = drawn(2)[tag]
        assert large.shape == (3, 2 * image.shape[1], 2 * image.shape[2])
        pool = torch.nn.functional.avg_pool2d
        apart = pool(large.float(), 40) - pool(image.float(), 20)
        assert apart.abs().max() < 12, tag  # of 255; letters are not placed quite alike


def test_a_picture_is_as_the_record_was_before_and_after_json() -> None:
    again = pictures(json.loads(json.dumps(gpu_record())))
    assert all(torch.equal(again[tag], image) for tag, image in drawn().items())


# -- where a step goes -------------------------------------------------------------------------


def bars(image: torch.Tensor) -> list[dict[str, int]]:
    """Of each bar from the top, part -> pixels; the legend above is left out."""
    rows = mask(image, PARTS["rest"][1]).sum(dim=1) > 20
    middles = [sum(span) // 2 for span in spans(rows)]
    masks = {part: mask(image, colour) for part, (_, colour) in PARTS.items()}
    return [{part: int(of[y].sum()) for part, of in masks.items()} for y in middles]


def test_bars_are_as_long_as_their_times() -> None:
    found = figures(gpu_record())
    lengths = bars(drawn()["step breakdown"])
    assert len(lengths) == len(found)
    per_ms = lengths[0]["weight_grad"] / found[0].ms["weight_grad"]
    assert per_ms > 1.9  # the longest bar takes most of the picture
    for length, of in zip(lengths, found, strict=True):
        for part in ("forward", "input_grad", "weight_grad", "rest"):
            # A pixel at either end may be shared with the neighbour.
            assert length[part] == pytest.approx(of.ms[part] * per_ms, abs=2.1), (of.name, part)


def test_a_bar_ends_with_the_step() -> None:
    """Medians of its parts, which add up to something else, end it before its number."""
    record = gpu_record("naive", "shared")
    for summary in record["kernels"][0]["summaries"]:
        summary["ms"]["rest"]["ms"] *= 0.1
    noisy, shared = (sum(bar.values()) for bar in bars(pictures(record)["step breakdown"]))
    assert noisy / shared == pytest.approx(194.8 / 46.8, rel=0.04)


def test_gradients_in_one_and_hidden_paths() -> None:
    """A part is drawn under another's name, or counted twice."""
    (bar,) = bars(pictures(cpu_record())["step breakdown"])
    assert bar["both_gradients"] == pytest.approx(24 / 40 * bar["rest"], abs=3)
    assert bar["weight_grad"] == 0
    record = gpu_record("naive", "coalesced")
    without_paths(record["kernels"][0])
    hidden, shown = bars(pictures(record)["step breakdown"])
    assert hidden["forward"] == hidden["weight_grad"] == 0
    assert hidden["rest"] / sum(shown.values()) == pytest.approx(194.5 / 89.8, rel=0.03)


def test_every_part_of_a_step_is_drawn() -> None:
    """A part that the step's timing learns to tell is missing from the bars."""
    assert set(PARTS) == set(LABELS) - {"operator", "step"}


# -- speed-ups ---------------------------------------------------------------------------------


def lengths(image: torch.Tensor, colour: str) -> list[tuple[int, int]]:
    """Where the bars of this colour begin and end, from the top; without the legend's swatch."""
    of = mask(image, colour)
    rows = [sum(span) // 2 for span in spans(of.sum(dim=1) > 12)]
    return [(int(row.nonzero()[0]), int(row.nonzero()[-1])) for row in (of[y] for y in rows)]


def test_bars_of_speed_ups_grow_with_the_logarithm() -> None:
    image, (base, *others) = drawn()["speed-up"], figures(gpu_record())
    for colour, ratios in (
        (OPERATOR, [of.operator_speedup for of in others]),
        (STEP, [of.step_speedup for of in others]),
    ):
        found = lengths(image, colour)
        assert len({begin for begin, _ in found}) == 1
        per_octave = (found[2][1] - found[2][0]) / math.log2(ratios[2] or 1)
        assert per_octave > 60
        for (begin, end), ratio in zip(found, ratios, strict=True):
            assert end - begin == pytest.approx(per_octave * math.log2(ratio or 1), abs=2)
    limit = int(mask(image, LIMIT).sum(dim=0).argmax())
    assert base.limit is not None
    begin = found[0][0]
    assert limit - begin == pytest.approx(per_octave * math.log2(base.limit), abs=3)


def test_a_slower_kernel_has_its_bar_at_the_other_side() -> None:
    image = pictures(gpu_record("shared", "naive", "warp_tiled"))["speed-up"]
    slower, faster = lengths(image, STEP)
    assert slower[1] < faster[0]
    assert slower[1] - slower[0] > 3 * (faster[1] - faster[0])


@pytest.mark.parametrize("values", [[1.0], [1.02], [0.9], [0.3, 7], [62.4, 6.1], [1e-3, 5e3]])
def test_lines_enclose_the_values_and_are_few(values: list[float]) -> None:
    lines = charts._doublings(values)
    assert lines[0] <= min(1, *values)
    assert max(1, *values) <= lines[-1]
    assert 1.0 in lines
    assert 2 <= len(lines) <= charts.MOST_LINES + 2


# -- the roofline ------------------------------------------------------------------------------


def test_points_lie_where_their_rates_are() -> None:
    """The axis is linear, upside down or off by a factor."""
    record, image = gpu_record(), drawn()["roofline"]
    marks = {(mark.kernel, mark.path): mark for mark in roofline_chart.marks(record)}
    naive, tiled = marks["naive", "weight_grad"], marks["warp_tiled", "weight_grad"]
    # 49/48 of 16384 * 128 * 48 * 48 multiply-adds, of which the causal half counts.
    assert naive.tflop_s == pytest.approx(2 * 16384 * 128 * 48 * 49 / 2 / 38.0928e-3 / 1e12, 1e-4)
    assert naive.intensity == pytest.approx(49 / 8)
    decade = spans((mask(image, FAINT)[:, 520:540]).all(dim=1))
    assert len(decade) == 3  # 0.1, 1 and 10
    pixels = (decade[2][0] - decade[0][0]) / 2
    where = {}
    for kernel in ("naive", "warp_tiled"):
        column = mask(image, COLOURS[kernel])[:, 226:240]
        top, bottom = spans(column.any(dim=1))[-1]
        where[kernel] = (top + bottom) / 2
    found = (where["naive"] - where["warp_tiled"]) / pixels
    assert found == pytest.approx(math.log10(tiled.tflop_s / naive.tflop_s), abs=0.03)
    below = (decade[2][0] - where["naive"]) / pixels
    assert 10**below * 0.1 == pytest.approx(naive.tflop_s, rel=0.05)


def test_every_point_is_seen_below_a_roof() -> None:
    """Points that lie over each other, as all have one intensity."""
    record, image = gpu_record(), drawn()["roofline"]
    marks = roofline_chart.marks(record)
    assert [(m.kernel, m.path) for m in marks] == [(k, path) for k in KERNELS for path in PATHS]
    ceilings = roofline_chart.ceilings_of(record, record["operator"])
    shown = roofline_chart.plot(marks, ceilings)
    for mark in marks:
        x, y = (round(at) for at in shown.at(mark))
        around = mask(image, COLOURS[mark.kernel])[y - 5 : y + 6, x - 5 : x + 6]
        assert around.sum() > 25, mark  # of about 60
        assert shown.y.at(shown.roof(mark.intensity)) < y
    roof, column = round(shown.y.at(shown.roof(49 / 8))), round(shown.x.at(49 / 8))
    line = mask(image, INK)[roof - 2 : roof + 2, column - 24 : column + 24].any(dim=0)
    assert line.all()
    assert shown.roof(mark.intensity) == pytest.approx(4.2381 * 49 / 8, rel=1e-3)
    assert shown.roof(1000) == pytest.approx(60.3)


def test_no_roofline_without_a_ceiling_that_fits() -> None:
    record = gpu_record("naive")
    for change in ({"dtype": "float64"}, {"shape": record["operator"]["shape"] | {"length": 1025}}):
        other = record | {"operator": record["operator"] | change}
        assert not roofline_chart.can_draw(other)
    assert roofline_chart.can_draw(record)


def test_names_are_where_there_is_room() -> None:
    """Many FLOP a byte: the column is at the right, and the names would run out of the picture."""
    record = gpu_record("naive", "warp_tiled")
    record["operator"]["shape"] |= {"length": 768, "taps": 768}
    shown = roofline_chart.plot(
        roofline_chart.marks(record), roofline_chart.ceilings_of(record, record["operator"])
    )
    image = roofline_chart.draw(record)
    column = int(shown.x.at(roofline_chart.marks(record)[0].intensity))
    assert column > 300
    name = mask(image, COLOURS["naive"])
    assert name[:, : column - 40].any()
    assert not name[:, column + 40 :].any()
    assert (image[:, :, -4:] == 255).all()


def test_labels_keep_apart() -> None:
    placed = roofline_chart._spread([50, 52, 53, 200, 395, 396], 400)
    assert all(b - a >= roofline_chart.APART for a, b in pairwise(placed))
    assert placed[0] == 50
    assert placed[3] == 200
    assert placed[-1] <= 400


# -- losses ------------------------------------------------------------------------------------


def test_all_curves_are_seen_where_they_coincide() -> None:
    image = drawn(2)["losses"]
    upper = image[:, 180:510, 200:1000]
    for kernel in KERNELS:
        seen = mask(upper, COLOURS[kernel]).any(dim=0).float().mean()
        assert seen > 0.25, kernel


def test_differences_lie_on_a_logarithmic_axis() -> None:
    record = gpu_record("pytorch", "naive")
    true = record["kernels"][0]["losses"]
    apart = {10: 1e-3, 20: 1e-5, 30: 1e-6}
    record["kernels"][1]["losses"] = [
        loss * (1 + apart.get(step, 0)) for step, loss in enumerate(true, 1)
    ]
    image = pictures(record)["losses"]
    lower = mask(image, COLOURS["naive"])[280:]
    left, right = loss_chart.LEFT, loss_chart.WIDTH - loss_chart.MARGIN
    at = {}
    for step in range(1, STEPS + 1):
        x = round(left + (right - left) * (step - 1) / (STEPS - 1))
        ((top, bottom),) = spans(lower[:, x - 1 : x + 1].any(dim=1))
        at[step] = (top + bottom) / 2
    decade = at[30] - at[20]
    assert decade > 30
    assert at[20] - at[10] == pytest.approx(2 * decade, abs=1)
    equal = {at[step] for step in at if step not in apart}
    assert len(equal) == 1
    assert equal.pop() > at[30]  # in a row of its own, below
