"""`--step`: what is not possible is refused, and weights make a short batch of a long one."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.losses import rmsle
from model.training.graph import reason_against
from model.training.module import S4ConvDModule
from tests.conftest import INPUTS, Run, assert_refused, load_checkpoint, one_file

NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
Runner = Callable[..., Run]


def test_a_graph_without_a_gpu_is_refused(run: Runner) -> None:
    """Checklist 14: another way is taken in silence."""
    refused = run(*NINE, "--step=graph")
    assert_refused(refused, "--step graph", "GPU", "--step eager")
    assert "data: " not in refused.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, None),
        ({"strategy": SimpleNamespace(root_device=torch.device("cpu"))}, "GPU"),
        ({"world_size": 2}, "processes"),
        ({"accumulate_grad_batches": 2}, "accumulated"),
        ({"precision": "16-mixed"}, "16-mixed"),
        ({"_detect_anomaly": True}, "anomalies"),
    ],
)
def test_what_a_graph_cannot_do(change: dict[str, Any], told: str | None) -> None:
    """Each of these would end in a wrong gradient, or in CUDA's own words."""
    plain = {
        "strategy": SimpleNamespace(root_device=torch.device("cuda:0")),
        "world_size": 1,
        "accumulate_grad_batches": 1,
        "precision": "32-true",
        "_detect_anomaly": False,
    }
    trainer: Any = SimpleNamespace(**(plain | change))
    against = reason_against(trainer)
    assert against is None if told is None else told in str(against)


def test_a_callback_that_accumulates_ends_the_replaying(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients would be overwritten that were to be added up."""
    replayed: list[int] = []

    def instead(self: S4ConvDModule, batch: Any) -> torch.Tensor:
        replayed.append(self.trainer.current_epoch)
        loss = self.loss(batch)
        self.zero_grad()
        loss.backward()
        return loss.detach()

    def settle(self: S4ConvDModule, kernel: str, replays: bool = False) -> None:
        self.replays = True

    monkeypatch.setattr(S4ConvDModule, "_replayed", instead)
    monkeypatch.setattr(S4ConvDModule, "run_as", settle)
    schedule = "lightning.pytorch.callbacks.GradientAccumulationScheduler"
    options = [
        "--kernel=pytorch",
        "--trainer.max_epochs=3",
        f"--trainer.callbacks+={schedule}",
        "--trainer.callbacks.scheduling={0: 1, 2: 2}",
    ]
    done = run(*NINE, *options)
    assert done.code == 0, done.text
    assert replayed == [0, 0, 0, 1, 1, 1]
    assert done.cli.trainer.global_step == 3 + 3 + 2


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
