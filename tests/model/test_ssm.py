"""The filter against its own formula in complex float64."""

import math

import pytest
import torch

from model.ssm import SSMFilter, filters_of


def complex_filter(layer: SSMFilter, length: int) -> torch.Tensor:
    """k[h, l] = 2 Re sum_n C (exp(dt A) - 1) / A exp(dt A l), as published, in complex128."""
    dt = layer.log_dt.double().exp().unsqueeze(-1)
    a = torch.complex(-layer.log_A_re.double().exp(), layer.A_im.double())
    c = torch.complex(layer.C_re.double(), layer.C_im.double())
    powers = torch.exp((dt * a).unsqueeze(-1) * torch.arange(length))
    return 2 * torch.einsum("hn,hnl->hl", c * (torch.exp(dt * a) - 1) / a, powers).real


def channel_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float(((found.double() - truth).norm(dim=1) / truth.norm(dim=1)).max().detach())


@pytest.mark.parametrize("perturbed", [False, True])
@pytest.mark.parametrize("init", ["s4d_lin", "published"])
@pytest.mark.parametrize(("length", "limit"), [(48, 1e-5), (1024, 1e-5), (4096, 5e-5)])
def test_each_channel_is_right(init, length, limit, perturbed) -> None:
    layer = SSMFilter(64, 64, init)
    if perturbed:  # as training leaves A behind
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    assert channel_error(layer(length), complex_filter(layer, length)) < limit


def test_several_layers_at_once_keep_their_own_filters_and_gradients() -> None:
    layers = [SSMFilter(16, 8).double() for _ in range(3)]
    weights = torch.randn(3, 16, 48, dtype=torch.float64)
    together = filters_of(layers, 48)
    (together * weights).sum().backward()
    for layer, found, weight in zip(layers, together, weights, strict=True):
        grads = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        alone = layer(48)
        (alone * weight).sum().backward()
        torch.testing.assert_close(found, alone)
        for p, grad in zip(layer.parameters(), grads, strict=True):
            torch.testing.assert_close(grad, p.grad)


def test_autocast_does_not_touch_it() -> None:
    layer = SSMFilter(16)
    plain = layer(48)
    with torch.autocast("cpu", torch.bfloat16):
        under = layer(48)
    assert under.dtype == torch.float32
    assert torch.equal(plain, under)


def test_float64_parameters_give_a_float64_filter() -> None:
    layer = SSMFilter(16).double()
    k = layer(48)
    assert k.dtype == torch.float64
    assert channel_error(k, complex_filter(layer, 48)) < 1e-12


def test_small_steps_do_not_cancel() -> None:
    """exp(x) - 1 written out loses all digits of a tiny dt A."""
    layer = SSMFilter(4, 8)
    with torch.no_grad():
        layer.log_dt.fill_(math.log(1e-9))
    k = layer(16)
    dt_c = 2 * layer.C_re.double().sum(1) * 1e-9  # (exp(dt A) - 1) / A -> dt
    torch.testing.assert_close(k[:, 0].double(), dt_c, rtol=1e-5, atol=0)


def test_gradients_are_right() -> None:
    layer = SSMFilter(3, 6)
    weight = torch.randn(3, 20, dtype=torch.float64)
    (layer(20).double() * weight).sum().backward()
    found = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad()
    (complex_filter(layer, 20) * weight).sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_starts() -> None:
    lin, published = SSMFilter(8, 16), SSMFilter(8, 16, "published")
    assert torch.equal(lin.log_A_re.exp(), torch.full((8, 8), 0.5))
    torch.testing.assert_close(lin.A_im[0], math.pi * torch.arange(8.0))
    assert torch.equal(published.A_im, torch.ones(8, 8))
    assert published.log_A_re.std() > 0.5
    for layer in (lin, published):
        assert layer.log_dt.min() >= math.log(0.001)
        assert layer.log_dt.max() <= math.log(0.1)
