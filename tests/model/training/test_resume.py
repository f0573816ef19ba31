"""Resuming, after any kind of stop, and what a checkpoint does not decide."""

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from model.training.cli import ROOT
from model.training.module import S4ConvDModule
from tests.cases.timed_runs import curves
from tests.conftest import (
    INPUTS,
    TINY,
    Run,
    assert_refused,
    load_checkpoint,
    one_file,
    second_kernel,
)

Runner = Callable[..., Run]
NINE_FILE = INPUTS / "B04_nine_windows.csv"
NINE = [*one_file(NINE_FILE), "--data.covariates=[air_temperature]", "--model.dropout=0"]
BATCHES = 3  # an epoch, of NINE


class CrashError(Exception):
    """What a crash raises here."""


@dataclass
class Steps:
    """What the training steps that ended were given."""

    windows: list[list[int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.windows.clear()
        self.rates.clear()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The training steps as they happen."""
    found = Steps()
    step = S4ConvDModule.optimizer_step

    def record(self: S4ConvDModule, epoch: int, batch: int, optimizer: Any, closure: Any) -> None:
        rate = optimizer.param_groups[0]["lr"]
        step(self, epoch, batch, optimizer, closure)
        found.windows.append(self.last_cells)
        found.rates.append(rate)

    training_step = S4ConvDModule.training_step

    def remember(self: S4ConvDModule, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = training_step(self, batch, batch_idx)
        self.last_cells = batch.cell.tolist()
        return loss

    monkeypatch.setattr(S4ConvDModule, "training_step", remember)
    monkeypatch.setattr(S4ConvDModule, "optimizer_step", record)
    return found


@pytest.fixture
def interrupt(run: Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A function that stops a run within a hook at its n-th step and returns its last.ckpt."""
    handler = signal.getsignal(signal.SIGINT)

    def stop(hook: str, step: int, error: type[BaseException], *options: str) -> str:
        plain = getattr(S4ConvDModule, hook)
        stopped: list[S4ConvDModule] = []

        def raising(self: S4ConvDModule, *args: Any) -> Any:
            if self.trainer.global_step == step and not self.trainer.sanity_checking:
                stopped.append(self)
                raise error
            return plain(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(S4ConvDModule, hook, raising)
            if error is KeyboardInterrupt:
                assert run(*NINE, *options).code == 1
            else:
                with pytest.raises(error):
                    run(*NINE, *options)
        return str(Path(stopped[0].trainer.log_dir) / "checkpoints" / "last.ckpt")

    yield stop
    signal.signal(signal.SIGINT, handler)  # Lightning ignores it from the first one on


EPOCHS = 4
LONG = f"--trainer.max_epochs={EPOCHS}"


@pytest.mark.parametrize(
    ("hook", "step", "error"),
    [
        ("training_step", 5, KeyboardInterrupt),
        ("training_step", 5, CrashError),
        ("training_step", 3, CrashError),
        ("on_train_batch_end", 5, CrashError),
        ("on_train_batch_end", 6, CrashError),
        ("validation_step", 6, CrashError),
        ("on_train_epoch_start", 6, CrashError),
    ],
)
def test_a_resumed_run_goes_on_where_it_stopped(
    run: Runner,
    steps: Steps,
    interrupt: Callable[..., str],
    hook: str,
    step: int,
    error: type[BaseException],
) -> None:
    """Checklist 32: resuming begins an epoch anew, loses the batch that ran, or its schedule."""
    whole = run(*NINE, LONG)
    expected = copy.deepcopy(steps)
    assert len(expected.windows) == EPOCHS * BATCHES
    steps.clear()
    last = interrupt(hook, step, error, LONG)
    assert load_checkpoint(last)["global_step"] == step
    assert steps.windows == expected.windows[:step]
    resumed = run(*NINE, LONG, "--ckpt_path", last)
    assert resumed.code == 0
    assert steps == expected
    a, b = (load_checkpoint(done.last) for done in (whole, resumed))
    assert a["global_step"] == b["global_step"] == EPOCHS * BATCHES
    for name, tensor in a["state_dict"].items():
        assert torch.equal(tensor, b["state_dict"][name]), name


@pytest.mark.parametrize("every", [1, 4])
def test_the_loss_curve_goes_on_at_its_step(
    run: Runner, interrupt: Callable[..., str], every: int
) -> None:
    """Checklist 32: behind a crash it is a step late, or what is logged is an old loss."""
    often = f"--trainer.log_every_n_steps={every}"
    whole = curves(run(*NINE, LONG, often).folder)["train/loss"]
    assert list(whole) == list(range(every - 1, EPOCHS * BATCHES, every))
    last = interrupt("training_step", 5, CrashError, LONG, often)
    resumed = curves(run(*NINE, LONG, often, "--ckpt_path", last).folder)["train/loss"]
    assert resumed == {step: loss for step, loss in whole.items() if step >= 5}


@pytest.mark.parametrize("stops", [(4, 6), (1,), (2, 5, 8), (10,), (11,)], ids=str)
def test_a_run_stopped_by_max_steps_goes_on_within_its_epoch(
    run: Runner, steps: Steps, stops: tuple[int, ...]
) -> None:
    """Checklist 32: what an epoch had left after --trainer.max_steps is never trained on.

    Also where it is the last epoch, and however often it happens: no epoch counts twice.
    """
    run(*NINE, LONG)
    expected = copy.deepcopy(steps)
    steps.clear()
    checkpoint: list[str] = []
    for stop in stops:
        part = run(*NINE, LONG, f"--trainer.max_steps={stop}", *checkpoint)
        assert part.code == 0, part.text
        assert len(steps.windows) == stop
        checkpoint = ["--ckpt_path", str(part.last)]
    done = run(*NINE, LONG, *checkpoint)
    assert done.code == 0, done.text
    assert steps.windows == expected.windows
    assert done.cli.trainer.current_epoch == EPOCHS


@pytest.mark.parametrize("limit", [[], ["--trainer.limit_train_batches=2"]])
def test_more_epochs_after_the_end(run: Runner, steps: Steps, limit: list[str]) -> None:
    """Checklist 33: a finished run with more epochs shuffles as in its first ones."""
    once = run(*NINE, "--trainer.max_epochs=2", *limit)
    run(*NINE, LONG, "--ckpt_path", str(once.last), *limit)
    resumed = copy.deepcopy(steps.windows)
    steps.clear()
    run(*NINE, LONG, *limit)
    assert resumed == steps.windows


@pytest.mark.parametrize("place", ["command line", "configuration file", "group's file", "group"])
def test_learning_rate_of_the_command_line_holds(
    run: Runner, steps: Steps, interrupt: Callable[..., str], tmp_path: Path, place: str
) -> None:
    """Checklist 32: the checkpoint's learning rate silently wins over the one given."""
    run(*NINE, LONG)
    expected = [rate / 5 for rate in steps.rates[5:]]
    last = interrupt("training_step", 5, CrashError, LONG)
    steps.clear()
    given = ["--model.lr=0.0008", "--model.weight_decay=0.5"]
    path = tmp_path / "lr.yaml"
    if place == "configuration file":
        path.write_text("model:\n  lr: 0.0008\n  weight_decay: 0.5\n")
        given = [f"--config={path}"]
    elif place == "group":
        given = ["--model", "{lr: 0.0008, weight_decay: 0.5}"]
    elif place == "group's file":
        path.write_text("lr: 0.0008\nweight_decay: 0.5\n")
        given = [f"--model={path}"]
    resumed = run(*given, *NINE, LONG, "--ckpt_path", last)
    # The schedule goes on, at a fifth of the rate of 0.004.
    assert steps.rates == pytest.approx(expected, rel=1e-9)
    checkpoint = load_checkpoint(resumed.last)
    assert checkpoint["hyper_parameters"]["lr"] == 0.0008
    groups = checkpoint["optimizer_states"][0]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0, 0]
    assert [group["initial_lr"] for group in groups] == [0.0008] * 3


def test_learning_rate_is_the_checkpoints_where_none_is_given(
    run: Runner, steps: Steps, interrupt: Callable[..., str]
) -> None:
    """Checklist 32: resuming falls back to the default learning rate."""
    own = ("--model.lr=0.0003", "--model.weight_decay=0.2")
    run(*NINE, LONG, *own)
    expected = steps.rates[5:]
    last = interrupt("training_step", 5, CrashError, LONG, *own)
    steps.clear()
    resumed = run(*NINE, LONG, "--ckpt_path", last)
    assert steps.rates == expected
    checkpoint = load_checkpoint(resumed.last)
    assert checkpoint["hyper_parameters"]["lr"] == 0.0003
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["weight_decay"] == 0.2


def test_sgd_goes_on_with_its_momentum_at_its_rate(
    run: Runner, steps: Steps, interrupt: Callable[..., str]
) -> None:
    """Checklist 32: resuming forgets the momentum, or gives SGD a schedule."""
    own = ("--model.optimizer=sgd", "--model.lr=0.01")
    whole = run(*NINE, LONG, *own)
    assert steps.rates == [0.01] * EPOCHS * BATCHES
    windows = steps.windows[5:]
    last = interrupt("training_step", 5, CrashError, LONG, *own)
    for given, rate in ([], 0.01), (["--model.lr=0.002"], 0.002):
        steps.clear()
        resumed = run(*NINE, LONG, "--ckpt_path", last, *given)
        assert steps == Steps(windows, [rate] * len(windows))
        a, b = (load_checkpoint(done.last)["optimizer_states"][0] for done in (whole, resumed))
        held = [(group["momentum"], group["lr"]) for group in b["param_groups"]]
        assert held == [(0.9, rate)] * 3
        same = [
            torch.equal(s["momentum_buffer"], b["state"][i]["momentum_buffer"])
            for i, s in a["state"].items()
        ]
        assert all(same) == (rate == 0.01)


def test_another_optimiser_is_refused(run: Runner) -> None:
    """Checklist 32: the state of one optimiser is loaded into another."""
    last = run(*NINE).last
    refused = run(*NINE, LONG, "--ckpt_path", last, "--model.optimizer=sgd")
    assert_refused(refused, "--model.optimizer is sgd", "was trained with adamw")


def test_a_resumed_run_takes_its_own_kernel(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checklist 32: resuming goes on with the checkpoint's kernel, or says another one."""
    last = run(*NINE).last
    assert load_checkpoint(last)["notes"]["kernel"] == "pytorch"
    with second_kernel(monkeypatch) as ran:
        options = ("--kernel=elsewhere", "--trainer.max_epochs=2")
        resumed = run(*NINE, *options, "--ckpt_path", last)
    assert resumed.code == 0
    assert ran == {"elsewhere"}
    assert "kernel: elsewhere, of a test on cpu" in resumed.text
    assert load_checkpoint(resumed.last)["notes"]["kernel"] == "elsewhere"
    back = run(*NINE, "--trainer.max_epochs=3", "--ckpt_path", resumed.last)
    assert back.code == 0
    assert "kernel: pytorch on cpu" in back.text
    assert load_checkpoint(back.last)["notes"]["kernel"] == "pytorch"


@pytest.mark.parametrize(
    ("trained", "resumed", "told"),
    [
        ("--trainer.max_epochs=2", "--trainer.max_epochs=2", "--trainer.max_epochs 3 or more"),
        ("--trainer.max_epochs=2", "--trainer.max_epochs=1", "--trainer.max_epochs 3 or more"),
        ("--trainer.max_steps=2", "--trainer.max_steps=2", "--trainer.max_steps 3 or more"),
    ],
)
def test_resuming_a_finished_run_is_refused(
    run: Runner, trained: str, resumed: str, told: str
) -> None:
    """Checklist 33: resuming a finished run stops at once and says nothing."""
    last = str(run(*NINE, trained).last)
    refused = run(*NINE, "--trainer.max_epochs=9", resumed, "--ckpt_path", last)
    assert_refused(refused, last, told)
    advice = told.removesuffix(" or more").split()  # it must work as it stands
    assert run(*NINE, "--trainer.max_epochs=9", *advice, "--ckpt_path", last).code == 0


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint(run: Runner, tmp_path: Path) -> None:
    """Ctrl-C loses the work of hours, or leaves half a file."""
    path = tmp_path / "long.csv"
    rows = [
        f"2016-01-{h // 24 + 1:02} {h % 24:02}:00:00,1,0,{100 + h % 24},{5 + h % 7}"
        for h in range(720)
    ]
    path.write_text(NINE_FILE.read_text().splitlines()[0] + "\n" + "\n".join(rows) + "\n")
    data = [*one_file(path), *NINE[6:]]
    settings = TINY | {"runs": str(tmp_path / "runs"), "trainer.max_epochs": "1000"}
    command = [sys.executable, str(ROOT / "train.py"), *data]
    command += [f"--{name}={value}" for name, value in settings.items()]
    last = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        # A shell's background job ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        give_up = time.monotonic() + 120
        while not last.is_file() and process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.1)
        time.sleep(0.2)  # well into the next epoch
        os.kill(process.pid, signal.SIGINT)
        try:
            text, _ = process.communicate(timeout=60)
        finally:
            process.kill()  # or leaving the block would wait for it
    assert process.returncode == 1, text
    assert "Traceback" not in text
    assert str(last) in text
    checkpoint = load_checkpoint(last)
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    assert 1 <= epochs < 1000
    assert checkpoint["global_step"] >= 179 * epochs
    more = f"--trainer.max_epochs={epochs + 1}"
    resumed = run(*data, more, "--ckpt_path", str(last))
    assert resumed.code == 0
    assert load_checkpoint(resumed.last)["global_step"] == 179 * (epochs + 1)
