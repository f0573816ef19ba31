"""Units, calendar and loss."""

import numpy as np
import pytest
import torch

from model.calendar import CALENDAR_FEATURES, calendar_features
from model.forecaster import Forecaster
from model.losses import rmsle, signed_log1p

B, L = 6, 12


def windows(scale: float = 100.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    minute = 60 * torch.randint(400_000, 420_000, (B,))
    return scale * torch.rand(B, L), torch.randn(B, L, 2), minute


def forecaster(**options) -> Forecaster:
    options = {"channels": 8, "blocks": 1, "state_size": 4} | options
    model = Forecaster(["a", "b"], **options).eval()
    model.fit_scaling(3.0, 1.5, [0.5, -0.5], [2.0, 1.0])
    return model


@pytest.mark.parametrize("transform", ["log1p", "none"])
@pytest.mark.parametrize("relative", [True, False])
def test_scaling_is_undone_on_the_way_out(transform, relative) -> None:
    """A network that returns 0 forecasts the last reading (relative) or the training mean."""
    model = forecaster(transform=transform, relative=relative, calendar=False)
    torch.nn.init.zeros_(model.network.decoder.weight)
    torch.nn.init.zeros_(model.network.decoder.bias)
    reading, covariates, minute = windows()
    found = model.to_user_units(model(reading, covariates, minute))
    mean = np.expm1(3.0) if transform == "log1p" else 3.0
    expected = reading[:, -1] if relative else torch.full((B,), float(mean))
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-5, atol=1e-4)


def test_scaling_travels_in_the_state_dict() -> None:
    model, other = forecaster(), Forecaster(["a", "b"], channels=8, blocks=1, state_size=4).eval()
    other.load_state_dict(model.state_dict())
    inputs = windows()
    assert bool(other.fitted)
    assert torch.equal(model(*inputs), other(*inputs))


def test_a_missing_covariate_is_the_training_mean() -> None:
    model = forecaster()
    reading, covariates, minute = windows()
    blank, mean = covariates.clone(), covariates.clone()
    blank[:, 3, 1] = torch.nan
    mean[:, 3, 1] = -0.5
    found = model(reading, blank, minute)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, model(reading, mean, minute))


def test_log1p_never_forecasts_a_negative_reading() -> None:
    model = forecaster()
    assert model.to_user_units(torch.tensor([-3.0, 0.0, 1.0])).min() == 0


def test_the_published_form_is_reachable() -> None:
    """Same features in the same order: reading first, then the covariates, all scaled."""
    model = forecaster(relative=False, calendar=False, norm=False, init="published")
    reading, covariates, minute = windows()
    scaled = torch.stack(
        [
            (torch.log1p(reading) - 3.0) / 1.5,
            (covariates[..., 0] - 0.5) / 2.0,
            covariates[..., 1] + 0.5,
        ],
        dim=-1,
    )
    expected = model.network(scaled) * 1.5 + 3.0
    torch.testing.assert_close(model(reading, covariates, minute), expected, rtol=1e-5, atol=1e-5)
    assert model.network.encoder.in_features == 3


def test_calendar_describes_the_predicted_hour() -> None:
    minutes = int(np.datetime64("2016-02-29T17", "m").astype(np.int64))
    found = calendar_features(torch.tensor([minutes]), 30)[0]
    assert found.shape == (30, CALENDAR_FEATURES)
    half = CALENDAR_FEATURES // 2
    angle = 2 * np.pi * 17 / 24
    assert found[-1, 0] == pytest.approx(np.sin(angle), abs=1e-5)
    assert found[-1, half] == pytest.approx(np.cos(angle), abs=1e-5)
    torch.testing.assert_close(found[-25, :3], found[-1, :3], atol=1e-5, rtol=0)  # a day before
    assert (found[-25, 3] - found[-1, 3]).abs() > 0.1  # but another weekday
    week_later = calendar_features(torch.tensor([minutes + 60 * 168]), 30)[0]
    torch.testing.assert_close(week_later[:, :6], found[:, :6], atol=1e-5, rtol=0)


def hourly_features(target_hour: torch.Tensor, length: int) -> torch.Tensor:
    """As they were when all readings were hourly, for which there are checkpoints."""
    cycles = ((24.0, 3), (168.0, 3), (24 * 365.2425, 1))
    back = torch.arange(1 - length, 1)
    hours = (target_hour.unsqueeze(-1) + back).double()
    turns = [n * hours / period for period, harmonics in cycles for n in range(1, harmonics + 1)]
    phase = (2 * np.pi * torch.stack([turn % 1.0 for turn in turns], dim=-1)).float()
    return torch.cat([phase.sin(), phase.cos()], dim=-1)


def test_the_calendar_of_hourly_readings_is_what_it_was() -> None:
    hour = torch.randint(300_000, 500_000, (64,))
    assert torch.equal(calendar_features(60 * hour, 48), hourly_features(hour, 48))


def test_the_calendar_is_of_time_at_any_step() -> None:
    """Every second feature of half-hourly readings is one of hourly ones."""
    minute = 60 * torch.randint(400_000, 420_000, (8,))
    half = calendar_features(minute, 47, step=30)
    assert torch.equal(half[:, ::2], calendar_features(minute, 24))


@pytest.mark.parametrize(
    ("step", "blank"), [(6 * 60, [1, 2]), (1440, [0, 1, 2]), (10080, [*range(6)])]
)
def test_a_cycle_of_two_steps_or_less_is_not_told(step: int, blank: list[int]) -> None:
    minute = step * torch.arange(2000, 2100) + 420
    found = calendar_features(minute, 5, step)
    half = CALENDAR_FEATURES // 2
    silent = [n for n in range(CALENDAR_FEATURES) if (found[..., n] == 0).all()]
    assert silent == [*blank, *(half + n for n in blank)]


def test_loss_is_rmsle_where_rmsle_exists() -> None:
    prediction, target = 50 * torch.rand(40), 50 * torch.rand(40)
    expected = np.sqrt(np.mean((np.log1p(prediction.numpy()) - np.log1p(target.numpy())) ** 2))
    assert float(rmsle(signed_log1p(prediction), target)) == pytest.approx(
        float(expected), rel=1e-5
    )


@pytest.mark.parametrize(
    ("prediction", "target"), [([0.5, 0.7], [0.5, 0.7]), ([0.0, 0.0], [0.0, 0.0])]
)
def test_b01_a_perfect_forecast_has_a_finite_gradient(prediction, target) -> None:
    """sqrt at 0: the loss is 0 and the gradient NaN, which no test of the loss can see."""
    p = torch.tensor(prediction, requires_grad=True)
    loss = rmsle(signed_log1p(p), torch.tensor(target))
    loss.backward()
    assert loss.item() <= 1e-3
    assert p.grad is not None
    assert torch.isfinite(p.grad).all()


def test_b02_a_negative_forecast_has_a_gradient() -> None:
    """A clamp at 0 inside the loss leaves an all-negative model with gradient 0 for ever."""
    p = torch.full((8,), -0.5, requires_grad=True)
    rmsle(signed_log1p(p), torch.full((8,), 100.0)).backward()
    assert p.grad is not None
    assert (p.grad < 0).all()
    assert torch.isfinite(p.grad).all()
    assert torch.isfinite(signed_log1p(torch.tensor([-1e6, -1.0, 0.0]))).all()
