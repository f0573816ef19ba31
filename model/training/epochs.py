"""How long to train."""

from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from model.training.errors import UsageError

# A minute with the default model: on two cores, and on an H200, where its step takes 2 to 3 ms.
STEPS = {"cpu": 1_000, "cuda": 20_000}
MAX_EPOCHS = 30


def choose_epochs(batches: int, device: str) -> int:
    """The number of epochs nearest to `STEPS` steps, where nobody said: a small file needs more.

    Args:
        batches: steps of one epoch.
        device: what trains, cpu or cuda.
    """
    epochs = min(max(1, round(STEPS.get(device, STEPS["cpu"]) / batches)), MAX_EPOCHS)
    rank_zero_info(
        f"training for {epochs} epoch{'s' if epochs > 1 else ''} of {batches:,} steps "
        "(--trainer.max_epochs sets another number)"
    )
    return epochs


def epochs_done(checkpoint: dict[str, Any]) -> int:
    """Whole epochs that a checkpoint has behind it."""
    return checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]


def refuse_finished(path: str, limit: int | None, what: str, done: int) -> None:
    """Resuming a run that has ended would stop at once and say nothing.

    Args:
        path: the resumed checkpoint, for the message.
        limit: epochs or steps that this run may reach; None or negative is no limit.
        what: "epochs" or "steps".
        done: how many the resumed checkpoint has behind it.

    Raises:
        UsageError: nothing is left to train.
    """
    if limit is not None and 0 <= limit <= done:
        raise UsageError(
            f"{path} has finished its {done} {what}; to train on, pass "
            f"--trainer.max_{what} {done + 1} or more"
        )
