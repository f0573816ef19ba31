"""What a comparison measures beside the training: the operator on its own."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from cuda_ops import KERNELS
from cuda_ops.ceilings import multiply_adds
from cuda_ops.contenders import BACKEND, Size, contenders
from cuda_ops.measure import measure
from cuda_ops.timing import eviction_buffer, tell
from cuda_ops.verify import WrongResultError
from model.training.errors import UsageError

ROUNDS = 50  # as in the bench
TYPES = {
    "32-true": "float32",
    "64-true": "float64",
    "bf16-mixed": "bfloat16",
    "bf16-true": "bfloat16",
    "16-mixed": "float16",
    "16-true": "float16",
}
"""Lightning's precision -> the type of the operator's tensors."""


def operator_type(precision: str) -> str:
    """The type that the operator works in.

    Raises:
        UsageError: it is not known.
    """
    if precision not in TYPES:
        raise UsageError(f"--trainer.precision: compare takes {', '.join(TYPES)}, not {precision}")
    return TYPES[precision]


def operator_alone(
    names: Sequence[str], size: Size, dtype: str, device: torch.device
) -> dict[str, Any]:
    """`operator` and `fma` of the record, of those that are a convolution alone.

    Both are None on a CPU, where the memory is too small, and where there is no such kernel.

    Raises:
        UsageError: a kernel computes something else than the operator.
    """
    nothing = {"operator": None, "fma": None}
    if device.type != "cuda" or not set(KERNELS) & set(names):
        return nothing
    scalar = getattr(torch, dtype)
    kernels = [name for name in names if name in KERNELS and name != BACKEND.name]
    try:
        with torch.cuda.device(device):
            found = [BACKEND] if BACKEND.name in names else []
            found += contenders(kernels, False, scalar, device)
            l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
            evict = eviction_buffer(device, l2_bytes)
            fma = multiply_adds(device, ROUNDS)
            operator = measure(size, scalar, found, ROUNDS, evict)
    except torch.OutOfMemoryError:
        tell("the GPU's memory is too small to measure the operator on its own, beside its check")
        return nothing
    except WrongResultError as error:
        raise UsageError(f"a kernel computes something else than the operator\n{error}") from error
    return {"operator": asdict(operator), "fma": asdict(fma)}
