"""What the bench measures: the paths of each CUDA kernel and PyTorch formulation, as calls."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cuda_ops.launch import Kernels, kernels
from cuda_ops.reference import Formulation, fft_conv, grouped_conv, pytorch_conv, toeplitz_conv

PATHS = {
    "forward": ("y",),
    "input_grad": ("gx",),
    "weight_grad": ("gk",),
    "both": ("gx", "gk"),
}
"""Path -> the tensors that its call returns, in this order."""

FORMULATIONS = {"Toeplitz": toeplitz_conv, "FFT": fft_conv, "grouped conv1d": grouped_conv}

Call = Callable[[], Any]


@dataclass(frozen=True)
class Size:
    """B, H, L and K."""

    batch: int
    channels: int
    length: int
    taps: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.channels}x{self.length}x{self.taps}"


STUDY = Size(batch=16384, channels=128, length=48, taps=48)
"""That of arXiv 2604.25422."""


@dataclass(frozen=True)
class Inputs:
    """x and gy (B, H, L), k (H, K); `pair` is the one piece of memory that holds x and gy."""

    x: torch.Tensor
    gy: torch.Tensor
    k: torch.Tensor
    pair: torch.Tensor  # (2, at least B H L)


def draw(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Random inputs of mean 0 and variance 1, on the generator's device."""
    count = size.batch * size.channels * size.length
    aligned = -(-count // 64) * 64  # gy, too, starts where a kernel can read 16 bytes at once
    random = partial(torch.randn, dtype=dtype, device=generator.device, generator=generator)
    pair = random(2, aligned)
    x, gy = (half[:count].view(size.batch, size.channels, size.length) for half in pair)
    return Inputs(x, gy, random(size.channels, size.taps), pair)


@dataclass(frozen=True)
class Contender:
    """An implementation of the operator.

    Args:
        kind: "kernel", or "pytorch" for what PyTorch's own functions compute.
        prepare: returns the call of a path on these inputs, which returns a tuple of tensors.
        tf32: whether its matrix products may round their float32 inputs to TF32.
    """

    name: str
    kind: str
    prepare: Callable[[str, Inputs], Call]
    tf32: bool = False


BACKEND = Contender("pytorch", "pytorch", lambda path, inputs: call_of(pytorch_conv, path, inputs))
"""The formulation that `depthwise_conv` takes where no kernel is asked for."""


def contenders(
    variants: Sequence[str], formulations: bool, dtype: torch.dtype, device: torch.device
) -> list[Contender]:
    """The kernels, compiled if need be, and PyTorch's formulations.

    Raises:
        KernelUnavailableError: a kernel cannot run on this device.
    """
    found = [kernel_contender(name, kernels(name, device)) for name in variants]
    if formulations:
        for name, formulation in FORMULATIONS.items():
            prepare = partial(call_of, formulation)
            found.append(Contender(name, "pytorch", prepare))
            # TF32 came with compute capability 8.0
            tf32 = dtype == torch.float32 and torch.cuda.get_device_capability(device) >= (8, 0)
            if tf32 and formulation is toeplitz_conv:
                found.append(Contender(f"{name} TF32", "pytorch", prepare, tf32=True))
    return found


def kernel_contender(name: str, kernels: Kernels) -> Contender:
    """The three paths of a variant; both gradients are two of them, one after the other."""

    def prepare(path: str, inputs: Inputs) -> Call:
        x, gy, k, taps = inputs.x, inputs.gy, inputs.k, inputs.k.shape[1]
        calls: dict[str, Call] = {
            "forward": lambda: (kernels.forward(x, k),),
            "input_grad": lambda: (kernels.input_grad(gy, k),),
            "weight_grad": lambda: (kernels.weight_grad(gy, x, taps),),
            "both": lambda: (kernels.input_grad(gy, k), kernels.weight_grad(gy, x, taps)),
        }
        return calls[path]

    return Contender(name, "kernel", prepare)


def call_of(formulation: Formulation, path: str, inputs: Inputs) -> Call:
    """The call of a path; the graph that a gradient needs is built here, ahead of it."""
    x, k = inputs.x.detach(), inputs.k.detach()
    if path == "forward":
        return lambda: (formulation(x, k),)
    x.requires_grad_("gx" in PATHS[path])
    k.requires_grad_("gk" in PATHS[path])
    y = formulation(x, k)
    wanted = [tensor for tensor in (x, k) if tensor.requires_grad]
    return lambda: torch.autograd.grad(y, wanted, inputs.gy)


@contextmanager
def matrix_products(tf32: bool) -> Iterator[None]:
    """Inside, PyTorch's matrix products round float32 to TF32, or do not; convolutions never."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = tf32, False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
