"""`--step`: what is not possible is refused, and weights make a short batch of a long one."""

from collections.abc import Callable

import pytest
import torch

from model.losses import rmsle
from tests.conftest import INPUTS, Run, assert_refused, load_checkpoint, one_file

NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
Runner = Callable[..., Run]


def test_a_graph_without_a_gpu_is_refused(run: Runner) -> None:
    """Checklist 14: another way is taken in silence."""
    refused = run(*NINE, "--step=graph")
    assert_refused(refused, "--step graph", "GPU", "--step eager")
    assert "data: " not in refused.text


def test_the_published_passes_and_the_fused_block_exclude_each_other(run: Runner) -> None:
    refused = run(*NINE, "--step=published", "--kernel=fused")
    assert_refused(refused, "--step published", "'fused'")


def test_the_published_passes_are_the_same_function(run: Runner) -> None:
    """Issue 5: same parameters and checkpoint either way."""
    options = [*NINE, "--model.blocks=2", "--model.dropout=0", "--trainer.max_epochs=3"]
    fast, published = run(*options), run(*options, "--step=published")
    assert "passes as published" in published.text
    states = [load_checkpoint(done.last)["state_dict"] for done in (fast, published)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.allclose(tensor, states[1][name], rtol=1e-3, atol=1e-5), name
    crossed = run("test", "--ckpt_path", published.best, *options[:-1])
    assert crossed.code == 0, crossed.text
    assert "published" not in load_checkpoint(published.last)["hyper_parameters"]


def test_weights_leave_the_others_out_of_loss_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(7, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.rand(7, generator=generator, dtype=torch.float64)
    weight = torch.tensor([1 / 4] * 4 + [0.0] * 3, dtype=torch.float64)
    weighted, short = rmsle(prediction, target, weight), rmsle(prediction[:4], target[:4])
    assert float(weighted) == pytest.approx(float(short), rel=1e-12)
    gradients = [torch.autograd.grad(value, prediction)[0] for value in (weighted, short)]
    assert torch.allclose(*gradients, rtol=1e-12)
    assert gradients[0][4:].eq(0).all()
