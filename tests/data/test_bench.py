"""The benchmark of the data layer runs and reports every row; its times are nobody's promise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from data import bench

ROOT = Path(__file__).parents[2]
SIZE = ["--buildings", "3", "--sites", "1", "--hours", "600", "--batch", "64"]


@pytest.mark.slow
def test_a_small_run_reports_every_row(tmp_path: Path) -> None:
    folder, report = tmp_path / "data", tmp_path / "report.json"
    command = [sys.executable, "-m", "data.bench", *SIZE, "--folder", folder, "--json", report]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    rows = {row["what"]: row for row in found["rows"]}
    assert len(rows) == len(found["rows"])
    expected = {
        "generate and write the data": ("s", None),
        "import torch, Lightning and the data layer": ("s", None),
        "CSV to ready windows": ("s", 60),
        "CSV to ready windows, peak memory": ("GiB", 6),
        "train windows": ("", None),
        "val windows": ("", None),
        "test windows": ("", None),
        "from the cache": ("s", 5),
        "from the cache, peak memory": ("GiB", None),
    }
    for device, target in [("cpu", 10), ("cuda", 0.5)][: 1 + torch.cuda.is_available()]:
        what = f"batch of 64 windows, {device}"
        expected[f"{what}, median"] = ("ms", target)
        expected |= {
            f"{what}, {part}": ("ms", None) for part in ("p10", "p90", "first of an epoch")
        }
    assert {what: (row["unit"], row["target"]) for what, row in rows.items()} == expected
    assert all(row["measured"] > 0 for row in rows.values())
    assert all(what in done.stdout for what in rows)
    assert {"date", "commit", "Python", "torch", "CPU", "cores", "GPU"} <= set(found["environment"])
    assert (folder / "train.csv").is_file()


def test_errors_are_one_line_and_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").touch()
    assert bench.main([*SIZE, "--folder", str(tmp_path)]) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if "bench:" not in line]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert "not empty" in errors[0]
