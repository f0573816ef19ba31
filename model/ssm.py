"""The state-space model's filter: (dt, A, C) -> k, (H, L)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

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


def filters_of(layers: Sequence[SSMFilter], length: int) -> torch.Tensor:
    """The first `length` taps of each layer, (layers, H, length), in one pass over all of them.

    A filter is small and its formula long: on a GPU the time goes by the number of operations, not
    by their size. Real arithmetic (exp, cos, sin) keeps torch.compile able to generate code for it.
    It is done in float64: exp(x) - 1 and the phase of a late tap lose the digits that float32 has
    to spare. The result is in the parameters' type, also under autocast.
    """

    def stacked(name: str) -> torch.Tensor:
        return torch.stack([getattr(layer, name) for layer in layers]).double()

    with torch.autocast(layers[0].log_dt.device.type, enabled=False):
        dt = stacked("log_dt").exp().unsqueeze(-1)  # (layers, H, 1)
        a_re, a_im = -stacked("log_A_re").exp(), stacked("A_im")  # (layers, H, N/2)
        x, y = dt * a_re, dt * a_im
        # exp(x + iy) - 1 without cancellation near zero.
        b_re = torch.expm1(x) * torch.cos(y) - 2 * torch.sin(y / 2).square()
        b_im = torch.exp(x) * torch.sin(y)
        norm = a_re.square() + a_im.square()
        b_re, b_im = (b_re * a_re + b_im * a_im) / norm, (b_im * a_re - b_re * a_im) / norm
        c_re, c_im = stacked("C_re"), stacked("C_im")
        g_re, g_im = c_re * b_re - c_im * b_im, c_re * b_im + c_im * b_re  # C (exp(dt A) - 1) / A

        tap = torch.arange(length, device=dt.device, dtype=torch.float64)
        decay = torch.exp(x.unsqueeze(-1) * tap)  # (layers, H, N/2, length)
        phase = y.unsqueeze(-1) * tap
        modes = g_re.unsqueeze(-1) * (decay * phase.cos())
        modes = modes - g_im.unsqueeze(-1) * (decay * phase.sin())
        return 2 * modes.sum(2).to(layers[0].log_dt.dtype)
