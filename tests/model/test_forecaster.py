"""Units, calendar and loss."""

from typing import Any

import numpy as np
import pytest
import torch

from model.calendar import CALENDAR_FEATURES, calendar_features
from model.forecaster import Forecaster, Transform, _before
from model.losses import pinball, rmsle, signed_log1p

B, L = 6, 12


def windows(scale: float = 100.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    minute = 60 * torch.randint(400_000, 420_000, (B,))
    return scale * torch.rand(B, L), torch.randn(B, L, 2), minute


def forecaster(**options) -> Forecaster:
    options = {"channels": 8, "blocks": 1, "state_size": 4} | options
    model = Forecaster(["a", "b"], **options).eval()
    known = len(options.get("known", []))
    model.fit_scaling(3.0, 1.5, [0.5, -0.5] + known * [7.0], [2.0, 1.0] + known * [4.0])
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


def test_a_cycle_that_training_did_not_see_whole_is_not_told() -> None:
    """Half a year of training: a network asked in autumn would make something of its season."""
    minute = 60 * torch.tensor([413_000])
    whole = calendar_features(minute, 5)
    of_half, of_year = (calendar_features(minute, 5, span=days * 24 * 60) for days in (182, 364))
    waves = CALENDAR_FEATURES // 2
    year = [waves - 1, 2 * waves - 1]  # its sine and its cosine
    others = [n for n in range(CALENDAR_FEATURES) if n not in year]
    assert torch.equal(of_year, whole)
    assert (of_half[..., year] == 0).all()
    assert torch.equal(of_half[..., others], whole[..., others])
    assert (calendar_features(minute, 5, span=5 * 24 * 60)[..., 3] == 0).all()  # of the week


def test_the_calendar_is_of_the_cycles_that_are_named() -> None:
    """In the places that they have anyhow: weights of one choice fit another."""
    minute = torch.tensor([25_000_000, 26_000_000])
    each = [calendar_features(minute, 5, cycles=[cycle]) for cycle in ("day", "week", "year")]
    assert [(of != 0).any((0, 1)).sum() for of in each] == [6, 6, 2]
    assert torch.equal(sum(each), calendar_features(minute, 5))
    torch.manual_seed(3)
    inputs = windows()
    named = {str(calendar): forecaster(calendar=calendar) for calendar in (True, ["day"], ["week"])}
    for model in named.values():
        model.load_state_dict(named["True"].state_dict())
    found = [model(*inputs) for model in named.values()]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    assert forecaster(calendar=[]).features == forecaster(calendar=False).features


# -- several readings ahead, quantiles ---------------------------------------------------------


def test_each_of_several_is_what_a_network_of_all_steps_says_there() -> None:
    """No forecast sees what lies further ahead: the first of three is that of a horizon of one."""
    torch.manual_seed(3)
    options = {"known": ["c"], "seasons": [5], "flags": True}
    model = forecaster(horizon=3, **options)
    reading, covariates, minute = windows()
    known = torch.randn(B, L + 2, 1)
    found = model(reading, covariates, minute, None, known)
    assert found.shape == (B, 3, 1)
    changed = known.clone()
    changed[:, -1] += 1  # of the last tick alone
    other = model(reading, covariates, minute, None, changed)
    assert torch.equal(found[:, :2], other[:, :2])
    assert (found[:, 2] != other[:, 2]).all()


def test_what_is_known_ahead_counts_in_its_own_units() -> None:
    """Scaled by the training rows' statistics, and the mean where it is missing."""
    model = forecaster(known=["c"], horizon=2)
    reading, covariates, minute = windows()
    blank = torch.full((B, L + 1, 1), torch.nan)
    mean = torch.full((B, L + 1, 1), 7.0)
    found = model(reading, covariates, minute, None, blank)
    assert torch.equal(found, model(reading, covariates, minute, None, mean))
    assert not torch.equal(found, model(reading, covariates, minute, None, mean + 4))


def test_a_season_is_the_latest_reading_before_the_tick_that_is_a_multiple_away() -> None:
    values = torch.arange(10.0, 20.0).unsqueeze(0)
    found = _before(values, 4, 13)[0].tolist()
    # Step l is about tick l + 1; the first three would need readings before the window.
    assert found == [0, 0, 0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
    assert _before(values, 4, 15)[0].tolist()[13:] == [16, 17]


def test_flags_tell_zeros_and_repeats() -> None:
    model = forecaster(flags=True, calendar=False, relative=False)
    reading = torch.tensor([[0.0, 0.0, 5.0, 5.0, 0.0, 1.0]])
    features = model._features(
        reading,
        reading,
        0 * reading[:, :1],
        torch.zeros(1, 6, 2),
        torch.zeros(1).long(),
        None,
        None,
    )
    assert model.features[-2:] == ["zero", "repeat"]
    assert features[0, :, -2].tolist() == [1, 1, 0, 0, 1, 0]
    assert features[0, :, -1].tolist() == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("transform", ["log1p", "none"])
def test_quantiles_never_cross(transform: Any) -> None:
    torch.manual_seed(1)
    model = forecaster(quantiles=[0.05, 0.1, 0.5, 0.9], horizon=4, transform=transform)
    torch.nn.init.normal_(model.network.decoder.weight, std=30)
    reading, covariates, minute = windows()
    found = model.to_user_units(model(reading, covariates, minute))
    assert found.shape == (B, 4, 1 + 4)
    gaps = found[..., 1:].diff(dim=-1)
    assert (gaps >= 0).all()
    assert gaps.max() > 0


def test_the_pinball_loss_finds_quantiles() -> None:
    """Of an exponential distribution, whose quantile at q is -log(1 - q)."""
    torch.manual_seed(2)
    levels = torch.tensor([0.1, 0.5, 0.9])
    forecast = torch.zeros(3, requires_grad=True)
    target = torch.empty(20_000).exponential_()
    optimizer = torch.optim.Adam([forecast], lr=0.02)
    for _ in range(600):
        optimizer.zero_grad()
        pinball(forecast.expand(len(target), 3), target, levels).backward()
        optimizer.step()
    torch.testing.assert_close(forecast.detach(), -torch.log(1 - levels), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("quantiles", [[], [0.1, 0.5, 0.9]])
@pytest.mark.parametrize("transform", ["log1p", "none"])
def test_a_window_without_weight_counts_for_nothing(quantiles: Any, transform: Any) -> None:
    """As a graph needs it of a short batch; and all alike is the plain mean."""
    model = forecaster(quantiles=quantiles, horizon=2, transform=transform)
    reading, covariates, minute = windows()
    forecast, target = model.of_members(reading, covariates, minute), 100 * torch.rand(B, 2)
    weight = torch.tensor([0.25] * 4 + [0.0] * 2)
    plain = model.loss(forecast[:, :4], target[:4])
    torch.testing.assert_close(model.loss(forecast, target, weight), plain)


def test_the_loss_without_a_transform_is_in_deviations() -> None:
    model = forecaster(transform="none")
    target = torch.full((B, 1), 10.0)
    found = model.loss(target.view(1, B, 1, 1) + 3.0, target)
    assert float(found.detach()) == pytest.approx(3.0 / 1.5, rel=1e-4)


def test_the_loss_is_of_the_forecast_and_of_its_quantiles() -> None:
    """RMSLE of the one, the pinball loss of the others' logarithms."""
    model, target = forecaster(quantiles=[0.1, 0.5, 0.9]), torch.tensor([[5.0], [5.0]])
    at = [[7.0, 5.0, 5.0, 8.0], [5.0, 3.0, 5.0, 5.0]]
    found = model.loss(torch.log1p(torch.tensor(at)).view(1, 2, 1, 4), target)
    off = (np.log(8 / 6) ** 2 / 2) ** 0.5
    expected = off + (0.1 * np.log(9 / 6) + 0.1 * np.log(6 / 4)) / 6
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)


# -- amplitude, and the linear map --------------------------------------------------------------


def test_twice_the_amplitude_is_twice_the_forecast() -> None:
    """Of each difference to the last reading, whatever it is; without the option it is not."""
    reading, _, minute = windows()
    covariates = torch.zeros(B, L, 2)
    last = reading[:, -1:]
    for amplitude in (True, False):
        torch.manual_seed(4)
        model = forecaster(transform="none", amplitude=amplitude, linear=L, horizon=2)
        torch.nn.init.normal_(model.network.decoder.weight)
        model.fit_linear(0.1 * torch.randn(L, 2), torch.zeros(2))
        once, twice = (
            model(last + k * (reading - last), covariates, minute)[..., 0] - last for k in (1, 2)
        )
        near = torch.allclose(2 * once, twice, rtol=1e-3)
        assert near == amplitude


def test_a_still_window_is_not_magnified() -> None:
    """A dead meter's deviation is 0."""
    model = forecaster(amplitude=True, transform="none")
    _, covariates, minute = windows()
    found = model(torch.full((B, L), 7.0), covariates, minute)
    assert torch.isfinite(found).all()
    off = (found.flatten() - 7).abs().max()
    plain = forecaster(transform="none")
    plain.load_state_dict(model.state_dict())
    farther = (plain(torch.full((B, L), 7.0), covariates, minute).flatten() - 7).abs().max()
    torch.testing.assert_close(20 * off, farther, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("transform", ["log1p", "none"])
def test_the_forecast_is_a_linear_one_and_what_it_leaves(transform: Transform) -> None:
    """To begin with the linear one alone, of each member and for each quantile's middle."""
    torch.manual_seed(8)
    levels = [0.1, 0.5, 0.9]
    options: Any = {"members": 2, "horizon": 3, "quantiles": levels, "transform": transform}
    model = forecaster(**options, linear=L, amplitude=True)
    weight, offset = torch.randn(L, 3), torch.randn(3)
    model.fit_linear(weight, offset)
    inputs = windows()
    reading = torch.log1p(inputs[0]) if transform == "log1p" else inputs[0]
    linear = reading[:, -1:] + (reading - reading[:, -1:]) @ weight + offset
    found = model.of_members(*inputs)
    for output in (0, 2):  # the forecast, and the median
        torch.testing.assert_close(found[..., output], linear.expand(2, -1, -1))
    for member in model.networks:
        torch.nn.init.normal_(member.decoder.weight)
    alone = forecaster(**options, amplitude=True)
    alone.load_state_dict(model.state_dict(), strict=False)
    learnt = alone.of_members(*inputs) + (linear - reading[:, -1:]).unsqueeze(-1)
    torch.testing.assert_close(model.of_members(*inputs), learnt, rtol=1e-4, atol=1e-4)


# -- members -----------------------------------------------------------------------------------


def test_the_forecast_is_the_mean_of_the_members() -> None:
    """They began differently, and a member among others is a network as any."""
    torch.manual_seed(5)
    model = forecaster(members=3, quantiles=[0.1, 0.5, 0.9], horizon=2)
    inputs = windows()
    each = model.of_members(*inputs)
    assert each.shape == (3, B, 2, 4)
    torch.testing.assert_close(model(*inputs), each.mean(0))
    assert (each[0] != each[1]).all()
    assert (each[1] != each[2]).all()
    alone = forecaster(quantiles=[0.1, 0.5, 0.9], horizon=2)
    alone.network.load_state_dict(model.others[1].state_dict())
    torch.testing.assert_close(alone(*inputs), each[2])


def test_each_member_is_trained_as_if_alone() -> None:
    """Its gradient is that of its own loss: the mean's would let all err together."""
    torch.manual_seed(6)
    model = forecaster(members=2, quantiles=[0.1, 0.5, 0.9])
    inputs, target = windows(), 100 * torch.rand(B, 1)
    weight = torch.full((B,), 1 / B)
    model.loss(model.of_members(*inputs), target, weight).backward()
    for n, network in enumerate(model.networks):
        of_both = [p.grad.clone() for p in network.parameters()]
        network.zero_grad()
        model.loss(model.of_members(*inputs)[n : n + 1], target).backward()
        for found, parameter in zip(of_both, network.parameters(), strict=True):
            torch.testing.assert_close(2 * found, parameter.grad)
