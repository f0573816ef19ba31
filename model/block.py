"""One layer of S4ConvD."""

import torch
import torch.nn.functional as F
from torch import nn

from cuda_ops import depthwise_conv
from model.ssm import Init, SSMFilter


class S4ConvDBlock(nn.Module):
    """Long convolution, skip, GELU, gated mixing of the channels, residual.

    u -> u + GLU(Linear(GELU(Dropout(conv(u, k) + D u)))), on u (B, H, L).

    Args:
        channels: H.
        state_size: N of the state-space model behind the filter.
        dropout: probability, ahead of the GELU.
        init: start of the state-space model, see `SSMFilter`.
        norm: LayerNorm over the channels ahead of the convolution. The published block has none.
        kernel: which implementation of the convolution runs, a name from `cuda_ops.KERNELS`.
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

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        """(B, H, L) -> (B, H, L)."""
        x = u if self.norm is None else self.norm(u.transpose(1, 2)).transpose(1, 2)
        x = x.contiguous()  # once, where the convolution and its gradient would each copy it
        y = depthwise_conv(x, self.kernel_layer(x.shape[-1]), self.kernel)
        y = torch.addcmul(y, self.D.unsqueeze(-1), x)
        y = F.gelu(self.dropout(y))
        y = F.glu(self.output_linear(y.transpose(1, 2)), dim=-1)
        return y.transpose(1, 2) + u
