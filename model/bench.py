"""The published network's training step by kernel: `python -m model.bench`.

Forward, RMSLE, backward and a step of SGD on random windows, in a bare loop and in float32; the
kernels take turns, so that a drift of the clocks hits all alike. On a GPU.
"""

import argparse
import sys
from collections.abc import Callable

import torch

from cuda_ops import KERNELS, KernelUnavailableError, prepare_kernel
from cuda_ops.timing import spread, tell, timed
from model.losses import rmsle
from model.s4convd import S4ConvD

WINDOW, FEATURES = 48, 4  # of the study
WARM_UP, ROUNDS = 2, 10


def training_step(kernel: str, batch: int, device: torch.device) -> Callable[[], None]:
    """One step of the study's training, as a function to call; the same weights and data always."""
    torch.manual_seed(0)
    network = S4ConvD(FEATURES, init="published", kernel=kernel).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-5, momentum=0.9)
    x = torch.randn(batch, WINDOW, FEATURES, device=device)
    target = torch.rand(batch, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        rmsle(network(x), target).backward()
        optimizer.step()

    return step


def main() -> None:
    """Print a table of step times; a user's mistake ends in one message and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m model.bench", description=__doc__)
    parser.add_argument("--batch", type=int, default=16384, help="windows a step")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="names, with commas")
    options = parser.parse_args()
    kernels = options.kernels.split(",")
    try:
        if not torch.cuda.is_available():
            raise KernelUnavailableError("this needs an NVIDIA GPU, and PyTorch sees none")
        device = torch.device("cuda", torch.cuda.current_device())
        for kernel in kernels:
            tell(f"preparing {prepare_kernel(kernel, device)}")
    except KernelUnavailableError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)

    steps = {kernel: training_step(kernel, options.batch, device) for kernel in kernels}
    times: dict[str, list[float]] = {kernel: [] for kernel in kernels}
    peak: dict[str, int] = {}
    for round_ in range(WARM_UP + ROUNDS):
        for kernel, step in steps.items():
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
            ms, _ = timed(step)
            peak[kernel] = torch.cuda.max_memory_allocated(device) - held
            if round_ >= WARM_UP:
                times[kernel].append(ms)

    name = torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}, {options.batch:,} windows")
    over = f"over {kernels[-1]}"
    print(f"{'kernel':<12}{'ms a step':>10}{'p10':>8}{'p90':>8}{over:>18}{'GiB':>7}")
    last = spread(times[kernels[-1]]).ms
    for kernel in kernels:
        of = spread(times[kernel])
        print(
            f"{kernel:<12}{of.ms:>10.1f}{of.p10:>8.1f}{of.p90:>8.1f}{of.ms / last:>17.2f}x"
            f"{peak[kernel] / 2**30:>7.1f}"
        )


if __name__ == "__main__":
    main()
