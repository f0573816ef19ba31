"""Runs of train.py as a user makes them, inside the test's own process."""

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import cuda_ops
import train
from cuda_ops import recorder
from model.precision import set_matmul_precision

INPUTS = Path(__file__).parent / "cases" / "inputs"
TINY = {
    "data.window": "4",
    "data.batch_size": "4",
    "model.channels": "4",
    "model.blocks": "1",
    "model.state_size": "4",
    "trainer.max_epochs": "1",
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": "false",
    "trainer.log_every_n_steps": "1",
}


@dataclass
class Run:
    """What one command left behind."""

    code: int
    text: str  # all that the user was told, on either stream
    cli: Any  # the command line's object, None after an error

    @property
    def data(self) -> Any:
        return self.cli.datamodule

    @property
    def folder(self) -> Path:
        return Path(self.cli.trainer.log_dir)

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> str:
        return str(self.folder / "checkpoints" / "best.ckpt")


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """A checkpoint as any machine may load it."""
    return torch.load(path, map_location="cpu", weights_only=True)


def assert_refused(run: Run, *told: object) -> None:
    """A mistake ends with code 2 and at most three lines that hold `told`."""
    assert run.code == 2, run.text
    message = run.text[run.text.index("error: ") :].strip()
    assert len(message.splitlines()) <= 3
    assert "Traceback" not in run.text
    assert "best: " not in run.text  # nothing was trained
    assert [str(part) for part in told if str(part) not in message] == []


def one_file(path: Path) -> list[str]:
    """Options that name one tiny file for training, validation and test."""
    return [
        option
        for split in ("train", "val", "test")
        for option in (f"--data.{split}_path", str(path))
    ]


@contextmanager
def second_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Offers a kernel 'elsewhere', as another machine may; yields the names of those that ran."""
    ran: set[str] = set()

    def prepare(name: str, device: torch.device) -> str:
        known = name == "elsewhere"
        return "elsewhere, of a test" if known else cuda_ops.prepare_kernel(name, device)

    def conv(x: torch.Tensor, k: torch.Tensor, kernel: str, last_only: bool) -> torch.Tensor:
        ran.add(kernel)
        return cuda_ops.depthwise_conv(x, k, last_only=last_only)

    with monkeypatch.context() as patch:
        patch.setattr("model.training.execution.prepare_kernel", prepare)
        patch.setattr("model.block.depthwise_conv", conv)
        yield ran


# Tiny tensors gain nothing from threads, and waiting for a core that is busy costs much.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def full_precision() -> None:
    """No test's TF32 is another's."""
    set_matmul_precision("highest")


@pytest.fixture(autouse=True)
def without_lightgbm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has it who did not ask for it, unless a test does."""
    if "with_lightgbm" not in request.fixturenames:
        monkeypatch.setattr("data.module.boosting_is_installed", lambda: False)


@pytest.fixture
def with_lightgbm() -> None:
    """For a test of the extra `baselines`."""


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests neither read nor fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def keeps_sigint() -> Iterator[None]:
    """Ctrl-C as in a terminal.

    Lightning ignores it from the first one on, and the other tests want it back; a shell's
    background job ignores it from the start.
    """
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Run]]:
    """A function that runs `python train.py *args` with a tiny model, unless args say otherwise."""
    told = StringIO()
    handler = logging.StreamHandler(told)
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    for logger in loggers:
        logger.addHandler(handler)

    def call(*args: object, tiny: bool = True) -> Run:
        words = [str(arg) for arg in args]
        if tiny:
            given = {word.lstrip("-").split("=")[0] for word in words}
            words += [f"--{name}={value}" for name, value in TINY.items() if name not in given]
            if "runs" not in given:
                words.append(f"--runs={tmp_path / 'runs'}")
        told.seek(0)
        told.truncate()
        capsys.readouterr()
        cli, code = None, 0
        try:
            cli = train.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Run(code, told.getvalue() + printed.out + printed.err, cli)

    yield call
    for logger in loggers:
        logger.removeHandler(handler)
    left, recorder._at_work = recorder._at_work, None
    assert left is None  # however the last run ended, nothing goes on being timed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="PyTorch sees no NVIDIA GPU here"))


sys.argv = sys.argv[:1]  # Lightning warns about a command line of pytest's own
