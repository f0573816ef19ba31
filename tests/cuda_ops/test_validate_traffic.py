"""The model's bytes against the counters: reading ncu's table, and what it said on an H200."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_ops import validate_traffic
from cuda_ops.contenders import Size
from cuda_ops.jit import VARIANTS
from cuda_ops.traffic import PATHS
from cuda_ops.validate_traffic import (
    METRICS,
    RUNS,
    CountersError,
    by_path,
    markdown,
    off,
    parse,
    record_of,
)

RECORD = Path(validate_traffic.__file__).parent / "records" / "h200_counters.json"
SIZE = Size(4, 3, 48, 48)


def table(*rows: tuple[str, int], runs: str = "1") -> str:
    """What ncu prints: all counters of a kernel are multiples of one number."""
    titles = ["ID", "Kernel Name", RUNS, *METRICS.values()]
    lines = [titles, ["", "", "pass", "byte", "byte", "sector", "sector"]]
    for kernel, n in rows:
        lines.append(["0", kernel, runs, f"{n:,}", f"{2 * n:,}", f"{3 * n:,}", f"{4 * n:,}"])
    csv = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return f"==PROF== Connected to process 1\n{csv}\n"


def calls(last_steps: bool = True) -> list[tuple[str, int]]:
    """All kernels in the order in which they are called; naive's weight gradient is one alone."""
    kernels, n = [], 0
    for variant in VARIANTS:
        for path in PATHS:
            kernels.append((f"<unnamed>::{path}_kernel(float *, Shape)", n := n + 1000))
            if path == "weight_grad" and variant != "naive" and last_steps:
                kernels.append(("<unnamed>::sum_partials(float *, Shape)", 7))
    return kernels


def test_each_call_gets_its_kernels_and_bytes() -> None:
    found = by_path(parse(table(*calls())))
    assert list(found) == [(variant, path) for variant in VARIANTS for path in PATHS]
    assert found["naive", "forward"] == {
        "dram_read": 1000,
        "dram_written": 2000,
        "l2_read": 32 * 3000,
        "l2_written": 32 * 4000,
    }
    assert found["naive", "weight_grad"]["dram_read"] == 3000
    assert found["coalesced", "forward"]["dram_read"] == 4000
    assert found["warp_tiled", "weight_grad"]["dram_read"] == 12_000 + 7
    assert found["warp_tiled", "weight_grad"]["l2_read"] == 32 * 3 * 12_007


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (calls()[1:], "kernel was seen"),
        (calls()[:-2], "no kernel was seen for the weight_grad of warp_tiled"),
        ([*calls(), ("fill", 1)], "more kernels were seen than were called: fill"),
    ],
)
def test_kernels_too_many_or_too_few_are_not_guessed_at(kernels, message) -> None:
    with pytest.raises(CountersError, match=message):
        by_path(parse(table(*kernels)))


def test_a_kernel_that_ran_twice_found_a_warm_l2() -> None:
    with pytest.raises(CountersError, match="3 times"):
        parse(table(*calls(), runs="3"))


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("==WARNING== No kernels were profiled.\n", "no table: ==WARNING== No kernels"),
        (table(("k", 5)).replace('"5"', '"n/a"'), "no number for dram__bytes_read"),
    ],
)
def test_what_is_no_table_is_refused(log, message) -> None:
    with pytest.raises(CountersError, match=message):
        parse(log)


def test_the_model_stands_beside_what_was_counted() -> None:
    rows = record_of(SIZE, "float32", 60 * 2**20, parse(table(*calls())))
    row = next(row for row in rows if (row["variant"], row["path"]) == ("shared", "forward"))
    tensor = 4 * 3 * 48 * 4
    assert row["model"]["compulsory"] == 2 * tensor
    assert row["model"]["dram_read"] == tensor + 3 * 48 * 4  # and the filters
    assert row["counted"]["dram_read"] == 7000
    assert off(row) == pytest.approx((tensor + 576 + row["model"]["dram_written"]) / 21_000 - 1)


def test_on_an_h200_the_model_is_within_a_tenth_of_the_counted_bytes() -> None:
    """All twelve at the study's shape; the record's model is today's."""
    record = json.loads(RECORD.read_text())
    size = Size(**record["shape"])
    assert (size, record["dtype"]) == (Size(16384, 128, 48, 48), "float32")
    counted = [row["counted"] for row in record["rows"]]
    assert len(counted) == 12
    for row in record["rows"]:
        assert abs(off(row)) <= 0.1, row
    kernels = []
    for row in counted:
        sectors = {"l2_read": row["l2_read"] / 32, "l2_written": row["l2_written"] / 32}
        kernels.append({"kernel": "k", **row} | {n: round(32 * s) for n, s in sectors.items()})
    again = record_of(size, record["dtype"], record["device"]["l2_bytes"], kernels)
    assert again == record["rows"]
    assert "within 10% of the counted DRAM bytes in 12 of 12" in markdown(record)


def test_a_model_that_is_off_is_shown_as_off() -> None:
    record = json.loads(RECORD.read_text())
    record["rows"][0]["model"]["dram_read"] *= 2
    text = markdown(record)
    assert "in 11 of 12" in text
    assert "+" in text.splitlines()[2].split("|")[9]


def test_without_a_gpu_or_counters_it_says_so(tmp_path) -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch sees a GPU here")
    command = [sys.executable, "-m", "cuda_ops.validate_traffic"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: this needs an NVIDIA GPU, and PyTorch sees none here\n"
    done = subprocess.run([*command, "--table", tmp_path / "x"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No such file" in done.stderr


def test_what_ncu_complains_of_is_passed_on(monkeypatch, tmp_path) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - no permission' >&2\nexit 1\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CountersError, match=r"ERR_NVGPUCTRPERM - no permission\n.*who may read"):
        validate_traffic.read_counters(SIZE, "float32")
    ncu.unlink()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(CountersError, match="needs ncu"):
        validate_traffic.read_counters(SIZE, "float32")
