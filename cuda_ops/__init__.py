"""The operator of S4ConvD: a causal depthwise convolution with a filter as long as the window.

    y[b, h, t] = sum_{j=0..min(t, K-1)} k[h, j] x[b, h, t-j]

This package knows torch and nothing else of the project.
"""

import torch

from cuda_ops.block import check_sizes, fused_block, fused_last_step
from cuda_ops.block_launch import block_kernels
from cuda_ops.errors import KernelUnavailableError, unavailable
from cuda_ops.filters import fused_filters
from cuda_ops.jit import BLOCK, VARIANTS, preflight
from cuda_ops.launch import kernels
from cuda_ops.op import check, conv_forward
from cuda_ops.recorder import recorded_whole
from cuda_ops.reference import last_step_conv, pytorch_conv

__all__ = [
    "BLOCK_KERNELS",
    "KERNELS",
    "KernelUnavailableError",
    "check_sizes",
    "depthwise_conv",
    "fused_block",
    "fused_filters",
    "fused_last_step",
    "prepare_kernel",
    "require_kernel",
]

KERNELS = ("pytorch", *VARIANTS)
"""What `depthwise_conv` can run: PyTorch's own functions, or a CUDA kernel of csrc/."""

BLOCK_KERNELS = (*KERNELS, "fused")
"""What a block of the network can run: one of these for its convolution, or `fused_block`."""


def require_kernel(name: str, device: torch.device | str | None = None) -> str:
    """Return `name` if that kernel can run here, and on `device` where one is given.

    Nothing is compiled.

    Raises:
        KernelUnavailableError: it cannot; the message says what is missing and what works.
    """
    if name not in BLOCK_KERNELS:
        raise KernelUnavailableError(
            f"there is no kernel '{name}'; choose from: {', '.join(BLOCK_KERNELS)}"
        )
    if name != "pytorch":
        for variant in BLOCK if name == "fused" else (name,):
            preflight(variant)
        if device is not None and torch.device(device).type != "cuda":
            raise unavailable(f"kernel '{name}' runs on an NVIDIA GPU, not on '{device}'")
    return name


def prepare_kernel(name: str, device: torch.device) -> str:
    """Compile and load a kernel ahead of its first use, and return a note of what will run.

    Raises:
        KernelUnavailableError: it cannot run on this device.
    """
    require_kernel(name, device)
    if name == "pytorch":
        return name
    if device.index is None:  # tensors name their device with its index
        device = torch.device("cuda", torch.cuda.current_device())
    if name == "fused":
        block_kernels(device)
    else:
        kernels(name, device)
    major, minor = torch.cuda.get_device_capability(device)
    return f"{name} (CUDA, sm_{major}{minor})"


def depthwise_conv(
    x: torch.Tensor, k: torch.Tensor, kernel: str = "pytorch", last_only: bool = False
) -> torch.Tensor:
    """Causal depthwise convolution of each channel with its own filter.

    Sums are in float32, in float64 for float64. Under autocast both tensors are cast to its type,
    as they are for a matrix product.

    Args:
        x: input, (B, H, L), any strides.
        k: filter, (H, K), for any K >= 1; taps past L have nothing to meet.
        kernel: a name from `KERNELS`. It runs, or the call raises: nothing is replaced.
        last_only: whether the last step of y is all that is wanted. On a CPU it is all that is
            computed.

    Returns:
        y: (B, H, L), or (B, H, 1), of the type that x and k promote to.

    Raises:
        KernelUnavailableError: `kernel` is unknown or cannot run here, or not on x's device.
        TypeError: x or k is not a real floating-point tensor.
        ValueError: the shapes or devices do not fit together.
    """
    x, k = _operands(x, k)
    if kernel == "pytorch":
        if last_only and not x.is_cuda:
            return recorded_whole(last_step_conv, x, k, counts=False)
        y = recorded_whole(pytorch_conv, x, k)
    else:
        if kernel not in KERNELS or not x.is_cuda:
            require_kernel(kernel, x.device)
            if kernel not in KERNELS:
                raise KernelUnavailableError(f"kernel '{kernel}' is for a whole block: fused_block")
        y = conv_forward(x, k, kernel)
    return y[..., -1:] if last_only else y


def _operands(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x and k in the type that is computed in, if they fit together."""
    if not (x.is_floating_point() and k.is_floating_point()):
        raise TypeError(f"x and k must be real floating-point tensors, not {x.dtype} and {k.dtype}")
    dtype = torch.promote_types(x.dtype, k.dtype)
    device = x.device.type
    autocast = not x.is_meta and torch.is_autocast_enabled(device)  # meta tensors know none
    if autocast and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    x, k = x.to(dtype), k.to(dtype)
    check(x, k)
    return x, k
