"""The operator in plain PyTorch: three formulations, the rule that picks one, and the truth.

The three are the same function in exact arithmetic. They differ in what they cost:

* `toeplitz_conv` one batched matrix product with the (L, L) Toeplitz matrix of each filter. Its
                  work grows with L squared, at the speed of the matrix units.
* `fft_conv`      zero-padded to 2 L, as the published model computes it. L log L.
* `grouped_conv`  PyTorch's convolution with one group a channel. L times K.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Formulation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def toeplitz_conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """y = x T with T[h, s, t] = k[h, t - s], zero where t < s. x (B, H, L), k (H, K)."""
    length = x.shape[-1]
    taps = k[:, :length]
    padded = F.pad(taps, (length - 1, length - taps.shape[1]))  # (H, 2L-1)
    # Row i of unfold is padded[i:i+L], the filter delayed by L-1-i: flipped, row s is delayed by s.
    matrix = padded.unfold(-1, length, 1).flip(1)  # (H, L, L)
    if x.is_cuda:  # cuBLAS reads rows where they lie
        return torch.bmm(x.transpose(0, 1), matrix).transpose(0, 1)
    # A CPU's batched product is several times as fast on a copy, in its gradients too. Copies of
    # whole rows are cheap, and so is one of x as the network has it, (B, L, H); from there to
    # (H, B, L) and back in one go is not.
    rows = _DenseGradient.apply(x.contiguous()).transpose(0, 1).contiguous()  # (H, B, L)
    return _DenseGradient.apply(torch.bmm(rows, matrix)).transpose(0, 1).contiguous()


class _DenseGradient(torch.autograd.Function):
    """What it is given, whose gradient is made contiguous."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


def fft_conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Circular convolution of the zero-padded signals, cut to L. x (B, H, L), k (H, K).

    Half precision is computed in float32: its transforms exist for powers of two alone.
    """
    length = x.shape[-1]
    dtype = torch.promote_types(x.dtype, k.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    spectrum = torch.fft.rfft(x.to(wide), 2 * length) * torch.fft.rfft(
        k[:, :length].to(wide), 2 * length
    )
    return torch.fft.irfft(spectrum, 2 * length)[..., :length].to(dtype)


def grouped_conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """`conv1d` with one group a channel, padded on the left alone. x (B, H, L), k (H, K)."""
    padded = F.pad(x, (k.shape[1] - 1, 0))
    return F.conv1d(padded, k.flip(-1).unsqueeze(1), groups=x.shape[1])


def fastest_formulation(device_type: str, length: int, taps: int) -> Formulation:
    """The formulation with the least forward plus backward time for this device and shape.

    Measured in float32, for L = K from 48 to 4096 on both devices: the matrix product is ahead up
    to L = 512 on an H200 and up to 256 on a CPU, the transform beyond. On a CPU the grouped
    convolution is ahead where a filter of 16 taps or fewer meets a long signal; on a GPU that case
    is not measured.
    """
    if length <= (512 if device_type == "cuda" else 256):
        return toeplitz_conv
    return grouped_conv if device_type == "cpu" and taps <= 16 else fft_conv


def pytorch_conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The PyTorch backend: whichever formulation is fastest for the device and shape of x."""
    if x.shape[0] == 0:  # MKL's transform refuses an empty batch
        return grouped_conv(x, k)
    return fastest_formulation(x.device.type, x.shape[-1], k.shape[1])(x, k)


def last_step_conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The last step of y alone, (B, H, 1): a dot product a channel. x (B, H, L), k (H, K)."""
    taps = k[:, : x.shape[-1]].flip(-1)
    # With the channels last, as the network has them, neighbours in memory are multiplied.
    steps = x[..., x.shape[-1] - taps.shape[1] :].transpose(1, 2)
    wide = torch.promote_types(x.dtype, torch.float32)  # products keep their digits
    products = steps.to(wide) * taps.t().contiguous().to(wide)
    return products.sum(1).unsqueeze(-1).to(x.dtype)


def forward_by_definition(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """y[b,h,t] = sum_j k[h,j] x[b,h,t-j], term by term. x (B, H, L), k (H, K)."""
    length = x.shape[-1]
    y = torch.zeros_like(x)
    for j in range(min(k.shape[1], length)):
        y = y + F.pad(k[:, j, None] * x[..., : length - j], (j, 0))
    return y


def input_grad_by_definition(gy: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """gx[b,h,s] = sum_j k[h,j] gy[b,h,s+j], term by term. gy (B, H, L), k (H, K)."""
    gx = torch.zeros_like(gy)
    for j in range(min(k.shape[1], gy.shape[-1])):
        gx = gx + F.pad(k[:, j, None] * gy[..., j:], (0, j))
    return gx


def weight_grad_by_definition(gy: torch.Tensor, x: torch.Tensor, taps: int) -> torch.Tensor:
    """gk[h,j] = sum_b sum_t gy[b,h,t] x[b,h,t-j], term by term. gy, x (B, H, L) -> (H, taps)."""
    length = x.shape[-1]
    gk = [(gy[..., j:] * x[..., : length - j]).sum((0, 2)) for j in range(min(taps, length))]
    return F.pad(torch.stack(gk, 1) if gk else x.new_zeros(x.shape[1], 0), (0, taps - len(gk)))


def reference_conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The truth that every kernel is held against: the definition in float64."""
    return forward_by_definition(x.double(), k.double())


# -- the filters, see cuda_ops/filters.py -----------------------------------------------------


def filters_by_formula(
    log_dt: torch.Tensor,
    log_a_re: torch.Tensor,
    a_im: torch.Tensor,
    c_re: torch.Tensor,
    c_im: torch.Tensor,
    *,
    length: int,
) -> torch.Tensor:
    """The first `length` taps without the skip, of PyTorch's own functions; float64.

    Real arithmetic (exp, cos, sin) keeps torch.compile able to generate code for it.
    """
    dt = log_dt.double().exp().unsqueeze(-1)  # (..., 1)
    a_re, a_im = -log_a_re.double().exp(), a_im.double()  # (..., modes)
    x, y = dt * a_re, dt * a_im
    # exp(x + iy) - 1 without cancellation near zero.
    b_re = torch.expm1(x) * torch.cos(y) - 2 * torch.sin(y / 2).square()
    b_im = torch.exp(x) * torch.sin(y)
    norm = a_re.square() + a_im.square()
    b_re, b_im = (b_re * a_re + b_im * a_im) / norm, (b_im * a_re - b_re * a_im) / norm
    c_re, c_im = c_re.double(), c_im.double()
    g_re, g_im = c_re * b_re - c_im * b_im, c_re * b_im + c_im * b_re  # C (exp(dt A) - 1) / A

    tap = torch.arange(length, device=dt.device, dtype=torch.float64)
    decay = torch.exp(x.unsqueeze(-1) * tap)  # (..., modes, length)
    phase = y.unsqueeze(-1) * tap
    modes = g_re.unsqueeze(-1) * (decay * phase.cos())
    modes = modes - g_im.unsqueeze(-1) * (decay * phase.sin())
    return 2 * modes.sum(-2)


def with_skip(filters: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    """(..., length) with skip (...) added to the first tap: y + skip x is a tap of no delay."""
    return filters + F.pad(skip.unsqueeze(-1), (0, filters.shape[-1] - 1))
