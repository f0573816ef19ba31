"""A word on GPU memory before the first step: what it takes, and how large a batch would fit."""

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.optim import Optimizer

from model.training.graph import capture_stream
from model.training.memory import BLOCK, NotPredictedError, Peak, predict_peak

USED = 0.9  # of the memory that is there: the prediction is good to 10 %, and it lies in pieces


class TrainingLoss(nn.Module):
    """A LightningModule's loss as a function of the batch, under the run's autocast.

    Args:
        trainer: runs the fit.
        module: what it trains.
    """

    def __init__(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        super().__init__()
        self.precision = trainer.precision_plugin
        self.module = module

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss."""
        with self.precision.train_step_context():
            loss: Any = self.module.loss(batch)  # type: ignore[operator]
            return loss


class MemoryForecast(L.Callback):
    """Says what a training step will hold on the GPU, and the largest batch that would fit.

    What is held when the training begins is measured, such as the series; the step is predicted,
    see `model.training.memory`. Not counted are what is freed before a step, such as the shuffling
    at an epoch's start, and the buffers in which several processes exchange gradients.

    Attributes:
        peak: bytes at the peak, with all that PyTorch holds, as `torch.cuda.max_memory_allocated`
            tells them; None where nothing was predicted.
    """

    def __init__(self) -> None:
        self.peak: int | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say it, on a GPU: the series lie there, and no step was run yet."""
        device = trainer.strategy.root_device
        if device.type != "cuda" or not trainer.is_global_zero:
            return
        loader: Any = trainer.train_dataloader
        (optimizer,) = trainer.optimizers
        take_workspaces(device)
        replays: bool = pl_module.replays  # type: ignore[assignment]
        if replays:
            with torch.cuda.stream(capture_stream(device)):
                take_workspaces(device)
        example = trainer.precision_plugin.convert_input(loader.source.gather(loader.cell[:1]))
        try:
            step = predict_peak(TrainingLoss(trainer, pl_module), optimizer, example)
        except NotPredictedError as error:
            rank_zero_info(f"memory: not predicted, because PyTorch cannot trace a step: {error}")
            return
        share = -(-loader.cell.numel() // trainer.world_size)
        order = share * loader.cell.element_size()  # of an epoch's windows, while it lasts
        batch = min(loader.batch_size, share)
        waiting = min(loader.gathered, share) - batch  # windows that were gathered with it
        copied = batch * replays  # into the graph's own
        beside = torch.cuda.memory_allocated(device) - held_by(pl_module, optimizer, device)
        beside += order + (waiting + copied) * sum(tensor.nbytes for tensor in example)
        self.peak = beside + step.at(batch)
        # What the allocator keeps for itself is there as well.
        room = torch.cuda.memory_reserved(device) + torch.cuda.mem_get_info(device)[0]
        rank_zero_info(verdict(step, batch, beside, room))


def verdict(step: Peak, batch: int, beside: int, room: int) -> str:
    """A line for the user.

    Args:
        step: what a step takes.
        batch: windows of a step.
        beside: bytes that are held beside what the step takes.
        room: bytes that this process can have in all.
    """
    needed, largest = step.at(batch) + beside, step.largest(int(USED * room) - beside)
    takes = f"memory: about {size(needed)} at batch size {batch:,}"
    if batch > largest:
        fits = f"a --data.batch_size of {rounded_down(largest):,}" if largest else "no batch"
        return f"{takes}, and {size(room)} are there: it may run out; {fits} would fit"
    return f"{takes}; up to {rounded_down(largest):,} would fit the {size(room)} that are there"


def take_workspaces(device: torch.device) -> None:
    """Let cuBLAS allocate its workspaces now, so that they are measured with what is held.

    It keeps one for each thread that calls it, here this one and autograd's, of 8 to 32 MiB by the
    GPU and by CUBLAS_WORKSPACE_CONFIG.
    """
    x = torch.ones(32, 32, device=device, requires_grad=True)
    F.linear(x, x, x[0]).sum().backward()


def held_by(module: nn.Module, optimizer: Optimizer, device: torch.device) -> int:
    """Bytes on a device of the parameters, the buffers and the optimiser's state."""
    state = [value for values in optimizer.state.values() for value in values.values()]
    tensors = [*module.parameters(), *module.buffers(), *state]
    return sum(
        -(-tensor.nbytes // BLOCK) * BLOCK
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.device == device
    )


def size(count: int) -> str:
    """Bytes as text."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"


def rounded_down(count: int) -> int:
    """To two digits that are not zero."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return count // unit * unit
