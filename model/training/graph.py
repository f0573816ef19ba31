"""The loss of a batch and its gradients, replayed from a CUDA graph.

A step of a small batch is hundreds of kernels of a few microseconds each, and the host needs longer
to launch them than the GPU to run them. A graph is launched as one. It reads its batch from tensors
of its own and leaves the gradients in tensors of its own; clipping, optimiser and schedule come
after it, as ever. Dropout draws from PyTorch's generator, which the graph moves on with each replay
as a step would.

A batch that is shorter than those before fills the first rows; the others have no weight in the
loss, so no gradient comes from them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import lightning as L
import torch
from torch import nn

from data.windows import Batch

Loss = Callable[[Batch, torch.Tensor], torch.Tensor]


def reason_against(trainer: L.Trainer) -> str | None:
    """Why the steps of a run cannot be replayed; None if they can."""
    if trainer.strategy.root_device.type != "cuda":
        return "it runs on a GPU alone"
    if trainer.world_size > 1:
        return "several processes exchange gradients while they are made"
    if trainer.accumulate_grad_batches > 1:
        return "gradients are accumulated over batches"
    if trainer.precision == "16-mixed":
        return "16-mixed scales the loss anew at each step"
    if trainer._detect_anomaly:
        return "the detection of anomalies looks at each gradient as it is made"
    return None


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that graphs are captured on: cuBLAS keeps a workspace for each that it meets."""
    return torch.cuda.Stream(device)


class GraphedLoss:
    """Computes a loss and its gradients, captured at the first batch and replayed from then on.

    A longer batch than all before is captured anew.

    Args:
        loss: of a batch and the weight of each of its windows in the mean; it waits for nothing.
        parameters: what has gradients; they stay where they are.
    """

    def __init__(self, loss: Loss, parameters: list[nn.Parameter]) -> None:
        self._loss = loss
        self._parameters = parameters
        self._size = 0  # windows that the graph is for
        self._filled = 0  # of them, with a weight

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The loss, without a history; the parameters' `grad` are its gradients.

        Both are overwritten by the next call.
        """
        size = batch.cell.numel()
        if size > self._size:
            self._capture(batch)
        if size != self._filled:
            self._weight[:size] = 1 / size
            self._weight[size:] = 0
            self._filled = size
        for kept, new in zip(self._batch, batch, strict=True):
            kept[:size].copy_(new)
        self._graph.replay()
        if self._parameters[0].grad is not self._gradients[0]:  # somebody dropped them
            self._install()
        return self._value

    def _install(self) -> None:
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def _capture(self, batch: Batch) -> None:
        """Run once, for what is set up at a first use, and once more into a graph."""
        self._size = self._filled = size = batch.cell.numel()
        self._batch = Batch(*(tensor.clone() for tensor in batch))
        wide = torch.promote_types(batch.target.dtype, torch.float32)
        self._weight = torch.full((size,), 1 / size, dtype=wide, device=batch.cell.device)
        drawn = torch.cuda.get_rng_state(batch.cell.device)
        stream = capture_stream(batch.cell.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(drawn, batch.cell.device)  # as if it had not run
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._value = self._run()
        self._gradients = [parameter.grad for parameter in self._parameters]

    def _run(self) -> torch.Tensor:
        for parameter in self._parameters:
            parameter.grad = None  # which backward then makes anew
        with torch.enable_grad(), _uncached_casts():
            value = self._loss(self._batch, self._weight)
            value.backward()
        return value.detach()


@contextmanager
def _uncached_casts() -> Iterator[None]:
    """Autocast would keep a parameter's cast, and the graph would read it for ever."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
