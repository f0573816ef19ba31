"""A forecaster as a program of PyTorch's own operations, for a process without this code."""

import torch
from torch import nn

from cuda_ops.reference import filters_by_formula, with_skip
from model.forecaster import Forecaster

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
TRACED = 3  # windows of the batch that is traced; the program takes any number from 1 on


class Program(nn.Module):
    """What is exported: one function from a batch of windows to forecasts in the user's units.

    Args:
        forecaster: with its weights and scaling.
    """

    def __init__(self, forecaster: Forecaster) -> None:
        super().__init__()
        self.forecaster = forecaster

    def forward(
        self,
        reading: torch.Tensor,
        covariates: torch.Tensor,
        minute: torch.Tensor,
        key: torch.Tensor,
        known: torch.Tensor,
    ) -> torch.Tensor:
        """Forecasts (B, horizon, 1 + Q): the forecast, and behind it Q quantiles.

        Args:
            reading: (B, L) float32, none missing.
            covariates: (B, L, W) float32, NaN where missing.
            minute: (B,) int64 since 1970-01-01 00:00, local time, of the first tick to predict.
            key: (B,) int64 of each window's series, see `SeriesSet.keys`; 0: of no known one.
            known: (B, L + horizon - 1, K) float32, of the tick after each step.
        """
        forecast = self.forecaster(reading, covariates, minute, key, known)
        return self.forecaster.to_user_units(forecast)


def export_program(forecaster: Forecaster, window: int) -> torch.export.ExportedProgram:
    """`Program` as PyTorch's export has it, for a CPU, any number of windows and L = `window`."""
    batch = torch.export.Dim("batch", min=1)
    inputs = sample_inputs(forecaster, window, TRACED)
    with torch.no_grad():
        program = torch.export.export(
            Program(forecaster), inputs, dynamic_shapes=[{0: batch} for _ in inputs]
        )
        # The one operator that is not PyTorch's own: another process would not know it.
        return program.run_decompositions({torch.ops.s4convd.filters.default: _filters})


def _filters(*inputs: torch.Tensor) -> torch.Tensor:
    """`s4convd::filters`, see cuda_ops/filters.py."""
    *parameters, skip, length = inputs
    taps = filters_by_formula(*parameters, length=int(length))
    return with_skip(taps, skip.double()).to(skip.dtype)


def sample_inputs(of: Forecaster, window: int, batch: int) -> Inputs:
    """Windows such as the training rows had, of known series and an unknown one, with gaps."""
    draw = torch.Generator().manual_seed(0)
    steps = window + of.horizon - 1
    normal = torch.randn(batch, window, generator=draw)
    reading = of.to_user_units(of.reading_mean + of.reading_std * normal)
    covariates = torch.randn(batch, steps, len(of.covariates), generator=draw)
    covariates = of.covariate_mean + of.covariate_std * covariates
    covariates[:, ::5] = torch.nan
    minute = of.step * torch.randint(10**6, (batch,), generator=draw)
    key = torch.zeros(batch, dtype=torch.int64)
    if of.meters is not None:
        known = of.meters.known[: batch - 1]
        key[: known.numel()] = known
    return reading, covariates[:, :window, : of.past], minute, key, covariates[..., of.past :]
