"""The network's training step by kernel: `python -m model.bench`.

Forward, RMSLE, backward and a step of SGD on random windows, in a bare loop; the contenders take
turns, so that a drift of the clocks hits all alike. Beside the kernels stands the network in the
form it was published in, which is the same function. On a GPU it is the study's network and batch,
on a CPU those of `python train.py`.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cuda_ops import BLOCK_KERNELS, KernelUnavailableError, prepare_kernel
from cuda_ops.environment import processor
from cuda_ops.timing import spread, tell, timed
from model.losses import rmsle
from model.precision import set_matmul_precision
from model.published import PublishedS4ConvD
from model.s4convd import S4ConvD

WINDOW, FEATURES = 48, 4  # of the study
STUDY: dict[str, Any] = {"init": "published"}
DEFAULT: dict[str, Any] = {"channels": 64, "blocks": 2, "dropout": 0.0, "norm": True}
WARM_UP, ROUNDS = 2, 10
ROWS, IN_A_ROW = 3, 5  # of the last rounds, steps one after another
PUBLISHED = "published"
CONTENDERS = (PUBLISHED, *BLOCK_KERNELS)


@dataclass(frozen=True)
class Contender:
    """What takes a training step.

    Attributes:
        name: a kernel's, or `PUBLISHED`.
        precision: of float32 products, see `model.precision`.
        graph: whether the whole step, the optimiser's too, is replayed from a CUDA graph.
    """

    name: str
    precision: str
    graph: bool = False

    @property
    def label(self) -> str:
        """As the table shows it."""
        tf32 = ", TF32" if self.precision == "high" else ""
        return f"{self.name}{tf32}{', graph' if self.graph else ''}"


def training_step(of: Contender, batch: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """One step of the study's training, as a function to call, which returns the loss.

    The same weights and data always.
    """
    torch.manual_seed(0)
    options = STUDY if device.type == "cuda" else DEFAULT
    if of.name == PUBLISHED:
        network: S4ConvD = PublishedS4ConvD(FEATURES, **options)
    else:
        network = S4ConvD(FEATURES, **options, kernel=of.name)
    network = network.to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-5, momentum=0.9, fused=True)
    x = torch.randn(batch, WINDOW, FEATURES, device=device)
    target = torch.rand(batch, 1, 1, device=device)

    def step() -> torch.Tensor:
        set_matmul_precision(of.precision)
        optimizer.zero_grad(set_to_none=True)
        loss = rmsle(network(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Replayed(step) if of.graph else step


class Replayed:
    """A step, captured in a CUDA graph."""

    def __init__(self, step: Callable[[], torch.Tensor]) -> None:
        self._step = step  # and with it the tensors that the graph is about
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            step()  # what is set up at a first use
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = step()

    def __call__(self) -> torch.Tensor:
        """Its loss."""
        self._graph.replay()
        return self._loss


def contenders(names: list[str], device: torch.device) -> list[Contender]:
    """Each name in full float32 and, where that makes a difference worth seeing, in TF32.

    What users train with is replayed from a graph, too.
    """
    if device.type == "cpu":
        return [Contender(name, "highest") for name in names]
    ladder = ("naive", "coalesced", "shared")
    precisions = {"fused": ["high"], **{name: ["highest"] for name in ladder}}
    found = [
        Contender(name, p) for name in names for p in precisions.get(name, ["highest", "high"])
    ]
    graphs = [Contender(name, "high", True) for name in names if name in ("warp_tiled", "fused")]
    return found + graphs


def several(step: Callable[[], torch.Tensor]) -> None:
    """Steps one after another, as in a training: the host runs ahead of the GPU."""
    for _ in range(IN_A_ROW):
        step()


def milliseconds(call: Callable[[], object], device: torch.device) -> float:
    """What `call` takes, by CUDA events or by the host's clock."""
    if device.type == "cuda":
        return timed(call)[0]
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


@dataclass
class Row:
    """What was measured of a contender: ms of single steps and of steps in a row, bytes at most."""

    single: list[float]
    in_a_row: list[float]
    peak: int = 0


def measure(of_all: list[Contender], batch: int, device: torch.device) -> list[Row]:
    """All contenders in turns."""
    steps = [training_step(of, batch, device) for of in of_all]
    rows = [Row([], []) for _ in of_all]
    on_gpu = device.type == "cuda"
    for round_ in range(WARM_UP + ROUNDS):
        for step, row in zip(steps, rows, strict=True):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(device)
                held = torch.cuda.memory_allocated(device)
            ms = milliseconds(step, device)
            if on_gpu:
                row.peak = torch.cuda.max_memory_allocated(device) - held
            if round_ >= WARM_UP:
                row.single.append(ms)
            if round_ >= WARM_UP + ROUNDS - ROWS:
                row.in_a_row.append(milliseconds(partial(several, step), device) / IN_A_ROW)
    return rows


def table(of_all: list[Contender], rows: list[Row]) -> str:
    """A line for each contender; speed-ups are those of the last over the others."""
    over = f"over {of_all[-1].name}"
    lines = [
        f"{'kernel':<24}{'ms a step':>10}{'p10':>8}{'p90':>8}{'in a row':>10}{over:>14}{'GiB':>6}"
    ]
    last = spread(rows[-1].in_a_row).ms
    for of, row in zip(of_all, rows, strict=True):
        single, in_a_row = spread(row.single), spread(row.in_a_row).ms
        memory = f"{row.peak / 2**30:.2f}" if row.peak else "-"
        lines.append(
            f"{of.label:<24}{single.ms:>10.2f}{single.p10:>8.2f}{single.p90:>8.2f}{in_a_row:>10.2f}"
            f"{in_a_row / last:>13.2f}x{memory:>6}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print a table of step times; a user's mistake ends in one message and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m model.bench", description=__doc__)
    parser.add_argument("--batch", type=int, help="windows a step (16384; on a CPU 256)")
    parser.add_argument("--kernels", help="names, with commas (all that can run)")
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], help="default: cuda, where there is one"
    )
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    kind = options.device or ("cuda" if cuda else "cpu")
    names = list(CONTENDERS) if kind == "cuda" else [PUBLISHED, "pytorch"]
    if options.kernels:
        names = options.kernels.split(",")
    try:
        if kind == "cuda" and not cuda:
            raise KernelUnavailableError("there is no NVIDIA GPU that PyTorch sees")
        device = torch.device(f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else "cpu")
        for name in names:
            if name != PUBLISHED:
                tell(f"preparing {prepare_kernel(name, device)}")
    except KernelUnavailableError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    batch = options.batch or (16384 if kind == "cuda" else 256)
    of_all = contenders(names, device)
    where = torch.cuda.get_device_name(device) if kind == "cuda" else processor()
    rows = measure(of_all, batch, device)
    print(f"{where}, torch {torch.__version__}, {batch:,} windows")
    print(table(of_all, rows))


if __name__ == "__main__":
    main()
