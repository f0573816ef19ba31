"""The filters of state-space models as an operator: one launch on a GPU, few passes on a CPU.

With dt = exp(log_dt), A = -exp(log_A_re) + i A_im and C = C_re + i C_im, for each row:

    k[l] = 2 Re sum_n  C_n (exp(dt A_n) - 1) / A_n  exp(dt A_n l)  +  (skip, at l = 0)

Rows are channels of blocks, in any number of axes; the modes n are one more. The arithmetic is in
float64: exp(x) - 1 and the phase of a late tap lose the digits that float32 has to spare.
"""

from typing import Any

import torch

from cuda_ops.block_launch import block_kernels
from cuda_ops.reference import with_skip

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
    """The first `length` taps, (..., length).

    The function is `cuda_ops.reference.filters_by_formula`, and its gradients are by hand.

    Args:
        parameters: log_dt (...), log_A_re, A_im, C_re, C_im (..., modes), skip (...), float32.
        length: number of taps.
    """
    return torch.ops.s4convd.filters(*parameters, length)


# -- on a CPU: as csrc/filters.cu, whose header derives the gradients -------------------------


def _modes(
    log_dt: torch.Tensor, log_a_re: torch.Tensor, a_im: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """dt (..., 1), A, z = dt A and exp(z) - 1 (..., modes), in complex float64."""
    dt = log_dt.double().exp().unsqueeze(-1)
    a = torch.complex(-log_a_re.double().exp(), a_im.double())
    z = dt * a
    less_one = torch.complex(
        torch.expm1(z.real) * z.imag.cos() - 2 * (z.imag / 2).sin().square(),
        z.real.exp() * z.imag.sin(),
    )
    return dt, a, z, less_one


def _powers(z: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Real and imaginary part of exp(z l), (..., modes, length).

    Each half of them is the half before times one power: a product costs a tenth of an exponential
    and a sine, and seven of them in a row lose nothing that float32 would show.
    """
    real = torch.empty(*z.shape, length, dtype=torch.float64)
    imaginary = torch.empty_like(real)
    real[..., 0], imaginary[..., 0] = 1, 0
    known = 1
    while known < length:
        more = min(known, length - known)
        power = torch.exp(known * z).unsqueeze(-1)
        old, new = slice(0, more), slice(known, known + more)
        torch.mul(real[..., old], power.real, out=real[..., new])
        real[..., new].addcmul_(imaginary[..., old], power.imag, value=-1)
        torch.mul(real[..., old], power.imag, out=imaginary[..., new])
        imaginary[..., new].addcmul_(imaginary[..., old], power.real)
        known += more
    return real, imaginary


@torch.library.impl("s4convd::filters", "cpu")
def _filters_cpu(*inputs: Any) -> torch.Tensor:
    log_dt, log_a_re, a_im, c_re, c_im, skip, length = inputs
    _, a, z, less_one = _modes(log_dt, log_a_re, a_im)
    g = torch.complex(c_re.double(), c_im.double()) * less_one / a
    real, imaginary = _powers(z, length)
    real.mul_(g.real.unsqueeze(-1)).sub_(imaginary.mul_(g.imag.unsqueeze(-1)))
    return with_skip(2 * real.sum(-2), skip.double()).to(skip.dtype)


@torch.library.impl("s4convd::filters_backward", "cpu")
def _filters_backward_cpu(gk: torch.Tensor, *parameters: torch.Tensor) -> Any:
    log_dt, log_a_re, a_im, c_re, c_im, _ = parameters
    dt, a, z, less_one = _modes(log_dt, log_a_re, a_im)
    c, b = torch.complex(c_re.double(), c_im.double()), less_one / a
    length = gk.shape[-1]
    tap = torch.arange(length, dtype=torch.float64)
    terms = [power.mul_(gk.double().unsqueeze(-2)) for power in _powers(z, length)]
    s0 = torch.complex(*(term.sum(-1) for term in terms))
    s1 = torch.complex(*(term.mul_(tap).sum(-1) for term in terms))
    of_c = b * s0
    of_z = c * s0 * (less_one + 1) / a + c * b * s1
    of_a = dt * of_z - c * s0 * b / a
    gradients = (
        2 * (of_z * a).real.sum(-1) * dt.squeeze(-1),
        2 * of_a.real * a.real,
        -2 * of_a.imag,
        2 * of_c.real,
        -2 * of_c.imag,
        gk[..., 0],
    )
    return tuple(g.to(p.dtype).contiguous() for g, p in zip(gradients, parameters, strict=True))


# -- on a GPU ----------------------------------------------------------------------------------


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
