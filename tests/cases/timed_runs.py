"""Runs of train.py whose time is told, and what they left behind."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from model.training.callbacks.panels import ForecastPanels
from model.training.callbacks.step_table import StepSummary
from model.training.callbacks.timing import Timing
from tests.conftest import INPUTS, Run, one_file

Runner = Callable[..., Run]
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
FOUR_EPOCHS = [*NINE, "--trainer.max_epochs=4"]  # of three steps
NAP = 0.1  # seconds; far above what a step of these takes, also on a busy machine


def timing(run: Run) -> Timing:
    (found,) = (one for one in run.cli.trainer.callbacks if isinstance(one, Timing))
    return found


def summary(run: Run) -> StepSummary:
    assert run.code == 0, run.text
    found = timing(run).summary
    assert found is not None
    return found


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """tag -> step -> value of all scalars; a step has one value."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        found[tag] = {point.step: point.value for point in points}
        assert len(found[tag]) == len(points), tag
    return found


def napping(call: Callable, seconds: float = NAP) -> Callable:
    """`call`, after a nap."""

    def slowed(*arguments: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return call(*arguments, **named)

    return slowed


def slow_down(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nap: float = NAP) -> None:
    monkeypatch.setattr(owner, name, napping(getattr(owner, name), nap))


def at_step(number: int, act: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """`act(trainer)` at the start of a batch, when so many steps are done."""

    def start(self: Any, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == number:
            act(trainer)

    monkeypatch.setattr(ForecastPanels, "on_train_batch_start", start)


def fail(trainer: Any) -> None:
    raise ZeroDivisionError("of a test")


def interrupt(trainer: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def stop(trainer: Any) -> None:
    trainer.should_stop = True
