"""The three paths of the convolution as operators of torch.library.

    s4convd::conv_forward(x, k, kernel)            y[t]  = sum_j k[j] x[t-j]
    s4convd::conv_input_grad(gy, k, kernel)        gx[s] = sum_j k[j] gy[s+j]
    s4convd::conv_weight_grad(gy, x, taps, kernel) gk[j] = sum_b sum_t gy[t] x[t-j]

with x, y, gy, gx (B, H, L) and k, gk (H, K), for each b and h. Each is linear in each of its
tensors, and the derivatives of each are the other two: so the gradients can be differentiated
again, to any order. `kernel` names the CUDA variant; on a CPU there is one implementation, whatever
the name, for tests, `torch.export` and the like. A model never meets it: `cuda_ops.depthwise_conv`
refuses a CUDA kernel for a CPU tensor.
"""

from typing import Any

import torch

from cuda_ops.launch import SCALARS, kernels
from cuda_ops.recorder import recorded
from cuda_ops.reference import (
    forward_by_definition,
    input_grad_by_definition,
    weight_grad_by_definition,
)

torch.library.define("s4convd::conv_forward", "(Tensor x, Tensor k, str kernel) -> Tensor")
torch.library.define("s4convd::conv_input_grad", "(Tensor gy, Tensor k, str kernel) -> Tensor")
torch.library.define(
    "s4convd::conv_weight_grad", "(Tensor gy, Tensor x, SymInt taps, str kernel) -> Tensor"
)
conv_forward = torch.ops.s4convd.conv_forward
conv_input_grad = torch.ops.s4convd.conv_input_grad
conv_weight_grad = torch.ops.s4convd.conv_weight_grad


def check(x: torch.Tensor, k: torch.Tensor) -> None:
    """Refuse what cannot be convolved: x must be (B, H, L) and k (H, K), of one type and device.

    Raises:
        TypeError: a type that is not float32, float64, float16 or bfloat16, or two types.
        ValueError: shapes that do not fit together, or two devices.
    """
    if x.dtype not in SCALARS or k.dtype != x.dtype:
        names = ", ".join(SCALARS.values())
        raise TypeError(f"x and k must be of one type of {names}, not {x.dtype} and {k.dtype}")
    if x.dim() != 3 or k.dim() != 2 or x.shape[1] != k.shape[0] or k.shape[1] < 1:
        raise ValueError(
            f"x must be (B, H, L) and k (H, K) with one H, not {tuple(x.shape)}, {tuple(k.shape)}"
        )
    if x.device != k.device:
        raise ValueError(f"x is on {x.device} and k on {k.device}; they must be on one device")


def check_gradients(gy: torch.Tensor, x: torch.Tensor, taps: int) -> None:
    """Refuse gy and x that are not (B, H, L) of one type and device; raises as `check` does."""
    if x.dtype not in SCALARS or gy.dtype != x.dtype:
        raise TypeError(f"gy and x must be of one type, not {gy.dtype} and {x.dtype}")
    if x.dim() != 3 or gy.shape != x.shape or taps < 1:
        raise ValueError(
            f"gy and x must be one (B, H, L) and taps at least 1, not {tuple(gy.shape)}, "
            f"{tuple(x.shape)} and {taps}"
        )
    if x.device != gy.device:
        raise ValueError(f"gy is on {gy.device} and x on {x.device}; they must be on one device")


# -- on a GPU ----------------------------------------------------------------------------------


@torch.library.impl("s4convd::conv_forward", "cuda")
def _forward_cuda(x: torch.Tensor, k: torch.Tensor, kernel: str) -> torch.Tensor:
    check(x, k)
    return recorded("forward", kernels(kernel, x.device).forward, x, k)


@torch.library.impl("s4convd::conv_input_grad", "cuda")
def _input_grad_cuda(gy: torch.Tensor, k: torch.Tensor, kernel: str) -> torch.Tensor:
    check(gy, k)
    return recorded("input_grad", kernels(kernel, gy.device).input_grad, gy, k)


@torch.library.impl("s4convd::conv_weight_grad", "cuda")
def _weight_grad_cuda(gy: torch.Tensor, x: torch.Tensor, taps: int, kernel: str) -> torch.Tensor:
    check_gradients(gy, x, taps)
    return recorded("weight_grad", kernels(kernel, x.device).weight_grad, gy, x, taps)


# -- on a CPU: the definition, with the kernels' accumulation type -----------------------------


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)).contiguous()


@torch.library.impl("s4convd::conv_forward", "cpu")
def _forward_cpu(x: torch.Tensor, k: torch.Tensor, kernel: str) -> torch.Tensor:
    check(x, k)
    return recorded("forward", forward_by_definition, _wide(x), _wide(k)).to(x.dtype)


@torch.library.impl("s4convd::conv_input_grad", "cpu")
def _input_grad_cpu(gy: torch.Tensor, k: torch.Tensor, kernel: str) -> torch.Tensor:
    check(gy, k)
    return recorded("input_grad", input_grad_by_definition, _wide(gy), _wide(k)).to(gy.dtype)


@torch.library.impl("s4convd::conv_weight_grad", "cpu")
def _weight_grad_cpu(gy: torch.Tensor, x: torch.Tensor, taps: int, kernel: str) -> torch.Tensor:
    check_gradients(gy, x, taps)
    inputs = (_wide(gy), _wide(x), taps)
    return recorded("weight_grad", weight_grad_by_definition, *inputs).to(x.dtype)


# -- shapes alone ------------------------------------------------------------------------------


@torch.library.register_fake("s4convd::conv_forward")
def _forward_fake(x: torch.Tensor, k: torch.Tensor, kernel: str) -> torch.Tensor:
    check(x, k)
    return x.new_empty(x.shape)


@torch.library.register_fake("s4convd::conv_input_grad")
def _input_grad_fake(gy: torch.Tensor, k: torch.Tensor, kernel: str) -> torch.Tensor:
    check(gy, k)
    return gy.new_empty(gy.shape)


@torch.library.register_fake("s4convd::conv_weight_grad")
def _weight_grad_fake(gy: torch.Tensor, x: torch.Tensor, taps: int, kernel: str) -> torch.Tensor:
    check_gradients(gy, x, taps)
    return x.new_empty(x.shape[1], taps)


# -- derivatives -------------------------------------------------------------------------------
# Each saves only what the gradients asked for need, and computes only those.


def _save_needed(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Of a path's two tensors, keep each that the gradient of the other needs."""
    first, second = inputs[:2]
    first_wanted, second_wanted = ctx.needs_input_grad[:2]
    ctx.save_for_backward(first if second_wanted else None, second if first_wanted else None)
    ctx.kernel = inputs[-1]
    ctx.taps = inputs[2] if len(inputs) == 4 else second.shape[1]


def _forward_backward(ctx: Any, gy: torch.Tensor) -> tuple[Any, ...]:
    x, k = ctx.saved_tensors
    if not gy.is_contiguous():  # once, where the two gradients would each copy it
        gy = recorded("gradient_copy", gy.contiguous)
    gx = None if k is None else conv_input_grad(gy, k, ctx.kernel)
    gk = None if x is None else conv_weight_grad(gy, x, ctx.taps, ctx.kernel)
    return gx, gk, None


def _input_grad_backward(ctx: Any, ggx: torch.Tensor) -> tuple[Any, ...]:
    gy, k = ctx.saved_tensors
    ggy = None if k is None else conv_forward(ggx, k, ctx.kernel)
    gk = None if gy is None else conv_weight_grad(gy, ggx, ctx.taps, ctx.kernel)
    return ggy, gk, None


def _weight_grad_backward(ctx: Any, ggk: torch.Tensor) -> tuple[Any, ...]:
    gy, x = ctx.saved_tensors
    ggy = None if x is None else conv_forward(x, ggk, ctx.kernel)
    gx = None if gy is None else conv_input_grad(gy, ggk, ctx.kernel)
    return ggy, gx, None, None


for _path, _backward in (
    ("forward", _forward_backward),
    ("input_grad", _input_grad_backward),
    ("weight_grad", _weight_grad_backward),
):
    torch.library.register_autograd(f"s4convd::conv_{_path}", _backward, setup_context=_save_needed)
