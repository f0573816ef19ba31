"""The times of a training step on a GPU: whole, without waits, without cost."""

import time
from statistics import mean, median, stdev
from typing import Any

import pytest
import torch

from model.training.callbacks.panels import ForecastPanels
from model.training.callbacks.step_table import PARTS
from model.training.callbacks.timing import FEWEST, WARM_UP, Timing
from tests.cases.timed_runs import NINE, Runner, at_step, curves, fail, summary, timing

pytestmark = pytest.mark.gpu
LAST = WARM_UP + FEWEST  # as long as every step is recorded
GPU = ["--trainer.accelerator=gpu", "--trainer.devices=1"]
FEW = [f"--trainer.limit_{stage}_batches=2" for stage in ("val", "test", "predict")]
PUBLISHED = ["--data.window=48", "--model.state_size=64"]
SMALL = ["--data.batch_size=256", "--model.channels=64", "--model.blocks=2"]
STUDY = ["--data.batch_size=16384", "--model.channels=128", "--model.blocks=4"]
SIZES = {"small": [*SMALL, *PUBLISHED], "study": [*STUDY, *PUBLISHED]}
KERNELS = ["pytorch", "warp_tiled"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("every", [1, 50])
@pytest.mark.parametrize("size", SIZES)
def test_parts_sum_to_the_wall_time(
    run: Runner, monkeypatch: pytest.MonkeyPatch, size: str, every: int, kernel: str
) -> None:
    """D07: with the loss read at every step and hardly ever; D02: without a wait for each."""
    clock: dict[int, float] = {}
    waits: list[str] = []
    wait = torch.cuda.Event.synchronize

    def end(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step in (WARM_UP, LAST):  # of which no epoch ends in between
            torch.cuda.synchronize()
            clock[trainer.global_step] = time.perf_counter()

    def counted(event: torch.cuda.Event) -> None:
        waits.append("")
        wait(event)

    monkeypatch.setattr(ForecastPanels, "on_train_batch_end", end)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", counted)
    options = [*GPU, *FEW, *SIZES[size], f"--kernel={kernel}", f"--trainer.max_steps={LAST}"]
    done = run(*options, "--trainer.max_epochs=100", f"--trainer.log_every_n_steps={every}")
    found = summary(done)
    assert found.clock == "CUDA events"
    assert len(waits) <= LAST / every + 1
    steps = timing(done)._steps.steady.kept
    assert len(steps) == FEWEST
    for step in steps:
        assert sum(step.ms[part] for part in PARTS) == pytest.approx(step.ms["step"], rel=1e-3)
    wall = 1e3 * (clock[LAST] - clock[WARM_UP])
    whole = sum(step.ms["step"] for step in steps)
    print(f"{size}, {kernel}: {whole:.1f} ms in parts, {wall:.1f} ms by the host's clock")
    print(found.table())
    if size == "small":  # with the study's batch an epoch has fewer steps: validation lies between
        assert whole == pytest.approx(wall, rel=0.05)
    gradients = ["both_gradients"] if kernel == "pytorch" else ["input_grad", "weight_grad"]
    assert {"forward", *gradients} <= set(found.ms)
    assert found.peak_memory is not None
    assert found.peak_memory > 2**20
    assert "GPU memory at its peak: " in done.text


def test_a_run_of_one_step_has_its_time(run: Runner) -> None:
    """D02: device not ready."""
    done = run(*NINE, *GPU, "--trainer.max_steps=1")
    assert summary(done).steps == 1
    assert list(curves(done.folder)["time/step_ms"]) == [0]


def test_an_exception_in_the_loop_stays_the_one_that_is_seen(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D02: with events that the GPU has not passed."""
    at_step(2, fail, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        run(*NINE, *GPU, "--trainer.log_every_n_steps=50")


def test_memory_does_not_climb(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """B09: what is logged or timed keeps graphs."""
    held: dict[int, int] = {}

    def end(self: Any, trainer: Any, module: Any) -> None:
        held[trainer.current_epoch] = torch.cuda.memory_allocated()

    monkeypatch.setattr(ForecastPanels, "on_train_epoch_start", end)
    done = run(*NINE, *GPU, "--trainer.max_epochs=11")
    assert done.code == 0, done.text
    assert abs(held[10] - held[2]) < 2**20


BLOCK = 5  # steps


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", SIZES)
def test_its_cost_is_under_two_percent(
    run: Runner, monkeypatch: pytest.MonkeyPatch, size: str, kernel: str
) -> None:
    """40, D08: blocks of steps with the timing and without, on the host's clock.

    They follow each other as with, without, without, with: a drift of the clocks hits all alike,
    and so does the loss that is logged. Neighbours are compared, as a machine's pace changes.
    """
    walls: list[tuple[bool, float]] = []

    class Alternating(Timing):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_start(trainer, pl_module)
            recorder: Any = self._recorder
            begin = recorder.begin
            recorder.begin = lambda part: begin(part) if self.on else None
            self.done, self.on, self.start = 0, True, time.perf_counter()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            if self.on:
                super().on_train_batch_end(trainer, pl_module, *rest)
            self._global_step = trainer.global_step
            self.done += 1
            if self.done % BLOCK == 0:
                recorder: Any = self._recorder
                if self.on:
                    self._read(wait=True)  # what it recorded is part of what it costs
                torch.cuda.synchronize()
                took = time.perf_counter() - self.start
                walls.append((self.on, 1e3 * took / BLOCK))
                recorder.pause()
                if not self.on:
                    self._start += took  # a block without marks saves for none
                self.on, self.start = len(walls) % 4 in (0, 3), time.perf_counter()

    monkeypatch.setattr("model.training.cli.Timing", Alternating)
    monkeypatch.setattr(
        "model.training.callbacks.timing.FEWEST", 0
    )  # which a run soon has behind it
    few = ["--trainer.limit_train_batches=1000000", "--trainer.limit_val_batches=0"]
    steps = f"--trainer.max_steps={3000 if size == 'small' else 300}"
    done = run(
        *GPU,
        *few,
        *SIZES[size],
        f"--kernel={kernel}",
        steps,
        "--trainer.max_epochs=1000",
        "--trainer.log_every_n_steps=50",
    )
    assert done.code == 0, done.text
    pairs = [dict(walls[n : n + 2]) for n in range(4, len(walls) - 1, 2)]  # the first warm up
    plain = median(pair[False] for pair in pairs)
    costs = sorted(pair[True] - pair[False] for pair in pairs)
    kept = costs[len(costs) // 20 : -len(costs) // 20]  # without the machine's worst hiccups
    cost, error = mean(kept), stdev(kept) / len(kept) ** 0.5
    print(
        f"{size}, {kernel}: {plain:.3f} ms a step, the timing adds {cost:.3f} +- {error:.3f} ms: "
        f"{cost / plain:.2%} ({len(pairs)} pairs of {BLOCK} steps)"
    )
    assert cost < 0.02 * plain
