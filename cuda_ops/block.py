"""A whole block of the network as operators: kernel 'fused'.

On x, residual (B, L, H), k (H, K), w (2H, H), b (2H,), all float32, the block is

    residual + GLU(w GELU(dropout(conv(x, k))) + b)

with the convolution along L and GLU(a, g) = a sigmoid(g). Products are in TF32 where PyTorch is
allowed it (`torch.set_float32_matmul_precision`); otherwise the mixing is left to PyTorch's own
functions, and the convolution is the same. On a CPU there is one implementation, of PyTorch's own
functions, for tests, `torch.export` and the like.
"""

from typing import Any

import torch
import torch.nn.functional as F

from cuda_ops.block_launch import CHANNELS, MOST_STEPS, block_kernels
from cuda_ops.dropout import dropout_mask, new_seed
from cuda_ops.errors import KernelUnavailableError
from cuda_ops.recorder import recorded
from cuda_ops.reference import forward_by_definition

_NAME = "s4convd"
torch.library.define(
    f"{_NAME}::block",
    "(Tensor x, Tensor? residual, Tensor k, Tensor w, Tensor b, float p, Tensor? seed)"
    " -> (Tensor out, Tensor z, Tensor images)",
)
torch.library.define(
    f"{_NAME}::mixing_backward",
    "(Tensor dout, Tensor z, Tensor w, Tensor images, Tensor b, float p, Tensor? seed)"
    " -> (Tensor, Tensor, Tensor)",
)
torch.library.define(f"{_NAME}::rows_conv", "(Tensor x, Tensor k) -> Tensor")
torch.library.define(
    f"{_NAME}::rows_conv_backward",
    "(Tensor gy, Tensor x, Tensor k, Tensor? added) -> (Tensor, Tensor)",
)
torch.library.define(f"{_NAME}::last_step", "(Tensor x, Tensor k) -> (Tensor, Tensor)")
torch.library.define(
    f"{_NAME}::last_step_backward",
    "(Tensor gy, Tensor added, Tensor x, Tensor k) -> (Tensor, Tensor)",
)
_OPS = getattr(torch.ops, _NAME)


def fused_block(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    k: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    p: float = 0.0,
) -> torch.Tensor:
    """One block, (B, L, H).

    Args:
        x: (B, L, H), what is convolved.
        residual: (B, L, H), what the result is added to; None: x.
        k: (H, K), the filters, a skip's factor added to their first taps.
        w, b: (2H, H) and (2H,), the mixing.
        p: dropout's probability, in steps of 2^-16; the mask is drawn from PyTorch's generator.

    Raises:
        KernelUnavailableError: a shape or type that the kernels are not written for.
    """
    check(x, k)
    seed = new_seed(x.device) if p else None
    if torch.get_float32_matmul_precision() == "highest":
        z = _OPS.rows_conv(x, k)
        return (x if residual is None else residual) + _mixed(z, w, b, p, seed)
    return _OPS.block(x, residual, k, w, b, p, seed)[0]


def fused_last_step(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The last step of the convolution, (B, H), and of x, (B, H); raises as `fused_block` does."""
    check(x, k)
    return _OPS.last_step(x, k)


def check(x: torch.Tensor, k: torch.Tensor) -> None:
    """Refuse what the kernels are not written for.

    Raises:
        KernelUnavailableError: x is not float32 (B, L, H) with H of `CHANNELS` and L up to
            `MOST_STEPS`.
        ValueError: k is not (H, K).
    """
    if x.dtype != torch.float32 or k.dtype != torch.float32:
        raise KernelUnavailableError(
            f"kernel 'fused' computes in float32, not in {x.dtype}: leave --trainer.precision out, "
            "or take --kernel warp_tiled"
        )
    if k.dim() != 2 or k.shape[0] != x.shape[2]:
        raise ValueError(f"k must be (H, K) with x's H, {x.shape[2]}, not {tuple(k.shape)}")
    check_sizes(x.shape[2], x.shape[1])


def check_sizes(channels: int, length: int) -> None:
    """Refuse a number of channels or steps that the kernels are not written for.

    Raises:
        KernelUnavailableError: it is one of these.
    """
    if channels not in CHANNELS or length > MOST_STEPS:
        known = " or ".join(map(str, CHANNELS))
        raise KernelUnavailableError(
            f"kernel 'fused' takes {known} channels and windows of up to {MOST_STEPS} steps, not "
            f"{channels} and {length}; --kernel warp_tiled takes any"
        )


# -- by PyTorch's own functions: a CPU's, and the truth of the tests ---------------------------


def _conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return forward_by_definition(x.transpose(1, 2), k).transpose(1, 2)


def _mixed(
    z: torch.Tensor, w: torch.Tensor, b: torch.Tensor, p: float, seed: torch.Tensor | None
) -> torch.Tensor:
    if seed is not None:
        z = z * dropout_mask(tuple(z.shape), p, seed).to(z.dtype)
    return F.glu(F.linear(F.gelu(z), w, b), -1)


def _gradients(call: Any, inputs: tuple[torch.Tensor, ...], *grads: torch.Tensor) -> Any:
    """Those of all inputs of `call`, dense."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        results = call(*leaves)
        found = torch.autograd.grad(results, leaves, grads)
    return tuple(grad.contiguous() for grad in found)


@torch.library.impl(f"{_NAME}::block", "cpu")
def _block_cpu(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    k: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    p: float,
    seed: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    z = _conv(x, k).contiguous()
    out = (x if residual is None else residual) + _mixed(z, w, b, p, seed)
    return out, z, w.new_empty(0)  # images are a kernel's


@torch.library.impl(f"{_NAME}::mixing_backward", "cpu")
def _mixing_backward_cpu(
    dout: torch.Tensor,
    z: torch.Tensor,
    w: torch.Tensor,
    images: torch.Tensor,
    b: torch.Tensor,
    p: float,
    seed: torch.Tensor | None,
) -> Any:
    return _gradients(lambda z, w, b: _mixed(z, w, b, p, seed), (z, w, b), dout)


@torch.library.impl(f"{_NAME}::rows_conv", "cpu")
def _rows_conv_cpu(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return _conv(x, k).contiguous()


@torch.library.impl(f"{_NAME}::rows_conv_backward", "cpu")
def _rows_conv_backward_cpu(
    gy: torch.Tensor, x: torch.Tensor, k: torch.Tensor, added: torch.Tensor | None
) -> Any:
    gx, gk = _gradients(_conv, (x, k), gy)
    return gx if added is None else gx + added, gk


@torch.library.impl(f"{_NAME}::last_step", "cpu")
def _last_step_cpu(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _conv(x, k)[:, -1].contiguous(), x[:, -1].clone()


@torch.library.impl(f"{_NAME}::last_step_backward", "cpu")
def _last_step_backward_cpu(
    gy: torch.Tensor, added: torch.Tensor, x: torch.Tensor, k: torch.Tensor
) -> Any:
    return _gradients(lambda x, k: (_conv(x, k)[:, -1], x[:, -1]), (x, k), gy, added)


# -- on a GPU ----------------------------------------------------------------------------------


@torch.library.impl(f"{_NAME}::block", "cuda")
def _block_cuda(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    k: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    p: float,
    seed: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    x, k, w, b = x.contiguous(), k.contiguous(), w.contiguous(), b.contiguous()
    kernels = block_kernels(x.device)
    images = kernels.images(w)
    if x.numel() == 0:
        return torch.empty_like(x), torch.empty_like(x), images
    z = recorded("forward", kernels.conv, x, k)
    added = x if residual is None else residual.contiguous()
    return kernels.mix(added, z, images, b, p, seed), z, images


@torch.library.impl(f"{_NAME}::mixing_backward", "cuda")
def _mixing_backward_cuda(
    dout: torch.Tensor,
    z: torch.Tensor,
    w: torch.Tensor,
    images: torch.Tensor,
    b: torch.Tensor,
    p: float,
    seed: torch.Tensor | None,
) -> Any:
    if z.numel() == 0:
        return torch.empty_like(z), torch.zeros_like(w), torch.zeros_like(b)
    kernels = block_kernels(z.device)
    return kernels.mix_gradients(dout.contiguous(), z, images, b.contiguous(), p, seed)


@torch.library.impl(f"{_NAME}::rows_conv", "cuda")
def _rows_conv_cuda(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty_like(x)
    return recorded("forward", block_kernels(x.device).conv, x.contiguous(), k.contiguous())


@torch.library.impl(f"{_NAME}::rows_conv_backward", "cuda")
def _rows_conv_backward_cuda(
    gy: torch.Tensor, x: torch.Tensor, k: torch.Tensor, added: torch.Tensor | None
) -> Any:
    if x.numel() == 0:
        return torch.empty_like(x), torch.zeros_like(k)
    gy, x, k = gy.contiguous(), x.contiguous(), k.contiguous()
    added = None if added is None else added.contiguous()
    return recorded("both_gradients", block_kernels(x.device).conv_gradients, gy, x, k, added)


@torch.library.impl(f"{_NAME}::last_step", "cuda")
def _last_step_cuda(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    last = x[:, -1].clone()
    if x.numel() == 0:
        return torch.empty_like(last), last
    x, k = x.contiguous(), k.contiguous()
    return recorded("forward", block_kernels(x.device).last_step, x, k), last


@torch.library.impl(f"{_NAME}::last_step_backward", "cuda")
def _last_step_backward_cuda(
    gy: torch.Tensor, added: torch.Tensor, x: torch.Tensor, k: torch.Tensor
) -> Any:
    if x.numel() == 0:
        return torch.empty_like(x), torch.zeros_like(k)
    gy, added, x, k = (t.contiguous() for t in (gy, added, x, k))
    kernels = block_kernels(x.device)
    return recorded("both_gradients", kernels.last_step_gradients, gy, x, k, added)


# -- shapes alone ------------------------------------------------------------------------------


@torch.library.register_fake(f"{_NAME}::block")
def _block_fake(
    x: torch.Tensor, residual: torch.Tensor | None, k: torch.Tensor, w: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, ...]:
    images = (3, *w.shape) if x.device.type == "cuda" else (0,)
    return x.new_empty(x.shape), x.new_empty(x.shape), w.new_empty(images)


@torch.library.register_fake(f"{_NAME}::mixing_backward")
def _mixing_backward_fake(
    dout: torch.Tensor,
    z: torch.Tensor,
    w: torch.Tensor,
    images: torch.Tensor,
    b: torch.Tensor,
    *_: Any,
) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in (z, w, b))


@torch.library.register_fake(f"{_NAME}::rows_conv")
def _rows_conv_fake(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake(f"{_NAME}::rows_conv_backward")
def _rows_conv_backward_fake(gy: torch.Tensor, x: torch.Tensor, k: torch.Tensor, *_: Any) -> Any:
    return x.new_empty(x.shape), k.new_empty(k.shape)


@torch.library.register_fake(f"{_NAME}::last_step")
def _last_step_fake(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0], x.shape[2])
    return x.new_empty(shape), x.new_empty(shape)


@torch.library.register_fake(f"{_NAME}::last_step_backward")
def _last_step_backward_fake(
    gy: torch.Tensor, added: torch.Tensor, x: torch.Tensor, k: torch.Tensor
) -> Any:
    return x.new_empty(x.shape), k.new_empty(k.shape)


# -- derivatives, once -------------------------------------------------------------------------


def _block_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, residual, k, w, b, p, seed = inputs
    _, z, images = output
    ctx.save_for_backward(z, x, k, w, images, b, seed)
    ctx.own, ctx.p = residual is None, p
    ctx.set_materialize_grads(False)


def _block_backward(ctx: Any, dout: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    z, x, k, w, images, b, seed = ctx.saved_tensors
    if dout is None:
        return (None,) * 7
    dz, dw, db = _OPS.mixing_backward(dout, z, w, images, b, ctx.p, seed)
    dx, dk = _OPS.rows_conv_backward(dz, x, k, dout if ctx.own else None)
    return dx, None if ctx.own else dout, dk, dw, db, None, None


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _rows_conv_backward(ctx: Any, gy: torch.Tensor) -> Any:
    return _OPS.rows_conv_backward(gy, *ctx.saved_tensors, None)


def _last_step_backward(ctx: Any, gy: torch.Tensor, added: torch.Tensor) -> Any:
    return _OPS.last_step_backward(gy, added, *ctx.saved_tensors)


torch.library.register_autograd(f"{_NAME}::block", _block_backward, setup_context=_block_setup)
torch.library.register_autograd(
    f"{_NAME}::rows_conv", _rows_conv_backward, setup_context=_save_inputs
)
torch.library.register_autograd(
    f"{_NAME}::last_step", _last_step_backward, setup_context=_save_inputs
)
