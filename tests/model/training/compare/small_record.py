"""A record of three kernels, made up so that its figures can be worked out by hand.

A tensor of the operator is 1000 x 500 x 10 float32, 20 MB, and three blocks make a step.
"""

from typing import Any

NAIVE = {
    "data": 5.0,
    "operator": 60.0,
    "forward": 6.0,
    "input_grad": 12.0,
    "weight_grad": 40.0,
    "gradient_copy": 2.0,
    "optimizer": 10.0,
    "rest": 25.0,
    "step": 100.0,
}
SHARED = NAIVE | {
    "operator": 20.0,
    "forward": 5.0,
    "input_grad": 5.0,
    "weight_grad": 10.0,
    "gradient_copy": 0.0,
    "step": 60.0,
}
PYTORCH = {
    "data": 5.0,
    "operator": 12.0,
    "forward": 3.0,
    "both_gradients": 9.0,
    "optimizer": 10.0,
    "rest": 21.0,
    "step": 48.0,
}
ROUNDS = (0.9, 1.3, 1.0)  # times what stands above, in the rounds: the median is that itself


def summary(ms: dict[str, float], times: float, peak: int | None) -> dict[str, Any]:
    """A `StepSummary` as JSON holds it."""
    return {
        "kernel": "",
        "device": "cpu" if peak is None else "a GPU",
        "clock": "the host's clock (CPU)" if peak is None else "CUDA events",
        "ms": {
            name: {"ms": times * of, "p10": times * of, "p90": times * of, "samples": 9}
            for name, of in ms.items()
        },
        "share": {name: of / ms["step"] for name, of in ms.items()},
        "windows_per_s": 1e6 / (times * ms["step"]),
        "steps": 9,
        "left_out": {"warm-up": 5},
        "epoch_steps": 7,
        "epoch_s": None,
        "peak_memory": peak,
    }


def kernel(
    name: str, ms: dict[str, float], losses: list[float], gib: float | None = None
) -> dict[str, Any]:
    """A kernel of three rounds; the most memory is that of the second."""
    peaks = [None] * 3 if gib is None else [2**29, int(gib * 2**30), 2**28]
    summaries = [summary(ms, *each) for each in zip(ROUNDS, peaks, strict=True)]
    return {"name": name, "tf32": False, "summaries": summaries, "losses": losses, "repeat": 0.0}


def on_a_cpu() -> dict[str, Any]:
    """naive, the baseline, shared and pytorch."""
    return {
        "device": {"name": "Some CPU"},
        "versions": {"python": "3.11.7", "torch": "2.14.1", "cuda": None, "nvcc": None},
        "commit": "0123456789",
        "date": "2026-11-29",
        "settings": {"seed_everything": 1},
        "command": "python train.py compare",
        "shape": {"batch": 1000, "channels": 500, "length": 10, "taps": 10},
        "blocks": 3,
        "dtype": "float32",
        "steps": 3,
        "rounds": 3,
        "kernels": [
            kernel("naive", NAIVE, [1.0, 0.5, 0.25]),
            kernel("shared", SHARED, [0.9, 0.5, 0.2]),
            kernel("pytorch", PYTORCH, [1.0, 0.5, 0.2]),
        ],
        "operator": None,
        "fma": None,
    }


def on_a_gpu() -> dict[str, Any]:
    """Likewise, with what the operator does on its own; shared's forward path is as pytorch's."""
    record = on_a_cpu()
    for each in record["kernels"]:
        each["summaries"] = kernel("", _ms(each), [], 1.5)["summaries"]
    record["device"] = {
        "name": "Some GPU",
        "capability": "9.0",
        "multiprocessors": 132,
        "memory_bytes": 2**37,
        "l2_bytes": 2**25,
        "driver": "1.2",
    }
    record["versions"] |= {"cuda": "13.0", "nvcc": "13.0"}
    rates = [("copy", 25.0), ("copy", 40.0), ("read", 30.0), ("read", 20.0), ("add", 50.0)]
    record["operator"] = {
        "shape": record["shape"],
        "dtype": "float32",
        "seed": 1,
        "rounds": 50,
        "ceilings": [
            {"name": kind, "kind": kind, "tensors": 2, "gb_s": rate, **_spread(1.0)}
            for kind, rate in rates
        ],
        "rows": [
            _row("pytorch", "pytorch", 4.0, 4.0, 4.0),
            _row("naive", "kernel", 5.0, 6.0, 40.0),
            _row("shared", "kernel", 4.0, 1.9, 0.3),
        ],
    }
    record["fma"] = {**_spread(1.0), "gflop_s": 60_000.0}
    return record


def _ms(of: dict[str, Any]) -> dict[str, float]:
    return {name: each["ms"] for name, each in of["summaries"][2]["ms"].items()}


def _row(name: str, kind: str, *ms: float) -> dict[str, Any]:
    times = dict(zip(("forward", "input_grad", "weight_grad"), ms, strict=True))
    times["both"] = times["input_grad"] + times["weight_grad"]
    paths = {
        path: {**_spread(of), "gb_s": 1.0, "of_ceiling": 0.5, "suspicious": False, "errors": {}}
        for path, of in times.items()
    }
    total = times["forward"] + times["both"]
    return {"name": name, "kind": kind, "total_ms": total, "paths": paths}


def _spread(ms: float) -> dict[str, Any]:
    return {"ms": ms, "p10": ms, "p90": ms, "samples": 50}


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    """The record, had these kernels not taken part."""
    record["kernels"] = [each for each in record["kernels"] if each["name"] not in names]
    if record["operator"]:
        rows = record["operator"]["rows"]
        record["operator"]["rows"] = [row for row in rows if row["name"] not in names]
    return record


def hidden(record: dict[str, Any], *names: str, rounds: int = 3) -> dict[str, Any]:
    """The record, had these kernels' paths not been told apart in so many of the last rounds."""
    for each in record["kernels"]:
        if each["name"] in names:
            for of in each["summaries"][-rounds:]:
                of["ms"] = {
                    name: ms
                    for name, ms in of["ms"].items()
                    if name in ("data", "optimizer", "rest", "step")
                }
    return record
