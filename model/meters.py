"""What the model learns of each meter for itself."""

import torch
import torch.nn.functional as F
from torch import nn

# Of the training windows are seen as of an unknown meter. More than it takes to learn the unknown
# one's numbers: what is learnt without knowing the meter holds longer than what is learnt of it.
HIDDEN = 0.3


def rows_of(keys: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """(n,) the row of `MeterFeatures.weight` for each key: 0 for one that is not `known`."""
    if not known.numel():
        return torch.zeros_like(keys)
    place = torch.searchsorted(known, keys).clamp_max(known.numel() - 1)
    return torch.where(known[place] == keys, place + 1, 0)


class MeterFeatures(nn.Module):
    """E numbers for each meter that was trained on, and E for all others.

    A meter is known by its key, which follows from its name (`data.series.SeriesSet.keys`), so a
    checkpoint finds it again in any file. In training some windows are taken as an unknown
    meter's, which is how the numbers of those are learnt.

    Args:
        features: E.
    """

    known: torch.Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("known", torch.zeros(0, dtype=torch.int64))  # ascending
        self.weight = nn.Parameter(torch.zeros(1, features))  # row 0: those that are not known

    def learn(self, keys: torch.Tensor) -> None:
        """Begin anew, with the meters of these keys, int64."""
        self.make_room(keys.unique().numel())
        self.known.copy_(keys.unique())
        nn.init.normal_(self.weight, std=0.1)

    def make_room(self, meters: int) -> None:
        """For a state dict of so many meters to be loaded."""
        device = self.weight.device
        self.known = torch.zeros(meters, dtype=torch.int64, device=device)
        self.weight = nn.Parameter(torch.zeros(1 + meters, self.weight.shape[1], device=device))

    def forward(self, key: torch.Tensor) -> torch.Tensor:
        """Keys (B,) -> (B, E)."""
        if not self.known.numel():
            return self.weight.expand(key.numel(), -1)
        number = rows_of(key, self.known)
        if self.training:
            number = torch.where(torch.rand(key.shape, device=key.device) < HIDDEN, 0, number)
        return F.embedding(number, self.weight)
