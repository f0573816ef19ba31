"""One layer of S4ConvD."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cuda_ops import depthwise_conv, fused_block, fused_last_step
from model.ssm import Init, SSMFilter


class S4ConvDBlock(nn.Module):
    """Long convolution, skip, GELU, gated mixing of the channels, residual.

    u -> u + GLU(Linear(GELU(Dropout(conv(u, k) + D u)))), on u (B, L, H), the convolution along L.

    Args:
        channels: H.
        state_size: N of the state-space model behind the filter.
        dropout: probability, ahead of the GELU.
        init: start of the state-space model, see `SSMFilter`.
        norm: LayerNorm over the channels ahead of the convolution. The published block has none.
        kernel: which implementation of the convolution runs, a name from `cuda_ops.KERNELS`, or
            `fused`, which does the whole block.
    """

    def __init__(
        self,
        channels: int,
        state_size: int = 64,
        dropout: float = 0.01,
        init: Init = "s4d_lin",
        norm: bool = False,
        kernel: str = "pytorch",
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.D = nn.Parameter(torch.randn(channels))
        self.kernel_layer = SSMFilter(channels, state_size, init)
        self.norm = nn.LayerNorm(channels) if norm else None
        self.dropout = nn.Dropout(dropout)
        # A Sequential of one, because the published weights are named output_linear.0.
        self.output_linear = nn.Sequential(nn.Linear(channels, 2 * channels))

    def forward(self, u: torch.Tensor, k: torch.Tensor, last: int | None = None) -> torch.Tensor:
        """One layer.

        Args:
            u: (B, L, H).
            k: this block's filter, (H, L), of `kernel_layer`, with D added to the first tap: D u is
                one more tap, of no delay. The network makes all at once.
            last: how many of the last steps are wanted; None: all.

        Returns:
            (B, L, H), or (B, last, H).
        """
        x = u if self.norm is None else self.norm(u)
        if self.kernel == "fused":
            return self._fused(x, u, k, last)
        # On a GPU each copy once: left to the operators, the convolution, its gradients and every
        # pass over y would meet a transposed tensor. On a CPU the backend makes the one it needs.
        rows = x.transpose(1, 2)
        rows = rows.contiguous() if x.is_cuda else rows
        y = depthwise_conv(rows, k, self.kernel, last == 1)
        if last is not None:
            u, y = u[:, -last:], y[..., -last:]
        y = F.gelu(self.dropout(y).transpose(1, 2).contiguous())
        return u + F.glu(self.output_linear(y), dim=-1)

    def _fused(
        self, x: torch.Tensor, u: torch.Tensor, k: torch.Tensor, last: int | None
    ) -> torch.Tensor:
        """The same, on the tensors as they lie."""
        if last == 1:
            y, step = fused_last_step(x, k)
            step = step if x is u else u[:, -1]
            y = F.gelu(self.dropout(y))
            return (step + F.glu(self.output_linear(y), dim=-1)).unsqueeze(1)
        mixing: Any = self.output_linear[0]
        p = self.dropout.p if self.training else 0.0
        residual = None if x is u else u
        out = fused_block(x, residual, k, mixing.weight, mixing.bias, p)
        return out if last is None else out[:, -last:]
