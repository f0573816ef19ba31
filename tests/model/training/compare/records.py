"""Records of comparisons as `python train.py compare` writes them, made by hand.

The operator's times and the ceilings are those of the bench's record of an H200; the steps around
them add up to the README's.
"""

import json
import math
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[4] / "cuda_ops" / "records" / "h200.json"
STEPS, ROUNDS, BLOCKS = 40, 3, 4
KERNELS = ("naive", "coalesced", "shared", "warp_tiled", "pytorch")
STEP_MS = {
    "naive": 194.8,
    "coalesced": 89.8,
    "shared": 46.8,
    "warp_tiled": 31.9,
    "pytorch": 37.5,
}
GIB = {"naive": 17.4, "coalesced": 17.4, "shared": 17.4, "warp_tiled": 17.5, "pytorch": 19.1}
PATHS = ("forward", "input_grad", "weight_grad")


def gpu_record(*kernels: str) -> dict[str, Any]:
    """Of these kernels, or of all, on an H200; the first is the baseline."""
    bench = json.loads(BENCH.read_text())
    run = bench.pop("runs")[0]
    rows = {row["name"]: row for row in run["rows"]}
    # What the backend takes at this length.
    rows["pytorch"] = rows["Toeplitz"] | {"name": "pytorch"}
    names = kernels or KERNELS
    return bench | {
        "command": "train.py compare --kernels " + ",".join(names) + " --steps 40",
        "settings": {"data.batch_size": 16384, "data.root": "None", "model.channels": 128},
        "shape": run["shape"],
        "blocks": BLOCKS,
        "dtype": "float32",
        "steps": STEPS,
        "rounds": ROUNDS,
        "kernels": [_kernel(name, rows[name]) for name in names],
        "operator": run | {"rows": [rows[name] for name in names]},
        "fma": {"ms": 4.0, "p10": 4.0, "p90": 4.1, "samples": 50, "gflop_s": 60.3e3},
    }


def cpu_record() -> dict[str, Any]:
    """Of PyTorch alone on a CPU, where nothing but the step itself is measured."""
    ms = {"data": 1.2, "forward": 10.0, "both_gradients": 24.0, "optimizer": 1.0, "rest": 40.0}
    kernel = {
        "name": "pytorch",
        "tf32": False,
        "summaries": [_summary("pytorch", "cpu", ms, None) for _ in range(ROUNDS)],
        "losses": _losses(0.0),
        "repeat": 0.0,
    }
    return gpu_record("pytorch") | {
        "device": {"name": "AMD EPYC 9B45"},
        "versions": {"python": "3.11.9", "torch": "2.14.1+cpu", "cuda": None, "nvcc": None},
        "commit": None,
        "shape": {"batch": 256, "channels": 32, "length": 48, "taps": 48},
        "kernels": [kernel],
        "operator": None,
        "fma": None,
    }


def without_paths(kernel: dict[str, Any]) -> None:
    """Make of a kernel's rounds ones in which its paths were hidden in the rest of the step."""
    for summary in kernel["summaries"]:
        for path in PATHS:
            hidden = summary["ms"].pop(path)["ms"]
            rest = summary["ms"]["rest"]
            summary["ms"]["rest"] = rest | {"ms": rest["ms"] + hidden}
        del summary["ms"]["operator"]


def _kernel(name: str, row: dict[str, Any]) -> dict[str, Any]:
    ms = {"data": 0.21} | {path: BLOCKS * row["paths"][path]["ms"] for path in PATHS}
    ms |= {"optimizer": 0.35}
    ms |= {"rest": STEP_MS[name] - sum(ms.values())}
    rounds = []
    for k in range(ROUNDS):
        drift = 1 + 0.004 * (k - 1)
        drifted = {part: value * drift for part, value in ms.items()}
        rounds.append(_summary(name, "NVIDIA H200", drifted, int(GIB[name] * 2**30)))
    apart = {"naive": 3e-7, "coalesced": 1.6e-7, "shared": 1.2e-7, "warp_tiled": 8e-8}
    return {
        "name": name,
        "tf32": name == "fused",
        "summaries": rounds,
        "losses": _losses(apart.get(name, 0.0)),
        "repeat": 0.0,
    }


def _summary(name: str, device: str, ms: dict[str, float], peak: int | None) -> dict[str, Any]:
    operator = sum(ms[path] for path in (*PATHS, "both_gradients") if path in ms)
    step = sum(ms.values())
    whole = ms | {"operator": operator, "step": step}
    return {
        "kernel": name,
        "device": device,
        "clock": "the host's clock (CPU)" if device == "cpu" else "CUDA events",
        "ms": {
            part: {"ms": value, "p10": 0.98 * value, "p90": 1.03 * value, "samples": 35}
            for part, value in whole.items()
        },
        "share": {part: value / step for part, value in whole.items()},
        "windows_per_s": (256 if device == "cpu" else 16384) / step * 1e3,
        "steps": 35,
        "left_out": {"warm-up": 5},
        "epoch_steps": 120,
        "epoch_s": None,
        "peak_memory": peak,
    }


def _losses(apart: float) -> list[float]:
    """A curve that falls, off by up to so much; in every third step by nothing."""
    curve = [0.4 + 1.1 * math.exp(-k / 12) + 0.03 * math.sin(1.9 * k) for k in range(STEPS)]
    return [
        loss * (1 + apart * math.sin(2.7 * k + 1e7 * apart) * (k % 3 > 0))
        for k, loss in enumerate(curve)
    ]
