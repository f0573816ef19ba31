"""Where the time of a training step goes: curves while it trains, and a table at the end."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import lightning as L
import torch
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.utilities import rank_zero_info

from cuda_ops.recorder import Recorder
from model.training.callbacks.step_table import (
    MEASURED_AS,
    Sample,
    Steps,
    StepSummary,
    StepTime,
    spreads,
    with_sums,
)

WARM_UP = 5  # first steps of a run, whose time says nothing about the others
FEWEST = 32  # steps that are recorded in any case, where a run has as many
# Of the run's time: where marking takes the host more, it waits for a step that it can afford. A
# step was seen to become longer by twice what its marks take.
COST = 0.005
FETCH = "[_TrainingEpochLoop].train_dataloader_next"  # what Lightning calls it
STEADY = {"step": "steady/step_ms", "operator": "steady/operator_ms"}
"""Name of a time -> the tag of the run's median, by which HPARAMS compares runs."""


@dataclass(frozen=True)
class _About:
    """What is known of a step when it ends."""

    windows: int
    left_out: str | None


class Timing(L.Callback):
    """Times optimiser steps and their parts, and tells medians.

    A step lasts from the end of the step before to its own: with its batches, with the logging
    after the step before, but without validation and what comes at an epoch's end. Its parts:

        data        from asking for a batch until it lies on the device
        operator    the convolution's paths, see `cuda_ops.recorder`
        optimizer   clipping and the optimiser's step
        rest        everything else

    All steps are recorded while that takes the host less than `COST` of the time, as with large
    batches; of small ones, which a GPU is done with as soon as it is told of them, some.

    A point of a curve is the median since the point before, at every `log_every_n_steps`. There,
    and only there, the host waits for the GPU, as it does for the loss. The run's figures leave out
    its first `WARM_UP` steps and those in which torch.compile compiled; where no other step was
    run, they are the last one's.

    Attributes:
        summary: the run's figures, once the training has ended, in whatever way; None if no step
            was measured.
    """

    def __init__(self) -> None:
        self.summary: StepSummary | None = None
        self._recorder: Recorder | None = None
        self._steps = Steps()
        self._ended = 0  # steps of this run
        self._recording = True  # the running step
        self._skipped = 0  # steps that were not recorded
        self._start = 0.0  # of the run, in seconds
        self._windows = 0  # of the running step
        self._global_step = 0  # Lightning's, that goes on in a resumed run
        self._compiled = 0
        self._epochs: Sample[float] = Sample()  # seconds
        self._epoch_start: float | None = None
        self._batches = 0  # of the running epoch
        self._remove_hooks: list[Callable[[], None]] = []

    # -- marks ---------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin, on a device whose time can be taken."""
        device = trainer.strategy.root_device
        if device.type not in ("cpu", "cuda"):
            rank_zero_info(f"the steps are not timed: there is no clock for '{device.type}'")
            return
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._recorder, self._start = Recorder(device), time.perf_counter()
        self._global_step, self._compiled = trainer.global_step, _compiled_frames()
        hooks = [
            optimizer.register_step_post_hook(lambda *_: self._begin("rest"))
            for optimizer in trainer.optimizers
        ]
        self._remove_hooks = [hook.remove for hook in hooks]
        profiler: Any = trainer.profiler  # type: ignore[attr-defined]
        self._remove_hooks.append(_watch_fetches(profiler, lambda: self._begin("data")))

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """An epoch begins; not called where a resumed run goes on in the middle of one."""
        self._epoch_start, self._batches = time.perf_counter(), 0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The batch is there."""
        self._begin("rest")

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any
    ) -> None:
        """The gradients are there; a hook of the optimiser's own tells when its step is done."""
        self._begin("optimizer")

    def _begin(self, part: str) -> None:
        if self._recorder and self._recording:
            self._recorder.begin(part)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End the step, if its last batch is through; log, if it is time."""
        recorder = self._recorder
        if recorder is None:
            return
        self._batches += 1
        self._windows += batch.cell.numel() * trainer.world_size
        if trainer.global_step == self._global_step:  # gradients are still accumulated
            self._begin("rest")
            return
        self._global_step = trainer.global_step
        about = self._about_this_step()
        if self._recording:
            recorder.end_step(about, "rest")
        else:
            self._skipped += 1
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and trainer.global_step % every == 0:
            self._read(wait=True)
            self._log(trainer)
        elif recorder.full:
            self._read()
        self._record_next(recorder)

    def _record_next(self, recorder: Recorder) -> None:
        """Record the step that begins here, or leave it out."""
        allowed = COST * (time.perf_counter() - self._start)
        recorded = self._ended - self._skipped
        wanted = recorded < WARM_UP + FEWEST or recorder.spent < allowed
        if wanted and not self._recording:
            recorder.begin("rest")
        elif self._recording and not wanted:
            recorder.pause()
        self._recording = wanted

    def _about_this_step(self) -> _About:
        self._ended += 1
        frames = _compiled_frames()
        left_out = "warm-up" if self._ended <= WARM_UP else None
        about = _About(self._windows, "compiling" if frames != self._compiled else left_out)
        self._windows, self._compiled = 0, frames
        return about

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """It is no part of a step; fetching the next batch goes on with that."""
        if self._recorder:
            self._recorder.pause()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """What was compiled for it was not compiled in a step."""
        self._compiled = _compiled_frames()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """What follows is no part of a step either."""
        if self._recorder:
            self._recorder.pause()
            if self._epoch_start is not None and self._batches == trainer.num_training_batches:
                self._epochs.add(time.perf_counter() - self._epoch_start)

    # -- figures -------------------------------------------------------------------------------

    def _read(self, wait: bool = False) -> None:
        assert self._recorder is not None
        for step in self._recorder.read(wait):
            about: _About = step.about
            ms = with_sums(step.ms)
            self._steps.add(StepTime(ms, about.windows, about.left_out, step.nbytes))

    def _log(self, trainer: L.Trainer) -> None:
        """A point of each curve, if there is a step that it can tell of."""
        steps = self._steps.since_last_call()
        if steps:
            times = spreads(steps)
            values = {f"time/{name}_ms": of.ms for name, of in times.items()}
            values["throughput/windows_per_s"] = median(step.windows_per_s for step in steps)
            for path in times.keys() & MEASURED_AS.keys():
                rates = (step.gb_s.get(path, 0.0) for step in steps)
                values[f"bandwidth/{path}_gb_s"] = median(rates)
            self._write(trainer, values)

    def _write(self, trainer: L.Trainer, values: dict[str, float]) -> None:
        """Past `pl_module.log`, which would cost time at every step; nothing is flushed."""
        for logger in trainer.loggers:
            logger.log_metrics(values, max(trainer.global_step - 1, 0))  # as Lightning counts

    # -- the end -------------------------------------------------------------------------------

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tell the run's figures."""
        if self._recorder:
            self._finish(trainer, pl_module)
            told = self.summary.table() if self.summary else "no step was run that could be timed"
            rank_zero_info(f"\n{told}")  # below the bar

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Tell the figures of an interrupted run, as far as they can be read."""
        if self._recorder:
            try:
                self._finish(trainer, pl_module)
            except RuntimeError:
                return  # the GPU has failed, and the exception says how
            if self.summary:
                rank_zero_info(f"\n{self.summary.table()}")

    def _finish(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        recorder = self._recorder
        assert recorder is not None
        for remove in self._remove_hooks:
            remove()
        try:
            recorder.pause()
            self._read(wait=True)
        finally:
            self._recorder = None
        self._log(trainer)
        self._steps.settle()
        if not self._steps.steady.kept:
            return
        self.summary = summary = self._summarise(trainer, pl_module, recorder.lost)
        medians = {STEADY[name]: of.ms for name, of in summary.ms.items() if name in STEADY}
        self._write(trainer, medians)

    def _summarise(self, trainer: L.Trainer, pl_module: Any, lost: int) -> StepSummary:
        steps = self._steps.steady.kept
        ms = spreads(steps)
        total = sum(step.ms["step"] for step in steps)
        left_out = {**self._steps.left_out, "not read in time": lost, "to save time": self._skipped}
        device = pl_module.device
        on_gpu = device.type == "cuda"
        batches, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
        return StepSummary(
            kernel=pl_module.kernel,
            device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
            clock="CUDA events" if on_gpu else "the host's clock (CPU)",
            ms=ms,
            share={name: sum(step.ms.get(name, 0.0) for step in steps) / total for name in ms},
            windows_per_s=median(step.windows_per_s for step in steps),
            steps=self._steps.steady.seen,
            left_out={why: count for why, count in left_out.items() if count},
            epoch_steps=math.ceil(batches / accumulated),
            epoch_s=median(self._epochs.kept) if self._epochs.kept else None,
            peak_memory=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        )


def _watch_fetches(profiler: Profiler, tell: Callable[[], None]) -> Callable[[], None]:
    """Call `tell` whenever the training loop asks for a batch; returns what ends that.

    No hook of a callback's is there, but every profiler is told.
    """
    start = profiler.start

    def watched(action_name: str) -> None:
        if action_name == FETCH:
            tell()
        start(action_name)

    profiler.start = watched  # type: ignore[method-assign]
    return lambda: vars(profiler).pop("start", None)


def _compiled_frames() -> int:
    """How often torch.compile has compiled something in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # imported by whoever compiles
    return dynamo.counters["frames"]["total"] if dynamo else 0
