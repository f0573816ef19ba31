"""The bench's command line, its record and the tables that are made from it."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_ops import bench, ceilings, environment, measure, report, verify
from cuda_ops.contenders import PATHS, Size
from cuda_ops.jit import VARIANTS

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "cuda_ops" / "records" / "h200.json"

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


# -- the record and its tables -----------------------------------------------------------------


def sample(kernels: Sequence[str] = ("naive", "warp_tiled")) -> dict[str, Any]:
    """A record with round numbers: 1000 GB/s copied, 1250 read, 1200 in three streams."""
    totals = {"naive": 40.0, "warp_tiled": 0.5, "Toeplitz": 1.0, "Toeplitz TF32": 0.4, "FFT": 12.0}
    rows = []
    for name, total in totals.items():
        if name in kernels or name not in VARIANTS:
            shares = {"forward": 0.9, "input_grad": 0.88, "weight_grad": 0.004, "both": 1.2}
            paths = {
                path: {
                    "ms": total / 2,
                    "p10": total / 2.1,
                    "p90": total / 1.9,
                    "samples": 50,
                    "gb_s": 900.0,
                    "of_ceiling": shares[path],
                    "suspicious": name == "Toeplitz TF32" and path == "both",
                    "errors": dict.fromkeys(outputs, 1e-7) | {outputs[-1]: 2e-7},
                }
                for path, outputs in PATHS.items()
            }
            kind = "kernel" if name in VARIANTS else "pytorch"
            rows.append({"name": name, "kind": kind, "total_ms": total, "paths": paths})
    rates = {"copy": 1000.0, "read": 1250.0, "add": 1200.0}
    passes = [
        {"name": p.name, "kind": p.kind, "tensors": p.tensors, "samples": 50}
        | {"ms": p.tensors * 402.653184e6 / rate / 1e6, "p10": 0.1, "p90": 9.9, "gb_s": rate}
        for p in ceilings.PASSES
        for rate in [
            rates[p.kind] / (1 if p.name in ("torch.dot", "torch.add", "out.copy_(x)") else 2)
        ]
    ]
    return {
        "device": {
            "name": "NVIDIA H200",
            "capability": "9.0",
            "multiprocessors": 132,
            "memory_bytes": 2**37,
            "l2_bytes": 6e7,
            "driver": "580.159.04",
        },
        "versions": {"python": "3.12.3", "torch": "2.11.0+cu130", "cuda": "13.0", "nvcc": "13.0"},
        "commit": "0123456789abcdef0123456789abcdef01234567-dirty",
        "date": "2026-12-01",
        "fma": {"ms": 4.0, "p10": 4.0, "p90": 4.1, "samples": 50, "gflop_s": 60e3},
        "runs": [
            {
                "shape": {"batch": 16384, "channels": 128, "length": 48, "taps": 48},
                "dtype": "float32",
                "seed": 1,
                "rounds": 50,
                "ceilings": passes,
                "rows": rows,
            }
        ],
    }


def test_the_terminal_table_fits_80_columns() -> None:
    record = sample()
    slow = record["runs"][0]["rows"][0]["paths"]["weight_grad"]
    slow |= {"ms": 9999.123, "p10": 9999.1, "p90": 9999.2, "gb_s": 99999.0, "of_ceiling": 10.01}
    printed = report.text(record)
    assert max(len(line) for line in printed.splitlines()) <= 80
    for part in ("NVIDIA H200", "torch 2.11.0+cu130", "nvcc 13.0", "0123456-dirty", "580.159.04"):
        assert part in printed
    line = next(line for line in printed.splitlines() if line.startswith("warp_tiled"))
    assert " ".join(line.split()) == "warp_tiled forward 0.2500 0.2381 0.2632 900 90 % 2.0e-07"
    assert "120 %!" in printed
    told = " ".join(printed.split())
    assert "! more than 105% of the ceiling, which is suspicious: Toeplitz TF32, both grad" in told
    assert (
        "Total over that of warp_tiled: naive 80, Toeplitz 2 (PyTorch's fastest in float32), "
        "Toeplitz TF32 0.8, FFT 24." in told
    )


def test_the_markdown_table() -> None:
    lines = report.markdown(sample()).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:8]]
    assert {len(row) for row in cells} == {8}
    assert cells[0][:2] == ["16384x128x48x48, float32", "forward"]
    assert cells[3] == [
        *("warp_tiled", "0.25", "0.25", "0.25", "0.5", "90 / 88 / 0.4", "80", "2.0e-07")
    ]
    assert cells[4][0] == "PyTorch: Toeplitz"
    # 805 MB at 1000 GB/s, twice, and at 1250; then 805 MB at 1000 and 1208 MB at 1200
    assert cells[7] == ["*ceiling*", "0.805", "0.805", "0.644", "1.81", "", "", ""]
    rest = "\n".join(lines[8:])
    for part in ("torch.dot (1,250 GB/s)", "copy (1,000 GB/s)", "torch.add (1,200 GB/s)", "commit"):
        assert part in rest
    assert "commit unknown, 2026-12-01." in report.markdown(sample() | {"commit": None})
    without = report.markdown(sample(kernels=["warp_tiled"]))
    assert "| - | 2.0e-07 |" in without


def test_a_record_is_printed_from_its_file(tmp_path: Path, capsys) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(sample()))
    assert bench.main(["--table", str(path)]) == 0
    assert capsys.readouterr().out.startswith("| 16384x128x48x48")


def test_the_sample_has_the_fields_of_a_run() -> None:
    run = sample()["runs"][0]
    for part, kind in (
        (run, measure.Run),
        (run["shape"], Size),
        (run["ceilings"][0], measure.Ceiling),
        (run["rows"][0], measure.Row),
        (run["rows"][0]["paths"]["both"], measure.Figure),
    ):
        assert set(part) == {field.name for field in fields(kind)}


def test_the_table_of_the_readme_is_that_of_the_record() -> None:
    table = report.markdown(json.loads(RECORD.read_text()))
    assert table in (ROOT / "README.md").read_text()


# -- the command line --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shape", "16384x128"], "'16384x128' is no shape"),
        (["--shape", "0x1x1"], "'0x1x1' is no shape"),
        (["--shape", "axbxc"], "as in 16384x128x48"),
        (["--kernels", "fast"], "no CUDA kernel 'fast'; choose from: naive"),
        (["--dtype", "int8"], "int8"),
        (["--repeats", "1"], "'1' is no whole number of 2 or more"),
        (["--kernels", "", "--no-formulations"], "nothing to measure"),
        (["--json", "/nowhere/at/all.json"], "no folder /nowhere/at"),
        (["--table", "/nowhere.json"], "/nowhere.json"),
        (["--table", __file__], "is no record of this bench"),
        pytest.param([], "needs an NVIDIA GPU", marks=needs_no_gpu),
    ],
    ids=str,
)
def test_a_mistake_is_one_message_and_code_2(words, told, capsys) -> None:
    try:
        code = bench.main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.count("error:") == 1
    assert told in printed.err
    assert "Traceback" not in printed.err


def test_shapes_and_kernels_are_read() -> None:
    words = ["--shape", "4x3x2", "--shape", "4x3x2x9", "--kernels", "shared,naive"]
    args = bench._parser().parse_args(words)
    assert args.shape == [Size(4, 3, 2, 2), Size(4, 3, 2, 9)]
    assert args.kernels == ["shared", "naive"]
    args = bench._parser().parse_args([])
    assert (args.kernels, args.formulations, args.repeats) == (list(VARIANTS), True, 50)


def test_wrong_results_end_with_code_1_and_no_times(monkeypatch, tmp_path, capsys) -> None:
    def wrong(args: object) -> dict[str, Any]:
        raise verify.WrongResultError("shared, both, 1x1x1x1: gk is off by nan of its norm")

    monkeypatch.setattr(bench, "_measure", wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert bench.main(["--json", str(tmp_path / "record.json")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "shared, both, 1x1x1x1" in printed.err
    assert not (tmp_path / "record.json").exists()


def test_a_command_that_fails_tells_nothing() -> None:
    assert environment._output("sh", "-c", "echo not a repository; exit 1") is None
    assert environment._output("no-such-program") is None
    assert environment._output("echo", "a commit") == "a commit"


# -- on a GPU ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_small_run_on_a_gpu(dtype, tmp_path, capsys) -> None:
    path = tmp_path / "record.json"
    words = ["--shape", "64x8x48", "--shape", "9x5x33x40", "--repeats", "3", "--dtype", dtype]
    assert bench.main([*words, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines()) <= 80
    record = json.loads(path.read_text())
    assert set(record) == set(sample())
    for run in record["runs"]:
        names = [row["name"] for row in run["rows"]]
        assert names[:4] == list(VARIANTS)
        assert {"Toeplitz", "FFT", "grouped conv1d"} <= set(names)
    assert bench.main(["--table", str(path)]) == 0
