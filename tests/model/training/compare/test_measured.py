"""What is measured beside the training, with the definition in the kernels' place on a CPU."""

import json
import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from cuda_ops import reference, timing
from cuda_ops.ceilings import MultiplyAdds
from cuda_ops.contenders import Contender, Size, kernel_contender
from model.training.compare import measured
from model.training.errors import UsageError

SIZE = Size(batch=5, channels=3, length=7, taps=7)
CUDA = torch.device("cuda", 0)


class Definition:
    """Paths of a kernel; `times` is what its forward path is off by."""

    def __init__(self, times: float = 1.0) -> None:
        self.times = times

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return self.times * reference.forward_by_definition(x, k)

    input_grad = staticmethod(reference.input_grad_by_definition)
    weight_grad = staticmethod(reference.weight_grad_by_definition)


@pytest.fixture(autouse=True)
def a_cpu_in_a_gpus_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(call: Any) -> tuple[float, Any]:
        start = time.perf_counter()
        result = call()
        return 1e3 * (time.perf_counter() - start), result

    def contenders(names: Any, formulations: bool, dtype: Any, device: Any) -> list[Contender]:
        assert not formulations
        return [kernel_contender(name, Definition()) for name in names]

    def multiply_adds(device: torch.device, rounds: int) -> MultiplyAdds:
        return MultiplyAdds(1.0, 1.0, 1.0, rounds, gflop_s=6e4)

    properties = type("Properties", (), {"L2_cache_size": 1})
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(timing, "timed", timed)
    monkeypatch.setattr(measured, "contenders", contenders)
    monkeypatch.setattr(measured, "eviction_buffer", lambda device, l2_bytes: torch.zeros(1))
    monkeypatch.setattr(measured, "multiply_adds", multiply_adds)
    monkeypatch.setattr(measured, "ROUNDS", 3)


def alone(*names: str) -> dict[str, Any]:
    return measured.operator_alone(names, SIZE, "float32", CUDA)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["naive", "pytorch", "shared"], ["pytorch", "naive", "shared"]),
        (["shared"], ["shared"]),
        (["pytorch"], ["pytorch"]),
    ],
)
def test_those_that_take_part_are_measured(names: list[str], rows: list[str]) -> None:
    """PyTorch's where it was not asked for, or not where it was; or what JSON cannot hold."""
    found = json.loads(json.dumps(alone(*names)))
    assert [row["name"] for row in found["operator"]["rows"]] == rows
    assert found["operator"]["shape"] == {"batch": 5, "channels": 3, "length": 7, "taps": 7}
    assert found["operator"]["dtype"] == "float32"
    assert {each["kind"] for each in found["operator"]["ceilings"]} == {"copy", "read", "add"}
    assert found["fma"]["gflop_s"] == 6e4


def test_a_memory_that_is_too_small_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(measured, "measure", cannot)
    assert alone("pytorch") == {"operator": None, "fma": None}
    assert "the GPU's memory is too small" in capsys.readouterr().err


def test_a_wrong_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """fast_p counts what computes something else."""
    wrong = [kernel_contender("naive", Definition(times=1.01))]
    monkeypatch.setattr(measured, "contenders", lambda *_: wrong)
    with pytest.raises(UsageError, match="naive, forward"):
        alone("naive")


def test_a_cpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(measured, "measure")
    found = measured.operator_alone(["pytorch"], SIZE, "float32", torch.device("cpu"))
    assert found == {"operator": None, "fma": None}


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--trainer\.precision: .*32-true.*, not transformer"):
        measured.operator_type("transformer-engine")
