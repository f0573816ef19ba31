"""How float32 matrix products are rounded on a GPU."""

import torch


def set_matmul_precision(precision: str) -> None:
    """Either "highest", float32 throughout, or "high": factors in TF32, with 10 bits of 23.

    It holds for cuDNN's convolutions, too, of which the published network has one in each block.
    Left to itself, PyTorch has those in TF32, and the other products in float32.
    """
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision != "highest"
