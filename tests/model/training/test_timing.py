"""What is slow shows where it is; what a step is, and what a run's figures are of."""

import math
from dataclasses import asdict
from json import dumps, loads
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch

import cuda_ops
from cuda_ops import recorder
from cuda_ops.recorder import HostClock
from data import windows
from model import block
from model.training.callbacks import step_table
from model.training.callbacks import timing as timing_module
from model.training.callbacks.panels import ForecastPanels
from model.training.callbacks.step_table import StepTime, spreads, with_sums
from model.training.callbacks.timing import FETCH, WARM_UP, Timing
from tests.cases.timed_runs import (
    FOUR_EPOCHS,
    NAP,
    NINE,
    Runner,
    at_step,
    curves,
    fail,
    napping,
    slow_down,
    summary,
    timing,
)
from tests.conftest import load_checkpoint

SLOWED: dict[str, tuple[Any, str]] = {
    "data": (windows, "Batch"),
    "forward": (cuda_ops, "last_step_conv"),
    "optimizer": (torch.nn.utils, "clip_grad_norm_"),
    "rest": (torch.optim.lr_scheduler.LambdaLR, "step"),
}


@pytest.mark.parametrize("profiler", [[], ["--trainer.profiler=simple"]], ids=["", "profiler"])
@pytest.mark.parametrize("part", SLOWED)
def test_what_is_slow_shows_where_it_is(
    run: Runner, monkeypatch: pytest.MonkeyPatch, part: str, profiler: list[str]
) -> None:
    """D07: the bottleneck is seen elsewhere."""
    slow_down(monkeypatch, *SLOWED[part])
    done = run(*FOUR_EPOCHS, "--trainer.gradient_clip_val=1", *profiler)
    ms = {name: of.ms for name, of in summary(done).ms.items()}
    others = {"operator", "step"} if part == "forward" else {"step"}
    assert ms[part] > 900 * NAP
    assert max(value for name, value in ms.items() if name not in {part, *others}) < 500 * NAP
    if part == "forward":
        assert ms["operator"] > 900 * NAP


@pytest.mark.parametrize("path", ["forward", "input_grad", "weight_grad"])
def test_a_slow_path_of_a_kernel_shows_as_that_path(
    run: Runner, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The study's question, which path is the bottleneck, is answered with another."""

    def conv(x: torch.Tensor, k: torch.Tensor, kernel: str, last_only: bool) -> torch.Tensor:
        y = cuda_ops.conv_forward(x, k, "naive")
        return y[..., -1:] if last_only else y

    monkeypatch.setattr(block, "depthwise_conv", conv)
    slow_down(monkeypatch, cuda_ops.op, f"{path}_by_definition")
    done = run(*FOUR_EPOCHS, "--model.blocks=2")
    ms = {name: of.ms for name, of in summary(done).ms.items()}
    assert list(ms)[1:5] == ["operator", "forward", "input_grad", "weight_grad"]
    assert ms.pop(path) > 2 * 900 * NAP  # the sum of two blocks
    assert ms.pop("operator") > 2 * 900 * NAP
    assert ms.pop("step") > 2 * 900 * NAP
    assert max(ms.values()) < 500 * NAP
    assert f"time/{path}_ms" in curves(done.folder)


def test_a_step_is_the_optimisers(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """E03: accumulated gradients make more steps, or steps without their first batches."""
    slow_down(monkeypatch, windows, "Batch", NAP / 3)
    done = run(*FOUR_EPOCHS, "--trainer.accumulate_grad_batches=2")
    drawn = curves(done.folder)  # an epoch is a step of two batches, and one of the third
    assert list(drawn["time/step_ms"]) == list(range(8))
    assert list(drawn["time/data_ms"]) == list(drawn["train/loss"])
    waits = list(drawn["time/data_ms"].values())
    assert min(waits[::2]) > 2 * 1e3 * NAP / 3 > median(waits[1::2])
    kept = timing(done)._steps.steady.kept
    assert [step.windows for step in kept] == [1, 8, 1]
    assert summary(done).epoch_steps == 2


def test_a_resumed_run_goes_on_at_its_step(run: Runner) -> None:
    """E03: the curves of a resumed run begin at 0; its warm-up counts, or is left out twice."""
    accumulate = "--trainer.accumulate_grad_batches=2"  # an epoch is two steps
    first = run(*NINE, accumulate)
    done = run(*FOUR_EPOCHS, accumulate, f"--ckpt_path={first.last}")
    assert list(curves(done.folder)["time/step_ms"]) == list(range(2, 8))
    found = summary(done)
    assert (found.steps, found.left_out) == (1, {"warm-up": 5})


def test_an_epoch_that_was_resumed_is_no_whole_one(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it is taken for an epoch's time."""
    with monkeypatch.context() as patch:
        at_step(4, fail, patch)
        with pytest.raises(ZeroDivisionError):
            run(*FOUR_EPOCHS)
    last = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    done = run(*FOUR_EPOCHS, f"--ckpt_path={last}")
    assert timing(done)._epochs.seen == 2  # of the four, the third and the fourth
    assert list(curves(done.folder)["time/step_ms"]) == list(range(4, 12))


def test_nothing_is_timed_after_the_fit(run: Runner) -> None:
    """What was hung on the trainer stays there, and a later loop of its starts the recording."""
    trainer = run(*NINE).cli.trainer
    trainer.profiler.start(FETCH)
    for optimizer in trainer.optimizers:
        optimizer.step()
    assert recorder._at_work is None


def test_samples_of_a_long_run_are_bounded(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """B09: what is kept grows with every step."""
    monkeypatch.setattr(step_table, "KEPT", 4)
    done = run(*NINE, "--trainer.max_epochs=7", "--trainer.log_every_n_steps=1000")
    found = summary(done)
    steps = timing(done)._steps
    assert found.steps == 21 - WARM_UP
    assert len(steps.steady.kept) == 4
    assert len(steps._new.kept) <= 4
    assert list(curves(done.folder)["time/step_ms"]) == [20]


def test_timing_changes_nothing_that_is_trained(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What measures also changes the order of sums, or draws random numbers."""
    options = [*FOUR_EPOCHS, "--model.dropout=0.3", "--model.blocks=2"]
    timed = load_checkpoint(run(*options).last)["state_dict"]
    monkeypatch.setattr("model.training.cli.Timing", L.Callback)
    plain = load_checkpoint(run(*options).last)["state_dict"]
    assert all(torch.equal(timed[name], plain[name]) for name in plain)


@pytest.mark.parametrize("options", [["--trainer.logger=false"], ["--trainer.fast_dev_run=2"]])
def test_a_run_without_curves(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """D02: no logger, no figures to draw, and no error."""
    monkeypatch.chdir(tmp_path)  # where such a run leaves its files
    done = run(*NINE, *options)
    assert done.code == 0, done.text
    assert ("a training step: " in done.text) == ("fast_dev_run" in options[0])


def test_figures_are_plain(run: Runner) -> None:
    """A run's figures cannot be written down, or hold what is not a number."""
    found = asdict(summary(run(*FOUR_EPOCHS)))
    again = loads(dumps(found))
    assert again == found
    for spread in again["ms"].values():
        assert 0 < spread["p10"] <= spread["ms"] <= spread["p90"] < math.inf


def test_another_device_is_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """D03: a device that works behind the host's back is timed with the host's clock."""
    there = SimpleNamespace(root_device=torch.device("mps"))
    trainer: Any = SimpleNamespace(strategy=there)
    callback, module = Timing(), L.LightningModule()
    callback.on_train_start(trainer, module)
    callback.on_train_batch_start(trainer, module, None, 0)
    callback.on_before_optimizer_step(trainer, module, None)
    callback.on_train_batch_end(trainer, module, None, None, 0)
    callback.on_train_end(trainer, module)
    assert callback.summary is None


def test_a_path_that_some_steps_hide_is_not_shown(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is captured later on: its operator would be 0 ms, and the median a guess."""
    conv = cuda_ops.depthwise_conv

    def sometimes(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen, recorder._at_work = recorder._at_work, None
        if x.shape[0] == 4:
            recorder._at_work = seen
        y = conv(x, *rest)
        recorder._at_work = seen
        return y

    monkeypatch.setattr(block, "depthwise_conv", sometimes)
    done = run(*FOUR_EPOCHS)
    assert list(summary(done).ms) == ["data", "optimizer", "rest", "step"]
    assert "The operator's times are not shown" in done.text


def test_half_an_operator_is_none() -> None:
    """Where some steps show one path alone, their sum is taken for the operator's time."""
    whole = {"forward": 1.0, "weight_grad": 2.0, "rest": 3.0}
    some = {"forward": 1.0, "rest": 5.0}
    steps = [StepTime(with_sums(ms), 4, None) for ms in (whole, some)]
    assert list(spreads(steps)) == ["forward", "rest", "step"]
    assert list(spreads(steps[:1])) == ["operator", "forward", "weight_grad", "rest", "step"]
    assert spreads(steps)["rest"].ms == 4


def test_effective_bandwidth_counts_each_large_tensor_once() -> None:
    """Two tensors for a path, three for both gradients in one; no path without a time."""
    nbytes = {"forward": 5_000_000, "both_gradients": 7_000_000, "weight_grad": 1}
    step = StepTime({"forward": 2.0, "both_gradients": 3.0}, 4, None, nbytes)
    assert step.gb_s == pytest.approx({"forward": 5.0, "both_gradients": 7.0})


def test_the_curve_of_the_bandwidth_is_bytes_over_time(run: Runner) -> None:
    """The last block, of which a CPU computes one step, adds to the time and not to the bytes."""
    two = "--model.blocks=2"
    found = curves(run(*FOUR_EPOCHS, two, "--trainer.log_every_n_steps=1").folder)
    channels, blocks, window, batch = 4, 1, 4, 4  # of TINY; blocks that count
    tensor = batch * channels * window * 4
    for step, ms in found["time/forward_ms"].items():
        if step % 3 != 2:  # the last batch of an epoch is a smaller one
            rate = 2 * blocks * tensor / ms / 1e6
            assert found["bandwidth/forward_gb_s"][step] == pytest.approx(rate, rel=1e-4)


def test_marks_take_a_share_of_the_time_and_no_more(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40: what is timed is slowed; or the time of steps that were left out is another's."""
    cost, fewest, mark, nap = 0.04, 5, 0.001, 0.05  # a share, steps, and two times in seconds
    monkeypatch.setattr(timing_module, "COST", cost)
    monkeypatch.setattr(timing_module, "FEWEST", fewest)
    slow_down(monkeypatch, HostClock, "now", mark)
    slow_down(monkeypatch, cuda_ops, "last_step_conv", nap)
    wait = napping(lambda *_: None, nap)  # behind the step's end, so a part of the next
    monkeypatch.setattr(ForecastPanels, "on_train_batch_end", wait)
    done = run(*NINE, "--trainer.max_epochs=24", "--trainer.limit_val_batches=0")
    found, steps = summary(done), timing(done)._steps.steady.kept
    skipped = found.left_out["to save time"]
    assert found.steps == 72 - skipped - WARM_UP
    assert f"{skipped} to save time" in done.text
    later = found.steps - fewest  # recorded because that was affordable
    assert later > 5
    whole = 72 * (2 * nap + 0.005)  # of the run, with little beside the naps
    assert later * 6 * mark < 1.5 * cost * whole  # with 6 marks at least for each
    for step in steps:
        assert 2e3 * nap < step.ms["step"] < 3.5e3 * nap
