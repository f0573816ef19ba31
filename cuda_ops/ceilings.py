"""The rates that bound the operator: passes over memory that compute nothing worth the name.

A path has to move each of its large tensors once, and its effective bandwidth is those bytes over
its time; the filters and their gradients are left out. The ceiling that fits a path is the rate of
a pass that reads and writes as it does.

Beside the memory stands the arithmetic: the rate of multiply-adds that wait for nothing.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch

from cuda_ops.contenders import Inputs
from cuda_ops.timing import WARM_UP, Spread, spread, timed

TENSORS = {"forward": 2, "input_grad": 2, "weight_grad": 2, "both": 3}
"""Path -> large tensors that it has to read or write. Both gradients can be had in one pass, which
reads x and gy and writes gx; two passes, one for each, move four."""

CEILING = {"forward": "copy", "input_grad": "copy", "weight_grad": "read", "both": "add"}
"""Path -> the kind of pass that fits it. A weight gradient writes next to nothing."""

SUSPICIOUS = 1.05  # of the ceiling: more says that the timing is wrong, not that the code is good


@dataclass(frozen=True)
class MemoryPass:
    """A pass over `tensors` tensors of the operator's size."""

    name: str
    kind: str  # copy, read or add
    tensors: int
    run: Callable[[Inputs, torch.Tensor], object]  # inputs, and a tensor like x to write


PASSES = (
    MemoryPass("out.copy_(x)", "copy", 2, lambda i, out: out.copy_(i.x)),
    MemoryPass("torch.sum", "read", 2, lambda i, out: i.pair.sum()),
    MemoryPass("torch.amax", "read", 2, lambda i, out: i.pair.amax()),
    MemoryPass("vector_norm", "read", 2, lambda i, out: torch.linalg.vector_norm(i.pair)),
    MemoryPass("torch.dot", "read", 2, lambda i, out: torch.dot(i.x.view(-1), i.gy.view(-1))),
    MemoryPass("torch.add", "add", 3, lambda i, out: torch.add(i.x, i.gy, out=out)),
)
"""No single function reads fastest on every GPU and in every type: the fastest is the ceiling."""


def passes_for(x: torch.Tensor) -> list[MemoryPass]:
    """The passes that tensors like x allow: cuBLAS counts in 32 bits."""
    return [p for p in PASSES if p.name != "torch.dot" or x.numel() < 2**31]


def bandwidth(x: torch.Tensor, tensors: int, ms: float) -> float:
    """GB/s (10^9) of a pass over this many tensors like x."""
    return tensors * x.numel() * x.element_size() / ms / 1e6


@dataclass(frozen=True)
class MultiplyAdds(Spread):
    """The rate of float32 multiply-adds, two FLOP each, in 10^9 a second."""

    gflop_s: float


CHAINS, STEPS = 8, 512  # of multiply-adds, for each number; a chain waits for itself alone
NUMBERS = 2**17  # for each multiprocessor: several times as many as it has threads

_CHAINS = f"""
template <typename T> T chains(T x) {{
  T sums[{CHAINS}];
  for (int i = 0; i < {CHAINS}; i++) sums[i] = x + i;
#pragma unroll 32
  for (int n = 0; n < {STEPS}; n++) {{
    for (int i = 0; i < {CHAINS}; i++) sums[i] = sums[i] * x + x;
  }}
  T sum = 0;
  for (int i = 0; i < {CHAINS}; i++) sum += sums[i];
  return sum;
}}
"""


def multiply_adds(device: torch.device, rounds: int) -> MultiplyAdds:
    """The ceiling of float32 arithmetic without tensor cores.

    PyTorch compiles the function above at run time, with the compiler that it carries, and applies
    it to each number of a tensor: 4096 multiply-adds for 8 bytes of memory. A large float32 matrix
    product stays a good way below that rate, as it loads its operands as well.
    """
    count = torch.cuda.get_device_properties(device).multi_processor_count * NUMBERS
    x = torch.rand(count, device=device)
    function = torch.cuda.jiterator._create_jit_fn(_CHAINS)
    call = partial(function, x)
    for _ in range(WARM_UP):
        timed(call)
    times = spread([timed(call)[0] for _ in range(rounds)])
    return MultiplyAdds(**asdict(times), gflop_s=2 * CHAINS * STEPS * count / times.ms / 1e6)
