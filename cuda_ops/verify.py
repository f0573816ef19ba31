"""Holds what is measured against the definition in float64, so that its times may be believed."""

import math
from collections.abc import Iterator, Sequence

import torch

from cuda_ops.contenders import BACKEND, PATHS, STUDY, Contender, Inputs, Size
from cuda_ops.reference import (
    forward_by_definition,
    input_grad_by_definition,
    weight_grad_by_definition,
)

CHUNK = 2**25  # elements that are worked on in float64 at once

LIMITS = {
    torch.float32: (5e-7, 2e-6, 5e-5),
    torch.float64: (1e-15, 1e-14, 1e-13),
}
"""Largest relative error of y and gx, of gk, and of the naive gk, at the study's size.

The naive kernel adds all of B and L into one number, and inputs of mean zero show that most.
"""

SANE = 0.1  # of PyTorch's formulations: what they lose is theirs, but they compute the operator


class WrongResultError(Exception):
    """Something that was to be timed computes something else; the message has a line for each."""


class Checks:
    """Compares results on `inputs` with float64, and keeps the errors and what is wrong."""

    def __init__(self, size: Size, inputs: Inputs) -> None:
        self.size = size
        self.dtype = inputs.x.dtype
        self.truth = truth_of(inputs)
        self.errors: dict[tuple[str, str], dict[str, float]] = {}  # the largest ones yet
        self.wrong: list[str] = []

    def check(self, contender: Contender, path: str, found: Sequence[torch.Tensor]) -> None:
        """Compare what a path of a contender returned."""
        errors = {
            output: relative_error(tensor, self.truth[output])
            for output, tensor in zip(PATHS[path], found, strict=True)
        }
        limits = self.limits(contender, path)
        for output, error in errors.items():
            if not error <= limits[output]:  # or it is NaN
                self.wrong.append(
                    f"{contender.name}, {path}, {self.size} {self.dtype}: {output} is off by "
                    f"{error:.1e} of its norm, more than {limits[output]:.1e}"
                )
        worst = self.errors.setdefault((contender.name, path), errors)
        worst |= {output: max(worst[output], error) for output, error in errors.items()}

    def stop_if_wrong(self) -> None:
        """Raises: WrongResultError."""
        if self.wrong:
            raise WrongResultError("\n".join(self.wrong))

    def limits(self, contender: Contender, path: str) -> dict[str, float]:
        """Output -> the relative error up to which it is believed.

        In half precision a kernel may lose twice what the PyTorch backend does, which was checked
        before. Otherwise rounding grows with the square root of the terms in a sum.
        """
        if contender.kind == "pytorch":
            return dict.fromkeys(PATHS[path], SANE)
        if self.dtype not in LIMITS:
            return {output: 2 * e for output, e in self.errors[BACKEND.name, path].items()}
        size = self.size
        rows, filters, naive_filters = LIMITS[self.dtype]
        rows *= math.sqrt(max(1, min(size.taps, size.length) / STUDY.taps))
        filters = naive_filters if contender.name == "naive" else filters
        terms = size.batch * size.length / (STUDY.batch * STUDY.length)
        filters *= math.sqrt(max(1, terms))
        return {"y": rows, "gx": rows, "gk": filters}


def truth_of(inputs: Inputs) -> dict[str, torch.Tensor]:
    """y, gx (B, H, L) and gk (H, K) by definition, in float64."""
    k = inputs.k.double()
    y, gx = (torch.empty_like(inputs.x, dtype=torch.float64) for _ in range(2))
    gk = torch.zeros_like(k)
    for x_part, gy_part, y_part, gx_part in _chunks(inputs.x, inputs.gy, y, gx):
        x_part, gy_part = x_part.double(), gy_part.double()
        y_part.copy_(forward_by_definition(x_part, k))
        gx_part.copy_(input_grad_by_definition(gy_part, k))
        gk += weight_grad_by_definition(gy_part, x_part, k.shape[1])
    return {"y": y, "gx": gx, "gk": gk}


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Norm of the difference over the norm of the truth; NaN where the shapes differ."""
    if found.shape != truth.shape:
        return math.nan
    squares = [
        torch.stack(((f.double() - t).square().sum(), t.square().sum()))
        for f, t in _chunks(found, truth)
    ]
    difference, norm = torch.stack(squares).sum(0).sqrt().tolist()
    return difference / norm


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The tensors, cut along their first dimension into parts that there is room for in float64."""
    rows = max(1, CHUNK // tensors[0][0].numel())
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)
