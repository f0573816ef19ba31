"""What the tests of a comparison share."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import cuda_ops
from cuda_ops.op import conv_forward
from model import block
from model.training.compare import command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "compare_0"


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those take longer than all the rest, and have tests of their own."""
    drawn = {"roofline": torch.zeros(3, 2, 2, dtype=torch.uint8)}
    charts = SimpleNamespace(pictures=lambda record: drawn)
    report = SimpleNamespace(html=lambda record: f"<p>{record['command']}")
    monkeypatch.setitem(sys.modules, "model.training.compare.charts", charts)
    monkeypatch.setitem(sys.modules, "model.training.compare.report", report)


@pytest.fixture
def kernels_anywhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels' paths by definition, on a CPU; a list of the kernels of the calls."""
    ran: list[str] = []

    def conv(x: torch.Tensor, k: torch.Tensor, kernel: str, last_only: bool) -> torch.Tensor:
        ran.append(kernel)
        if kernel == "pytorch":
            return cuda_ops.depthwise_conv(x, k, last_only=last_only)
        y = conv_forward(x, k, kernel)
        return y[..., -1:] if last_only else y

    monkeypatch.setattr(command, "prepare_kernel", lambda name, device: f"{name}, of a test")
    monkeypatch.setattr(block, "depthwise_conv", conv)
    return ran
