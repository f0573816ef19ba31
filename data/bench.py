"""Speed and memory of the data layer, at the size of GEPIII: `python -m data.bench`.

Data of 20.2 million rows are generated, then each step is measured in a fresh process, so that
its peak memory is its own. The files were just written: they come from memory, not from a disk.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

# Nothing large is imported here: on Linux a child's peak memory starts from that of its parent.

BATCHES, WARM_UP, EPOCH_BATCHES = 100, 20, 20  # an epoch is left after EPOCH_BATCHES
BATCH_TARGET = {"cpu": 10.0, "cuda": 0.5}  # ms for 16,384 windows; the GPU's is for an H200


@dataclass(frozen=True)
class Row:
    """One line of the report; `target` is an upper bound, at the default sizes."""

    what: str
    measured: float
    unit: str
    target: float | None = None


def generate(root: Path, buildings: int, sites: int, hours: int) -> list[Row]:
    """Write the data."""
    from data import synthetic

    began = time.perf_counter()
    synthetic.write(root, buildings=buildings, sites=sites, hours=hours)
    return [Row("generate and write the data", time.perf_counter() - began, "s")]


def set_up(root: Path, cache: Path) -> tuple[Any, float, float, float]:
    """The data module with its windows found; seconds of import and of the rest; peak GiB."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    began = time.perf_counter()
    from data.module import SeriesDataModule

    imported = time.perf_counter()
    data = SeriesDataModule(root=root, rules="none")
    data.prepare_data()
    data.setup("fit")
    ready = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, else KiB
    gib = peak / (2**30 if sys.platform == "darwin" else 2**20)
    return data, imported - began, ready - imported, gib


def from_csv(root: Path, cache: Path) -> list[Row]:
    """Read the files and find the windows, with nothing in the cache."""
    data, imported, ready, peak = set_up(root, cache)
    from data.splits import SPLITS

    return [
        Row("import torch, Lightning and the data layer", imported, "s"),
        Row("CSV to ready windows", ready, "s", 60),
        Row("CSV to ready windows, peak memory", peak, "GiB", 6),
        *(Row(f"{split} windows", len(data.windows[split]), "") for split in SPLITS),
    ]


def from_cache(root: Path, cache: Path) -> list[Row]:
    """The same, where `from_csv` filled the cache."""
    _, _, ready, peak = set_up(root, cache)
    return [Row("from the cache", ready, "s", 5), Row("from the cache, peak memory", peak, "GiB")]


def batches(root: Path, cache: Path, size: int) -> list[Row]:
    """Gather shuffled batches on the CPU, and on the GPU where there is one."""
    train = set_up(root, cache)[0].windows["train"]
    import torch

    from data.windows import DeviceSeries, WindowLoader

    rows = []
    for device in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]:
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        source = DeviceSeries(train.series, train.length, torch.device(device))
        firsts, others = _batch_times(WindowLoader(source, train.cell, size, shuffle=True), wait)
        deciles = quantiles(others, n=10)
        what = f"batch of {size:,} windows, {device}"
        rows += [
            Row(f"{what}, median", median(others), "ms", BATCH_TARGET[device]),
            Row(f"{what}, p10", deciles[0], "ms"),
            Row(f"{what}, p90", deciles[-1], "ms"),
            Row(f"{what}, first of an epoch", median(firsts), "ms"),
        ]
    return rows


def _batch_times(loader: Any, wait: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Milliseconds of the first batch of each epoch, which draws the order, and of the others.

    The host's clock is read after `wait`, when the device has done the batch.
    """
    count = min(EPOCH_BATCHES, len(loader) - 1)  # the last batch of an epoch may be short
    if count < 2:
        raise ValueError("an epoch has fewer than 3 batches: take more data or a smaller --batch")
    firsts: list[float] = []
    others: list[float] = []
    while len(others) < WARM_UP + BATCHES:
        began = time.perf_counter()
        for number, _ in enumerate(islice(loader, count)):
            wait()
            now = time.perf_counter()
            (others if number else firsts).append((now - began) * 1000)
            began = now
    return firsts[1:], others[WARM_UP:]


def environment() -> dict[str, str | int]:
    """What the numbers were measured on."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    # A short hash, with + if tracked files differ from the commit. The shell stands a missing git.
    command = "git describe --always --dirty=+ --exclude='*' || echo unknown"
    here = Path(__file__).parent
    commit = subprocess.run(command, shell=True, cwd=here, capture_output=True, text=True).stdout
    affinity = getattr(os, "sched_getaffinity", None)  # Linux: the cores that this process may use
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.strip(),
        "Python": platform.python_version(),
        **{name: version(name) for name in ("torch", "pyarrow", "numpy")},
        "CPU": names[0] if names else platform.machine(),
        "cores": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _fresh(function: Callable[..., Any], *arguments: object) -> Any:
    """Call `function` in a new interpreter."""
    print(f"bench: {function.__name__} ...", file=sys.stderr, flush=True)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def table(rows: Sequence[Row], where: dict[str, str | int]) -> str:
    """The report as text."""
    head = ", ".join(f"{name} {value}" for name, value in where.items())
    lines = [head, "", f"{'what':<50}{'target':>8}{'measured':>12}"]
    for row in rows:
        target = "-" if row.target is None else f"{row.target:g}"
        measured = f"{row.measured:,.0f}" if row.measured >= 1000 else f"{row.measured:.3g}"
        lines.append(f"{row.what:<50}{target:>8}{measured:>12} {row.unit}".rstrip())
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Measure the data layer on generated GEPIII data.")
    for name, default in (("buildings", 1449), ("sites", 16), ("hours", 8784), ("batch", 16384)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--folder", type=Path, help="keep the data here; it must be new or empty")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here as well")
    args = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="s4convd-bench-") as scratch:
            root, cache = args.folder or Path(scratch) / "data", Path(scratch) / "cache"
            rows = _fresh(generate, root, args.buildings, args.sites, args.hours)
            rows += _fresh(from_csv, root, cache) + _fresh(from_cache, root, cache)
            rows += _fresh(batches, root, cache, args.batch)
            where = _fresh(environment)
        print(table(rows, where))
        if args.json:
            report = {"environment": where, "rows": [asdict(row) for row in rows]}
            args.json.write_text(json.dumps(report, indent=2) + "\n")
    except (OSError, ValueError, BrokenExecutor) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
