"""What train.py wrote, read without Lightning: the forecaster, and the columns' parts."""

from inspect import signature
from pathlib import Path
from typing import Any

import torch

from data.columns import DataError, Roles
from data.grid import HOUR
from model.forecaster import Forecaster
from model.s4convd import S4ConvD

# Hyperparameters that older checkpoints do not have, and what they were without them.
LATER: dict[str, Any] = {
    "step": HOUR,
    "span": None,
    "meter_features": 0,
    "horizon": 1,
    "known": [],
    "static": [],
    "quantiles": [],
    "flags": False,
    "seasons": [],
    "members": 1,
    "amplitude": False,
    "linear": False,
}
# Hyperparameters that are no arguments of a `Forecaster` by their names.
OF_THE_TRAINING = ("window", "optimizer", "lr", "weight_decay", "_instantiator")
ARGUMENTS = {*signature(Forecaster).parameters, *signature(S4ConvD).parameters, "static"}
PREFIX = "forecaster."  # of its tensors, in the LightningModule's state
NO_SCALING = (
    "the checkpoint holds no scaling, so its forecasts would be in no known unit; take one that "
    "train.py wrote"
)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint of this application, on the CPU.

    Raises:
        DataError: there is none, or it is something else.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is in that file
        raise DataError(f"{path} cannot be read as a checkpoint") from error
    hparams = checkpoint.get("hyper_parameters", {}) if isinstance(checkpoint, dict) else {}
    if "covariates" not in hparams:
        raise DataError(f"{path} was not written by train.py")
    unknown = sorted(hparams.keys() - ARGUMENTS - {*OF_THE_TRAINING})
    if unknown:
        raise DataError(
            f"{path} was written by a later version of this code, whose settings "
            f"{', '.join(unknown)} are not known here: use that version"
        )
    for name, value in LATER.items():
        hparams.setdefault(name, value)
    state = checkpoint["state_dict"]
    bare = len(state["forecaster.network.decoder.weight"]) == len(hparams["quantiles"])
    if bare or "forecaster.linear.0.weight" in state:
        what = "quantiles and no forecast beside them" if bare else "a linear map that was trained"
        raise DataError(
            f"{path} has {what}, as an earlier version of this code had it: train anew, or use "
            "that version"
        )
    return checkpoint


def roles_of(checkpoint: dict[str, Any]) -> Roles:
    """Which column played which part in the table that was trained on.

    An older checkpoint does not say, and has GEPIII's.
    """
    return Roles(**checkpoint.get("roles", {}))


def forecaster_of(checkpoint: dict[str, Any]) -> Forecaster:
    """The forecaster with its weights and scaling, to be used and not trained.

    Raises:
        DataError: it has no scaling.
    """
    hparams = checkpoint["hyper_parameters"]
    options = {name: hparams[name] for name in hparams if name not in OF_THE_TRAINING}
    options["known"] = [*options["known"], *options.pop("static")]
    options["linear"] = hparams["window"] * hparams["linear"]
    forecaster = Forecaster(**options)
    state = {name.removeprefix(PREFIX): t for name, t in checkpoint["state_dict"].items()}
    if not state.get("fitted", torch.tensor(False)):
        raise DataError(NO_SCALING)
    if forecaster.meters is not None:
        forecaster.meters.make_room(state["meters.known"].numel())
    forecaster.load_state_dict(state)
    return forecaster.eval().requires_grad_(False)
