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
        p: below 1; rounded down to a multiple of 2^-16.
        seed: as `new_seed` makes it.
    """
    threshold = int(p * 2**16)
    index = torch.arange(torch.Size(shape).numel(), device=seed.device)
    pair = index >> 1  # one hash for two numbers, 16 bits each
    h = (pair & _LOW) ^ (seed & _LOW)
    h = ((h ^ h >> 16) * 0x7FEB352D) & _LOW
    h = h ^ ((seed >> 32) & _LOW) ^ (pair >> 32)
    h = ((h ^ h >> 15) * 0x846CA68B) & _LOW
    h = h ^ h >> 16
    kept = torch.where(index % 2 == 0, h & 0xFFFF, h >> 16) >= threshold
    return torch.where(kept, 1 / (1 - threshold / 2**16), 0.0).float().view(shape)
