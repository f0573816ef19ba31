"""What a training step costs: the figures of many steps, and the table that shows them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cuda_ops.ceilings import TENSORS
from cuda_ops.recorder import PATHS
from cuda_ops.timing import Spread, spread

PARTS = ("data", "operator", "optimizer", "rest")  # of a step; they add up to it
LABELS = {
    "data": "data wait",
    "operator": "operator",
    "forward": "  forward",
    "input_grad": "  input gradient",
    "weight_grad": "  weight gradient",
    "both_gradients": "  both gradients in one",
    "gradient_copy": "  copy of a strided gradient",
    "optimizer": "optimiser step",
    "rest": "rest of the step",
    "step": "whole step",
}
"""All that has a time: its name, and its name in the table."""

MEASURED_AS = {
    "forward": "forward",
    "input_grad": "input_grad",
    "weight_grad": "weight_grad",
    "both_gradients": "both",
}
"""Path of a step -> the path of the bench that moves the same tensors."""

NO_PATHS = (
    "The operator's times are not shown: in these steps, or in some of them, it ran in\n"
    "compiled or captured code, in which its paths cannot be told from the rest."
)
KEPT = 4096  # samples of a run; an even number

T = TypeVar("T")


class Sample(Generic[T]):
    """At most `KEPT` of all that was added, evenly over time: each, each second, each fourth..."""

    def __init__(self) -> None:
        self.kept: list[T] = []
        self.seen = 0
        self._every = 1

    def add(self, item: T) -> None:
        """Take note of one more."""
        if self.seen % self._every == 0:
            if len(self.kept) == KEPT:
                del self.kept[1::2]
                self._every *= 2
            self.kept.append(item)
        self.seen += 1


@dataclass(frozen=True)
class StepTime:
    """One optimiser step.

    Attributes:
        ms: milliseconds of what it shows of `LABELS`.
        windows: how many it trained on, in all processes.
        left_out: why it does not count among the steady ones; None if it does.
        nbytes: path -> bytes of x, or of gy, over its calls.
    """

    ms: dict[str, float]
    windows: int
    left_out: str | None
    nbytes: dict[str, int] = field(default_factory=dict)

    @property
    def windows_per_s(self) -> float:
        """Of this step."""
        return 1e3 * self.windows / max(self.ms["step"], 1e-9)

    @property
    def gb_s(self) -> dict[str, float]:
        """Path -> effective bandwidth: compulsory bytes over the time, in GB/s (10^9)."""
        return {
            path: TENSORS[MEASURED_AS[path]] * nbytes / max(self.ms[path], 1e-9) / 1e6
            for path, nbytes in self.nbytes.items()
            if path in MEASURED_AS and path in self.ms
        }


def with_sums(ms: dict[str, float]) -> dict[str, float]:
    """A step's parts and paths, and with them the operator, if a path is there, and the step."""
    paths = [ms[path] for path in PATHS if path in ms]
    operator = {"operator": sum(paths)} if paths else {}
    return ms | operator | {"step": sum(ms.values())}


def spreads(steps: Sequence[StepTime]) -> dict[str, Spread]:
    """The statistics of all that each of one or more steps shows, in the order of `LABELS`.

    A path that only some steps show is hidden in the others' rest: there is no operator then. But
    where no gradient was copied, that took no time.
    """
    shown = Counter(name for step in steps for name in step.ms)
    if shown["gradient_copy"]:
        shown["gradient_copy"] = len(steps)
    hidden = any(0 < shown[path] < len(steps) for path in PATHS)
    return {
        name: _spread([step.ms.get(name, 0.0) for step in steps])
        for name in LABELS
        if shown[name] == len(steps) and not (hidden and name == "operator")
    }


def _spread(values: Sequence[float]) -> Spread:
    return spread(values) if len(values) > 1 else Spread(values[0], values[0], values[0], 1)


class Steps:
    """The steps of a run: of those that count a bounded sample, of the others their number."""

    def __init__(self) -> None:
        self.steady: Sample[StepTime] = Sample()
        self.left_out: Counter[str] = Counter()
        self._latest: StepTime | None = None
        self._new: Sample[StepTime] = Sample()

    def add(self, step: StepTime) -> None:
        """One more."""
        self._latest = step
        self._new.add(step)
        if step.left_out is None:
            self.steady.add(step)
        else:
            self.left_out[step.left_out] += 1

    def since_last_call(self) -> list[StepTime]:
        """The steady ones that are new; where there is none, the others that are new."""
        new, self._new = self._new.kept, Sample()
        return [step for step in new if step.left_out is None] or new

    def settle(self) -> None:
        """At a run's end: let its last step count, where none does."""
        latest = self._latest
        if latest is not None and latest.left_out is not None and not self.steady.kept:
            self.left_out[latest.left_out] -= 1
            self.steady.add(latest)


@dataclass(frozen=True)
class StepSummary:
    """What the steady steps of a run cost; `dataclasses.asdict` makes it plain types.

    Attributes:
        kernel: which implementation of the convolution ran.
        device: a GPU's name, or cpu.
        clock: what measured, in words.
        ms: name -> milliseconds of a step, with the names of `LABELS` and in their order. Without
            the operator and its paths where those could not be told from the rest.
        share: the same names -> share of all the time that went by.
        windows_per_s: median over the steps, in all processes.
        steps: how many were measured. A sample of `KEPT` stands for more of them.
        left_out: reason -> how many steps are not among them.
        epoch_steps: steps of an epoch.
        epoch_s: seconds of an epoch by the host's clock, validation and all; None where no epoch
            was run from its start to its end.
        peak_memory: most bytes that PyTorch held on the GPU since the first step; None on a CPU.
    """

    kernel: str
    device: str
    clock: str
    ms: dict[str, Spread]
    share: dict[str, float]
    windows_per_s: float
    steps: int
    left_out: dict[str, int]
    epoch_steps: int
    epoch_s: float | None
    peak_memory: int | None

    def table(self) -> str:
        """Text of at most 80 columns, but for a long name of a device."""
        lines = [
            f"a training step: kernel {self.kernel} on {self.device}, by {self.clock}",
            _row("ms", ["median", "p10", "p90", "share"]),
        ]
        for name, of in self.ms.items():
            times = [f"{value:,.3f}" for value in (of.ms, of.p10, of.p90)]
            lines.append(_row(LABELS[name], [*times, f"{self.share[name]:.1%}"]))
        return "\n".join([*lines, *self._notes()])

    def _notes(self) -> list[str]:
        left_out = ", ".join(f"{count:,} {why}" for why, count in self.left_out.items())
        notes = [
            f"steps measured: {self.steps:,}; left out: {left_out or 'none'}",
            f"{self.windows_per_s:,.0f} windows a second; {self._epoch()}",
        ]
        if self.peak_memory is not None:
            notes.append(f"GPU memory at its peak: {self.peak_memory / 2**30:.2f} GiB")
        return notes if "operator" in self.ms else [*notes, NO_PATHS]

    def _epoch(self) -> str:
        steps = f"an epoch of {self.epoch_steps:,} steps"
        if self.epoch_s is None:
            seconds = self.epoch_steps * self.ms["step"].ms / 1e3
            return f"{steps}: about {seconds:,.1f} s without validation"
        return f"{steps}: {self.epoch_s:,.1f} s in all"


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<30}" + "".join(f"{cell:>12}" for cell in cells)
