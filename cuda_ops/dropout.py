"""Which numbers dropout keeps, told by a hash: the Python twin of `Mask` in csrc/mixing.cu."""

import torch

_LOW = 0xFFFFFFFF  # 32 bits; a product of two such numbers wraps in 64, and its low half is right


def new_seed(device: torch.device) -> torch.Tensor:
    """A seed, (1,) int64, from PyTorch's generator of `device`, which `torch.manual_seed` seeds."""
    return torch.randint(-(2**62), 2**62, (1,), device=device)


def dropout_mask(shape: tuple[int, ...], p: float, seed: torch.Tensor) -> torch.Tensor:
    """0 with probability p and 1 / (1 - p) otherwise, float32, in the order of a dense tensor.

    Args:
        shape: of the mask.
        p: below 1; rounded down to a multiple of 2^-32.
        seed: as `new_seed` makes it.
    """
    index = torch.arange(torch.Size(shape).numel(), device=seed.device)
    h = (index & _LOW) ^ (seed & _LOW)
    h = ((h ^ h >> 16) * 0x7FEB352D) & _LOW
    h = h ^ ((seed >> 32) & _LOW) ^ (index >> 32)
    h = ((h ^ h >> 15) * 0x846CA68B) & _LOW
    kept = (h ^ h >> 16) >= int(p * 2**32)
    return torch.where(kept, 1 / (1 - p), 0.0).float().view(shape)
