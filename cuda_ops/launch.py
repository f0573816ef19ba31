"""The compiled kernels as functions of tensors.

A kernel takes dense tensors that start on 16 bytes, and writes a new one; whatever else it needs is
allocated here, by PyTorch's allocator and on PyTorch's current stream.
"""

import ctypes
from functools import cache
from typing import Any

import torch

from cuda_ops.errors import KernelUnavailableError, unavailable
from cuda_ops.jit import SCALARS as NAMES
from cuda_ops.jit import load
from cuda_ops.reference import (
    forward_by_definition,
    input_grad_by_definition,
    weight_grad_by_definition,
)

SCALARS = {getattr(torch, name): name for name in NAMES}
"""Type of a tensor -> the ending of the symbols that were compiled for it."""

ALIGNMENT = 16  # bytes that one thread moves at once


class Shape(ctypes.Structure):
    """`Shape` of csrc/common.cuh."""

    _fields_ = (
        ("B", ctypes.c_int64),
        ("H", ctypes.c_int),
        ("L", ctypes.c_int),
        ("K", ctypes.c_int),
    )


class Kernels:
    """One variant, loaded: the three paths, each from dense tensors to a new one.

    Args:
        variant: its name.
        library: what `cuda_ops.jit.load` returned.
    """

    def __init__(self, variant: str, library: ctypes.CDLL) -> None:
        self.variant = variant
        self._functions = {
            (path, dtype): self._declare(library, path, name)
            for path in ("forward", "input_grad", "weight_grad", "weight_grad_partials")
            for dtype, name in SCALARS.items()
        }
        self._error_string = library.error_string_float32
        self._error_string.restype = ctypes.c_char_p

    @staticmethod
    def _declare(library: ctypes.CDLL, path: str, scalar: str) -> Any:
        function = getattr(library, f"{path}_{scalar}")
        pointer, on_device = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)  # device, stream
        if path == "weight_grad_partials":
            function.argtypes, function.restype = (Shape,), ctypes.c_int64
        elif path == "weight_grad":
            function.argtypes = (*[pointer] * 4, Shape, ctypes.c_int64, *on_device)
        else:
            function.argtypes = (*[pointer] * 3, Shape, *on_device)
        return function

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """y (B, H, L) from x (B, H, L) and k (H, K)."""
        return self._rows("forward", x, k)

    def input_grad(self, gy: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """The gradient of x (B, H, L) from that of y (B, H, L) and k (H, K)."""
        return self._rows("input_grad", gy, k)

    def _rows(self, path: str, rows: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        if out.numel() == 0:
            return out
        rows, k = _dense(rows), _dense(k)
        pointers = (out.data_ptr(), rows.data_ptr(), k.data_ptr())
        self._launch(path, rows, *pointers, Shape(*rows.shape, k.shape[1]))
        return out

    def weight_grad(
        self, gy: torch.Tensor, x: torch.Tensor, taps: int, most_blocks: int = 0
    ) -> torch.Tensor:
        """The gradient of k (H, taps) from that of y and from x, both (B, H, L).

        `most_blocks` > 0 forces a smaller grid, which changes no bit of the result.
        """
        out = torch.empty(x.shape[1], taps, dtype=x.dtype, device=x.device)
        if x.numel() == 0:
            return out.zero_()
        gy, x = _dense(gy), _dense(x)
        shape = Shape(*x.shape, taps)
        count = self._functions["weight_grad_partials", x.dtype](shape)
        # Partial sums are float32 for the half-precision types, and float64 for float64.
        wide = torch.promote_types(x.dtype, torch.float32)
        partials = torch.empty(count, dtype=wide, device=x.device)
        pointers = (out.data_ptr(), gy.data_ptr(), x.data_ptr(), partials.data_ptr())
        self._launch("weight_grad", x, *pointers, shape, most_blocks)
        return out

    def _launch(self, path: str, tensor: torch.Tensor, *arguments: object) -> None:
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        code = self._functions[path, tensor.dtype](*arguments, tensor.device.index, stream)
        if code:
            message = self._error_string(code).decode()
            raise RuntimeError(f"kernel '{self.variant}', {path}: {message}")


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy of it that is contiguous and aligned."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


@cache
def kernels(variant: str, device: torch.device) -> Kernels:
    """The kernels of `variant` for `device`, compiled if need be and held against float64 once.

    Raises:
        KernelUnavailableError: they cannot be compiled here, do not run on this device, or compute
            something else than the definition.
    """
    if torch.cuda.is_current_stream_capturing():
        raise KernelUnavailableError(
            f"kernel '{variant}' is used for the first time while a CUDA graph is captured; run it "
            "once before, or call cuda_ops.prepare_kernel"
        )
    loaded = Kernels(variant, load(variant, torch.cuda.get_device_capability(device)))
    _self_test(loaded, device)
    return loaded


# Far above rounding, far below what a wrong index or a miscompiled loop leaves.
_SELF_TEST_LIMITS = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


def _self_test(kernels: Kernels, device: torch.device) -> None:
    """Hold the three paths against float64 on two tiny inputs.

    A compiler that is new to an architecture has been seen to produce code that runs and is wrong.
    """
    # On the CPU by name: the caller may have set another default device.
    options: Any = {
        "generator": torch.Generator("cpu").manual_seed(0),
        "dtype": torch.float64,
        "device": "cpu",
    }
    for b, h, length, taps in ((5, 3, 48, 48), (2, 33, 35, 19)):
        truth_x, truth_gy = torch.randn(2, b, h, length, **options)
        truth_k = torch.randn(h, taps, **options)
        for dtype, limit in _SELF_TEST_LIMITS.items():
            x, gy, k = (t.to(device, dtype) for t in (truth_x, truth_gy, truth_k))
            found = {
                "forward": kernels.forward(x, k),
                "input gradient": kernels.input_grad(gy, k),
                "weight gradient": kernels.weight_grad(gy, x, taps),
            }
            x, gy, k = (t.cpu().double() for t in (x, gy, k))
            truth = {
                "forward": forward_by_definition(x, k),
                "input gradient": input_grad_by_definition(gy, k),
                "weight gradient": weight_grad_by_definition(gy, x, taps),
            }
            for path, expected in truth.items():
                error = (found[path].cpu().double() - expected).norm() / expected.norm()
                if not error <= limit:
                    name = torch.cuda.get_device_name(device)
                    raise unavailable(
                        f"kernel '{kernels.variant}' fails its self-test on {name}: {path}, "
                        f"{dtype}, is off by {float(error):.1e} of its norm. Another version of "
                        "the CUDA toolkit may compile it right"
                    )
