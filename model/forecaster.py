"""S4ConvD between the user's units: what goes in and comes out is kWh, degrees and minutes."""

from typing import Any, Literal

import torch
from torch import nn

from model.calendar import CALENDAR_FEATURES, calendar_features
from model.losses import signed_log1p
from model.meters import MeterFeatures
from model.published import PublishedS4ConvD
from model.s4convd import S4ConvD

Transform = Literal["log1p", "none"]


class Forecaster(nn.Module):
    """The next reading from a window of readings and covariates.

    Scaling lives here and travels in the state dict: a checkpoint means the same everywhere.

    Args:
        covariates: names of the covariates, in the order of the tensors' last axis.
        transform: `log1p` models log(1 + reading), for readings >= 0; `none` models the reading.
        relative: the network sees each window relative to its last reading (which it is also told)
            and forecasts the difference to it, so that large and small buildings look alike.
        calendar: the network is told the time of day, weekday and season of the tick after each
            step; at the last step that is the predicted one.
        meter_features: how many numbers the network is told of each meter, which it learns; see
            `MeterFeatures`.
        step: minutes from one reading to the next.
        published: run the network in the form of `PublishedS4ConvD`, which is the same function.
        network: the other arguments of `S4ConvD`.
    """

    fitted: torch.Tensor
    reading_mean: torch.Tensor
    reading_std: torch.Tensor
    covariate_mean: torch.Tensor
    covariate_std: torch.Tensor

    def __init__(
        self,
        covariates: list[str],
        *,
        transform: Transform = "log1p",
        relative: bool = True,
        calendar: bool = True,
        meter_features: int = 0,
        step: int = 60,
        published: bool = False,
        **network: Any,
    ) -> None:
        super().__init__()
        self.covariates = list(covariates)
        self.transform = transform
        self.relative = relative
        self.calendar = calendar
        self.step = step
        self.meters = MeterFeatures(meter_features) if meter_features else None
        self.features = self.feature_names(covariates, relative, calendar, meter_features)
        form = PublishedS4ConvD if published else S4ConvD
        self.network = form(len(self.features), **network)
        self.register_buffer("fitted", torch.tensor(False))
        self.register_buffer("reading_mean", torch.zeros(()))
        self.register_buffer("reading_std", torch.ones(()))
        self.register_buffer("covariate_mean", torch.zeros(len(covariates)))
        self.register_buffer("covariate_std", torch.ones(len(covariates)))

    @staticmethod
    def feature_names(
        covariates: list[str], relative: bool, calendar: bool, meter_features: int
    ) -> list[str]:
        """What the network is told of each reading, in the order of its encoder's columns."""
        names = ["reading", *covariates]
        names += ["level"] * relative
        names += [f"calendar {n}" for n in range(CALENDAR_FEATURES * calendar)]
        return names + [f"meter {n}" for n in range(meter_features)]

    @torch.no_grad()
    def fit_scaling(
        self,
        reading_mean: float,
        reading_std: float,
        covariate_mean: list[float],
        covariate_std: list[float],
    ) -> None:
        """Take over the training rows' statistics; the reading's are of its transformed values."""
        self.reading_mean.fill_(reading_mean)
        self.reading_std.fill_(reading_std)
        self.covariate_mean.copy_(torch.tensor(covariate_mean))
        self.covariate_std.copy_(torch.tensor(covariate_std))
        self.fitted.fill_(True)

    def scale_covariates(self, covariates: torch.Tensor) -> torch.Tensor:
        """(B, L, W) in the user's units -> scaled. A missing value becomes the training mean, 0."""
        return torch.nan_to_num((covariates - self.covariate_mean) / self.covariate_std, nan=0.0)

    def forward(
        self,
        reading: torch.Tensor,
        covariates: torch.Tensor,
        minute: torch.Tensor,
        key: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Forecast in the transform's units: log(1 + kWh) under `log1p`. See `to_user_units`.

        Args:
            reading: (B, L), the user's units, none missing.
            covariates: (B, L, W), the user's units, NaN where missing.
            minute: (B,), int64 minutes since 1970-01-01 00:00 of the predicted time, local time.
            key: (B,), int64, of each window's meter; None: of meters that nobody knows.

        Returns:
            (B,), float32.
        """
        value = torch.log1p(reading) if self.transform == "log1p" else reading
        scaled = (value - self.reading_mean) / self.reading_std  # (B, L)
        level = scaled[:, -1:] if self.relative else torch.zeros_like(scaled[:, :1])
        features = [(scaled - level).unsqueeze(-1), self.scale_covariates(covariates)]
        if self.relative:
            features.append(level.expand_as(scaled).unsqueeze(-1))
        if self.calendar:
            features.append(calendar_features(minute, reading.shape[1], self.step))
        if self.meters is not None:
            nobody = torch.zeros_like(minute)  # 0 is no meter's key
            own = self.meters(nobody if key is None else key)
            features.append(own.unsqueeze(1).expand(-1, reading.shape[1], -1))
        forecast = self.network(torch.cat(features, dim=-1)).float()
        return (forecast + level.squeeze(-1)) * self.reading_std + self.reading_mean

    def to_user_units(self, forecast: torch.Tensor) -> torch.Tensor:
        """What `forward` returned, in the readings' own units; never negative under `log1p`."""
        return torch.expm1(forecast).clamp_min(0) if self.transform == "log1p" else forecast

    def to_log1p(self, forecast: torch.Tensor) -> torch.Tensor:
        """What `forward` returned, as log(1 + reading), with a gradient wherever it lies."""
        return forecast if self.transform == "log1p" else signed_log1p(forecast)
