"""Inputs of a whole block, the block and its gradients, and the truth in float64."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cuda_ops.dropout import dropout_mask
from cuda_ops.reference import forward_by_definition

NAMES = ("x", "k", "w", "b", "residual")


@dataclass
class Block:
    """What `torch.ops.s4convd.block` is given; gy is the gradient of its result."""

    x: torch.Tensor
    residual: torch.Tensor | None
    k: torch.Tensor
    w: torch.Tensor
    b: torch.Tensor
    p: float
    seed: torch.Tensor | None
    gy: torch.Tensor

    @classmethod
    def random(
        cls,
        shape: tuple[int, int, int, int],
        p: float = 0.0,
        own: bool = True,
        device: str = "cpu",
    ) -> "Block":
        """Of shape B, H, L, K; with a residual of its own unless `own`."""
        batch, channels, length, taps = shape

        def draw(*size: int, scale: float = 1.0) -> torch.Tensor:
            return (scale * torch.randn(size, device=device)).requires_grad_()

        return cls(
            draw(batch, length, channels),
            None if own else draw(batch, length, channels),
            draw(channels, taps, scale=0.3),
            draw(2 * channels, channels, scale=channels**-0.5),
            draw(2 * channels),
            p,
            torch.randint(2**62, (1,), device=device) if p else None,
            torch.randn(batch, length, channels, device=device),
        )

    def leaves(self) -> dict[str, torch.Tensor]:
        found = {name: getattr(self, name) for name in NAMES}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def outcome(self) -> dict[str, torch.Tensor]:
        """The operator's result and gradients."""
        inputs = (self.x, self.residual, self.k, self.w, self.b, self.p, self.seed)
        return self._with_gradients(torch.ops.s4convd.block(*inputs)[0], self.leaves(), self.gy)

    def truth(self) -> dict[str, torch.Tensor]:
        """The same by the formula in float64."""
        wide = {name: t.detach().double().requires_grad_() for name, t in self.leaves().items()}
        z = conv(wide["x"], wide["k"])
        if self.seed is not None:
            z = z * dropout_mask(tuple(z.shape), self.p, self.seed)
        mixed = F.glu(F.linear(F.gelu(z), wide["w"], wide["b"]), -1)
        out = wide.get("residual", wide["x"]) + mixed
        return self._with_gradients(out, wide, self.gy.double())

    @staticmethod
    def _with_gradients(
        out: torch.Tensor, leaves: dict[str, torch.Tensor], gy: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        gradients = torch.autograd.grad(out, list(leaves.values()), gy)
        return {"out": out.detach(), **dict(zip(leaves, gradients, strict=True))}


def conv(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The convolution of x (B, L, H) along L."""
    return forward_by_definition(x.transpose(1, 2), k).transpose(1, 2)


def filter_parameters(rows: tuple[int, ...], modes: int, device: str = "cpu") -> list[torch.Tensor]:
    """What `fused_filters` takes."""
    shapes = [rows, *[(*rows, modes)] * 4, rows]
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
