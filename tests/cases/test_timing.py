"""Group (d) of the cases: what a run tells of its time, through train.py and on a CPU."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

import cuda_ops
from cuda_ops import recorder
from data import windows
from model import block
from model.training.callbacks.panels import ForecastPanels
from model.training.callbacks.step_table import PARTS
from model.training.callbacks.timing import WARM_UP
from model.training.logger import StepLogger
from model.training.module import S4ConvDModule
from tests.cases.timed_runs import (
    FOUR_EPOCHS,
    NAP,
    NINE,
    Runner,
    at_step,
    curves,
    fail,
    interrupt,
    slow_down,
    stop,
    summary,
    timing,
)


@pytest.mark.parametrize("every", [0, 1, 50])
def test_a_run_of_one_step_has_its_time(run: Runner, every: int) -> None:
    """D02: the events of the only step are never read, or are read too early."""
    done = run(*NINE, "--trainer.max_steps=1", f"--trainer.log_every_n_steps={every}")
    found = summary(done)
    assert (found.steps, found.left_out, found.epoch_s) == (1, {}, None)
    drawn = curves(done.folder)
    assert set(drawn["time/step_ms"]) == set(drawn["steady/step_ms"]) == {0}
    assert drawn["time/step_ms"][0] == pytest.approx(found.ms["step"].ms, rel=1e-6)
    assert "steps measured: 1; left out: none" in done.text
    assert "an epoch of 3 steps: about " in done.text


@pytest.mark.parametrize(("step", "warm_up"), [(1, 0), (3, 2), (9, WARM_UP)])
def test_an_early_stop_has_the_times_until_then(
    run: Runner, monkeypatch: pytest.MonkeyPatch, step: int, warm_up: int
) -> None:
    """D02: what was recorded last is lost when a run ends otherwise than foreseen."""
    at_step(step - 1, stop, monkeypatch)
    done = run(*FOUR_EPOCHS)
    found = summary(done)
    left_out = {"warm-up": warm_up} if warm_up else {}
    assert (found.steps, found.left_out) == (step - warm_up, left_out)
    assert list(curves(done.folder)["time/step_ms"]) == list(range(step))


@pytest.mark.usefixtures("keeps_sigint")
@pytest.mark.parametrize("every", [1, 50])
def test_an_interrupted_run_has_the_times_until_then(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """D02: after Ctrl-C there are no figures, or an error about events."""
    at_step(7, interrupt, monkeypatch)
    stopped = run(*FOUR_EPOCHS, f"--trainer.log_every_n_steps={every}")
    assert stopped.code == 1
    assert "steps measured: 2; left out: 5 warm-up" in stopped.text
    drawn = curves(tmp_path / "runs" / "version_0")
    assert list(drawn["time/step_ms"]) == (list(range(7)) if every == 1 else [6])
    assert set(drawn["steady/step_ms"]) == {6}


@pytest.mark.parametrize("step", [0, 7])
def test_an_exception_in_the_loop_stays_the_one_that_is_seen(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """D02: another error, of the recording, hides it; or the recording goes on."""
    at_step(step, fail, monkeypatch)
    with pytest.raises(ZeroDivisionError, match="of a test"):
        run(*FOUR_EPOCHS)
    drawn = curves(tmp_path / "runs" / "version_0")
    assert list(drawn.get("time/step_ms", {})) == list(range(step))


def test_a_failed_gpu_hides_no_exception(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """D02: after an illegal access every call to the GPU fails, also those that read times."""

    def cannot(self: Any, wait: bool = False) -> list:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def fail_for_good(trainer: Any) -> None:
        monkeypatch.setattr(recorder.Recorder, "read", cannot)
        fail(trainer)

    at_step(2, fail_for_good, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        run(*NINE)


def test_a_cpu_run_says_what_measured(run: Runner) -> None:
    """D03: the host's clock is taken for a GPU's events."""
    done = run(*FOUR_EPOCHS)
    found = summary(done)
    assert (found.device, found.peak_memory) == ("cpu", None)
    head = "a training step: kernel pytorch on cpu, by the host's clock (CPU)"
    lines = done.text.splitlines()
    table = lines[lines.index(head) :][:11]
    assert [line.split("  ")[0] for line in table[1:9]] == [
        "ms",
        "data wait",
        "operator",
        "",
        "",
        "optimiser step",
        "rest of the step",
        "whole step",
    ]
    assert table[9] == "steps measured: 7; left out: 5 warm-up"
    assert table[10].endswith(" s in all")
    assert max(map(len, table)) <= 80
    assert "memory" not in "".join(table)
    assert found.windows_per_s > 0
    assert found.epoch_s is not None
    assert found.epoch_s > 3e-3 * found.ms["step"].p10


def test_first_steps_are_no_part_of_the_figures(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D05: what happens once is counted as if it happened always."""
    step = S4ConvDModule.training_step

    def slow_at_first(self: Any, batch: Any, batch_idx: int) -> Any:
        time.sleep(NAP if self.global_step < WARM_UP else 0)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(S4ConvDModule, "training_step", slow_at_first)
    done = run(*FOUR_EPOCHS)
    assert summary(done).ms["step"].ms < 1e3 * NAP
    curve = curves(done.folder)["time/step_ms"]
    assert min(curve[number] for number in range(WARM_UP)) > 1e3 * NAP
    curve = curves(run(*FOUR_EPOCHS, "--trainer.log_every_n_steps=8").folder)["time/step_ms"]
    assert curve[7] < 1e3 * NAP  # of eight steps, three are steady


def test_a_compiled_operator_shows_no_paths_and_says_so(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D05: steps that compile are counted; a compiled step's paths are guessed, or shown as 0."""
    torch.compiler.reset()
    compiled = torch.compile(cuda_ops.depthwise_conv, backend="aot_eager", dynamic=False)
    monkeypatch.setattr(block, "depthwise_conv", compiled)
    done = run(*FOUR_EPOCHS)  # in batches of 4, 4 and 1 windows
    found = summary(done)
    assert found.left_out == {"compiling": 2, "warm-up": 3}
    assert list(found.ms) == ["data", "optimizer", "rest", "step"]
    assert "The operator's times are not shown" in done.text
    drawn = curves(done.folder)
    assert "steady/step_ms" in drawn
    hidden = ("forward", "both_gradients", "operator")
    assert not {f"time/{name}_ms" for name in hidden} & set(drawn)
    assert "steady/operator_ms" not in drawn


@pytest.mark.parametrize("every", [1, 4, 50])
def test_parts_sum_to_the_wall_time(
    run: Runner, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """D07: logging moves time to another part, or out of all; validation is taken for a step."""
    ends: list[tuple[int, float]] = []

    def end(self: Any, trainer: Any, *_: Any) -> None:
        ends.append((trainer.global_step, time.perf_counter()))

    monkeypatch.setattr(ForecastPanels, "on_train_batch_end", end)
    slow_down(monkeypatch, S4ConvDModule, "training_step", NAP / 3)
    slow_down(monkeypatch, S4ConvDModule, "validation_step", 5 * NAP)
    slow_down(monkeypatch, windows, "Batch", NAP / 3)
    slow_down(monkeypatch, StepLogger, "save", NAP / 3)
    few = [f"--trainer.limit_{stage}_batches=2" for stage in ("val", "test", "predict")]
    options = [*NINE, *few, "--data.batch_size=1", "--trainer.max_epochs=2"]
    done = run(*options, f"--trainer.log_every_n_steps={every}")
    assert len(ends) == 18
    wall = {
        step: 1e3 * (after - before)
        for (_, before), (step, after) in itertools.pairwise(ends)
        if step > WARM_UP and step != 10  # which follows on a validation
    }
    assert len(wall) == 12
    found = summary(done)
    steps = dict(enumerate(timing(done)._steps.steady.kept, WARM_UP + 1))
    for step in steps.values():
        assert sum(step.ms[part] for part in PARTS) == pytest.approx(step.ms["step"])
    whole = sum(steps[number].ms["step"] for number in wall)
    assert whole == pytest.approx(sum(wall.values()), rel=0.05)
    assert sum(found.share[part] for part in PARTS) == pytest.approx(1)
    assert max(step.ms["step"] for step in steps.values()) < 1e3 * 5 * NAP  # no validation
    assert NAP / 3 < found.ms["data"].ms / 1e3 < 2 * NAP / 3


def test_nothing_is_flushed_for_it(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """D08: the curves are flushed to the disk at every step."""
    flushes: list[int] = []
    flush = SummaryWriter.flush

    def counted(self: Any) -> None:
        flushes.append(1)
        flush(self)

    monkeypatch.setattr(SummaryWriter, "flush", counted)
    at_the_end: list[int] = []
    monkeypatch.setattr(ForecastPanels, "on_train_end", lambda *_: at_the_end.append(len(flushes)))
    options = ["--data.batch_size=1", "--trainer.max_epochs=1", "--trainer.log_every_n_steps=4"]
    done = run(*NINE, *options)
    assert at_the_end[0] <= 9 / 4 + 5
    assert list(curves(done.folder)["time/step_ms"]) == [3, 7, 8]
