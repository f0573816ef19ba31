"""What numbers are measured on, and when: the part of a record that is the same in all of them."""

import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from cuda_ops.errors import KernelUnavailableError
from cuda_ops.toolchain import find_nvcc


def environment(device: torch.device) -> dict[str, Any]:
    """Device, versions, commit and date. Of a CPU no more than its name is told."""
    on_gpu = device.type == "cuda"
    return {
        "device": _gpu(device) if on_gpu else {"name": processor()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda if on_gpu else None,
            "nvcc": _nvcc() if on_gpu else None,
        },
        # Of tracked files; --exclude leaves the hash alone, without a tag's name.
        "commit": _output("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def _nvcc() -> str | None:
    try:
        release = re.search(r"release (\S+),", find_nvcc()[1])
    except KernelUnavailableError:
        return None
    return release and release[1]


def processor() -> str:
    """Of this machine, as well as it can be told."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else f"CPU ({platform.machine()})"


def _output(*command: str) -> str | None:
    """The first line that a command prints; None where it fails or is not installed."""
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return None
    lines = done.stdout.split("\n")
    return lines[0].strip() or None if done.returncode == 0 else None
