"""The study's tables (arXiv 2604.25422, on a Tesla P100), and a comparison's beside them.

Its Table II has milliseconds of the operator's paths and seconds of an epoch. Its Table III has
rates for which it counts about twice the compulsory bytes. They are halved here, and stand beside
those that follow from Table II and the compulsory bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuda_ops.ceilings import TENSORS
from cuda_ops.contenders import STUDY, Size
from cuda_ops.traffic import PATHS
from model.training import page
from model.training.compare.figures import KernelFigures
from model.training.compare.words import device_name, number, percent, shape_of, speed_up

NUMBER = "2604.25422"
PEAK_GB_S = 732.0  # of a Tesla P100's memory

TITLES = ("forward", "input gradient", "weight gradient", "all three")


@dataclass(frozen=True)
class StudyRow:
    """A kernel of the study: ms of each path of `PATHS` and of all, s of an epoch, and GB/s."""

    name: str
    ms: tuple[float, float, float]
    total_ms: float
    epoch_s: float
    table_iii_gb_s: float | None  # of the best that the study prints


ROWS = (
    StudyRow("naive", (29.97, 30.25, 73.26), 133.47, 44.82, None),
    StudyRow("coalesced", (28.23, 28.78, 49.64), 106.65, 40.31, 42.0),
    StudyRow("shared", (16.36, 16.03, 34.17), 66.57, 36.91, 75.0),
    StudyRow("warp_tiled", (10.46, 10.61, 19.91), 40.99, 34.74, 115.0),
)


def same_work(record: dict[str, Any]) -> bool:
    """Whether the operator's times are of the study's shape and type."""
    return shape_of(record) == STUDY and record["dtype"] == "float32"


def table_ii(record: dict[str, Any], found: Sequence[KernelFigures]) -> Iterator[list[str]]:
    """Rows: ms of each path and of all, the operator's speed-up, s of an epoch, its speed-up."""
    base = ROWS[0]
    yield ["The study, Tesla P100"]
    for row in ROWS:
        times = [f"{ms:.2f}" for ms in (*row.ms, row.total_ms)]
        faster = [speed_up(base.total_ms / row.total_ms), speed_up(base.epoch_s / row.epoch_s)]
        yield [row.name, *times, faster[0], f"{row.epoch_s:.2f}", faster[1]]
    yield [f"This comparison, {device_name(record)}"]
    alone = _alone(record)
    for of in found:
        cells = [page.NONE] * 5
        if of.name in alone:
            ours, first = alone[of.name], alone.get(found[0].name)
            cells = [number(ms) for ms in (*ours, sum(ours))]
            cells.append(speed_up(sum(first) / sum(ours)) if first else page.NONE)
        yield [of.name, *cells, number(of.epoch_s), speed_up(of.step_speedup)]


def table_iii(record: dict[str, Any]) -> Iterator[list[str]]:
    """Rows: effective GB/s of each path and of all, its share of the most, and Table III, halved.

    The most is the peak of the P100's memory in the study, and the ceilings of the same run here.
    """
    yield ["The study, Tesla P100: share of the 732 GB/s that its memory is made for"]
    for row in ROWS:
        tensor = _tensor(STUDY, torch.float32)
        rates = [*_rates(tensor, row.ms), _all_three(tensor) / row.total_ms / 1e6]
        printed = row.table_iii_gb_s
        halved = f"{printed:.0f} / 2 = {number(printed / 2)}" if printed else page.NONE
        share = percent(rates[-1] / PEAK_GB_S)
        yield [row.name, *(number(rate) for rate in rates), share, halved]
    if record["operator"] is None:
        return
    yield [
        f"This comparison, {device_name(record)}: share of what a copy, or a read for the weight "
        "gradient, reaches in the same run"
    ]
    tensor = _tensor(shape_of(record), getattr(torch, record["dtype"]))
    rows = {row["name"]: row["paths"] for row in record["operator"]["rows"]}
    for name in (kernel["name"] for kernel in record["kernels"] if kernel["name"] in rows):
        figures = [rows[name][path] for path in PATHS]
        times = [figure["ms"] for figure in figures]
        least = sum(figure["ms"] * figure["of_ceiling"] for figure in figures)
        rates = [*_rates(tensor, times), _all_three(tensor) / sum(times) / 1e6]
        share = percent(least / sum(times))
        yield [name, *(number(rate) for rate in rates), share, page.NONE]


def _alone(record: dict[str, Any]) -> dict[str, list[float]]:
    """Kernel -> ms of its paths, measured on their own."""
    run = record["operator"]
    rows = run["rows"] if run else []
    return {row["name"]: [row["paths"][path]["ms"] for path in PATHS] for row in rows}


def _tensor(size: Size, dtype: torch.dtype) -> int:
    """Bytes of x."""
    return size.batch * size.channels * size.length * dtype.itemsize


def _all_three(tensor: int) -> int:
    """Compulsory bytes of the three paths."""
    return sum(TENSORS[path] for path in PATHS) * tensor


def _rates(tensor: int, times: Sequence[float]) -> list[float]:
    """Effective GB/s of each path."""
    return [TENSORS[path] * tensor / ms / 1e6 for path, ms in zip(PATHS, times, strict=True)]
