"""The traffic model held against hardware counters: `python -m cuda_ops.validate_traffic`.

Nsight Compute (ncu) runs this module once more, and reads for each call of each path the bytes that
the memory delivered and took, and those that the L2 did. Before a call the L2 is filled with other,
clean data. Few rented GPUs let a user read counters; where they don't, ncu's word is passed on.

    python -m cuda_ops.validate_traffic --json record.json      reads the counters
    python -m cuda_ops.validate_traffic --table record.json     prints a record in Markdown
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from cuda_ops.bench import size_option
from cuda_ops.contenders import STUDY, Size, draw, kernel_contender
from cuda_ops.environment import environment
from cuda_ops.errors import KernelUnavailableError
from cuda_ops.jit import VARIANTS
from cuda_ops.launch import SCALARS, kernels
from cuda_ops.report import LABELS
from cuda_ops.timing import eviction_buffer, tell
from cuda_ops.traffic import PATHS, traffic

METRICS = {
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "l2_read": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_written": "lts__t_sectors_srcunit_tex_op_write.sum",
}
"""Name -> counter. Those of the L2 count what the multiprocessors ask of it, in sectors."""

SECTOR = 32  # bytes
RUNS = "profiler__replayer_passes"  # of a kernel; a second one would find the L2 warm
GOAL = 0.1  # of the counted DRAM bytes: how far the model may be off
LAST_STEP = "sum_partials"  # the kernel that ends a weight gradient in parts, see csrc/common.cuh
ADVICE = "https://developer.nvidia.com/ERR_NVGPUCTRPERM says who may read them."


class CountersError(Exception):
    """The counters cannot be read here; the message says why."""


# -- in the profiled process -------------------------------------------------------------------


def run_paths(size: Size, dtype: torch.dtype) -> None:
    """Call every path of every variant once; ncu sees the calls alone."""
    device = torch.device("cuda", torch.cuda.current_device())
    evict = eviction_buffer(device, torch.cuda.get_device_properties(device).L2_cache_size)
    inputs = draw(size, dtype, torch.Generator(device))
    for variant in VARIANTS:
        contender = kernel_contender(variant, kernels(variant, device))
        for path in PATHS:
            call = contender.prepare(path, inputs)
            call()  # whatever is done once is done now
            evict.sum()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


# -- reading -----------------------------------------------------------------------------------


def read_counters(size: Size, dtype: str) -> list[dict[str, Any]]:
    """Run this module under ncu; a row for each kernel that was launched, in order.

    Raises:
        CountersError: there is no ncu, or it cannot read the counters.
    """
    command = [
        *(_find_ncu(), "--profile-from-start", "off", "--cache-control", "none"),
        *("--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"),
        *("--metrics", ",".join(METRICS.values())),
    ]
    child = [sys.executable, "-m", __spec__.name, "--run", "--shape", str(size), "--dtype", dtype]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        done = subprocess.run(
            [*command, "--log-file", str(log), *child], capture_output=True, text=True
        )
        told = log.read_text() if log.exists() else ""
    if done.returncode != 0 or "==ERROR==" in told:
        errors = [line for line in (told + done.stderr).splitlines() if "ERROR" in line.upper()]
        what = " ".join(errors) or done.stderr.strip()[-500:]
        raise CountersError(f"ncu could not read the counters: {what}\n{ADVICE}")
    return parse(told)


def _find_ncu() -> str:
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "ncu"
    found = shutil.which("ncu") or (str(home) if home.exists() else None)
    if found is None:
        raise CountersError(
            "this needs ncu, which comes with CUDA's toolkit (package cuda-nsight-compute), and "
            f"none is in PATH or at {home}"
        )
    return found


def parse(log: str) -> list[dict[str, Any]]:
    """ncu's table: a row for each kernel, its name and the bytes of `METRICS`.

    Raises:
        CountersError: there is no table, a number is missing, or a kernel had to run twice.
    """
    lines = [line for line in log.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))[1:]  # the first holds the units
    if not rows:
        raise CountersError(f"ncu has printed no table: {log.strip()[-500:]}")
    found = []
    for row in rows:
        if row.get(RUNS, "1") != "1":
            raise CountersError(f"ncu ran each kernel {row[RUNS]} times to read the counters")
        counted: dict[str, Any] = {"kernel": row["Kernel Name"].split("(")[0]}
        for name, metric in METRICS.items():
            try:
                number = float(row[metric].replace(",", ""))
            except ValueError as error:
                raise CountersError(f"ncu has no number for {metric} here") from error
            counted[name] = round(number * (SECTOR if name.startswith("l2") else 1))
        found.append(counted)
    return found


def by_path(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, int]]:
    """(variant, path) -> bytes, of the one or two kernels of each call.

    Raises:
        CountersError: there are more or fewer kernels than calls have.
    """
    left = list(rows)
    found = {}
    for variant in VARIANTS:
        for path in PATHS:
            mine = left[:1]
            if path == "weight_grad" and LAST_STEP in "".join(row["kernel"] for row in left[1:2]):
                mine = left[:2]
            left = left[len(mine) :]
            if not mine or LAST_STEP in mine[0]["kernel"]:
                raise CountersError(f"no kernel was seen for the {path} of {variant}")
            found[variant, path] = {name: sum(row[name] for row in mine) for name in METRICS}
    if left:
        raise CountersError(f"more kernels were seen than were called: {left[0]['kernel']}")
    return found


def record_of(size: Size, dtype: str, l2_bytes: int, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """For each path what was counted and what the model says, in bytes."""
    lines = []
    for (variant, path), counted in by_path(rows).items():
        model = traffic(variant, path, size, getattr(torch, dtype), l2_bytes)
        said = {name: getattr(model, name) for name in ("compulsory", "requested")}
        said |= {"dram_read": model.dram_read, "dram_written": model.dram_written}
        lines.append({"variant": variant, "path": path, "model": said, "counted": counted})
    return lines


# -- showing -----------------------------------------------------------------------------------


def off(row: dict[str, Any]) -> float:
    """The model's DRAM bytes over the counted ones, less 1."""
    model, counted = (
        sum(row[side][name] for name in ("dram_read", "dram_written"))
        for side in ("model", "counted")
    )
    return model / counted - 1


def markdown(record: dict[str, Any]) -> str:
    """A record in Markdown."""
    return "\n".join(_markdown_lines(record))


def _markdown_lines(record: dict[str, Any]) -> Iterator[str]:
    size = Size(**record["shape"])
    titles = [f"{size}, {record['dtype']}, MB", "path", "compulsory", "requested"]
    titles += ["DRAM read: model", "counted", "DRAM written: model", "counted", "model is off by"]
    titles += ["L2 read", "L2 written"]
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in record["rows"]:
        model, counted = row["model"], row["counted"]
        numbers = [model["compulsory"], model["requested"]]
        for name in ("dram_read", "dram_written"):
            numbers += [model[name], counted[name]]
        cells = [row["variant"] if row["path"] == PATHS[0] else "", LABELS[row["path"]]]
        cells += [f"{number / 1e6:,.1f}" for number in numbers]
        cells += [f"{off(row):+.1%}"]
        cells += [f"{counted[name] / 1e6:,.1f}" for name in ("l2_read", "l2_written")]
        yield f"| {' | '.join(cells)} |"
    within = sum(abs(off(row)) <= GOAL for row in record["rows"])
    device, versions = record["device"], record["versions"]
    yield (
        f"\nThe model is within {GOAL:.0%} of the counted DRAM bytes in {within} of "
        f"{len(record['rows'])}. Counted by ncu on {device['name']}, driver {device['driver']}, "
        f"torch {versions['torch']}, commit {record['commit']}, {record['date']}."
    )


# -- the command line --------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cuda_ops.validate_traffic",
        description="Hold the traffic model against the GPU's counters, read by Nsight Compute.",
    )
    parser.add_argument("--shape", type=size_option, default=STUDY, metavar="BxHxL[xK]")
    parser.add_argument("--dtype", choices=SCALARS.values(), default="float32")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here as well")
    parser.add_argument("--commit", help="the commit to record, for a copy without its git history")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="only print this record, in Markdown"
    )
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Run the command line; what cannot be done ends in one message and exit code 2."""
    args = _parser().parse_args()
    try:
        if args.table:
            print(markdown(json.loads(args.table.read_text())))
            return
        if not torch.cuda.is_available():
            raise CountersError("this needs an NVIDIA GPU, and PyTorch sees none here")
        if args.run:
            run_paths(args.shape, getattr(torch, args.dtype))
            return
        device = torch.device("cuda", torch.cuda.current_device())
        record = environment(device)
        record["commit"] = args.commit or record["commit"]
        for variant in VARIANTS:
            kernels(variant, device)  # compiled before ncu looks
        tell("reading the counters")
        rows = read_counters(args.shape, args.dtype)
        l2_bytes = record["device"]["l2_bytes"]
        lines = record_of(args.shape, args.dtype, l2_bytes, rows)
        record |= {"shape": vars(args.shape), "dtype": args.dtype, "rows": lines}
        print(markdown(record))
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    except (CountersError, KernelUnavailableError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
