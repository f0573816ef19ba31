"""Where the time of a training step goes, told by marks at the places where something else begins.

A mark is a CUDA event on the stream that runs there, or the host's clock on a CPU. The time up to
the next mark belongs to what began with it, so the parts of a step add up to the step. The marks of
a GPU lie on its own time line: a part's time is what the GPU spent on it, its wait for the host
included, and no mark waits for anything. They are read when the GPU has passed them.

The operator's paths mark themselves while a recorder is at work (`recorded`, `recorded_whole`):

    forward          y from x and k
    input_grad       the gradient of x
    weight_grad      the gradient of k
    both_gradients   the two in one go, where they cannot be told apart
    gradient_copy    the gradient of y made contiguous, where it arrives strided

Code that a compiler has fused and steps that a CUDA graph replays mark nothing: they have no paths.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

PATHS = ("forward", "input_grad", "weight_grad", "both_gradients", "gradient_copy")
FULL = 1024  # marks that wait; whoever records should read them
MOST = 8192  # and here the oldest steps are thrown away unread

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        ms: milliseconds by what they went to.
        about: what the step's end was told.
        nbytes: path -> bytes of the tensors that its calls were given first, x or gy.
    """

    ms: dict[str, float]
    about: Any
    nbytes: dict[str, int] = field(default_factory=dict)


class Clock(Protocol):
    """Moments of one device's time."""

    def now(self) -> Any:
        """This moment, or None where none can be taken."""

    def reached(self, moment: Any) -> bool:
        """Whether the device has passed it; does not wait."""

    def wait(self, moment: Any) -> None:
        """Wait until the device has passed it."""

    def between(self, first: Any, second: Any) -> float:
        """Milliseconds between two moments that the device has passed."""

    def free(self, moment: Any) -> None:
        """It is not needed any more."""


class HostClock:
    """A CPU does its work before the call returns."""

    def now(self) -> float:
        """In seconds."""
        return time.perf_counter()

    def reached(self, moment: float) -> bool:
        """Always."""
        return True

    def wait(self, moment: float) -> None:
        """For nothing."""

    def between(self, first: float, second: float) -> float:
        """In milliseconds."""
        return 1e3 * (second - first)

    def free(self, moment: float) -> None:
        """A number holds nothing."""


class EventClock:
    """CUDA events on the current stream, used again and again."""

    def __init__(self) -> None:
        self._unused: list[torch.cuda.Event] = []

    def now(self) -> torch.cuda.Event | None:
        """An event behind all that is queued; None within a graph's capture, which has no times."""
        if torch.cuda.is_current_stream_capturing():
            return None
        unused = self._unused
        event = unused.pop() if unused else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, moment: torch.cuda.Event) -> bool:
        """Asks the driver."""
        return moment.query()

    def wait(self, moment: torch.cuda.Event) -> None:
        """Blocks the host."""
        moment.synchronize()

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        """In milliseconds."""
        return first.elapsed_time(second)

    def free(self, moment: torch.cuda.Event) -> None:
        """Keep it for `now`."""
        self._unused.append(moment)


class Recorder:
    """Times the parts of steps, and the operator's paths within them.

    One is at work at a time, from its first `begin` to `pause`.

    Args:
        device: whose time is taken: a GPU's with CUDA events, a CPU's with the host's clock.

    Attributes:
        lost: steps that were thrown away because nobody read them in time.
        spent: seconds of the host that marking and reading took.
    """

    def __init__(self, device: torch.device) -> None:
        self.lost = 0
        self.spent = 0.0
        self._clock: Clock = EventClock() if device.type == "cuda" else HostClock()
        self._part: str | None = None  # of the step; None while pausing
        # What begins when: (moment, its name or None, whether a step ends there, told about it).
        self._marks: deque[tuple[Any, str | None, bool, Any]] = deque()
        self._ends: deque[Any] = deque()  # the moments of those that end a step
        self._nbytes: dict[str, int] = {}  # of the running step

    def begin(self, part: str) -> None:
        """A part of the step begins, and ends what ran until now."""
        global _at_work
        _at_work = self
        self._part = part
        self._mark(part)

    def end_step(self, about: Any, part: str) -> None:
        """The step ends here, and a part of the next one begins; `about` comes back with it."""
        self._part = part
        self._mark(part, True, (about, self._nbytes))
        self._nbytes = {}
        while len(self._marks) > MOST and self._ends:
            self._take_step()
            self.lost += 1

    def pause(self) -> None:
        """Until the next `begin`, time belongs to no step."""
        global _at_work
        if _at_work is self:
            _at_work = None
        if self._part is not None:
            self._part = None
            self._mark(None)

    def enter(self, path: str, nbytes: int = 0) -> None:
        """A path of the operator begins, on a tensor of so many bytes."""
        if self._part is not None:
            self._mark(path)
            if nbytes:
                self._nbytes[path] = self._nbytes.get(path, 0) + nbytes

    def leave(self) -> None:
        """It ends, and the part goes on that it interrupted."""
        if self._part is not None:
            self._mark(self._part)

    @property
    def full(self) -> bool:
        """Whether it is time to `read`."""
        return len(self._marks) >= FULL

    def read(self, wait: bool = False) -> list[Step]:
        """The steps that have ended and were not read yet, in order.

        Args:
            wait: wait until the device has passed the last of them; otherwise those that it has not
                passed stay for the next time.
        """
        if wait and self._ends:
            self._clock.wait(self._ends[-1])
        start = time.perf_counter()
        steps = []
        while self._ends and self._clock.reached(self._ends[0]):
            steps.append(self._take_step(self._clock.between))
        self.spent += time.perf_counter() - start
        return steps

    def _mark(self, name: str | None, ends: bool = False, about: Any = None) -> None:
        start = time.perf_counter()
        moment = self._clock.now()
        if moment is not None:
            self._marks.append((moment, name, ends, about))
            if ends:
                self._ends.append(moment)
        self.spent += time.perf_counter() - start

    def _take_step(self, between: Callable[[Any, Any], float] = lambda first, second: 0.0) -> Step:
        """The oldest step that has ended; its last mark stays, as the first of the next step."""
        self._ends.popleft()
        ms: dict[str, float] = {}
        while True:
            moment, name, _, _ = self._marks.popleft()
            following, _, ends, about = self._marks[0]
            if name is not None:
                ms[name] = ms.get(name, 0.0) + between(moment, following)
            self._clock.free(moment)
            if ends:
                return Step(ms, *about)


_at_work: Recorder | None = None


def recorded(path: str, call: Callable[..., T], *arguments: Any) -> T:
    """`call(*arguments)`, whose time is that of a path; the first argument is its x or gy."""
    recorder = _at_work
    if recorder is None:
        return call(*arguments)
    recorder.enter(path, arguments[0].nbytes if arguments else 0)
    try:
        return call(*arguments)
    finally:
        recorder.leave()


def recorded_whole(
    call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    k: torch.Tensor,
    counts: bool = True,
) -> torch.Tensor:
    """`call(x, k)`, made of PyTorch's own functions: the forward path, and both gradients in one.

    Of what is ready autograd runs the youngest first. So from the gradient of y on it runs all that
    `call` made, and nothing else, until it comes to what was made right before.

    Args:
        counts: whether it moves x and y whole, so that its rate can be told; otherwise its time
            alone counts.
    """
    recorder = _at_work
    if recorder is None or torch.compiler.is_compiling():
        return call(x, k)
    if x.requires_grad:
        x = before = x.view_as(x)
    else:
        k = before = k.view_as(k)
    recorder.enter("forward", x.nbytes * counts)
    try:
        y = call(x, k)
    finally:
        recorder.leave()
    if y.requires_grad:
        y.register_hook(lambda gradient: recorder.enter("both_gradients", gradient.nbytes * counts))
        before.register_hook(lambda gradient: recorder.leave())
    return y
