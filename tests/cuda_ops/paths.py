"""Inputs of the convolution, its three paths on them, and the truth to hold those against."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from cuda_ops.op import conv_forward, conv_input_grad, conv_weight_grad
from cuda_ops.reference import (
    forward_by_definition,
    input_grad_by_definition,
    pytorch_conv,
    weight_grad_by_definition,
)

Shape = tuple[int, int, int, int]  # B, H, L, K
Paths = dict[str, torch.Tensor]  # "forward": y, "input_grad": gx, "weight_grad": gk

PADDING = 256  # numbers on either side of a guarded tensor; they keep it on 16 bytes


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def errors_of(found: Paths, truth: Paths) -> dict[str, float]:
    return {path: relative_error(found[path], truth[path]) for path in truth}


def random_inputs(
    shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and k."""
    b, h, length, taps = shape
    x = torch.randn(b, h, length, dtype=torch.float64, device=device).to(dtype)
    return x, torch.randn(h, taps, dtype=torch.float64, device=device).to(dtype)


def by_operator(x: torch.Tensor, k: torch.Tensor, gy: torch.Tensor, kernel: str) -> Paths:
    return {
        "forward": conv_forward(x, k, kernel),
        "input_grad": conv_input_grad(gy, k, kernel),
        "weight_grad": conv_weight_grad(gy, x, k.shape[1], kernel),
    }


def by_pytorch(x: torch.Tensor, k: torch.Tensor, gy: torch.Tensor) -> Paths:
    x, k = x.detach().requires_grad_(), k.detach().requires_grad_()
    y = pytorch_conv(x, k)
    gx, gk = torch.autograd.grad(y, (x, k), gy)
    return {"forward": y.detach(), "input_grad": gx, "weight_grad": gk}


def by_definition(x: torch.Tensor, k: torch.Tensor, gy: torch.Tensor) -> Paths:
    """In float64, and so many samples at a time that a GPU has room for it."""
    samples = max(1, 2**25 // max(1, x[:1].numel()))
    wide_k = k.double()
    parts = []
    for some_x, some_gy in zip(x.split(samples), gy.split(samples), strict=True):
        wide_x, wide_gy = some_x.double(), some_gy.double()
        y = forward_by_definition(wide_x, wide_k)
        gx = input_grad_by_definition(wide_gy, wide_k)
        parts.append((y, gx, weight_grad_by_definition(wide_gy, wide_x, k.shape[1])))
    ys, gxs, gks = zip(*parts, strict=True)
    return {"forward": torch.cat(ys), "input_grad": torch.cat(gxs), "weight_grad": sum(gks)}


def surrounded(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in NaN: who reads past its ends finds out."""
    room = _nan(tensor.numel() + 2 * PADDING, tensor.dtype, tensor.device)
    inside = room[PADDING:-PADDING].view(tensor.shape)
    return inside.copy_(tensor)


@contextmanager
def guarded_memory() -> Iterator[None]:
    """Within it, `torch.empty` gives memory that is NaN and lies in NaN; afterwards, that NaN
    must be whole."""
    rooms = []

    def empty(*size: object, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        rooms.append(_nan(shape.numel() + 2 * PADDING, dtype, device))
        return rooms[-1][PADDING:-PADDING].view(shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        yield
    assert rooms, "nothing was allocated by torch.empty: the guard guards nothing"
    ends = [end.isnan() for room in rooms for end in (room[:PADDING], room[-PADDING:])]
    assert torch.stack(ends).all(), "memory beside an output was overwritten"


def _nan(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((count,), math.nan, dtype=dtype, device=device)
