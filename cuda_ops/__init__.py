"""The operator of S4ConvD: a causal depthwise convolution with a filter as long as the window.

    y[b, h, t] = sum_{j=0..min(t, K-1)} k[h, j] x[b, h, t-j]

This package knows torch and nothing else of the project.
"""

import torch

from cuda_ops.reference import pytorch_conv

KERNELS = {"pytorch": pytorch_conv}
"""Name of a kernel -> the function that runs it."""

STUDY_KERNELS = ("naive", "coalesced", "shared", "warp_tiled")
"""The CUDA kernels of arXiv 2604.25422, named so that asking for one gets an answer."""


class KernelUnavailableError(ValueError):
    """The kernel asked for cannot run here; the message says what is missing and what works."""


def require_kernel(name: str) -> str:
    """Return `name` if that kernel can run on this machine, else raise `KernelUnavailableError`."""
    if name in KERNELS:
        return name
    works = ", ".join(KERNELS)
    if name not in STUDY_KERNELS:
        raise KernelUnavailableError(f"there is no kernel '{name}'; choose from: {works}")
    if not torch.cuda.is_available():
        raise KernelUnavailableError(
            f"kernel '{name}' runs on an NVIDIA GPU, and PyTorch {torch.__version__} sees none "
            f"here; these work: {works}"
        )
    raise KernelUnavailableError(
        f"kernel '{name}' is not part of this version yet; these work: {works}"
    )


def depthwise_conv(x: torch.Tensor, k: torch.Tensor, kernel: str = "pytorch") -> torch.Tensor:
    """Causal depthwise convolution of each channel with its own filter.

    Args:
        x: input, (B, H, L), any strides.
        k: filter, (H, K), for any K >= 1; taps past L have nothing to meet.
        kernel: a name from `KERNELS`.

    Returns:
        y: (B, H, L), of the type that x and k promote to.

    Raises:
        KernelUnavailableError: `kernel` is unknown or cannot run here.
        TypeError: x or k is not a real floating-point tensor.
        ValueError: the shapes do not fit together.
    """
    if not (x.is_floating_point() and k.is_floating_point()):
        raise TypeError(f"x and k must be real floating-point tensors, not {x.dtype} and {k.dtype}")
    if x.dim() != 3 or k.dim() != 2 or x.shape[1] != k.shape[0] or k.shape[1] < 1:
        raise ValueError(
            f"x must be (B, H, L) and k (H, K) with one H, not {tuple(x.shape)}, {tuple(k.shape)}"
        )
    return KERNELS[require_kernel(kernel)](x, k)
