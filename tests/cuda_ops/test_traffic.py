"""The traffic model: its formulas against walking through the kernels, and against readings."""

import pytest
import torch

from cuda_ops.contenders import STUDY, Size
from cuda_ops.jit import VARIANTS
from cuda_ops.traffic import LONGEST_ROW, PATHS, markdown, traffic
from tests.cuda_ops.walk import walk

L2 = 62914560  # an H200's

EVERY = [(variant, path) for variant in VARIANTS for path in PATHS]

SMALL = [
    Size(1, 1, 1, 1),
    Size(2, 3, 5, 5),
    Size(3, 2, 48, 48),
    Size(1, 5, 33, 7),  # K < L, rows that do not start on 16 bytes
    Size(2, 3, 7, 11),  # K > L
    Size(1, 2, 40, 64),
    Size(1, 2, 100, 70),  # longer than a stretch, taps of two tiles
    Size(1, 1, 200, 200),
    Size(2, 35, 17, 17),  # more rows than lanes
    Size(1, 32, 33, 33),  # warps that begin at every step of a row
]
MANY_SAMPLES = [  # several parts
    Size(601, 2, 3, 2),
    Size(1024, 1, 18, 18),
    Size(16389, 1, 2, 2),
    Size(20, 1, 200, 10),  # shared memory is full before the threads are
]
"""B, H, L and K."""


def check(variant: str, path: str, size: Size, dtype: torch.dtype) -> None:
    found, walked = traffic(variant, path, size, dtype, L2), walk(variant, path, size, dtype)
    assert found.loaded == walked.loaded
    assert found.stored == walked.stored
    assert found.operands == walked.operands
    assert found.computed == 2 * walked.macs
    assert found.warps == walked.warps
    # These shapes fit the L2: each input is read from DRAM once, each result stays.
    inputs = {at for at in walked.read if at[0] != "partials"}
    assert found.dram_read == len(inputs) * walked.item
    assert found.dram_written == 0
    results = [walked.wide if tensor == "partials" else walked.item for tensor, _ in walked.written]
    past_the_window = size.channels * max(0, size.taps - size.length) * walked.item
    if path == "weight_grad" and variant != "naive":  # set to zero by a fill, not by the kernel
        assert found.left_in_l2 == sum(results) + past_the_window
    else:
        assert found.left_in_l2 == sum(results)


@pytest.mark.parametrize("size", SMALL, ids=str)
@pytest.mark.parametrize(("variant", "path"), EVERY)
def test_the_formulas_count_what_the_loops_do(variant, path, size) -> None:
    check(variant, path, size, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "size", [Size(2, 3, 41, 37), Size(1, 2, 70, 90), Size(1, 17, 40, 40)], ids=str
)
@pytest.mark.parametrize(("variant", "path"), EVERY)
def test_in_other_types(variant, path, size, dtype) -> None:
    """Sums and partial sums of half precision are float32."""
    check(variant, path, size, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "size",
    [Size(1, 1, 16, 1), Size(35, 9, 32, 20), Size(3, 2, 48, 48), Size(130, 8, 64, 70)],
    ids=str,
)
@pytest.mark.parametrize("path", PATHS)
def test_on_tensor_cores(path, size, dtype) -> None:
    """Half precision, rows of 16, 32, 48 and 64 steps: no multiply-add is one of float32."""
    check("warp_tiled", path, size, dtype)
    assert traffic("warp_tiled", path, size, dtype, L2).computed == 0
    assert traffic("shared", path, size, dtype, L2).computed > 0


@pytest.mark.parametrize("size", MANY_SAMPLES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_in_parts(variant, size) -> None:
    check(variant, "weight_grad", size, torch.float32)


# -- hardware counters -------------------------------------------------------------------------
# Read with ncu on an H200 at the study's shape in float32: a naive kernel, and two in which a
# thread owns a row, as in warp_tiled.


@pytest.mark.parametrize(
    ("variant", "path", "read", "written"),
    [
        ("naive", "forward", 402.7e6, 384e6),
        ("warp_tiled", "forward", 402.7e6, 376e6),
        ("warp_tiled", "weight_grad", 805.4e6, 1.4e6),
    ],
)
def test_dram_bytes_are_what_counters_read(variant, path, read, written) -> None:
    found = traffic(variant, path, STUDY, torch.float32, L2)
    assert found.dram_read == pytest.approx(read, rel=0.01)
    assert found.dram_written == pytest.approx(written, rel=0.02, abs=2e6)
    assert found.dram == pytest.approx(read + written, rel=0.01)


def test_the_l1_counter_reads_sectors_of_what_is_requested() -> None:
    """17.9 GB: 32 bytes for each sector that a warp's load or store touches.

    Lanes that ask for the same word are one sector, and a run of words that does not start on a
    sector is one more, so it is not far from the bytes that the lanes ask for.
    """
    rows = 4
    walked = walk("naive", "forward", Size(2, 2, 48, 48), torch.float32)
    sectors = walked.sectors * 32 * STUDY.batch * STUDY.channels // rows
    assert sectors == pytest.approx(17.9e9, rel=0.002)
    found = traffic("naive", "forward", STUDY, torch.float32, L2)
    assert found.requested == pytest.approx(sectors, rel=0.13)


# -- the study's shape -------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "path"), EVERY)
def test_the_study(variant, path) -> None:
    found = traffic(variant, path, STUDY, torch.float32, L2)
    assert found.compulsory == 2 * 16384 * 128 * 48 * 4
    assert found.flops == 2 * 1176 * 16384 * 128
    assert found.computed == found.flops  # no variant multiplies padding at L = 48
    assert found.intensity == pytest.approx(6.125)
    assert found.dram_read >= found.compulsory // (1 if path == "weight_grad" else 2)
    half = traffic(variant, path, STUDY, torch.bfloat16, L2)
    assert 2 * half.compulsory == found.compulsory
    assert half.flops == found.flops
    assert half.dram < 0.53 * found.dram


def test_what_is_requested_falls_from_variant_to_variant() -> None:
    """19.7 GB of operands in naive, which the headers of csrc/ name as well, and 0.4 of results."""
    gb = {
        variant: [traffic(variant, p, STUDY, torch.float32, L2).requested / 1e9 for p in PATHS]
        for variant in VARIANTS
    }
    assert gb["naive"] == pytest.approx([20.13, 20.13, 19.73], abs=0.01)
    assert gb["coalesced"] == pytest.approx([23.15, 23.15, 19.73], abs=0.01)
    assert gb["shared"] == pytest.approx([1.21, 1.21, 0.81], abs=0.01)
    assert gb["warp_tiled"] == pytest.approx([0.83, 0.83, 0.82], abs=0.01)


def test_the_two_bandwidths() -> None:
    found = traffic("naive", "forward", STUDY, torch.float32, L2)
    assert found.effective_gb_s(2.0) == pytest.approx(402.65, rel=1e-4)
    assert found.requested_gb_s(2.0) == pytest.approx(10066, rel=1e-4)


# -- the L2 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("l2_bytes", [0, 10**6, L2, 10**10])
@pytest.mark.parametrize(("variant", "path"), EVERY)
def test_results_are_written_or_left(variant, path, l2_bytes) -> None:
    found = traffic(variant, path, STUDY, torch.float32, l2_bytes)
    results = found.stored
    assert found.dram_written + found.left_in_l2 == results
    assert found.left_in_l2 <= l2_bytes
    if l2_bytes > 2 * found.compulsory:
        assert found.dram_written == 0
        assert found.dram_read <= found.compulsory
    if l2_bytes == 0:
        assert found.dram_written == results


def test_warps_that_run_ahead_read_for_themselves() -> None:
    """In naive's weight gradient, taps 16 to 47 of every second channel share a warp."""
    study = traffic("naive", "weight_grad", STUDY, torch.float32, L2)
    assert 1.2 < study.dram_read / study.compulsory < 1.5
    no_cache = traffic("naive", "weight_grad", STUDY, torch.float32, 0)
    assert no_cache.dram_read / no_cache.compulsory == pytest.approx(1 + 1 / 2 * 32 / 48)
    for size in (Size(16384, 128, 32, 32), Size(1024, 128, 48, 48)):  # one pace; a small batch
        found = traffic("naive", "weight_grad", size, torch.float32, L2)
        assert found.dram_read == found.compulsory


# -- the edges ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "path"), EVERY)
def test_an_empty_batch_moves_nothing(variant, path) -> None:
    found = traffic(variant, path, Size(0, 4, 8, 8), torch.float32, L2)
    assert (found.compulsory, found.requested, found.dram, found.left_in_l2) == (0, 0, 0, 0)
    assert (found.flops, found.intensity) == (0, 0.0)


def test_rows_too_long_for_the_model_are_refused() -> None:
    longest = LONGEST_ROW // 4
    traffic("shared", "forward", Size(2, 2, longest, longest), torch.float32, L2)
    with pytest.raises(ValueError, match=f"rows of up to {LONGEST_ROW} bytes; L = {longest + 1}"):
        traffic("shared", "forward", Size(2, 2, longest + 1, 3), torch.float32, L2)


def test_the_table_has_a_row_for_each_path() -> None:
    lines = markdown(STUDY, torch.float32, L2).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:14]]
    assert {len(row) for row in rows} == {8}
    assert rows[2] == [*("naive", "forward", "805.3", "20,132.7", "402.7", "380.0", "4.93", "6.12")]
    assert [row[0] for row in rows[2:]] == [
        name for variant in VARIANTS for name in (variant, "", "")
    ]
    assert "about twice" in lines[-1]
