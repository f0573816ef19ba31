"""Forecasts of a whole loop, gathered from all processes and put in order."""

import numpy as np
import torch
import torch.distributed as dist


class RowCollector:
    """Collects (cell, forecast) pairs batch by batch."""

    def __init__(self) -> None:
        self.cells: list[torch.Tensor] = []
        self.forecasts: list[torch.Tensor] = []

    def add(self, cell: torch.Tensor, forecast: torch.Tensor) -> None:
        """Keep one batch, (B,) and (B, ...); nothing is copied to the host yet."""
        self.cells.append(cell)
        self.forecasts.append(forecast.detach().float())

    def collect(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows of all processes by cell, (n,) and (n, ...); afterwards it is empty."""
        cell = torch.cat(self.cells).cpu().numpy()
        forecast = torch.cat(self.forecasts).cpu().numpy()
        self.cells, self.forecasts = [], []
        if dist.is_available() and dist.is_initialized():
            shares: list = [None] * dist.get_world_size()
            dist.all_gather_object(shares, (cell, forecast))
            cell, forecast = (np.concatenate(parts) for parts in zip(*shares, strict=True))
        order = np.argsort(cell, kind="stable")
        return cell[order], forecast[order]
