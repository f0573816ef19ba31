"""The filters of state-space models, by the formula and as an operator of one launch.

With dt = exp(log_dt), A = -exp(log_A_re) + i A_im and C = C_re + i C_im, for each row:

    k[l] = 2 Re sum_n  C_n (exp(dt A_n) - 1) / A_n  exp(dt A_n l)  +  (skip, at l = 0)

Rows are channels of blocks, in any number of axes; the modes n are one more. The arithmetic is in
float64: exp(x) - 1 and the phase of a late tap lose the digits that float32 has to spare.
"""

from typing import Any

import torch

from cuda_ops.block_launch import block_kernels
from cuda_ops.reference import filters_by_formula, with_skip

torch.library.define(
    "s4convd::filters",
    "(Tensor log_dt, Tensor log_A_re, Tensor A_im, Tensor C_re, Tensor C_im, Tensor skip,"
    " int length) -> Tensor",
)
torch.library.define(
    "s4convd::filters_backward",
    "(Tensor gk, Tensor log_dt, Tensor log_A_re, Tensor A_im, Tensor C_re, Tensor C_im,"
    " Tensor skip) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def fused_filters(*parameters: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` taps, (..., length), from a launch; its gradients from another.

    Args:
        parameters: log_dt (...), log_A_re, A_im, C_re, C_im (..., modes), skip (...), float32.
        length: number of taps.
    """
    return torch.ops.s4convd.filters(*parameters, length)


@torch.library.impl("s4convd::filters", "cpu")
def _filters_cpu(*inputs: Any) -> torch.Tensor:
    *parameters, skip, length = inputs
    return with_skip(filters_by_formula(*parameters, length=length).to(skip.dtype), skip)


@torch.library.impl("s4convd::filters_backward", "cpu")
def _filters_backward_cpu(gk: torch.Tensor, *parameters: torch.Tensor) -> Any:
    with torch.enable_grad():
        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        filters = with_skip(filters_by_formula(*leaves[:5], length=gk.shape[-1]), leaves[5])
        return torch.autograd.grad(filters, leaves, gk.to(filters.dtype))


@torch.library.impl("s4convd::filters", "cuda")
def _filters_cuda(*inputs: Any) -> torch.Tensor:
    *parameters, length = inputs
    return block_kernels(parameters[0].device).filters(_dense(parameters), length)


@torch.library.impl("s4convd::filters_backward", "cuda")
def _filters_backward_cuda(gk: torch.Tensor, *parameters: torch.Tensor) -> Any:
    kernels = block_kernels(gk.device)
    return kernels.filter_gradients(gk.contiguous(), _dense(parameters))


def _dense(parameters: Any) -> list[torch.Tensor]:
    return [parameter.contiguous() for parameter in parameters]


@torch.library.register_fake("s4convd::filters")
def _filters_fake(*inputs: Any) -> torch.Tensor:
    *parameters, length = inputs
    return parameters[0].new_empty(*parameters[0].shape, length)


@torch.library.register_fake("s4convd::filters_backward")
def _filters_backward_fake(gk: torch.Tensor, *parameters: torch.Tensor) -> Any:
    return tuple(parameter.new_empty(parameter.shape) for parameter in parameters)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _backward(ctx: Any, gk: torch.Tensor) -> tuple[Any, ...]:
    return (*torch.ops.s4convd.filters_backward(gk, *ctx.saved_tensors), None)


torch.library.register_autograd("s4convd::filters", _backward, setup_context=_save)
