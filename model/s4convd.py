"""The S4ConvD network, and how published weights get into it."""

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from model.block import S4ConvDBlock
from model.ssm import Init, filters_of


class S4ConvD(nn.Module):
    """Encoder, a stack of long-convolution blocks, decoder of the last steps (arXiv 2502.21035).

    Knows nothing of units: it maps scaled features (B, L, F) to scaled forecasts.

    Args:
        features: F.
        channels: H.
        blocks: number of blocks, at least 1.
        state_size: N of each filter's state-space model.
        dropout: probability in each block.
        init: start of the state-space models, see `SSMFilter`.
        norm: LayerNorm in each block and ahead of the decoder; the published network has none.
        horizon: how many of the last steps are decoded; one, as published.
        outputs: numbers that the decoder makes of each; one, as published.
        kernel: a name from `cuda_ops.BLOCK_KERNELS`.
    """

    more: torch.Tensor

    def __init__(
        self,
        features: int = 4,
        channels: int = 128,
        blocks: int = 4,
        state_size: int = 64,
        dropout: float = 0.01,
        init: Init = "s4d_lin",
        norm: bool = False,
        horizon: int = 1,
        outputs: int = 1,
        kernel: str = "pytorch",
    ) -> None:
        super().__init__()
        self.horizon = horizon
        self.encoder = nn.Linear(features, channels)
        # A feature that is 1 and some that are 0, up to a multiple of four, for the tensor cores.
        more = F.pad(torch.ones(1), (0, -(features + 1) % 4))
        self.register_buffer("more", more, persistent=False)
        self.blocks = nn.ModuleList(
            S4ConvDBlock(channels, state_size, dropout, init, norm, kernel) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(channels) if norm else None
        self.decoder = nn.Linear(channels, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, F) -> (B, horizon, outputs)."""
        u = self._encode(x)  # (B, L, H)
        filters = self._filters(x.shape[1])
        for n, (block, k) in enumerate(zip(self.blocks, filters, strict=True), 1):
            u = block(u, k, self.horizon if n == len(self.blocks) else None)  # all that is decoded
        return self._decode(u)

    def _decode(self, u: torch.Tensor) -> torch.Tensor:
        last = u[:, -self.horizon :]  # (B, horizon, H)
        return self.decoder(last if self.norm is None else self.norm(last))

    def use_kernel(self, name: str) -> None:
        """Let another implementation run, see `cuda_ops.BLOCK_KERNELS`; the parameters stay."""
        for block in self.blocks:
            cast(S4ConvDBlock, block).kernel = name

    def _filters(self, length: int) -> torch.Tensor:
        """(blocks, H, length), each block's skip in its first tap."""
        blocks = [cast(S4ConvDBlock, block) for block in self.blocks]
        layers, skips = [block.kernel_layer for block in blocks], [block.D for block in blocks]
        return filters_of(layers, length, skips, fused=blocks[0].kernel == "fused")

    def _encode(self, x: torch.Tensor) -> torch.Tensor:
        if self.blocks[0].kernel != "fused":
            return self.encoder(x)
        # The bias as the weight of one more feature, which is 1: its gradient, a sum over all rows,
        # would be a pass of its own.
        weight, bias = self.encoder.weight, self.encoder.bias.unsqueeze(1)
        nothing = self.more[1:].expand(len(weight), -1)
        x = torch.cat([x, self.more.expand(*x.shape[:-1], -1)], dim=-1)
        return F.linear(x, torch.cat([weight, bias, nothing], dim=1))


def load_published(state_dict: Mapping[str, torch.Tensor]) -> S4ConvD:
    """Build the published network around published weights.

    Args:
        state_dict: names as published (see model/ssm.py and model/block.py). The channel mixing may
            be a Conv1d weight (2H, H, 1), as published, or a matrix (2H, H).

    Raises:
        ValueError: the weights are not of this form; the message lists what is missing or unknown.
    """
    state = {
        name: tensor.squeeze(-1)
        if name.endswith("output_linear.0.weight") and tensor.dim() == 3
        else tensor
        for name, tensor in state_dict.items()
    }
    blocks = {int(name.split(".")[1]) for name in state if name.startswith("blocks.")}
    try:
        channels, features = state["encoder.weight"].shape
        state_size = 2 * state["blocks.0.kernel_layer.C_re"].shape[1]
        network = S4ConvD(features, channels, len(blocks), state_size, init="published")
        network.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"these are not the weights of a published S4ConvD: {error}") from error
    return network
