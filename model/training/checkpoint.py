"""What a checkpoint decides, what the run decides, and what happens where they differ."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_info

from data.grid import HOUR
from model.training.errors import UsageError

# Hyperparameters that a run may set anew; the others make model and optimiser what they are.
OF_THE_RUN = {"lr", "weight_decay", "dropout"}
# Hyperparameters of the model that the command line sets elsewhere.
ELSEWHERE = {name: f"data.{name}" for name in ("window", "horizon", "covariates", "known")}
# Hyperparameters that older checkpoints do not have, and what they were without them.
LATER: dict[str, Any] = {
    "step": HOUR,
    "span": None,
    "meter_features": 0,
    "horizon": 1,
    "known": [],
    "quantiles": [],
    "flags": False,
    "seasons": [],
}


def read_checkpoint(path: Path, option: str = "ckpt_path") -> dict[str, Any]:
    """A checkpoint of this application, on the CPU; `option` named it.

    Raises:
        UsageError: there is none, or it is something else.
    """
    if not path.is_file():
        raise UsageError(f"--{option}: there is no file {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is in that file
        raise UsageError(f"--{option}: {path} cannot be read as a checkpoint") from error
    hparams = checkpoint.get("hyper_parameters", {}) if isinstance(checkpoint, dict) else {}
    if "covariates" not in hparams:
        raise UsageError(f"--{option}: {path} was not written by train.py")
    for name, value in LATER.items():
        hparams.setdefault(name, value)
    return checkpoint


def adopt_checkpoint(config: Namespace, checkpoint: dict[str, Any], args: list[str]) -> None:
    """Set in `config` what makes the checkpoint's model what it is.

    An option of the command line that contradicts it is refused. A configuration file that does is
    overruled, and that is said. Learning rate, weight decay and dropout are of the run where it
    names them, in either place, and the checkpoint's otherwise.

    Raises:
        UsageError: a contradiction.
    """
    path = config.ckpt_path
    given, configured = command_line_options(args), config_file_options(args)
    for name, value in checkpoint["hyper_parameters"].items():
        option = ELSEWHERE.get(name, f"model.{name}")
        if name == "_instantiator" or (name in OF_THE_RUN and option in given | configured):
            continue
        if config[option] != value and option in given:
            raise UsageError(
                f"--{option} is {config[option]}, but {path} was trained with {value}; "
                "leave the option out, or train anew without --ckpt_path"
            )
        if config[option] != value and option in configured:
            rank_zero_info(f"{option} is {value}, from the checkpoint, not {config[option]}")
        config[option] = config[f"model.{name}"] = value
    config["data.transform"] = config["model.transform"]


def command_line_options(args: list[str]) -> set[str]:
    """The options given on the command line, as dotted names."""
    return {arg[2:].split("=")[0].rstrip("+") for arg in args if arg.startswith("--")}


def config_file_options(args: list[str]) -> set[str]:
    """The options that the configuration files of a command line set, as dotted names.

    Such a file may be of all options (--config) or of a group of them (--model, --data).
    """
    pairs = [*pairwise(args), *(arg.split("=", 1) for arg in args if "=" in arg)]
    groups = {"-c": "", "--config": "", "--model": "model.", "--data": "data."}
    return {
        name
        for option, value in pairs
        if option in groups
        for name in _dotted(_content(value), groups[option])
    }


def _content(value: str) -> Any:
    """What a configuration file says; a group may also stand on the command line itself."""
    inline = value.startswith("{") or not Path(value).is_file()
    return yaml.safe_load(value if inline else Path(value).read_text())


def _dotted(tree: Any, prefix: str = "") -> list[str]:
    if not isinstance(tree, dict):
        return [prefix.rstrip(".")]
    return [name for key, value in tree.items() for name in _dotted(value, f"{prefix}{key}.")]
