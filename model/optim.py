"""Parameter groups and the learning-rate schedules."""

import math
from collections.abc import Iterable
from typing import Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from model.ssm import SSMFilter

OptimizerName = Literal["adamw", "sgd"]

MOMENTUM = 0.9  # of SGD, as in the study (arXiv 2604.25422)
# The filter's parameters act through exponentials: a rate that suits a matrix makes them jump.
MAX_SSM_RATE = 1e-3


def group_rates(lr: float, optimizer: OptimizerName = "adamw") -> list[float]:
    """Learning rate of each group of `parameter_groups`, in its order; SGD has one for all."""
    return [lr, lr, lr if optimizer == "sgd" else min(lr, MAX_SSM_RATE)]


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, optimizer: OptimizerName = "adamw"
) -> list[dict]:
    """Matrices decay; biases, norms, skips and filters do not; the filters have their own rate."""
    ssm = {id(p) for m in model.modules() if isinstance(m, SSMFilter) for p in m.parameters()}
    rest = [p for p in model.parameters() if id(p) not in ssm]
    groups: list[Iterable[nn.Parameter]] = [
        [p for p in rest if p.dim() > 1],
        [p for p in rest if p.dim() <= 1],
        [p for p in model.parameters() if id(p) in ssm],
    ]
    rates = group_rates(lr, optimizer)
    decays = [weight_decay, 0.0, 0.0]
    return [
        {"params": list(parameters), "lr": rate, "weight_decay": decay}
        for parameters, rate, decay in zip(groups, rates, decays, strict=True)
    ]


def warmup_cosine(optimizer: Optimizer, total_steps: int, warmup: float = 0.05) -> LambdaLR:
    """Linear from 0 over the first `warmup` share of the steps, then half a cosine down to 0."""
    first = max(1, round(warmup * total_steps))

    def factor(step: int) -> float:
        if step < first:
            return (step + 1) / first
        done = (step - first) / max(1, total_steps - first)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return LambdaLR(optimizer, factor)


def constant(optimizer: Optimizer) -> LambdaLR:
    """The rates as they are, in the form that a resumed run knows how to set anew."""
    return LambdaLR(optimizer, lambda step: 1.0)
