"""Weights to start from: those of another run, on other data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import Namespace

from model.forecaster import MEDIAN, Forecaster
from model.meters import rows_of
from model.training.checkpoint import ELSEWHERE, command_line_options, config_file_options
from model.training.errors import UsageError

Scaling = Literal["keep", "refit"]
State = dict[str, torch.Tensor]
PARTS = ("encoder", "blocks", "decoder", "meters")

# Hyperparameters that the weights were made for.
OF_THE_WEIGHTS = (
    *("channels", "blocks", "state_size", "members", "norm", "init"),
    *("transform", "amplitude", "linear"),
)
# Hyperparameters that may be others: of encoder and decoder a part is then made anew, or nothing.
FEATURES = ("relative", "calendar", "flags", "seasons", "meter_features", "horizon")
OF_THE_DATA = (*FEATURES, "quantiles", "window")


def adopt_network(config: Namespace, checkpoint: dict[str, Any], args: list[str]) -> None:
    """Set in `config` the network that the checkpoint's weights fit.

    Raises:
        UsageError: an option asks for another one.
    """
    path = config.init_from
    named = command_line_options(args) | config_file_options(args)
    for name in (*OF_THE_WEIGHTS, *OF_THE_DATA):
        option = ELSEWHERE.get(name, f"model.{name}")
        value = checkpoint["hyper_parameters"][name]
        if option in named and config[option] != value and name in OF_THE_WEIGHTS:
            raise UsageError(
                f"--{option} is {config[option]}, but the weights of {path} are for {value}; "
                "leave the option out"
            )
        if option not in named:
            config[option] = config[f"model.{name}"] = value
    config["data.transform"] = config["model.transform"]


@dataclass(frozen=True)
class Start:
    """Weights, and whether their scaling comes along."""

    path: Path
    checkpoint: dict[str, Any]
    scaling: Scaling

    def apply(self, forecaster: Forecaster) -> str:
        """Load what fits a forecaster whose own scaling and meters are set; returns what was done.

        The encoder's columns go by the names of their features, the decoder's rows by quantiles.
        A meter that the weights know keeps its numbers, another gets those of an unknown one.
        """
        state = {
            name.removeprefix("forecaster."): tensor
            for name, tensor in self.checkpoint["state_dict"].items()
        }
        own = forecaster.state_dict()
        for name, tensor in state.items():
            if ".blocks." in name or ".norm." in name:
                own[name] = tensor
        anew = [
            *self._encoder(forecaster, state, own),
            *self._decoder(forecaster, state, own),
            *_linear(state, own),
            *_meters(state, own),
        ]
        if self.scaling == "keep":
            self._keep_scaling(forecaster, state, own)
        forecaster.load_state_dict(own)
        scaling = "their scaling" if self.scaling == "keep" else "the scaling of these data"
        return f"weights of {self.path}, {scaling}; made anew: {', '.join(anew) or 'nothing'}"

    def _encoder(self, forecaster: Forecaster, state: State, own: State) -> list[str]:
        """Columns of features that the weights do not know begin at 0, and so change nothing."""
        hparams = self.checkpoint["hyper_parameters"]
        options = {name: hparams[name] for name in ("covariates", *FEATURES)}
        options["known"] = [*hparams["known"], *hparams["static"]]
        theirs = Forecaster.feature_names(**options)
        known = [n for n, feature in enumerate(forecaster.features) if feature in theirs]
        source = [theirs.index(forecaster.features[n]) for n in known]
        for name in (name for name in state if ".encoder." in name):
            if name.endswith("bias"):
                own[name] = state[name]
            else:
                own[name] = torch.zeros_like(own[name])
                own[name][:, known] = state[name][:, source]
        new = [feature for feature in forecaster.features if feature not in theirs]
        return [f"the encoder's columns of {', '.join(new)}"] if new else []

    def _decoder(self, forecaster: Forecaster, state: State, own: State) -> list[str]:
        """The forecast's row is known in any case, and with it something of the median's.

        The rows of other quantiles are gaps between two.
        """
        theirs, ours = self.checkpoint["hyper_parameters"]["quantiles"], forecaster.quantiles
        for name in (name for name in state if ".decoder." in name):
            if ours == theirs:
                own[name] = state[name]
                continue
            own[name] = torch.zeros_like(own[name])
            own[name][0] = state[name][0]
            if ours:
                median = 1 + theirs.index(MEDIAN) if theirs else 0
                own[name][1 + ours.index(MEDIAN)] = state[name][median]
        return [] if ours == theirs or not ours else ["the decoder's rows beside the median"]

    def _keep_scaling(self, forecaster: Forecaster, state: State, own: State) -> None:
        """Of the reading, and of the covariates that both have."""
        own |= {name: state[name] for name in ("reading_mean", "reading_std")}
        hparams = self.checkpoint["hyper_parameters"]
        theirs = [*hparams["covariates"], *hparams["known"], *hparams["static"]]
        for number, covariate in enumerate(forecaster.covariates):
            if covariate in theirs:
                for name in ("covariate_mean", "covariate_std"):
                    own[name][number] = state[name][theirs.index(covariate)]


def _linear(state: State, own: State) -> list[str]:
    """The linear model, where both have one, of as many readings to as many."""
    names = [name for name in own if name.startswith("linear_")]
    if any(own[name].shape != state[name].shape for name in names):
        return ["the linear model, fitted to these data"]
    own |= {name: state[name] for name in names}
    return []


def _meters(state: State, own: State) -> list[str]:
    """The numbers of meters, where both have as many of each."""
    weight = "meters.weight"
    if weight not in own or weight not in state or own[weight].shape[1] != state[weight].shape[1]:
        return []
    rows = rows_of(own["meters.known"], state["meters.known"])
    own[weight] = state[weight][torch.cat([rows.new_zeros(1), rows])]
    strangers = int((rows == 0).sum())
    return [f"{strangers} meters, which begin as unknown ones"] if strangers else []


def freeze(forecaster: Forecaster, parts: list[str]) -> None:
    """Let some parts of the network stay as they are.

    Raises:
        UsageError: there is no such part, or nothing else.
    """
    for part in parts:
        if part not in PARTS:
            raise UsageError(f"--freeze: {part!r} is not one of {', '.join(PARTS)}")
        if part == "meters":
            if forecaster.meters is None:
                raise UsageError("--freeze meters: the model has none, see --model.meter_features")
            forecaster.meters.requires_grad_(False)
        else:
            for network in forecaster.networks:
                getattr(network, part).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in forecaster.parameters()):
        raise UsageError("--freeze leaves nothing to train: name fewer parts")
