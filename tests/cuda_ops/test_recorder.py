"""The marks of a step: what belongs to what, what it costs, and when a GPU is waited for."""

import itertools
import time
from collections.abc import Iterator

import pytest
import torch

import cuda_ops
from cuda_ops import depthwise_conv, recorder
from cuda_ops.op import conv_forward
from cuda_ops.recorder import HostClock, Recorder, Step, recorded
from tests.cuda_ops.paths import random_inputs

CPU = torch.device("cpu")
NAP = 0.1  # seconds; far above what these tiny tensors take


@pytest.fixture(autouse=True)
def nobody_records() -> Iterator[None]:
    """No recorder stays at work, whatever a test leaves."""
    yield
    recorder._at_work = None


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mark is one second after the one before."""
    count = itertools.count()
    monkeypatch.setattr(HostClock, "now", lambda clock: float(next(count)))


def slow(call, seconds: float = NAP):
    """`call`, after a nap."""

    def slowed(*arguments):
        time.sleep(seconds)
        return call(*arguments)

    return slowed


class SlowBackward(torch.autograd.Function):
    """The identity, whose backward takes a nap."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(NAP)
        return gradient


def one_step(call) -> dict[str, float]:
    """Milliseconds of a step that is one call."""
    times = Recorder(CPU)
    times.begin("rest")
    call()
    times.end_step(None, "rest")
    times.pause()
    (step,) = times.read()
    return step.ms


@pytest.mark.usefixtures("ticks")
def test_the_parts_of_a_step_add_up_to_it() -> None:
    """D07: a part is lost, or counted twice; what is told about a step comes back with another."""
    times = Recorder(CPU)
    times.begin("data")
    times.begin("rest")
    for path in ("forward", "input_grad"):
        times.enter(path)
        times.leave()
    times.begin("optimizer")
    times.enter("forward")  # of an optimiser that asks for the loss again
    times.leave()
    times.end_step("first", "rest")
    times.begin("data")
    times.end_step("second", "rest")
    first, second = times.read()
    parts = {"data": 1, "rest": 3, "forward": 2, "input_grad": 1, "optimizer": 2}
    assert first == Step({name: 1e3 * seconds for name, seconds in parts.items()}, "first")
    assert second == Step({"rest": 1e3, "data": 1e3}, "second")
    assert times.read() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", ["pytorch", "warp_tiled"])
def test_the_bytes_of_a_path_are_those_of_its_large_tensor(kernel, dtype) -> None:
    """Of all calls in a step, in the type that the operator ran in, and of no step before."""
    conv = depthwise_conv if kernel == "pytorch" else conv_forward
    x = torch.randn(3, 4, 8, dtype=dtype, requires_grad=True)
    k = torch.randn(4, 8, dtype=dtype, requires_grad=True)
    times = Recorder(CPU)
    times.begin("rest")
    for calls in (1, 2):
        for _ in range(calls):
            conv(x, k, kernel).sum().backward()
        times.end_step(calls, "rest")
    times.end_step(0, "rest")
    gradients = ["both_gradients"] if kernel == "pytorch" else ["input_grad", "weight_grad"]
    for step in times.read():
        assert step.nbytes == {
            path: step.about * x.nbytes for path in ("forward", *gradients) if step.about
        }


@pytest.mark.usefixtures("ticks")
def test_a_pause_belongs_to_no_step() -> None:
    """A validation is taken for a slow step."""
    times = Recorder(CPU)
    times.enter("forward")  # before the first step nothing is recorded
    times.begin("rest")
    times.end_step(1, "rest")
    times.pause()
    times.pause()
    times.enter("forward")
    times.leave()
    times.begin("data")
    times.end_step(2, "rest")
    assert times.read() == [Step({"rest": 1e3}, 1), Step({"rest": 1e3, "data": 1e3}, 2)]


def test_only_the_recorder_at_work_is_told() -> None:
    """A run that has ended keeps recording, or ends the recording of the next."""
    old, new = Recorder(CPU), Recorder(CPU)
    old.begin("rest")
    new.begin("rest")
    old.pause()
    assert recorder._at_work is new
    new.pause()
    assert recorder._at_work is None


def test_a_call_that_fails_ends_its_path() -> None:
    """D02: after an exception everything is taken for the path that failed."""

    def fail() -> None:
        raise ValueError("of the call")

    def step() -> None:
        with pytest.raises(ValueError, match="of the call"):
            recorded("forward", fail)
        time.sleep(NAP)

    ms = one_step(step)
    assert ms["rest"] > 500 * NAP > ms["forward"]


SLOWED = {
    "forward": "forward_by_definition",
    "input_grad": "input_grad_by_definition",
    "weight_grad": "weight_grad_by_definition",
}


@pytest.mark.parametrize("path", SLOWED)
def test_a_slow_path_of_a_kernel_shows_as_that_path(path, monkeypatch) -> None:
    """The bottleneck is seen in another path."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs((2, 3, 8, 8)))
    slowed = getattr(cuda_ops.op, SLOWED[path])
    monkeypatch.setattr(cuda_ops.op, SLOWED[path], slow(slowed))
    ms = one_step(lambda: conv_forward(x, k, "naive").backward(torch.ones(2, 3, 8)))
    assert set(ms) == {*SLOWED, "rest"}
    assert ms.pop(path) > 900 * NAP
    assert sum(ms.values()) < 500 * NAP


def test_a_copy_of_the_gradient_is_the_operators() -> None:
    """What makes a strided gradient dense is taken for the model's time, though PyTorch's own
    backward holds it."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs((2, 3, 8, 8)))
    strided = torch.ones(2, 8, 3).transpose(1, 2)
    assert "gradient_copy" in one_step(lambda: conv_forward(x, k, "naive").backward(strided))
    dense = torch.ones(2, 3, 8)
    assert "gradient_copy" not in one_step(lambda: conv_forward(x, k, "naive").backward(dense))


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("where", ["before", "aside", "forward", "within", "after"])
def test_pytorchs_gradients_are_one_path(where, wanted, monkeypatch) -> None:
    """Autograd's work for other layers is taken for the operator's, or the other way round."""
    x, k = (
        tensor.requires_grad_(one)
        for tensor, one in zip(random_inputs((2, 3, 8, 8)), wanted, strict=True)
    )

    def conv(x, k):
        if where == "forward":
            time.sleep(NAP)
        y = x * k
        return SlowBackward.apply(y) if where == "within" else y

    monkeypatch.setattr(cuda_ops, "pytorch_conv", conv)

    def step() -> None:
        sources = (x * 2, k * 2)  # in a model, both come from somewhere
        if where == "before":
            sources = tuple(SlowBackward.apply(t) if t.requires_grad else t for t in sources)
        aside = torch.ones(8, requires_grad=True)
        if where == "aside":
            aside = SlowBackward.apply(aside)
        y = depthwise_conv(*sources)
        if where == "after":
            y = SlowBackward.apply(y)
        (y + aside + sources[0] * sources[1]).sum().backward()

    ms = one_step(step)
    assert set(ms) == {"forward", "both_gradients", "rest"}
    expected = {"forward": "forward", "within": "both_gradients"}.get(where, "rest")
    assert ms.pop(expected) > 900 * NAP
    assert sum(ms.values()) < 500 * NAP
    assert (x.grad is not None, k.grad is not None) == wanted


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("length", [8, 300])
def test_recording_changes_no_bit_and_keeps_no_tensor(length, wanted) -> None:
    """B09: what measures also computes, or holds memory."""
    x, k = (
        tensor.requires_grad_(one)
        for tensor, one in zip(random_inputs((2, 3, length, 8)), wanted, strict=True)
    )

    def step():
        saved: list[tuple] = []
        x.grad = k.grad = None
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append((t.shape, t.stride(), t.dtype)) or t, lambda t: t
        )
        with hooks:
            y = depthwise_conv(x, k)
        if any(wanted):
            y.backward(torch.arange(y.numel()).view(y.shape).float())
        return y, x.grad, k.grad, saved

    plain = step()
    found: list = []
    one_step(lambda: found.append(step()))
    assert y_and_gradients_equal(plain[:3], found[0][:3])
    assert found[0][3] == plain[3]
    assert found[0][0].stride() == plain[0].stride()
    assert found[0][0].requires_grad == any(wanted)


def y_and_gradients_equal(first, second) -> bool:
    return all(
        (one is None and other is None) or torch.equal(one, other)
        for one, other in zip(first, second, strict=True)
    )


def test_second_derivatives_while_recording() -> None:
    """29: what measures breaks a gradient of the gradient."""
    x, k = (t.requires_grad_() for t in random_inputs((1, 2, 5, 3), torch.float64))
    one_step(lambda: torch.autograd.gradgradcheck(depthwise_conv, (x, k)))


def test_a_backward_after_the_recording_is_not_recorded() -> None:
    """D02: an interrupted step's graph tells a recorder that has ended."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs((2, 3, 8, 8)))
    times = Recorder(CPU)
    times.begin("rest")
    y = depthwise_conv(x, k)
    times.pause()
    y.sum().backward()
    times.begin("rest")
    times.end_step(None, "rest")
    (step,) = times.read()
    assert set(step.ms) == {"forward", "rest"}


def test_compiled_code_has_no_paths_and_no_graph_break() -> None:
    """C10, 24: the recording breaks the graph, or marks from a compiled step are a guess."""
    torch.compiler.reset()
    compiled = torch.compile(depthwise_conv, fullgraph=True, backend="aot_eager")
    x, k = (tensor.requires_grad_() for tensor in random_inputs((4, 3, 48, 48)))

    def step() -> None:
        compiled(x, k).sum().backward()

    assert set(one_step(step)) == {"rest"}  # compiles, within a step
    step()
    assert set(one_step(step)) == {"rest"}


def test_a_compiled_models_kernels_are_still_seen() -> None:
    """They are operators of their own, which a compiler calls as they are."""
    torch.compiler.reset()
    compiled = torch.compile(conv_forward, fullgraph=True, backend="aot_eager")
    x, k = (tensor.requires_grad_() for tensor in random_inputs((4, 3, 48, 48)))
    for _ in range(2):
        ms = one_step(lambda: compiled(x, k, "naive").sum().backward())
    assert {"forward", "input_grad", "weight_grad"} <= set(ms)


def test_steps_that_nobody_reads_are_thrown_away() -> None:
    """B09: marks pile up while the GPU is behind, or while nothing is logged."""
    times = Recorder(CPU)
    times.begin("rest")
    assert not times.full
    count = recorder.MOST + 100
    for number in range(count):
        times.end_step(number, "rest")
    assert times.full
    assert len(times._marks) == recorder.MOST
    steps = times.read()
    assert [step.about for step in steps] == list(range(times.lost, count))
    assert len(steps) == recorder.MOST - 1
    assert not times.full
    assert len(times._marks) == 1


class FakeEvent:
    """A CUDA event of a GPU that works only when it is told to."""

    made: list["FakeEvent"]
    clock: int
    passed: int  # the GPU has done what was queued up to here
    waits: int

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing  # D03: without it elapsed_time is an error
        FakeEvent.made.append(self)

    def record(self) -> None:
        FakeEvent.clock += 1
        self.at = FakeEvent.clock

    def query(self) -> bool:
        return self.at <= FakeEvent.passed

    def synchronize(self) -> None:
        FakeEvent.waits += 1
        FakeEvent.passed = max(FakeEvent.passed, self.at)

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.query()  # D02: device not ready
        assert other.query()
        return float(other.at - self.at)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeEvent]:
    """A GPU that is not there."""
    FakeEvent.made, FakeEvent.clock, FakeEvent.passed, FakeEvent.waits = [], 0, 0, 0
    monkeypatch.setattr("torch.cuda.Event", FakeEvent)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    return FakeEvent


def test_events_are_read_late_and_used_again(gpu: type[FakeEvent]) -> None:
    """D02: events are read before the GPU is there, or it is waited for at each step."""
    times = Recorder(torch.device("cuda"))
    times.begin("rest")
    for number in range(3):
        times.begin("optimizer")
        times.end_step(number, "rest")
    assert times.read() == []
    gpu.passed = 3  # marks 1 to 3 are the first step's
    assert times.read() == [Step({"rest": 1.0, "optimizer": 1.0}, 0)]
    gpu.passed = 4
    assert times.read() == []
    assert gpu.waits == 0
    assert [step.about for step in times.read(wait=True)] == [1, 2]
    assert gpu.waits == 1
    assert times.read(wait=True) == []
    assert gpu.waits == 1  # for nothing there is nothing to wait
    for number in range(100):
        times.begin("optimizer")
        times.end_step(number, "rest")
        (step,) = times.read(wait=True)
        assert step == Step({"rest": 1.0, "optimizer": 1.0}, number)
    assert len(gpu.made) == 7


def test_nothing_is_marked_within_a_capture(gpu, monkeypatch) -> None:
    """An event in a captured graph has no time: reading it is an error."""
    times = Recorder(torch.device("cuda"))
    times.begin("rest")
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    times.enter("forward")
    times.leave()
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    times.end_step(None, "rest")
    assert times.read(wait=True) == [Step({"rest": 1.0}, None)]
