"""The compiled kernels of a whole block, `cuda_ops.jit.BLOCK`, as functions of tensors.

All tensors are dense float32 on one Hopper GPU. Whatever else a kernel needs is allocated here, by
PyTorch's allocator and on PyTorch's current stream.
"""

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from cuda_ops.dropout import dropout_mask
from cuda_ops.errors import KernelUnavailableError, unavailable
from cuda_ops.jit import BLOCK, load
from cuda_ops.launch import Shape
from cuda_ops.reference import filters_by_formula, forward_by_definition, with_skip

CHANNELS = (64, 128)  # H that they are written for
MOST_STEPS = 64  # L

_POINTER, _INT, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_WHERE = (_INT, _POINTER)  # device, stream
_ROWS = (_INT64, _INT)  # M, H
_DROPOUT = (_POINTER, _FLOAT)  # seed, p
_FUNCTIONS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("channels_last", "forward"): (*[_POINTER] * 3, Shape, *_WHERE),
    ("channels_last", "gradients"): (*[_POINTER] * 7, Shape, *_WHERE),
    ("channels_last", "last_forward"): (*[_POINTER] * 3, Shape, *_WHERE),
    ("channels_last", "last_gradients"): (*[_POINTER] * 7, Shape, *_WHERE),
    ("mixing", "images"): (*[_POINTER] * 4, _INT, *_WHERE),
    ("mixing", "forward"): (*[_POINTER] * 5, *_ROWS, *_DROPOUT, *_WHERE),
    ("mixing", "input_grad"): (*[_POINTER] * 6, *_ROWS, *_DROPOUT, *_WHERE),
    ("mixing", "weight_grad"): (*[_POINTER] * 7, *_ROWS, *_DROPOUT, *_WHERE),
    ("filters", "filters"): (*[_POINTER] * 7, *[_INT] * 3, *_WHERE),
    ("filters", "filter_gradients"): (*[_POINTER] * 13, *[_INT] * 3, *_WHERE),
}


class BlockKernels:
    """The libraries, loaded for one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        libraries = {name: load(name, torch.cuda.get_device_capability(device)) for name in BLOCK}
        self._functions = {}
        for (library, name), types in _FUNCTIONS.items():
            function = getattr(libraries[library], f"{name}_float32")
            function.argtypes = types
            self._functions[library, name] = function
        self._counts = {}
        for library, types in (("channels_last", (Shape,)), ("mixing", _ROWS)):
            count = libraries[library].partials_float32
            count.argtypes, count.restype = types, _INT64
            self._counts[library] = count
        self._error_string = libraries["mixing"].error_string_float32
        self._error_string.restype = ctypes.c_char_p

    def conv(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """y (B, L, H) from x (B, L, H) and k (H, K)."""
        y = torch.empty_like(x)
        self._launch("channels_last", "forward", y, x, k, _shape(x, k.shape[1]))
        return y

    def conv_gradients(
        self, gy: torch.Tensor, x: torch.Tensor, k: torch.Tensor, added: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of x, to which `added` (B, L, H) is added, and of k, from that of y."""
        gx, gk = torch.empty_like(x), torch.empty_like(k)
        shape = _shape(x, k.shape[1])
        partials = self._partials("channels_last", shape)
        tensors = (gx, gk, partials, gy, x, k, added)
        self._launch("channels_last", "gradients", *tensors, shape)
        return gx, gk

    def last_step(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """The last step of y, (B, H)."""
        y = x.new_empty(x.shape[0], x.shape[2])
        self._launch("channels_last", "last_forward", y, x, k, _shape(x, k.shape[1]))
        return y

    def last_step_gradients(
        self, gy: torch.Tensor, x: torch.Tensor, k: torch.Tensor, added: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `conv_gradients`, from gy (B, H) and with `added` (B, H) on the last step."""
        gx, gk = torch.empty_like(x), torch.empty_like(k)
        shape = _shape(x, k.shape[1])
        partials = self._partials("channels_last", shape)
        tensors = (gx, gk, partials, gy, x, k, added)
        self._launch("channels_last", "last_gradients", *tensors, shape)
        return gx, gk

    def images(self, w: torch.Tensor) -> torch.Tensor:
        """(3, 2H, H): w (2H, H) as the products want it, see csrc/mixing.cu."""
        images = w.new_empty(3, *w.shape)
        self._launch("mixing", "images", *images, w, w.shape[1])
        return images

    def mix(
        self,
        x: torch.Tensor,
        z: torch.Tensor,
        images: torch.Tensor,
        b: torch.Tensor,
        p: float,
        seed: torch.Tensor | None,
    ) -> torch.Tensor:
        """x + GLU(W GELU(dropout(z)) + b), on (..., H)."""
        out = torch.empty_like(z)
        self._launch("mixing", "forward", out, x, z, images[0], b, *_rows(z), seed, p)
        return out

    def mix_gradients(
        self,
        dout: torch.Tensor,
        z: torch.Tensor,
        images: torch.Tensor,
        b: torch.Tensor,
        p: float,
        seed: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of z, W (2H, H) and b from that of the result; that of x is dout."""
        dz, dw, db = torch.empty_like(z), torch.empty_like(images[0]), torch.empty_like(b)
        rows = _rows(z)
        given = (*rows, seed, p)
        self._launch("mixing", "input_grad", dz, dout, z, images[0], images[1], b, *given)
        partials = self._partials("mixing", *rows)
        self._launch("mixing", "weight_grad", dw, db, partials, dout, z, images[2], b, *given)
        return dz, dw, db

    def filters(self, parameters: list[torch.Tensor], length: int) -> torch.Tensor:
        """(..., length) from the six parameters of `cuda_ops.filters.fused_filters`."""
        k = parameters[0].new_empty(*parameters[0].shape, length)
        sizes = (parameters[0].numel(), parameters[1].shape[-1], length)
        self._launch("filters", "filters", k, *parameters, *sizes)
        return k

    def filter_gradients(
        self, gk: torch.Tensor, parameters: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of the six parameters from that of k (..., length)."""
        found = tuple(torch.empty_like(parameter) for parameter in parameters)
        sizes = (parameters[0].numel(), parameters[1].shape[-1], gk.shape[-1])
        self._launch("filters", "filter_gradients", *found, gk, *parameters, *sizes)
        return found

    def _partials(self, library: str, *arguments: Any) -> torch.Tensor:
        return torch.empty(self._counts[library](*arguments), device=self._device)

    def _launch(self, library: str, name: str, *arguments: Any) -> None:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        code = self._functions[library, name](
            *(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments),
            self._device.index,
            stream,
        )
        if code:
            message = self._error_string(code).decode()
            raise RuntimeError(f"kernel 'fused', {library}, {name}: {message}")


def _shape(x: torch.Tensor, taps: int) -> Shape:
    batch, length, channels = x.shape
    return Shape(batch, channels, length, taps)


def _rows(z: torch.Tensor) -> tuple[int, int]:
    return z.numel() // z.shape[-1], z.shape[-1]


@cache
def block_kernels(device: torch.device) -> BlockKernels:
    """The kernels for `device`, compiled if need be.

    Raises:
        KernelUnavailableError: they cannot be compiled here, or do not run on this device.
    """
    if torch.cuda.is_current_stream_capturing():
        raise KernelUnavailableError(
            "kernel 'fused' is used for the first time while a CUDA graph is captured; run it once "
            "before, or call cuda_ops.prepare_kernel"
        )
    loaded = BlockKernels(device)
    # In a thread of its own: within an operator, where the first use may be, autograd is off.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_self_test, loaded, device).result()
    return loaded


# Far above rounding to TF32 or float32, far below what a wrong index leaves. It has been seen: nvcc
# 13.0 once overwrote an address in a register, in the weight gradient of the mixing with dropout.
_TF32, _FLOAT32 = 3e-3, 1e-5


def _self_test(kernels: BlockKernels, device: torch.device) -> None:
    """Hold all kernels against float64, as each number of channels compiles them."""
    for channels in CHANNELS:
        for dropout in (0.0, 0.25):
            for name, limit, found, truth in _trials(kernels, device, channels, dropout):
                truth = truth.detach()
                error = (found.double() - truth).norm() / truth.norm()
                if not error <= limit:
                    where = torch.cuda.get_device_name(device)
                    raise unavailable(
                        f"kernel 'fused' fails its self-test on {where}: {name}, {channels} "
                        f"channels, is off by {float(error):.1e} of its norm. Another version of "
                        "the CUDA toolkit may compile it right"
                    )


def _trials(
    kernels: BlockKernels, device: torch.device, channels: int, p: float
) -> Iterator[tuple[str, float, torch.Tensor, torch.Tensor]]:
    """Name, limit, result and truth of each kernel on small inputs."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    x, z, dout = draw(3, 7, 41, channels)
    k, w, b = draw(channels, 41), draw(2 * channels, channels), draw(2 * channels)
    w /= channels**0.5
    seed = torch.randint(2**62, (1,), generator=generator, device=device)
    images = kernels.images(w)
    x64, z64, k64, w64, b64 = (t.double().requires_grad_() for t in (x, z, k, w, b))

    kept = dropout_mask(tuple(z.shape), p, seed).double() if p else 1.0
    mixed = x64 + F.glu(F.linear(F.gelu(z64 * kept), w64, b64), -1)
    truths = torch.autograd.grad(mixed, (z64, w64, b64), dout.double())
    gradients = kernels.mix_gradients(dout, z, images, b, p, seed)
    yield "mixing", _TF32, kernels.mix(x, z, images, b, p, seed), mixed
    for name, found, truth in zip(("dz", "dW", "db"), gradients, truths, strict=True):
        yield f"mixing, {name}", _TF32, found, truth

    y = forward_by_definition(x64.transpose(1, 2), k64).transpose(1, 2)
    dx, dk = torch.autograd.grad(y, (x64, k64), dout.double(), retain_graph=True)
    found_x, found_k = kernels.conv_gradients(dout, x, k, None)
    yield "convolution", _FLOAT32, kernels.conv(x, k), y
    yield "convolution, dx", _FLOAT32, found_x, dx
    yield "convolution, dk", _FLOAT32, found_k, dk
    yield "convolution, dx added", _FLOAT32, kernels.conv_gradients(dout, x, k, z)[0], dx + z
    of_last = (dout[:, -1].contiguous(), z[:, -1].contiguous())
    ends = (y[:, -1], x64[:, -1])
    dx, dk = torch.autograd.grad(ends, (x64, k64), [gradient.double() for gradient in of_last])
    found_x, found_k = kernels.last_step_gradients(of_last[0], x, k, of_last[1])
    yield "last step", _FLOAT32, kernels.last_step(x, k), y[:, -1]
    yield "last step, dx", _FLOAT32, found_x, dx
    yield "last step, dk", _FLOAT32, found_k, dk

    parameters = [draw(3), *[draw(3, 37) for _ in range(4)], draw(3)]
    wide = [parameter.double().requires_grad_() for parameter in parameters]
    truth = with_skip(filters_by_formula(*wide[:5], length=70), wide[5])
    gk = draw(3, 70)
    truths = torch.autograd.grad(truth, wide, gk.double())
    yield "filters", _FLOAT32, kernels.filters(parameters, 70), truth
    for name, found, truth in zip(
        ("log_dt", "log_A_re", "A_im", "C_re", "C_im", "skip"),
        kernels.filter_gradients(gk, parameters),
        truths,
        strict=True,
    ):
        yield f"filters, gradient of {name}", _FLOAT32, found, truth
