"""S4ConvD between the user's units: what goes in and comes out is kWh, degrees and minutes."""

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import nn

from model.calendar import ALL, CALENDAR_FEATURES, Cycle, calendar_features
from model.losses import pinball, root_mean_square, signed_log1p
from model.meters import MeterFeatures
from model.published import PublishedS4ConvD
from model.s4convd import S4ConvD

Transform = Literal["log1p", "none"]
MEDIAN = 0.5
# Ahead of the softplus whose value parts two quantiles: an untrained band is narrow.
NARROW = 2.0
STILL = 0.05  # training deviations; a window that moves less is not magnified any further


class Forecaster(nn.Module):
    """The next readings from a window of readings and covariates.

    The network runs over the window and, for a horizon of more than one, over the ticks that
    follow, of which it is told what is known ahead: at each step it forecasts the reading of the
    tick after it. Scaling lives here and travels in the state dict: a checkpoint means the same
    everywhere.

    Several networks that began differently err differently, and their mean errs less than one of
    them (Lakshminarayanan et al. 2017): `members` of them are trained side by side, each for
    itself, on the same batches.

    Args:
        covariates: names of the covariates, in the order of the tensors' last axis.
        known: names of those that are known ahead, likewise.
        horizon: ticks to forecast.
        quantiles: levels in (0, 1), ascending, the median among them, beside the forecast itself;
            none: the forecast alone.
        transform: `log1p` models log(1 + reading), for readings >= 0; `none` models the reading.
        relative: the network sees each window relative to its last reading (which it is also told)
            and forecasts the difference to it, so that large and small buildings look alike.
        amplitude: the network sees each window in units of its own standard deviation, and its
            forecasts are in them: what it learnt of a restless time is right in a calm one (RevIN,
            Kim et al. 2022).
        linear: readings of a window, for a linear map of them to the forecast, which `fit_linear`
            takes: the networks forecast what it leaves; 0: no such map.
        calendar: the network is told the time of day, weekday and season of the tick after each
            step: true is all three, false none, and a list of them is these.
        flags: the network is told which readings are 0, and which repeat the one before them: a
            dead meter's do.
        seasons: ticks; for each, the network is told at each step the latest reading that is a
            multiple of them before the tick after it.
        meter_features: how many numbers the network is told of each meter, which it learns; see
            `MeterFeatures`.
        step: minutes from one reading to the next.
        span: minutes that the training spans: the calendar has no longer cycle; None: it has all.
        members: networks whose forecasts are averaged.
        published: run the network in the form of `PublishedS4ConvD`, which is the same function.
        network: the other arguments of `S4ConvD`.
    """

    fitted: torch.Tensor
    reading_mean: torch.Tensor
    reading_std: torch.Tensor
    covariate_mean: torch.Tensor
    covariate_std: torch.Tensor
    levels: torch.Tensor
    linear_weight: torch.Tensor
    linear_offset: torch.Tensor

    def __init__(
        self,
        covariates: list[str],
        *,
        known: list[str] = [],  # noqa: B006 (never changed, as below)
        horizon: int = 1,
        quantiles: list[float] = [],  # noqa: B006
        transform: Transform = "log1p",
        relative: bool = True,
        amplitude: bool = False,
        linear: int = 0,
        calendar: bool | Sequence[Cycle] = True,
        flags: bool = False,
        seasons: list[int] = [],  # noqa: B006
        meter_features: int = 0,
        step: int = 60,
        span: int | None = None,
        members: int = 1,
        published: bool = False,
        **network: Any,
    ) -> None:
        super().__init__()
        self.covariates = [*covariates, *known]
        self.past = len(covariates)
        self.horizon = horizon
        self.quantiles = list(quantiles)
        self.transform = transform
        self.relative = relative
        self.amplitude = amplitude
        self.cycles = ALL if calendar is True else tuple(calendar or ())
        self.step = step
        self.span = span
        self.flags = flags
        self.seasons = list(seasons)
        self.meters = MeterFeatures(meter_features) if meter_features else None
        self.features = self.feature_names(
            covariates, known, horizon, relative, calendar, flags, seasons, meter_features
        )
        form = PublishedS4ConvD if published else S4ConvD
        outputs = 1 + len(quantiles)
        first, *others = (
            form(len(self.features), horizon=horizon, outputs=outputs, **network)
            for _ in range(members)
        )
        self.network = first
        self.others = nn.ModuleList(others)
        self.linear = linear
        if linear:
            self.register_buffer("linear_weight", torch.zeros(linear, horizon))
            self.register_buffer("linear_offset", torch.zeros(horizon))
            for member in self.networks:  # the map alone, to begin with
                nn.init.zeros_(member.decoder.weight)
                nn.init.zeros_(member.decoder.bias)
        self.register_buffer("fitted", torch.tensor(False))
        self.register_buffer("reading_mean", torch.zeros(()))
        self.register_buffer("reading_std", torch.ones(()))
        self.register_buffer("covariate_mean", torch.zeros(len(self.covariates)))
        self.register_buffer("covariate_std", torch.ones(len(self.covariates)))
        self.register_buffer("levels", torch.tensor(self.quantiles), persistent=False)

    @staticmethod
    def feature_names(
        covariates: list[str],
        known: list[str],
        horizon: int,
        relative: bool,
        calendar: bool | Sequence[Cycle],
        flags: bool,
        seasons: list[int],
        meter_features: int,
    ) -> list[str]:
        """What the network is told of each step, in the order of its encoder's columns."""
        return [
            "reading",
            *covariates,
            *["level"] * relative,
            *[f"calendar {n}" for n in range(CALENDAR_FEATURES * bool(calendar))],
            *[f"meter {n}" for n in range(meter_features)],
            *["zero", "repeat"] * flags,
            *[f"reading {season} before" for season in seasons],
            *[f"{name} ahead" for name in known],
            *["is ahead"] * (horizon > 1),
        ]

    @property
    def networks(self) -> list[S4ConvD]:
        """All members."""
        return [self.network, *cast("list[S4ConvD]", list(self.others))]

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

    @torch.no_grad()
    def fit_linear(self, weight: torch.Tensor, offset: torch.Tensor) -> None:
        """Take over a linear model of the training windows, all in the transform's units.

        Args:
            weight: (L, horizon), of a window's readings less the last of them.
            offset: (horizon,); with it the forecast less that last reading.
        """
        self.linear_weight.copy_(weight)
        self.linear_offset.copy_(offset)

    def forward(
        self,
        reading: torch.Tensor,
        covariates: torch.Tensor,
        minute: torch.Tensor,
        key: torch.Tensor | None = None,
        known: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Forecast in the transform's units: log(1 + kWh) under `log1p`. See `to_user_units`.

        Args:
            reading: (B, L), the user's units, none missing.
            covariates: (B, L, W), the user's units, NaN where missing.
            minute: (B,), int64 minutes since 1970-01-01 00:00 of the first tick to predict, local
                time.
            key: (B,), int64, of each window's meter; None: of meters that nobody knows.
            known: (B, L + horizon - 1, K), the covariates known ahead, of the tick after each
                step; None where there are none.

        Returns:
            (B, horizon, 1 + Q), float32: the forecast, and behind it the quantiles.
        """
        return self.of_members(reading, covariates, minute, key, known).mean(0)

    def of_members(
        self,
        reading: torch.Tensor,
        covariates: torch.Tensor,
        minute: torch.Tensor,
        key: torch.Tensor | None = None,
        known: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same of each network, (members, B, horizon, 1 + Q): what each is trained on."""
        transformed = self.transformed(reading)
        scaled = (transformed - self.reading_mean) / self.reading_std  # (B, L)
        level = scaled[:, -1:] if self.relative else torch.zeros_like(scaled[:, :1])
        unit = self._unit(scaled)
        relative = (scaled - level) / unit
        features = self._features(reading, relative, level, covariates, minute, key, known)
        output = torch.stack([network(features) for network in self.networks])
        forecast = self._ascending(output.float())
        forecast = forecast * unit.unsqueeze(-1) + level.unsqueeze(-1)
        forecast = forecast * self.reading_std + self.reading_mean
        if self.linear:
            change = (transformed - transformed[:, -1:]) @ self.linear_weight + self.linear_offset
            forecast = forecast + change.float().unsqueeze(-1)
        return forecast

    def _unit(self, scaled: torch.Tensor) -> torch.Tensor:
        """(B, 1): what of each window's readings is 1 to the network."""
        if not self.amplitude:
            return torch.ones_like(scaled[:, :1])
        return scaled.std(dim=1, correction=0, keepdim=True).clamp_min(STILL)

    def transformed(self, reading: torch.Tensor) -> torch.Tensor:
        """Readings in the units of `forward`."""
        return torch.log1p(reading) if self.transform == "log1p" else reading

    def to_user_units(self, forecast: torch.Tensor) -> torch.Tensor:
        """What `forward` returned, in the readings' own units; never negative under `log1p`."""
        return torch.expm1(forecast).clamp_min(0) if self.transform == "log1p" else forecast

    def loss(
        self, forecast: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What training makes small: the forecast's RMSLE, and the quantiles' pinball loss.

        Both in the transform's units; under `none` in training deviations, where the first is the
        root mean square.

        Args:
            forecast: (members, B, horizon, 1 + Q), of `of_members`.
            target: (B, horizon), the user's units.
            weight: (B,) of each window in the mean; None: all alike.
        """
        members = len(forecast)
        if self.transform == "log1p":
            truth = signed_log1p(target)
        else:
            forecast, truth = forecast / self.reading_std, target / self.reading_std
        errors = [root_mean_square(member[..., 0] - truth, weight) for member in forecast]
        value = torch.stack(errors).mean()
        if self.quantiles:
            weight = None if weight is None else weight.repeat(members) / members
            quantiles = forecast[..., 1:].flatten(0, 1)
            value = value + pinball(quantiles, truth.repeat(members, 1), self.levels, weight)
        return value

    def _features(
        self,
        reading: torch.Tensor,
        relative: torch.Tensor,
        level: torch.Tensor,
        covariates: torch.Tensor,
        minute: torch.Tensor,
        key: torch.Tensor | None,
        known: torch.Tensor | None,
    ) -> torch.Tensor:
        """(B, L + horizon - 1, F), in the order of `feature_names`; what is not known is 0."""
        more = self.horizon - 1
        windows, length = reading.shape
        steps = length + more
        past = [relative.unsqueeze(-1), self._scaled(covariates, slice(0, self.past))]
        features = [F.pad(torch.cat(past, dim=-1), (0, 0, 0, more))]
        if self.relative:
            features.append(level.expand(-1, steps).unsqueeze(-1))
        if self.cycles:
            last = minute + more * self.step
            features.append(calendar_features(last, steps, self.step, self.span, self.cycles))
        if self.meters is not None:
            nobody = torch.zeros_like(minute)  # 0 is no meter's key
            own = self.meters(nobody if key is None else key)
            features.append(own.unsqueeze(1).expand(-1, steps, -1))
        if self.flags:
            repeated = F.pad(reading[:, 1:] == reading[:, :-1], (1, 0))
            flags = torch.stack([reading == 0, repeated], dim=-1).to(relative.dtype)
            features.append(F.pad(flags, (0, 0, 0, more)))
        features += [_before(relative, season, steps).unsqueeze(-1) for season in self.seasons]
        if known is not None:
            features.append(self._scaled(known, slice(self.past, None)))
        if more:
            is_ahead = torch.arange(steps, device=relative.device) >= length
            features.append(is_ahead.to(relative.dtype).view(1, -1, 1).expand(windows, -1, -1))
        return torch.cat(features, dim=-1)

    def _scaled(self, covariates: torch.Tensor, columns: slice) -> torch.Tensor:
        """(B, ., W) in the user's units -> scaled. A missing value becomes the training mean, 0."""
        mean, std = self.covariate_mean[columns], self.covariate_std[columns]
        return torch.nan_to_num((covariates - mean) / std, nan=0.0)

    def _ascending(self, output: torch.Tensor) -> torch.Tensor:
        """(..., 1 + Q) of anything -> the forecast, and quantiles that ascend.

        These are made of the median and gaps to either side.
        """
        if not self.quantiles:
            return output
        forecast, output = output[..., :1], output[..., 1:]
        at = self.quantiles.index(MEDIAN)
        middle, gaps = output[..., at : at + 1], F.softplus(output - NARROW)
        below = middle - gaps[..., :at].flip(-1).cumsum(-1).flip(-1)
        above = middle + gaps[..., at + 1 :].cumsum(-1)
        return torch.cat([forecast, below, middle, above], dim=-1)


def _before(values: torch.Tensor, season: int, steps: int) -> torch.Tensor:
    """Of the tick after each step, the latest of the values that lies seasons before it.

    Args:
        values: (B, L).
        season: ticks.
        steps: L or more.

    Returns:
        (B, steps), 0 where that would be before the first value.
    """
    length = values.shape[1]
    tick = torch.arange(1, steps + 1, device=values.device)
    seasons = ((tick - length) // season + 1).clamp_min(1)
    source = tick - season * seasons
    return torch.where(source >= 0, values[:, source.clamp_min(0)], 0)
