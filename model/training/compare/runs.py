"""One training run of a comparison, and what is kept of it."""

import dataclasses
import gc
import itertools
import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch

from model.training.callbacks.step_table import StepSummary
from model.training.callbacks.timing import Timing
from model.training.compare.figures import apart
from model.training.errors import UsageError

TALKATIVE = ("lightning.pytorch", "lightning.fabric")  # loggers, which all of a run's news go to


@dataclasses.dataclass(frozen=True)
class Run:
    """What a kernel's run of one round left: its times, and the loss of each step."""

    summary: StepSummary
    losses: list[float]


class Losses(L.Callback):
    """Keeps the loss of each optimiser step on the device; nothing waits for it in a step."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._sum: torch.Tensor | float = 0.0
        self._steps = 0

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Add a batch's share; where gradients are accumulated, a step has several batches."""
        self._sum = self._sum + outputs["loss"]
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            assert isinstance(self._sum, torch.Tensor)
            self._kept.append(self._sum)
            self._sum = 0.0

    def read(self) -> list[float]:
        """Of all steps, in order."""
        return torch.stack(self._kept).tolist() if self._kept else []


def train(trainer: L.Trainer, model: L.LightningModule, data: L.LightningDataModule) -> Run:
    """Train, without a word of Lightning's.

    Raises:
        UsageError: the run has no time or no loss that could be compared.
    """
    losses = Losses()
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks.append(losses)
    trainer.fit(model, datamodule=data)
    (timing,) = (each for each in callbacks if isinstance(each, Timing))
    if timing.summary is None:
        raise UsageError("no step was run that could be timed: look at the --trainer options")
    found = losses.read()
    broken = next((n for n, loss in enumerate(found, 1) if not math.isfinite(loss)), None)
    if broken is not None:
        raise UsageError(
            f"the loss of {timing.summary.kernel} is {found[broken - 1]} at step {broken}, so "
            "there is nothing to compare; a smaller --model.lr may help"
        )
    return Run(timing.summary, found)


def kernel_record(name: str, tf32: bool, rounds: Sequence[Run]) -> dict[str, Any]:
    """A kernel's part of the record, see `model.training.compare.figures`."""
    first, *others = (run.losses for run in rounds)
    return {
        "name": name,
        "tf32": tf32,
        "summaries": [dataclasses.asdict(run.summary) for run in rounds],
        "losses": first,
        "repeat": max((apart(losses, first) for losses in others), default=None),
    }


def new_folder(runs: Path, name: str) -> Path:
    """`runs`/name_N, made; N is one more than the largest yet."""
    numbers = [path.name.removeprefix(f"{name}_") for path in runs.glob(f"{name}_*")]
    first = 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)
    for number in itertools.count(first):
        folder = runs / f"{name}_{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # another run was faster
            continue
        return folder
    raise AssertionError


@contextmanager
def announced(what: str) -> Iterator[None]:
    """A line that says what runs, and behind it how long it took."""
    sys.stderr.write(f"{what} ... ")
    sys.stderr.flush()
    start, end = time.perf_counter(), "stopped"
    try:
        yield
        end = f"{time.perf_counter() - start:.1f} s"
    finally:
        sys.stderr.write(f"{end}\n")


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, the trainer says only what is wrong: the hardware and the times are told once."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def release_memory() -> None:
    """Give back what the run before left on the GPU, so that all begin alike."""
    gc.collect()  # a trainer and its module hold each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
