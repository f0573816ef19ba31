"""What a checkpoint decides, what the run decides, and what happens where they differ."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_info

from data.columns import GEPIII_ROLES, DataError
from data.static import columns_of
from model.inference.checkpoint import load_checkpoint, roles_of
from model.training.errors import UsageError

# Hyperparameters that a run may set anew; the others make model and optimiser what they are.
OF_THE_RUN = {"lr", "weight_decay", "dropout"}
# Hyperparameters of the model that the command line sets elsewhere.
ELSEWHERE = {
    name: f"data.{name}" for name in ("window", "horizon", "covariates", "known", "static")
}


def read_checkpoint(path: Path, option: str = "ckpt_path") -> dict[str, Any]:
    """A checkpoint of this application, on the CPU; `option` named it.

    Raises:
        UsageError: there is none, or it is something else.
    """
    try:
        return load_checkpoint(path)
    except DataError as error:
        raise UsageError(f"--{option}: {error}") from error


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
        if name == "static" and columns_of(config[option]) == columns_of(value):
            config[option] = value  # the same columns, as they were in training
        if config[option] != value and option in given:
            raise UsageError(
                f"--{option} is {config[option]}, but {path} was trained with {value}; "
                "leave the option out, or train anew without --ckpt_path"
            )
        if config[option] != value and option in configured:
            rank_zero_info(f"{option} is {value}, from the checkpoint, not {config[option]}")
        config[option] = config[f"model.{name}"] = value
    config["data.transform"] = config["model.transform"]


def adopt_roles(config: Namespace, checkpoint: dict[str, Any], args: list[str]) -> None:
    """Let a table that is named have the columns of the one that was trained on.

    An option that says what one of them is says it of all: the checkpoint is then not asked.
    """
    roles = roles_of(checkpoint)
    columns: dict[str, Any] = {
        "id": list(roles.id),
        "timestamp": roles.timestamp,
        "target": roles.target,
        "layout": "wide" if roles.wide else "long",
        "series": None if roles.series is None else list(roles.series),
        "time_format": roles.time_format,
    }
    named = command_line_options(args) | config_file_options(args)
    table = config.data.predict_path or config.data.path
    if table is None or roles == GEPIII_ROLES or named & {f"data.{name}" for name in columns}:
        return
    for name, value in columns.items():
        config[f"data.{name}"] = value
    file = table[0] if isinstance(table, list) else table
    rank_zero_info(f"{file.name}: columns as in the checkpoint's table ({roles.words})")


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
