"""What ends `train.py compare` early, and what is left then."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from model.training.module import S4ConvDModule
from tests.cases.timed_runs import Runner, interrupt
from tests.conftest import assert_refused
from tests.model.training.compare.running import FEW, STEPS, record_in


def in_round(number: int, act: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`act(step)` in the third step of a run of that round; one kernel takes part."""
    calls = Counter[str]()
    step = S4ConvDModule.training_step

    def acting(self: Any, batch: Any, batch_idx: int) -> Any:
        calls["step"] += 1
        if calls["step"] == (number - 1) * STEPS + 3:
            act(self)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(S4ConvDModule, "training_step", acting)


def too_much(_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")


@pytest.mark.usefixtures("no_pictures")
def test_whole_rounds_outlive_a_failure(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_round(2, too_much, monkeypatch)
    ended = run("compare", *FEW)
    assert ended.code == 2
    assert "error: the GPU's memory is too small: take a smaller --data.batch_size" in ended.text
    assert "Traceback" not in ended.text
    assert "what is shown is of 1 of 2 rounds" in ended.text
    assert "1 round of 8 steps" in ended.text
    assert re.search(r"round 2 of 2: pytorch, 8 steps \.\.\. stopped$", ended.text, re.M)
    record = record_in(folder)
    assert (record["rounds"], len(record["kernels"][0]["summaries"])) == (1, 1)
    assert (folder / "report.html").is_file()


@pytest.mark.usefixtures("no_pictures")
def test_without_a_whole_round_the_failure_is_all(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_round(1, too_much, monkeypatch)
    ended = run("compare", *FEW)
    assert ended.code == 2
    assert "no round was complete: nothing is shown" in ended.text
    assert "--data.batch_size" in ended.text
    assert "Table II" not in ended.text
    assert not (folder / "compare.json").exists()


@pytest.mark.usefixtures("no_pictures", "keeps_sigint")
def test_an_interrupted_comparison(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_round(2, interrupt, monkeypatch)
    ended = run("compare", *FEW)
    assert ended.code == 1
    assert ended.text.endswith("\ninterrupted\n")
    assert "Traceback" not in ended.text
    assert record_in(folder)["rounds"] == 1


@pytest.mark.usefixtures("no_pictures")
def test_an_error_of_ours_stays_an_error(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is nobody's mistake but the code's is made a short message."""

    def fail(_: Any) -> None:
        raise ZeroDivisionError("of a test")

    in_round(2, fail, monkeypatch)
    with pytest.raises(ZeroDivisionError, match="of a test"):
        run("compare", *FEW)
    assert record_in(folder)["rounds"] == 1


def test_a_loss_that_is_no_number_is_refused(run: Runner) -> None:
    """It would be shown as an agreement of nan, and is no JSON."""
    refused = run("compare", *FEW, "--model.lr=1e30", "--model.optimizer=sgd")
    assert_refused(refused, "the loss of pytorch is", "at step", "--model.lr")
