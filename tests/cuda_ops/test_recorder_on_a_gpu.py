"""The marks of a step on a GPU's own time line: CUDA events, captures, waits and memory."""

from collections.abc import Iterator

import pytest
import torch

import cuda_ops
from cuda_ops import depthwise_conv, recorder
from cuda_ops.jit import VARIANTS
from cuda_ops.recorder import Recorder, Step
from tests.cuda_ops.paths import random_inputs

pytestmark = pytest.mark.gpu
STUDY = (16384, 128, 48, 48)


@pytest.fixture(autouse=True)
def nobody_records() -> Iterator[None]:
    """No recorder stays at work, whatever a test leaves."""
    yield
    recorder._at_work = None


def gpu_steps(kernel: str, count: int = 5, shape=STUDY) -> tuple[list[Step], float]:
    """Steps that are one convolution each, and milliseconds of all of them between two events."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs(shape, device="cuda"))
    gy = torch.ones_like(x)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = Recorder(x.device)
    for _ in range(2):
        torch.autograd.grad(depthwise_conv(x, k, kernel), (x, k), gy)
    torch.cuda._sleep(50_000_000)  # the host gets ahead, so that no time holds its launches
    start.record()
    times.begin("rest")
    for number in range(count):
        torch.autograd.grad(depthwise_conv(x, k, kernel), (x, k), gy)
        times.end_step(number, "rest")
    end.record()
    times.pause()
    torch.cuda.synchronize()
    return times.read(), start.elapsed_time(end)


@pytest.mark.parametrize("kernel", ["pytorch", *VARIANTS])
def test_the_paths_of_a_gpu_add_up_to_its_time(kernel) -> None:
    """D07: the parts are not the whole; what is left beside the paths is next to nothing."""
    steps, wall = gpu_steps(kernel)
    gradients = ["both_gradients"] if kernel == "pytorch" else ["input_grad", "weight_grad"]
    assert [set(step.ms) for step in steps] == [{"forward", "rest", *gradients}] * 5
    assert sum(sum(step.ms.values()) for step in steps) == pytest.approx(wall, rel=0.01)
    assert sum(step.ms["rest"] for step in steps) < 0.05 * wall


def test_a_gpus_slow_path_shows_as_that_path(monkeypatch) -> None:
    """The work of one path is seen in the next, since the host is ahead of the GPU."""
    right = cuda_ops.launch.Kernels.input_grad

    def slowed(*arguments):
        torch.cuda._sleep(20_000_000)  # about ten milliseconds
        return right(*arguments)

    monkeypatch.setattr(cuda_ops.launch.Kernels, "input_grad", slowed)
    steps, _ = gpu_steps("warp_tiled")
    for step in steps:
        assert step.ms["input_grad"] > 5 > 10 * (step.ms["forward"] + step.ms["weight_grad"]) / 2


def test_recording_on_a_gpu_waits_for_nothing(monkeypatch) -> None:
    """40: the recording slows what it measures."""
    waits: list[str] = []
    for name in ("Event.synchronize", "synchronize", "Stream.synchronize"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, name=name: waits.append(name))
    x, k = (tensor.requires_grad_() for tensor in random_inputs((8, 16, 48, 48), device="cuda"))
    for _ in range(2):  # CUDA loads each function at its first call, and waits for the GPU there
        depthwise_conv(x, k).sum().backward()
    times = Recorder(x.device)
    times.begin("rest")
    torch.cuda._sleep(200_000_000)  # a tenth of a second
    for number in range(3):
        depthwise_conv(x, k).sum().backward()
        times.end_step(number, "rest")
        assert times.read() == []
    assert waits == []
    monkeypatch.undo()
    assert [step.about for step in times.read(wait=True)] == [0, 1, 2]


@pytest.mark.parametrize("kernel", ["pytorch", "warp_tiled"])
def test_a_captured_step_shows_no_paths(kernel) -> None:
    """23: capturing while recording fails, or the replays' paths are a guess."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs((64, 16, 48, 48), device="cuda"))
    gy = torch.ones_like(x)

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(depthwise_conv(x, k, kernel), (x, k), gy)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = step()
    torch.cuda.current_stream().wait_stream(stream)
    times = Recorder(x.device)
    times.begin("rest")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    times.end_step("captured", "rest")
    graph.replay()
    times.end_step("replayed", "rest")
    assert [set(step.ms) for step in times.read(wait=True)] == [{"rest"}, {"rest"}]
    assert all(torch.equal(*pair) for pair in zip(captured, expected, strict=True))


@pytest.mark.parametrize("kernel", ["pytorch", "warp_tiled"])
def test_recording_takes_no_memory_of_the_gpu(kernel) -> None:
    """B09: the peak of a step is the same with and without it."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs((64, 16, 48, 48), device="cuda"))

    def peak() -> int:
        torch.cuda.reset_peak_memory_stats()
        depthwise_conv(x, k, kernel).sum().backward()
        x.grad = k.grad = None
        return torch.cuda.max_memory_allocated()

    peak()
    plain = peak()
    times = Recorder(x.device)
    times.begin("rest")
    assert peak() == plain
