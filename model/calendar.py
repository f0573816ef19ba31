"""Hour, weekday and season as features, computed on the device from hours since the epoch."""

import math

import torch

HOURS_PER_YEAR = 24 * 365.2425
# (period in hours, harmonics): a working day has edges, which a single sine cannot draw.
CYCLES = ((24.0, 3), (168.0, 3), (HOURS_PER_YEAR, 1))
CALENDAR_FEATURES = 2 * sum(harmonics for _, harmonics in CYCLES)


def calendar_features(target_hour: torch.Tensor, length: int) -> torch.Tensor:
    """Sines and cosines of the hour that follows each step of a window.

    Args:
        target_hour: (B,), int64 hours since 1970-01-01 00:00 of the hour after the window.
        length: L.

    Returns:
        (B, L, CALENDAR_FEATURES), float32; step L-1 describes `target_hour` itself.
    """
    back = torch.arange(1 - length, 1, device=target_hour.device)
    hours = (target_hour.unsqueeze(-1) + back).double()  # (B, L)
    turns = [n * hours / period for period, harmonics in CYCLES for n in range(1, harmonics + 1)]
    # Reduced to one turn while still in float64: hours since 1970 leave float32 no digits.
    phase = (2 * math.pi * torch.stack([turn % 1.0 for turn in turns], dim=-1)).float()
    return torch.cat([phase.sin(), phase.cos()], dim=-1)
