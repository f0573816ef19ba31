"""Time of day, weekday and season as features, computed on the device from minutes."""

import math
from collections.abc import Sequence
from typing import Literal

import torch

Cycle = Literal["day", "week", "year"]
HOURS_PER_YEAR = 24 * 365.2425
# (period in hours, harmonics): a working day has edges, which a single sine cannot draw.
CYCLES: dict[Cycle, tuple[float, int]] = {
    "day": (24.0, 3),
    "week": (168.0, 3),
    "year": (HOURS_PER_YEAR, 1),
}
ALL: tuple[Cycle, ...] = tuple(CYCLES)
WAVES = tuple(
    (cycle, period, n)
    for cycle, (period, harmonics) in CYCLES.items()
    for n in range(1, harmonics + 1)
)
CALENDAR_FEATURES = 2 * len(WAVES)
NEARLY = 0.9  # of a cycle counts as the whole of it


def calendar_features(
    target_minute: torch.Tensor,
    length: int,
    step: int = 60,
    span: int | None = None,
    cycles: Sequence[Cycle] = ALL,
) -> torch.Tensor:
    """Sines and cosines of the tick that follows each step of a window.

    A wave of two ticks or less says nothing and is 0: daily readings have no time of day. So is a
    cycle that the training did not see whole: of the months that it did not see, a network can say
    nothing, and would. The features are as many in any case, so that a network is not made for one.

    Args:
        target_minute: (B,), int64 minutes since 1970-01-01 00:00 of the tick after the window.
        length: L.
        step: minutes from a tick to the next.
        span: minutes that the training spans; None: no cycle is too long.
        cycles: what is told; the others are 0, too.

    Returns:
        (B, L, CALENDAR_FEATURES), float32; step L-1 describes `target_minute` itself.
    """
    back = step * torch.arange(1 - length, 1, device=target_minute.device)
    hours = (target_minute.unsqueeze(-1) + back).double() / 60  # (B, L)
    turns = [n * hours / period for _, period, n in WAVES]
    # Reduced to one turn while still in float64: hours since 1970 leave float32 no digits.
    phase = (2 * math.pi * torch.stack([turn % 1.0 for turn in turns], dim=-1)).float()
    features = torch.cat([phase.sin(), phase.cos()], dim=-1)
    for number, (cycle, period, n) in enumerate(WAVES):
        too_long = span is not None and NEARLY * 60 * period > span
        if too_long or cycle not in cycles or 60 * period / n <= 2 * step:
            features[..., number :: len(WAVES)] = 0  # its sine and its cosine
    return features
