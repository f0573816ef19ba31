"""The network's training step by kernel: `python -m model.bench`.

Forward, RMSLE, backward and a step of SGD on random windows, in a bare loop; the contenders take
turns, so that a drift of the clocks hits all alike. Beside the kernels stands the network in the
form it was published in, which is the same function. On a GPU.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from cuda_ops import BLOCK_KERNELS, KernelUnavailableError, prepare_kernel
from cuda_ops.reference import fft_conv
from cuda_ops.timing import spread, tell, timed
from model.losses import rmsle
from model.s4convd import S4ConvD

WINDOW, FEATURES = 48, 4  # of the study
WARM_UP, ROUNDS = 2, 10
ROWS, IN_A_ROW = 3, 5  # of the last rounds, steps one after another
PUBLISHED = "published"
CONTENDERS = (PUBLISHED, *BLOCK_KERNELS)


class Published(S4ConvD):
    """The network as its authors wrote it (arXiv 2502.21035), pass by pass.

    The convolution by FFT, each block's filter for itself, the skip and the residual as they stand
    in the formula, the mixing as a convolution of size 1 between two transpositions, and all steps
    of the last block.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, F) -> (B,)."""
        u = self.encoder(x)  # (B, L, H)
        blocks: Any = self.blocks
        for block in blocks:
            mixing = block.output_linear[0]
            v = u.transpose(1, 2)
            y = fft_conv(v, block.kernel_layer(x.shape[1])) + block.D.unsqueeze(-1) * v
            y = F.gelu(block.dropout(y))
            y = F.glu(F.conv1d(y, mixing.weight.unsqueeze(-1), mixing.bias), dim=1)
            u = y.transpose(1, 2) + u
        return self.decoder(u[:, -1]).squeeze(-1)


@dataclass(frozen=True)
class Contender:
    """A kernel's name, or `PUBLISHED`, and the precision of float32 products."""

    name: str
    precision: str  # of torch.set_float32_matmul_precision

    @property
    def label(self) -> str:
        """As the table shows it."""
        return f"{self.name}, TF32" if self.precision == "high" else self.name


def training_step(of: Contender, batch: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """One step of the study's training, as a function to call, which returns the loss.

    The same weights and data always.
    """
    torch.manual_seed(0)
    if of.name == PUBLISHED:
        network: S4ConvD = Published(FEATURES, init="published")
    else:
        network = S4ConvD(FEATURES, init="published", kernel=of.name)
    network = network.to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-5, momentum=0.9)
    x = torch.randn(batch, WINDOW, FEATURES, device=device)
    target = torch.rand(batch, device=device)

    def step() -> torch.Tensor:
        torch.set_float32_matmul_precision(of.precision)
        optimizer.zero_grad(set_to_none=True)
        loss = rmsle(network(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def contenders(names: list[str]) -> list[Contender]:
    """Each name in full float32 and, where that makes a difference worth seeing, in TF32."""
    ladder = ("naive", "coalesced", "shared")
    precisions = {"fused": ["high"], **{name: ["highest"] for name in ladder}}
    return [Contender(name, p) for name in names for p in precisions.get(name, ["highest", "high"])]


def several(step: Callable[[], torch.Tensor]) -> None:
    """Steps one after another, as in a training: the host runs ahead of the GPU."""
    for _ in range(IN_A_ROW):
        step()


def main() -> None:
    """Print a table of step times; a user's mistake ends in one message and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m model.bench", description=__doc__)
    parser.add_argument("--batch", type=int, default=16384, help="windows a step")
    parser.add_argument("--kernels", default=",".join(CONTENDERS), help="names, with commas")
    options = parser.parse_args()
    names = options.kernels.split(",")
    try:
        if not torch.cuda.is_available():
            raise KernelUnavailableError("this needs an NVIDIA GPU, and PyTorch sees none")
        device = torch.device("cuda", torch.cuda.current_device())
        for name in names:
            if name != PUBLISHED:
                tell(f"preparing {prepare_kernel(name, device)}")
    except KernelUnavailableError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)

    of_all = contenders(names)
    steps = [training_step(of, options.batch, device) for of in of_all]
    times: list[list[float]] = [[] for _ in of_all]
    in_a_row: list[list[float]] = [[] for _ in of_all]
    peak = [0] * len(of_all)
    for round_ in range(WARM_UP + ROUNDS):
        for n, step in enumerate(steps):
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
            ms, _ = timed(step)
            peak[n] = torch.cuda.max_memory_allocated(device) - held
            if round_ >= WARM_UP:
                times[n].append(ms)
            if round_ >= WARM_UP + ROUNDS - ROWS:
                in_a_row[n].append(timed(partial(several, step))[0] / IN_A_ROW)

    name = torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}, {options.batch:,} windows")
    over = f"over {of_all[-1].name}"
    print(
        f"{'kernel':<18}{'ms a step':>10}{'p10':>8}{'p90':>8}{'in a row':>10}{over:>15}{'GiB':>7}"
    )
    last = spread(in_a_row[-1]).ms
    for n, of in enumerate(of_all):
        found, row = spread(times[n]), spread(in_a_row[n]).ms
        print(
            f"{of.label:<18}{found.ms:>10.2f}{found.p10:>8.2f}{found.p90:>8.2f}{row:>10.2f}"
            f"{row / last:>14.2f}x{peak[n] / 2**30:>7.2f}"
        )


if __name__ == "__main__":
    main()
