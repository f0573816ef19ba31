"""What a comparison says, in words and numbers of few digits."""

from collections.abc import Sequence
from typing import Any

from cuda_ops.contenders import Size
from model.training.compare.figures import KernelFigures, fastest

NO_PATHS = "not told apart"  # of a kernel whose paths have no times of their own
MATTERS = 1.05  # a speed-up below is not worth a headline


def device_name(record: dict[str, Any]) -> str:
    """Of what the comparison ran on."""
    return record["device"]["name"]


def on_device(record: dict[str, Any]) -> str:
    """With its article."""
    name = device_name(record)
    return f"on {'an' if name.startswith(('A', 'I', 'NVIDIA')) else 'a'} {name}"


def shape_of(record: dict[str, Any]) -> Size:
    """What the operator worked on."""
    return Size(**record["shape"])


def number(value: float, digits: int = 3) -> str:
    """With so many significant digits, zeros among them, or more where the number is larger."""
    return f"{value:#.{digits}g}".rstrip(".") if abs(value) < 10**digits else f"{value:,.0f}"


def milliseconds(value: float) -> str:
    """A time with its unit."""
    return f"{number(value)} ms" if value < 100 else f"{value:,.1f} ms"


def speed_up(value: float, digits: int = 3) -> str:
    """A ratio of times."""
    return f"{value:.{digits}g}x" if value < 10**digits else f"{value:,.0f}x"


def percent(share: float) -> str:
    """A share."""
    return f"{share:.0%}" if share >= 0.01 or share == 0 else f"{share:.1%}"


def gibibytes(count: int) -> str:
    """Memory."""
    return f"{count / 2**30:.2f} GiB"


def headline(record: dict[str, Any], found: Sequence[KernelFigures]) -> str:
    """The result in one sentence, without its full stop."""
    base, best, where = found[0], fastest(found), on_device(record)
    if len(found) == 1:
        return f"A training step with {base.name} takes {milliseconds(base.ms['step'])} {where}"
    if best is base:
        return f"No other kernel trains faster than {base.name} {where}"
    operator = best.operator_speedup or 0.0
    made = {"the convolution": operator, "the training step": best.step_speedup}
    faster = [f"{what} {speed_up(by, 2)}" for what, by in made.items() if by >= MATTERS]
    if not faster:
        return f"{best.name} trains about as fast as {base.name} {where}"
    return f"{best.name} makes {' and '.join(faster)} faster than {base.name} {where}"


def amdahl(found: Sequence[KernelFigures]) -> str:
    """How far the training step can follow the convolution, and how far it did."""
    base, best = found[0], fastest(found)
    if base.limit is None or base.share is None:
        return (
            f"What the step could gain at the most is not known: the convolution of {base.name} "
            "could not be told from the rest of its step."
        )
    told = (
        f"With {base.name} the convolution takes {milliseconds(base.ms['operator'])} of the "
        f"step's {milliseconds(base.ms['step'])}, {percent(base.share)}. If it took no time at "
        f"all, the step would be {speed_up(base.limit)} as fast: that is Amdahl's limit, and no "
        "kernel can do more for the step."
    )
    if best is base:
        return told
    beyond = ", as the rest of its step took less time, too"
    told += f" {best.name} reaches {speed_up(best.step_speedup)}"
    told += f"{beyond if best.step_speedup > base.limit else ''}."
    if best.share is not None and best.limit is not None:
        told += (
            f" Of its own step the convolution is {percent(best.share)}: what is left to gain "
            f"there is {speed_up(best.limit)}."
        )
    return told
