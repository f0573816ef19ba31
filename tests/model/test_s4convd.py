"""The network is the published one, weights and all."""

import math
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from cuda_ops import depthwise_conv
from model.block import S4ConvDBlock
from model.s4convd import S4ConvD, load_published

FEATURES, H, HALF, BLOCKS, L = 4, 16, 6, 3, 48


def published_weights() -> dict[str, torch.Tensor]:
    """Random weights of the published form: names, shapes, Conv1d mixing."""
    state = {
        "encoder.weight": torch.randn(H, FEATURES) / 2,
        "encoder.bias": torch.randn(H) / 4,
        "decoder.weight": torch.randn(1, H) / 4,
        "decoder.bias": torch.randn(1),
    }
    for i in range(BLOCKS):
        layer = f"blocks.{i}.kernel_layer"
        low, high = math.log(0.001), math.log(0.1)
        state |= {
            f"blocks.{i}.D": torch.randn(H),
            f"{layer}.log_dt": low + (high - low) * torch.rand(H),
            f"{layer}.C_re": torch.randn(H, HALF),
            f"{layer}.C_im": torch.randn(H, HALF),
            f"{layer}.log_A_re": torch.randn(H, HALF),
            f"{layer}.A_im": torch.ones(H, HALF),
            f"blocks.{i}.output_linear.0.weight": torch.randn(2 * H, H, 1) / 4,
            f"blocks.{i}.output_linear.0.bias": torch.randn(2 * H) / 4,
        }
    return state


def published_formula(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The network of arXiv 2502.21035 without dropout, in float64, written on its own."""
    w = {name: tensor.double() for name, tensor in state.items()}
    u = x.double() @ w["encoder.weight"].T + w["encoder.bias"]  # (B, L, H)
    length = x.shape[1]
    for i in range(BLOCKS):
        p = f"blocks.{i}.kernel_layer."
        dt = w[p + "log_dt"].exp()[:, None]
        a = torch.complex(-w[p + "log_A_re"].exp(), w[p + "A_im"])
        c = torch.complex(w[p + "C_re"], w[p + "C_im"]) * (torch.exp(dt * a) - 1) / a
        powers = torch.exp((dt * a)[..., None] * torch.arange(length))
        k = 2 * (c[..., None] * powers).sum(1).real  # (H, L)
        spectrum = torch.fft.rfft(u, 2 * length, dim=1) * torch.fft.rfft(k.T, 2 * length, dim=0)
        y = torch.fft.irfft(spectrum, 2 * length, dim=1)[:, :length] + w[f"blocks.{i}.D"] * u
        y = 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))
        y = y @ w[f"blocks.{i}.output_linear.0.weight"].squeeze(-1).T
        y = y + w[f"blocks.{i}.output_linear.0.bias"]
        u = y[..., :H] * torch.sigmoid(y[..., H:]) + u
    return (u[:, -1] @ w["decoder.weight"].T + w["decoder.bias"]).squeeze(-1)


def test_published_weights_give_the_published_outputs() -> None:
    state = published_weights()
    network = load_published(state).eval()
    x = torch.randn(32, L, FEATURES)
    expected = published_formula(state, x)
    found = network(x).flatten().double()
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5


def test_published_weights_get_the_published_gradients() -> None:
    """Of a loss with weights of its own, to each parameter, in float64."""
    state = {name: w.double().requires_grad_() for name, w in published_weights().items()}
    x, weight = torch.randn(32, L, FEATURES).double(), torch.randn(32).double()
    (published_formula(state, x) * weight).sum().backward()
    network = load_published({name: w.detach() for name, w in state.items()}).double().eval()
    (network(x).flatten() * weight).sum().backward()
    for name, p in network.named_parameters():
        expected = state[name].grad.reshape(p.shape)
        assert ((p.grad - expected).norm() / expected.norm()).item() < 1e-6, name


@pytest.mark.parametrize("last", [1, 3, L])
def test_the_last_steps_alone_are_the_last_of_all_steps(last: int) -> None:
    block = S4ConvDBlock(H, norm=True).eval()
    u = torch.randn(4, L, H)
    k = block.kernel_layer(L)
    torch.testing.assert_close(block(u, k, last), block(u, k)[:, -last:])


def test_the_published_form_has_the_published_parameters() -> None:
    network = S4ConvD(FEATURES, H, BLOCKS, 2 * HALF, init="published")
    expected = {name: tensor.shape for name, tensor in published_weights().items()}
    for i in range(BLOCKS):  # a matrix here, a Conv1d of kernel size 1 there
        expected[f"blocks.{i}.output_linear.0.weight"] = torch.Size((2 * H, H))
    found = {name: p.shape for name, p in network.named_parameters()}
    assert found == expected


def test_what_is_not_published_weights_is_refused_by_name() -> None:
    state = published_weights()
    del state["blocks.1.D"]
    with pytest.raises(ValueError, match=r"blocks\.1\.D"):
        load_published(state)
    with pytest.raises(ValueError, match=r"encoder\.weight"):
        load_published({"weight": torch.zeros(1)})


def test_the_residual_goes_around_the_norm() -> None:
    block = S4ConvDBlock(H, norm=True).eval()
    torch.nn.init.zeros_(block.output_linear[0].weight)
    torch.nn.init.zeros_(block.output_linear[0].bias)
    u = 3 + 2 * torch.randn(4, L, H)
    assert torch.equal(block(u, block.kernel_layer(L)), u)


def test_norm_makes_the_branch_blind_to_scale() -> None:
    block = S4ConvDBlock(H, norm=True).eval()
    u = torch.randn(4, L, H)
    k = block.kernel_layer(L)
    torch.testing.assert_close(block(10 * u, k) - 10 * u, block(u, k) - u, rtol=1e-3, atol=1e-3)


def test_a_forecast_sees_no_other_window() -> None:
    network = S4ConvD(FEATURES, H, BLOCKS, norm=True).eval()
    x = torch.randn(5, L, FEATURES)
    whole = network(x)
    for i in range(5):
        torch.testing.assert_close(network(x[i : i + 1]), whole[i : i + 1], rtol=1e-5, atol=1e-6)


def test_one_window_keeps_its_batch_axis() -> None:
    assert S4ConvD(FEATURES, H, 1)(torch.randn(1, L, FEATURES)).shape == (1, 1, 1)


@pytest.mark.parametrize("norm", [False, True])
def test_bfloat16_autocast_leaves_the_filter_its_digits(monkeypatch, norm) -> None:
    """The filter meets the operator in float32, and every parameter's gradient is finite."""
    types = []

    def watched(x: torch.Tensor, k: torch.Tensor, *rest: Any) -> torch.Tensor:
        types.append(k.dtype)
        return depthwise_conv(x, k, *rest)

    monkeypatch.setattr("model.block.depthwise_conv", watched)
    network = S4ConvD(FEATURES, H, BLOCKS, norm=norm, dropout=0.0)
    x = torch.randn(32, L, FEATURES)
    network(x).square().mean().backward()
    plain = parameters_to_vector(p.grad for p in network.parameters())
    network.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        forecast = network(x)
    forecast.float().square().mean().backward()
    assert types == [torch.float32] * (2 * BLOCKS)
    half = parameters_to_vector(p.grad for p in network.parameters())
    assert torch.isfinite(half).all()
    assert (half - plain).norm() < 0.1 * plain.norm()
