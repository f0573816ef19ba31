"""Steps that a CUDA graph replays are the steps that they stand for."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from model.forecaster import Forecaster
from model.training.module import S4ConvDModule
from tests.cases.timed_runs import curves, summary
from tests.conftest import INPUTS, Run, assert_refused, load_checkpoint, one_file

pytestmark = pytest.mark.gpu
Runner = Callable[..., Run]
PLAIN = Forecaster.loss
GPU = ["--trainer.accelerator=gpu", "--trainer.devices=1"]
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
SHORT_LAST = [*GPU, *NINE, "--trainer.max_epochs=6"]  # two batches of four windows and one of one
SIZE = ["--model.channels=64", "--model.blocks=2", "--model.state_size=64"]
WHOLE = [
    *GPU,
    *SIZE,
    "--data.window=48",
    "--data.batch_size=256",
    "--trainer.max_steps=60",
    "--trainer.limit_val_batches=2",
    "--trainer.limit_test_batches=2",
]
KERNELS = ["pytorch", "warp_tiled", "fused"]


def losses_of(run: Run) -> dict[int, float]:
    """Step -> loss."""
    assert run.code == 0, run.text
    return curves(run.folder)["train/loss"]


def apart(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest relative difference of two curves at the same steps."""
    assert list(one) == list(other)
    return max(abs(one[step] - other[step]) / other[step] for step in other)


@pytest.fixture
def weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eager step sums its loss as a graph does: then both have the same bits."""

    def always(
        self: Forecaster, forecast: Any, target: torch.Tensor, weight: Any = None
    ) -> torch.Tensor:
        if weight is None:
            weight = target.new_full((len(target),), 1 / len(target))
        return PLAIN(self, forecast, target, weight)

    monkeypatch.setattr(Forecaster, "loss", always)


@pytest.mark.usefixtures("weighted")
@pytest.mark.parametrize("kernel", KERNELS)
def test_with_dropout_clipping_and_a_schedule(run: Runner, kernel: str) -> None:
    """The same masks are drawn, and what comes after the gradients is done to them."""
    options = [*WHOLE, f"--kernel={kernel}", "--model.dropout=0.2"]
    clipped = [*options, "--trainer.gradient_clip_val=0.02"]
    eager, graph = (losses_of(run(*clipped, f"--step={step}")) for step in ("eager", "graph"))
    difference = apart(graph, eager)
    unclipped = apart(losses_of(run(*options, "--step=graph")), eager)
    other = apart(losses_of(run(*clipped, "--step=graph", "--seed_everything=2")), eager)
    print(f"{kernel}: {difference:.1e} apart; unclipped {unclipped:.1e}, another seed {other:.1e}")
    assert difference < 1e-6
    assert min(unclipped, other) > 1e-2


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_short_last_batch(run: Runner, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """It is part of a longer one, whose other windows have no weight."""
    options = [*SHORT_LAST, *SIZE, f"--kernel={kernel}", "--model.dropout=0"]
    eager, graph = (losses_of(run(*options, f"--step={step}")) for step in ("eager", "graph"))
    assert len(graph) == 18
    assert apart(graph, eager) < 1e-3

    def careless(self: Forecaster, forecast: Any, target: Any, weight: Any) -> Any:
        return PLAIN(self, forecast, target)

    monkeypatch.setattr(Forecaster, "loss", careless)
    assert apart(losses_of(run(*options, "--step=graph")), eager) > 1e-2


def last_of_a_crash(run: Runner, monkeypatch: pytest.MonkeyPatch, step: int, *options: str) -> str:
    """The checkpoint that a run leaves behind that ends in its n-th step."""
    plain = S4ConvDModule.training_step
    crashed: list[S4ConvDModule] = []

    def training_step(self: S4ConvDModule, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == step:
            crashed.append(self)
            raise ZeroDivisionError
        return plain(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(S4ConvDModule, "training_step", training_step)
        with pytest.raises(ZeroDivisionError):
            run(*options)
    return str(Path(crashed[0].trainer.log_dir) / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize("then", ["graph", "eager"])
@pytest.mark.parametrize("step", [5, 6, 7])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(
    run: Runner, monkeypatch: pytest.MonkeyPatch, step: int, then: str
) -> None:
    """From step 5 its first batch is a short one: the next is longer, and is captured anew."""
    options = [*SHORT_LAST, *SIZE, "--kernel=warp_tiled", "--model.dropout=0"]
    whole = losses_of(run(*options, "--step=graph"))
    last = last_of_a_crash(run, monkeypatch, step, *options, "--step=graph")
    found = losses_of(run(*options, f"--step={then}", f"--ckpt_path={last}"))
    assert list(found) == list(range(step, 18))
    assert apart(found, {at: whole[at] for at in found}) < 1e-3


def test_in_bfloat16_the_weights_are_read_anew(run: Runner) -> None:
    """Autocast keeps the weights' casts: a graph would go on with the first step's."""
    options = [*WHOLE, "--kernel=warp_tiled", "--model.dropout=0", "--trainer.precision=bf16-mixed"]
    eager, graph = (losses_of(run(*options, f"--step={step}")) for step in ("eager", "graph"))
    assert mean(list(eager.values())[-10:]) < 0.9 * mean(list(eager.values())[:10])
    assert apart(graph, eager) < 2e-2


def test_frozen_parameters_stay(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = S4ConvDModule.setup

    def freeze(self: S4ConvDModule, stage: str) -> None:
        setup(self, stage)
        self.forecaster.network.encoder.requires_grad_(False)

    monkeypatch.setattr(S4ConvDModule, "setup", freeze)
    done = run(*WHOLE, "--kernel=warp_tiled", "--step=graph", "--trainer.max_steps=20")
    assert done.code == 0, done.text
    state = load_checkpoint(done.last)["state_dict"]
    before = run(*WHOLE, "--kernel=warp_tiled", "--step=eager", "--trainer.max_steps=1")
    first = load_checkpoint(before.last)["state_dict"]
    name = "forecaster.network.encoder.weight"
    assert torch.equal(state[name], first[name])
    other = "forecaster.network.decoder.weight"
    assert not torch.equal(state[other], first[other])


@pytest.mark.usefixtures("weighted")
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_of_what_is_forecast(run: Runner, kernel: str) -> None:
    """Several readings ahead, quantiles and members: the graph has the same loss and gradients."""
    options = [*WHOLE, f"--kernel={kernel}", "--model.members=2", "--model.quantiles=[0.1,0.5,0.9]"]
    options += ["--data.horizon=3", "--model.seasons=[24]", "--model.dropout=0"]
    eager, graph = (losses_of(run(*options, f"--step={step}")) for step in ("eager", "graph"))
    assert apart(graph, eager) < 1e-3
    other = losses_of(run(*options, "--step=graph", "--model.members=1"))
    assert apart(other, eager) > 1e-2


def test_the_default_on_a_gpu(run: Runner) -> None:
    """The fastest way there is, and it says which."""
    done = run(*WHOLE, "--trainer.max_steps=40")
    assert done.code == 0, done.text
    hopper = torch.cuda.get_device_capability() == (9, 0)
    kernel = "fused" if hopper else "warp_tiled"
    assert f"kernel: {kernel} (CUDA" in done.text
    assert ", replayed as a graph" in done.text
    assert summary(done).kernel == kernel
    other = run(*WHOLE, "--trainer.max_steps=2", "--data.window=65")
    assert "kernel: warp_tiled (CUDA" in other.text


def test_what_cannot_be_replayed(run: Runner) -> None:
    """It is refused where it was asked for, and is eager where not."""
    options = [*GPU, *NINE, "--trainer.accumulate_grad_batches=2"]
    refused = run(*options, "--step=graph")
    assert_refused(refused, "--step graph", "accumulated", "--step eager")
    done = run(*options)
    assert done.code == 0, done.text
    assert ", replayed as a graph" not in done.text
