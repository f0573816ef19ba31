"""The state-space model's filter: (dt, A, C) -> k, (H, L)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from cuda_ops import fused_filters
from cuda_ops.reference import filters_by_formula, with_skip

Init = Literal["s4d_lin", "published"]


class SSMFilter(nn.Module):
    """Diagonal state-space model (S4D), discretised by zero-order hold.

    With dt = exp(log_dt), A = -exp(log_A_re) + i A_im and C = C_re + i C_im:

        k[h, l] = 2 Re sum_n  C_n (exp(dt A_n) - 1) / A_n  exp(dt A_n l)

    Each conjugate pair of modes is held once, hence N/2 of them and the factor 2. Source: Gu et al.
    2022 (arXiv 2206.11893); names and shapes as in the published S4ConvD (arXiv 2502.21035).

    Args:
        channels: H.
        state_size: N, even.
        init: where A starts. `s4d_lin`: real part -1/2, frequencies pi n, which span the window.
            `published`: normal draws and the same frequency for every mode.
    """

    def __init__(self, channels: int, state_size: int = 64, init: Init = "s4d_lin") -> None:
        super().__init__()
        shape = (channels, state_size // 2)
        low, high = math.log(0.001), math.log(0.1)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(channels))
        self.C_re = nn.Parameter(torch.randn(shape))
        self.C_im = nn.Parameter(torch.randn(shape))
        if init == "published":
            self.log_A_re = nn.Parameter(torch.randn(shape))
            self.A_im = nn.Parameter(torch.ones(shape))
        else:
            self.log_A_re = nn.Parameter(torch.full(shape, math.log(0.5)))
            self.A_im = nn.Parameter(math.pi * torch.arange(shape[1]).float().repeat(channels, 1))

    def forward(self, length: int) -> torch.Tensor:
        """The first `length` taps, (H, length), in the parameters' type, also under autocast."""
        return filters_of([self], length)[0]


def filters_of(
    layers: Sequence[SSMFilter],
    length: int,
    skips: Sequence[torch.Tensor] | None = None,
    fused: bool = False,
) -> torch.Tensor:
    """The first `length` taps of each layer, (layers, H, length), in one pass over all of them.

    A filter is small and its formula long: on a GPU the time goes by the number of operations, not
    by their size. The result is in the parameters' type, also under autocast.

    Args:
        layers: of one size.
        length: number of taps.
        skips: (H,) of each layer, added to its first tap; None: nothing.
        fused: whether one CUDA kernel does it all, see `cuda_ops.fused_filters`. On a CPU it does
            so anyway, but for float64.
    """
    names = ("log_dt", "log_A_re", "A_im", "C_re", "C_im")
    parameters = [torch.stack([getattr(layer, name) for layer in layers]) for name in names]
    log_dt, log_a_re, a_im, c_re, c_im = parameters
    skip = torch.zeros_like(log_dt) if skips is None else torch.stack(list(skips))
    if fused or (log_dt.is_cpu and log_dt.dtype == torch.float32):
        return fused_filters(*parameters, skip, length=length)
    with torch.autocast(log_dt.device.type, enabled=False):
        wide = filters_by_formula(log_dt, log_a_re, a_im, c_re, c_im, length=length)
        return with_skip(wide.to(log_dt.dtype), skip)
