"""The command line: help, mistakes, resuming, and which module may import which."""

import ast
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
import yaml

from model.training.cli import ROOT
from model.training.help import SUBCOMMANDS, TOP_OPTIONS
from model.training.module import S4ConvDModule
from tests.conftest import INPUTS, TINY, Run, one_file

Runner = Callable[..., Run]
NINE_FILE = INPUTS / "B04_nine_windows.csv"
NINE = [*one_file(NINE_FILE), "--data.covariates=[air_temperature]", "--model.dropout=0"]
BATCHES = 3  # an epoch, of NINE


def last_of(run: Run) -> Path:
    return Path(run.best).with_name("last.ckpt")


def lightly(path: Path | str) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True)


def assert_refused(run: Run, *told: str) -> None:
    """A mistake ends with code 2 and at most three lines that hold `told`."""
    assert run.code == 2
    message = run.text[run.text.index("error: ") :].strip()
    assert len(message.splitlines()) <= 3
    assert "Traceback" not in run.text
    assert [part for part in told if part not in message] == []


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_short(run: Runner, flag: str) -> None:
    """The help: hundreds of options hide the ten that matter, or break in a narrow terminal."""
    shown = run(flag, tiny=False)
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if len(line) > 80] == []
    assert lines[0] == "usage: python train.py [fit|validate|test|predict] [options]"
    for name in (*(f"--{name} " for name in TOP_OPTIONS), *SUBCOMMANDS):
        assert sum(line.strip().startswith(name) for line in lines) == 1, name
    assert "python train.py fit --help" in lines[-1]


def test_every_option_is_shown_where_the_help_says(run: Runner) -> None:
    """The help: the short one names a command that does not show every option."""
    shown = run("fit", "--help", tiny=False)
    assert shown.code == 0
    for name in (*TOP_OPTIONS, "model.dropout", "data.utc_offset", "trainer.precision"):
        assert f"--{name} " in shown.text, name


def test_without_a_subcommand_it_is_fit(run: Runner) -> None:
    """A first run that only complains that a subcommand is missing."""
    done = run(*NINE)
    assert done.code == 0
    assert done.cli.subcommand == "fit"
    assert last_of(done).is_file()


# -- mistakes --------------------------------------------------------------------------------------

ANSWERS = [
    (["--model.lrr=3"], ["--model.lrr", "--model.lr"]),
    (["--data.batchsize", "3"], ["--data.batchsize", "--data.batch_size"]),
    (["test", "--model.chanels=3"], ["--model.chanels", "--model.channels"]),
    (["--xyzzy"], ["--xyzzy", "python train.py --help"]),
    (["--model.channels=x"], ["--model.channels", "'x'", "int"]),
    (["--model.channels=0"], ["--model.channels", "0", "1 or more"]),
    (["--model.state_size=5"], ["--model.state_size", "5", "even"]),
    (["--model.lr=fast"], ["--model.lr", "'fast'", "float"]),
    (["--model.init=foo"], ["--model.init", "'foo'", "s4d_lin, published"]),
    (["--data.rules=foo"], ["--data.rules", "'foo'", "none, gepiii, cambridge"]),
    (["--data.window=1"], ["--data.window", "2 or more"]),
    (["--data.batch_size=0"], ["--data.batch_size", "1 or more"]),
    (["--data.train_path=absent.csv"], ["absent.csv"]),
    (["--model.lr"], ["--model.lr", "expected one argument"]),
    (["--model.kernel=pytorch"], ["model.kernel", '"kernel"']),
    (["--trainer.max_epochs=two"], ["--trainer.max_epochs", "'two'", "int"]),
    (["--trainer.precision=bf17"], ["--trainer.precision", "'bf17'", "bf16-mixed"]),
    (["--trainer.accelerator=toaster"], ["toaster", "cpu"]),
    (["--trainer.strategy=ddq"], ["ddq", "ddp"]),
    (["fitt"], ["'fitt'", "fit", "validate", "test", "predict"]),
    (["fitt", "--model.lr=3"], ["'fitt'", "fit", "validate", "test", "predict"]),
    (["--config=absent.yaml"], ["config", "absent.yaml"]),
    (["--config", "absent.yaml"], ["config", "absent.yaml"]),
    (["--kernel=warp"], ["'warp'", "pytorch"]),
    (["validate"], ["validate needs a trained model", "--ckpt_path"]),
    (["test"], ["test needs a trained model", "--ckpt_path"]),
    (["predict"], ["predict needs a trained model", "--ckpt_path"]),
    (["test", "--ckpt_path=absent.ckpt"], ["--ckpt_path", "absent.ckpt"]),
    (["fit", "--ckpt_path", str(NINE_FILE)], ["--ckpt_path", NINE_FILE.name]),
    (["predict", "--ckpt_path", str(INPUTS)], ["--ckpt_path", INPUTS.name]),
]


@pytest.mark.parametrize(("words", "told"), ANSWERS, ids=[" ".join(a[0])[:40] for a in ANSWERS])
def test_a_mistake_is_answered_in_a_line(run: Runner, words: list[str], told: list[str]) -> None:
    """A mistyped command ends in a page of usage or a traceback, or is taken for another one."""
    assert_refused(run(*words, tiny=False), *told)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the message of a machine without a GPU")
def test_gpu_where_there_is_none(run: Runner) -> None:
    """A GPU that is not there: nobody says what to pass instead."""
    assert_refused(run("--trainer.accelerator=gpu", tiny=False), "gpu", "--trainer.accelerator cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the message of a machine without a GPU")
def test_kernel_that_cannot_run_here(run: Runner) -> None:
    """C03: a slow path runs unnoticed, or CUDA_HOME ends in a traceback."""
    refused = run("--kernel=warp_tiled", *NINE)
    assert_refused(refused, "'warp_tiled'", "NVIDIA GPU", "these work: pytorch")
    assert refused.text.count("error:") == 1
    assert "windows of" not in refused.text  # before any data are read


def test_foreign_checkpoint_is_refused(run: Runner, tmp_path: Path) -> None:
    """A checkpoint of another program ends in a page of missing keys."""
    path = tmp_path / "foreign.ckpt"
    torch.save({"state_dict": {"weight": torch.ones(2)}}, path)
    assert_refused(run("test", f"--ckpt_path={path}"), "foreign.ckpt", "not written by train.py")


def test_config_that_is_no_config(run: Runner) -> None:
    """A file of another kind as --config fills the screen with its contents."""
    refused = run(f"--config={NINE_FILE}", tiny=False)
    assert_refused(refused)
    assert len(refused.text) <= 400


# -- checklist 36, 37, 38: what a run leaves -------------------------------------------------------


def test_a_run_folder_that_exists(run: Runner, tmp_path: Path) -> None:
    """Checklist 36: the configuration's saver raises where a run's folder exists."""
    folders = [run(*NINE).folder for _ in range(2)]
    assert [folder.name for folder in folders] == ["version_0", "version_1"]
    logger = [
        "--trainer.logger=lightning.pytorch.loggers.TensorBoardLogger",
        f"--trainer.logger.save_dir={tmp_path / 'mine'}",
        "--trainer.logger.version=same",
    ]
    for channels in (4, 6):
        done = run(*NINE, *logger, f"--model.channels={channels}")
        assert done.code == 0
        config = yaml.safe_load((done.folder / "config.yaml").read_text())
        assert config["model"]["channels"] == channels
        assert lightly(last_of(done))["hyper_parameters"]["channels"] == channels
    assert done.folder == tmp_path / "mine" / "lightning_logs" / "same"


@pytest.mark.slow
def test_checkpoint_names_are_those_of_the_plain_model(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 38: torch.compile puts _orig_mod. into the names, and loading breaks."""
    monkeypatch.setattr(
        S4ConvDModule, "on_fit_start", lambda self: self.forecaster.compile(backend="eager")
    )
    done = run(*NINE)
    assert done.code == 0
    names = list(lightly(last_of(done))["state_dict"])
    assert names == list(S4ConvDModule.load_from_checkpoint(last_of(done)).state_dict())
    assert not any("_orig_mod" in name for name in names)
    monkeypatch.undo()
    assert run("test", *NINE, "--ckpt_path", done.best).code == 0


# -- checklist 32, 33: resuming --------------------------------------------------------------------


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
    assert lightly(last)["global_step"] == step
    assert steps.windows == expected.windows[:step]
    resumed = run(*NINE, LONG, "--ckpt_path", last)
    assert resumed.code == 0
    assert steps == expected
    a, b = (lightly(last_of(done)) for done in (whole, resumed))
    assert a["global_step"] == b["global_step"] == EPOCHS * BATCHES
    for name, tensor in a["state_dict"].items():
        assert torch.equal(tensor, b["state_dict"][name]), name


def test_a_run_stopped_by_max_steps_goes_on_within_its_epoch(run: Runner, steps: Steps) -> None:
    """Checklist 32: what an epoch had left after --trainer.max_steps is never trained on."""
    once = run(*NINE, LONG, "--trainer.max_steps=4")
    run(*NINE, LONG, "--ckpt_path", str(last_of(once)), "--trainer.max_steps=6")
    resumed = copy.deepcopy(steps.windows)
    steps.clear()
    run(*NINE, LONG)
    assert resumed == steps.windows[:6]


@pytest.mark.parametrize("limit", [[], ["--trainer.limit_train_batches=2"]])
def test_more_epochs_after_the_end(run: Runner, steps: Steps, limit: list[str]) -> None:
    """Checklist 33: a finished run with more epochs shuffles as in its first ones."""
    once = run(*NINE, "--trainer.max_epochs=2", *limit)
    run(*NINE, LONG, "--ckpt_path", str(last_of(once)), *limit)
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
    checkpoint = lightly(last_of(resumed))
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
    checkpoint = lightly(last_of(resumed))
    assert checkpoint["hyper_parameters"]["lr"] == 0.0003
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["weight_decay"] == 0.2


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
    last = str(last_of(run(*NINE, trained)))
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
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    ) as process:
        give_up = time.monotonic() + 120
        while not last.is_file() and process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.1)
        time.sleep(0.2)  # well into the next epoch
        os.kill(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 1, text
    assert "Traceback" not in text
    assert str(last) in text
    checkpoint = lightly(last)
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    assert 1 <= epochs < 1000
    assert checkpoint["global_step"] >= 179 * epochs
    more = f"--trainer.max_epochs={epochs + 1}"
    resumed = run(*data, more, "--ckpt_path", str(last))
    assert resumed.code == 0
    assert lightly(last_of(resumed))["global_step"] == 179 * (epochs + 1)


# -- layers ----------------------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "model.training" if parts[:2] == ("model", "training") else parts[0]


MAY_IMPORT = {
    "cuda_ops": {"cuda_ops"},
    "data": {"data"},
    "model": {"model", "cuda_ops"},
    "model.training": {"model", "model.training", "cuda_ops", "data"},
}
SOURCES = sorted(p for name in ("cuda_ops", "data", "model") for p in (ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(ROOT)) for p in SOURCES])
def test_a_module_imports_only_from_its_layer_down(path: Path) -> None:
    """The operator and the data cannot be used alone, because they import what is above them."""
    ours, lightning = set(), False
    for name in imports(path):
        top = name.split(".")[0]
        lightning |= top in ("lightning", "pytorch_lightning")
        if name.startswith("model.training"):
            ours.add("model.training")
        elif top in ("cuda_ops", "data", "model", "train", "tests"):
            ours.add(top)
    assert ours <= MAY_IMPORT[layer(path)]
    allowed = layer(path) == "model.training" or path.name in ("gepiii.py", "bench.py")
    assert allowed or not lightning
