"""The verdicts: on times that were measured, and at the edges of each rule."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_ops import roofline
from cuda_ops.ceilings import multiply_adds
from cuda_ops.contenders import STUDY, Size
from cuda_ops.jit import VARIANTS
from cuda_ops.roofline import Ceilings, judge
from cuda_ops.traffic import PATHS, traffic

RECORDS = Path(__file__).parents[2] / "cuda_ops" / "records"

H200 = Ceilings(copy=4252.0, read=4298.0, add=4400.0, fma=60e3, on_chip=30e3)
L2, MULTIPROCESSORS = 62914560, 132


def verdict(variant: str, path: str, ms: float, size: Size = STUDY) -> roofline.Verdict:
    work = traffic(variant, path, size, torch.float32, L2)
    return judge(work, ms, H200, MULTIPROCESSORS)


def record(name: str = "h200.json") -> dict[str, Any]:
    """A record of the bench; the earliest ones have no rate of multiply-adds."""
    return {"fma": {"gflop_s": 60e3}} | json.loads((RECORDS / name).read_text())


# -- measured times ----------------------------------------------------------------------------


@pytest.mark.parametrize("fma", [50e3, 60e3, 67e3])
@pytest.mark.parametrize(
    ("variant", "path", "ms", "bound"),
    [
        ("naive", "forward", 1.588, "on-chip-bound"),
        ("naive", "input_grad", 1.569, "on-chip-bound"),
        ("naive", "weight_grad", 38.68, "reduction-bound"),
        ("coalesced", "forward", 1.850, "on-chip-bound"),
        ("coalesced", "input_grad", 1.907, "on-chip-bound"),
        ("coalesced", "weight_grad", 11.57, "latency-bound"),
        ("shared", "forward", 1.051, "on-chip-bound"),
        ("shared", "input_grad", 1.062, "on-chip-bound"),
        ("shared", "weight_grad", 2.320, "on-chip-bound"),
        ("warp_tiled", "forward", 0.2144, "memory-bound"),
        ("warp_tiled", "input_grad", 0.2145, "memory-bound"),
        ("warp_tiled", "weight_grad", 0.2143, "memory-bound"),
    ],
)
def test_the_study_on_an_h200(variant, path, ms, bound, fma) -> None:
    """Whatever the rate of multiply-adds turns out to be, within reason."""
    work = traffic(variant, path, STUDY, torch.float32, L2)
    ceilings = Ceilings(4252.0, 4298.0, 4400.0, fma, on_chip=fma / 2)
    found = judge(work, ms, ceilings, MULTIPROCESSORS)
    assert found.bound == bound
    assert found.sentence.startswith(bound)
    assert "; next: " in found.sentence


def test_how_far_and_what_next() -> None:
    assert verdict("warp_tiled", "input_grad", 0.2145).sentence == (
        "memory-bound, 1.13 times the floor of 0.189 ms (bytes: 88% of the time); next: both "
        "gradients in one pass, 0.275 ms at the least where two take 0.377"
    )
    assert verdict("naive", "weight_grad", 38.68).sentence == (
        "reduction-bound, 206 times the floor of 0.187 ms (192 warps for 528 schedulers); next: "
        "cut the batch into parts, each summed by warps of its own"
    )
    found = verdict("warp_tiled", "forward", 0.2144)
    assert found.shares["memory"] == pytest.approx(0.883, abs=0.002)
    assert found.floor_ms == pytest.approx(805.306368 / 4252)


@pytest.mark.parametrize("path", PATHS)
def test_longer_rows_are_bound_by_arithmetic(path) -> None:
    """L = 168, where the multiply-adds take longer than the bytes, but are not all there is."""
    ms = {"forward": 0.4906, "input_grad": 0.4429, "weight_grad": 0.5344}[path]
    found = verdict("warp_tiled", path, ms, Size(4096, 128, 168, 168))
    assert found.bound == "compute-bound"
    assert found.sentence.startswith("compute-bound in part, ")
    assert found.floor_ms == pytest.approx(2 * 14196 * 4096 * 128 / 60e12 * 1e3)


# -- the rules ---------------------------------------------------------------------------------


def test_each_floor_can_be_the_one() -> None:
    near = {"memory": ("warp_tiled", STUDY), "on-chip": ("naive", STUDY)}
    near["compute"] = ("warp_tiled", Size(64, 128, 1024, 1024))
    for name, (variant, size) in near.items():
        work = traffic(variant, "forward", size, torch.float32, L2)
        floors = roofline.floors_ms(work, H200)
        assert max(floors, key=lambda n: floors[n]) == name
        for share, words in ((0.95, f"{name}-bound, "), (0.5, f"{name}-bound in part, ")):
            found = judge(work, floors[name] / share, H200, MULTIPROCESSORS)
            assert found.sentence.startswith(words)
            assert found.shares[name] == pytest.approx(share)
        found = judge(work, floors[name] / 0.3, H200, MULTIPROCESSORS)
        assert found.bound == "latency-bound"


def test_too_little_work_waits() -> None:
    found = verdict("warp_tiled", "forward", 0.01, Size(8, 8, 48, 48))
    assert found.bound == "latency-bound"
    assert "larger batch" in found.sentence
    assert verdict("shared", "weight_grad", 0.01, Size(8, 8, 48, 48)).bound == "reduction-bound"


def test_the_floor_is_that_of_the_operator() -> None:
    """All variants have the same, however much they request."""
    assert len({verdict(variant, "forward", 1.0).floor_ms for variant in VARIANTS}) == 1


# -- records -----------------------------------------------------------------------------------


def test_the_reads_on_chip_follow_from_the_multiply_adds() -> None:
    measured = record()
    found = roofline.ceilings_of(measured, measured["runs"][0])
    assert found.on_chip == found.fma / 2
    measured["device"]["capability"] = "8.0"
    assert roofline.ceilings_of(measured, measured["runs"][0]).on_chip == found.fma


def test_a_record_as_a_table() -> None:
    lines = roofline.markdown(record()).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:14]]
    assert {len(row) for row in rows} == {9}
    assert [row[0] for row in rows[2:]] == [
        name for variant in VARIANTS for name in (variant, "", "")
    ]
    by_title = dict(zip(rows[0], rows[11], strict=True))
    assert by_title["path"] == "forward"
    assert float(by_title["memory, %"]) > 80
    assert by_title["verdict"].startswith("memory-bound, ")
    assert "about twice" in lines[-1]
    assert roofline.markdown(record("h200_shapes.json")).count("| warp_tiled | forward |") >= 5


def test_shapes_outside_the_model_have_no_verdicts() -> None:
    measured = record()
    run = measured["runs"][0]
    measured["runs"] = [
        run | {"dtype": "float64"},
        run | {"shape": {"batch": 1, "channels": 1, "length": 20000, "taps": 3}},
    ]
    told = roofline.markdown(measured)
    assert told.count("no verdicts") == 2
    assert "|" not in told


# -- on a GPU ----------------------------------------------------------------------------------


@pytest.mark.gpu
def test_nothing_makes_more_multiply_adds() -> None:
    """The ceiling holds for a matrix product, and comes out the same twice."""
    device = torch.device("cuda", torch.cuda.current_device())
    first, second = (multiply_adds(device, 5).gflop_s for _ in range(2))
    assert math.isclose(first, second, rel_tol=0.1)
    a = torch.rand(4096, 4096, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        start.record()
        a @ a
        end.record()
    end.synchronize()
    assert 2 * 4096**3 / start.elapsed_time(end) / 1e6 < 1.05 * max(first, second)
