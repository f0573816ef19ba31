"""How a run's steps are computed: in which form, by which kernel, in which precision."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info

from cuda_ops import KernelUnavailableError, check_sizes, prepare_kernel
from model.precision import set_matmul_precision
from model.training.errors import UsageError
from model.training.graph import reason_against

AUTO = "auto"


def sizes_of(options: Any) -> tuple[int, int]:
    """The network's channels, and the steps that it runs over, of the model's options by name."""
    return options["channels"], options["window"] + options["horizon"] - 1


def choose_step(config: Any, trainer: L.Trainer) -> str:
    """graph, eager or published: what --step asks for, or else the fastest that can be.

    Raises:
        UsageError: what was asked for cannot be.
    """
    step: str | None = config.step
    against = reason_against(trainer)
    if step == "graph" and against:
        raise UsageError(f"--step graph: {against}; leave it out, or take --step eager")
    if step == "published" and config.kernel == "fused":
        raise UsageError(
            "--step published keeps the passes apart that kernel 'fused' makes one: leave one "
            "of the two options out"
        )
    fast = config.kernel in (AUTO, "fused") and not against
    return step or ("graph" if fast else "eager")


def choose_kernel(
    config: Any, trainer: L.Trainer, step: str, sizes: tuple[int, int]
) -> tuple[str, str]:
    """The kernel that --kernel asks for, or else the fastest that runs; and a note of it.

    Args:
        config: the run's options.
        trainer: knows the device and the precision.
        step: of `choose_step`.
        sizes: of `sizes_of`.

    Raises:
        KernelUnavailableError: the one that was asked for cannot run.
    """
    asked: str = config.kernel
    device = trainer.strategy.root_device
    if asked != AUTO:
        note = prepare_kernel(asked, device)
        if asked == "fused":
            check_sizes(*sizes)
        return asked, note
    for name in _candidates(device, step, _may_round(config, trainer), sizes):
        try:
            return name, prepare_kernel(name, device)
        except KernelUnavailableError as error:
            rank_zero_info(f"kernel '{name}' would be faster, but: {error}")
    return "pytorch", prepare_kernel("pytorch", device)


def _candidates(device: torch.device, step: str, tf32: bool, sizes: tuple[int, int]) -> list[str]:
    """What may be faster than `pytorch`, and is of this network and precision."""
    if device.type != "cuda" or step == "published":
        return []
    names = ["warp_tiled"]
    try:
        check_sizes(*sizes)
    except KernelUnavailableError:
        return names
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    return ["fused", *names] if hopper and tf32 else names


def _may_round(config: Any, trainer: L.Trainer) -> bool:
    """Whether products are of float32, and nobody asked for all of its digits."""
    return config.matmul_precision != "highest" and str(trainer.precision).startswith("32")


def choose_precision(config: Any, trainer: L.Trainer, step: str, kernel: str) -> bool:
    """Set the precision of float32 products for a run, and say whether they are in TF32.

    Args:
        config: the run's options; --kernel auto is to be fast, in the precision, too.
        trainer: knows the device and the precision.
        step: of `choose_step`.
        kernel: of `choose_kernel`.
    """
    device = trainer.strategy.root_device
    fast = config.kernel == AUTO and device.type == "cuda" and _may_round(config, trainer)
    usual = fast or kernel == "fused" or step == "published"
    return allow_tf32(config.matmul_precision, usual, device)


def allow_tf32(asked: str | None, usual: bool, device: torch.device) -> bool:
    """Set the precision of float32 products, and say whether it makes a difference.

    Args:
        asked: highest, high or None, of --matmul_precision.
        usual: whether TF32 is meant, where nobody asked. It is for the fused block, which is
            written for it, and for the published passes: PyTorch has their convolutions of size 1
            in TF32 unless it is told, and in float32 their step takes more than twice as long.
        device: where the run is; GPUs before Ampere have no TF32.
    """
    precision = asked or ("high" if usual else "highest")
    set_matmul_precision(precision)
    if precision == "highest" or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
