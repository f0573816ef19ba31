"""What a user is told of a run's memory, and what it is made of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from model.training.callbacks import memory as callback
from model.training.callbacks.memory import MemoryForecast, TrainingLoss, held_by, verdict
from model.training.callbacks.panels import ForecastPanels
from model.training.memory import BLOCK, NotPredictedError, Peak, predict_peak
from tests.conftest import INPUTS, Run, one_file

Runner = Callable[..., Run]
CPU = torch.device("cpu")
KIB = 1024


def test_what_a_user_is_told() -> None:
    gib = 2**30
    step = Peak(frozenset({(0, gib / 2000)}))
    assert verdict(step, 16000, 2 * gib, 140 * gib) == (
        "memory: about 10.0 GiB at batch size 16,000; "
        "up to 240,000 would fit the 140.0 GiB that are there"  # 2000 * (0.9 * 140 - 2) = 248,000
    )
    assert verdict(step, 16, 0, 2100 * gib // 1000) == (
        "memory: about 8 MiB at batch size 16; up to 3,700 would fit the 2.1 GiB that are there"
    )
    for batch in (300000, 250000):  # far above, and by less than a prediction may be off
        told = verdict(step, batch, 2 * gib, 140 * gib)
        assert "may run out" in told
        assert "140.0 GiB" in told
        assert "--data.batch_size of 240,000" in told
    assert verdict(step, 1, 2 * gib, 2 * gib).endswith("it may run out; no batch would fit")
    assert "may run out" not in verdict(step, 247_999, 2 * gib, 140 * gib)


def test_nothing_is_said_without_a_gpu(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForecastPanels, "on_train_start", MemoryForecast.on_train_start)
    done = run(*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[]")
    assert done.code == 0, done.text
    assert "memory:" not in done.text


class OnAGpu:
    """A trainer whose device is a GPU with 10 GB in all, of which 2,000,000 bytes are taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.device = torch.device("cuda:0")
        self.module = nn.Linear(4, 4)
        self.module.replays = False
        loader = SimpleNamespace(
            source=SimpleNamespace(gather=lambda cell: [torch.zeros(10), torch.zeros(5).double()]),
            cell=torch.arange(1001),
            batch_size=300,
            gathered=600,
        )
        self.trainer: Any = SimpleNamespace(
            strategy=SimpleNamespace(root_device=self.device),
            is_global_zero=True,
            train_dataloader=loader,
            optimizers=[torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9)],
            world_size=2,
            precision_plugin=SimpleNamespace(convert_input=lambda batch: batch),
        )
        monkeypatch.setattr(callback, "take_workspaces", lambda device: None)
        monkeypatch.setattr(callback, "held_by", lambda *_: 500_000)
        monkeypatch.setattr(callback, "rank_zero_info", self.told.append)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2_000_000)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10**9)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9 * 10**9, 0))

    def start(self) -> MemoryForecast:
        forecast = MemoryForecast()
        forecast.on_train_start(self.trainer, self.module)  # type: ignore[arg-type]
        return forecast


def test_what_is_held_beside_the_step_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights twice; the series, or the epoch's order, not at all."""
    gpu = OnAGpu(monkeypatch)
    monkeypatch.setattr(callback, "predict_peak", lambda *_: Peak(frozenset({(500_000, 100.0)})))
    share = 501  # a process's windows, all of which are gathered at once, at 80 bytes each
    assert gpu.start().peak == 2_000_000 + 100 * 300 + 80 * 201 + 8 * share
    (line,) = gpu.told
    assert line.startswith("memory: about 2 MiB at batch size 300; up to 89,000,000 would fit the ")
    assert line.endswith(" 9.3 GiB that are there")


def test_a_graph_has_a_batch_and_workspaces_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = OnAGpu(monkeypatch)
    monkeypatch.setattr(callback, "predict_peak", lambda *_: Peak(frozenset({(500_000, 100.0)})))
    streams: list[object] = []
    taken: list[list[object]] = []

    @contextmanager
    def entered(stream: object) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(callback, "capture_stream", lambda device: "the graph's")
    monkeypatch.setattr(callback, "take_workspaces", lambda device: taken.append([*streams]))
    eager = gpu.start().peak
    taken.clear()
    gpu.module.replays = True
    assert eager is not None
    assert gpu.start().peak == eager + 80 * 300
    assert taken == [[], ["the graph's"]]


def test_a_step_that_is_not_predicted_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that helps nobody stops the training, or is missing without a word."""

    def refuse(*_: Any) -> Peak:
        raise NotPredictedError("it asks for a value")

    gpu = OnAGpu(monkeypatch)
    monkeypatch.setattr(callback, "predict_peak", refuse)
    assert gpu.start().peak is None
    (line,) = gpu.told
    assert line.startswith("memory: not predicted")
    assert line.endswith("it asks for a value")


def test_one_process_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = OnAGpu(monkeypatch)
    gpu.trainer.is_global_zero = False
    assert gpu.start().peak is None
    assert gpu.told == []


def test_what_is_held_by_a_resumed_run() -> None:
    """The optimiser's state is there already, and counted again with the step's."""
    module = nn.Linear(300, 1)
    module.register_buffer("scale", torch.ones(1))
    optimizer = torch.optim.AdamW(module.parameters())
    weights = (3 + 1 + 1) * BLOCK
    assert held_by(module, optimizer, CPU) == weights
    module(torch.ones(1, 300)).backward()
    optimizer.step()
    assert held_by(module, optimizer, CPU) == weights + 2 * (3 + 1) * BLOCK + 2 * BLOCK
    assert held_by(module, optimizer, torch.device("cuda:0")) == 0


def test_nothing_is_left_on_the_module(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is not logged any more, or the fakes are logged."""
    seen: list[Any] = []

    def start(self: Any, trainer: Any, module: Any) -> None:
        loader = trainer.train_dataloader
        loss = TrainingLoss(trainer, module)
        predict_peak(loss, trainer.optimizers[0], loader.source.gather(loader.cell[:1]))
        seen.append(("log" in vars(module), dict(trainer.callback_metrics)))

    monkeypatch.setattr(ForecastPanels, "on_train_start", start)
    done = run(*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[]")
    assert done.code == 0, done.text
    ((has_log, logged),) = seen
    assert not has_log
    assert "train/loss" not in logged
    assert "train/loss" in done.cli.trainer.logger.tags
