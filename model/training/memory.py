"""What a training step holds on a GPU at its peak, by batch size, told before it runs.

There is no formula: the step itself runs, on fake tensors, which have a shape and a device but no
data, and the bytes that are alive are counted after each operation. What a tensor takes is affine
in the batch size, so two runs tell all: the peak is the highest of many straight lines.

Not seen is what an operation needs for itself while it runs: the partial sums of a kernel's weight
gradient (at most 6 % of one tensor, see README.md), and what cuFFT takes for a window of over 512
hours, which is more. cuBLAS keeps its workspaces: they can be measured beforehand.
"""

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from data.windows import Batch

# The caching allocator hands out multiples of it (kMinBlockSize of c10/core/AllocatorConfig.h).
BLOCK = 512  # bytes
SIZES = (4096, 8192)  # windows; one number a window, of any type, fills whole blocks


class NotPredictedError(Exception):
    """The step cannot run without data; the message says why."""


@dataclass(frozen=True)
class Peak:
    """The most bytes that a training step holds, by the number of windows in its batch.

    Attributes:
        moments: of each moment of the step, its bytes without a window and those of each window.
    """

    moments: frozenset[tuple[int, float]]

    def at(self, batch: int) -> int:
        """Bytes, short of at most a block for each tensor that is alive."""
        return math.ceil(max(fixed + of_each * batch for fixed, of_each in self.moments))

    def largest(self, room: int) -> int:
        """The largest batch that takes at most `room` bytes; 0 if there is none."""
        if self.at(1) > room:
            return 0
        return int(min((room - fixed) // of_each for fixed, of_each in self.moments if of_each))


class Tracker(TorchDispatchMode):
    """Counts the bytes of the tensors that are made on a device while it is entered, and alive.

    A storage counts once, however many views there are, in whole blocks.

    Args:
        device: with its index, if it has one.

    Attributes:
        live: bytes now.
        moments: bytes after each operation that made a tensor.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.live = 0
        self.moments: list[int] = []
        self._alive: dict[int, weakref.ref] = {}  # by id, which is a storage's while it lives

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        made = {key: of for key, of in self._storages_in(out) if key not in self._alive}
        if made:
            for key, _ in self._storages_in((args, kwargs)):  # written in place, or viewed
                made.pop(key, None)
        if made:
            for key, storage in made.items():
                self._count(key, storage)
            self.moments.append(self.live)
        return out

    def _storages_in(self, tree: Any) -> list[tuple[int, torch.UntypedStorage]]:
        tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
        storages = [t.untyped_storage() for t in tensors if t.device == self.device]
        return [(id(storage), storage) for storage in storages]

    def _count(self, key: int, storage: torch.UntypedStorage) -> None:
        """Until it is freed."""
        size = -(-storage.nbytes() // BLOCK) * BLOCK

        def freed(_: weakref.ref) -> None:
            del self._alive[key]
            self.live -= size

        self._alive[key] = weakref.ref(storage, freed)
        self.live += size


def predict_peak(loss: nn.Module, optimizer: Optimizer, batch: Batch) -> Peak:
    """The peak of a step that is not the first: parameters, buffers, optimiser and batch with it.

    Nothing is computed, and nothing that was passed in changes.

    Args:
        loss: called with a batch, it returns the loss.
        optimizer: of its parameters.
        batch: at least one window, on the device in question, where the parameters lie too.

    Raises:
        NotPredictedError: the step asks for values, or for what PyTorch has no shapes of.
    """
    device = batch.reading.device
    tracker = Tracker(device)
    try:
        with FakeTensorMode(), tracker:
            given = [*loss.named_parameters(), *loss.named_buffers()]
            fakes = {name: _fake(tensor) for name, tensor in given}
            fake_optimizer = _fake_optimizer(
                optimizer, {tensor: fakes[name] for name, tensor in given}, device
            )
            runs = []
            for size in (SIZES[0], *SIZES):  # the first step has no gradients and no state yet
                tracker.moments = []
                run_step(loss, fakes, fake_optimizer, _resized(batch, size))
                runs.append(tracker.moments)
    except RuntimeError as error:  # of which PyTorch's are all that say so
        raise NotPredictedError(str(error).strip().split("\n")[0]) from error
    first, second = runs[1:]
    if len(first) != len(second):
        raise NotPredictedError("what it runs depends on the batch size")
    return Peak(frozenset(_line(*moment) for moment in zip(first, second, strict=True)))


def run_step(
    loss: nn.Module, tensors: dict[str, torch.Tensor], optimizer: Optimizer, batch: Batch
) -> None:
    """A step in the order of Lightning's: gradients live on until the next forward pass is done.

    Args:
        loss: see `predict_peak`.
        tensors: what takes the place of its parameters and buffers, by their names.
        optimizer: of those.
        batch: to train on.
    """
    value = functional_call(loss, tensors, (batch,))
    optimizer.zero_grad()
    value.backward()
    optimizer.step()


def _line(first: int, second: int) -> tuple[int, float]:
    """Bytes without a window and bytes a window, from those at both sizes."""
    of_each = (second - first) / (SIZES[1] - SIZES[0])
    return round(first - of_each * SIZES[0]), of_each


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    """One like it, made under the modes that are entered."""
    fake = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return fake.requires_grad_(tensor.requires_grad)


def _fake_optimizer(
    optimizer: Optimizer, fakes: dict[torch.Tensor, torch.Tensor], device: torch.device
) -> Optimizer:
    """The same for the fake parameters; it has no state yet."""
    groups = [
        {**group, "params": [fakes[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    for group in groups:
        if device.type == "cuda" and group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True  # PyTorch's choice on a GPU, which it does not make for fakes
    kind: Any = type(optimizer)
    return kind(groups)


def _resized(batch: Batch, size: int) -> Batch:
    """A batch of `size` windows, in all else like `batch`."""
    return Batch(*(torch.empty(size, *t.shape[1:], dtype=t.dtype, device=t.device) for t in batch))
