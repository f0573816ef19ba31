"""The command line: Lightning's, with a short help, short errors and a clear word at the end."""

import shlex
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info

from cuda_ops import KERNELS, KernelUnavailableError, require_kernel
from data.columns import DataError
from data.gepiii import GEPIIIDataModule
from model.training.callbacks.hparams import HParams, flatten
from model.training.callbacks.panels import ForecastPanels
from model.training.callbacks.predictions import PredictionFile
from model.training.callbacks.scores import ScoreTable
from model.training.errors import UsageError
from model.training.module import S4ConvDModule

SUBCOMMANDS = {
    "fit": "train, then test and predict with the best checkpoint (the default)",
    "validate": "score a checkpoint on the validation part",
    "test": "score a checkpoint on the test part, beside the baselines",
    "predict": "write a checkpoint's forecasts to a file",
}
TOP_OPTIONS = (
    "config",
    "kernel",
    "data.root",
    "data.train_path",
    "data.rules",
    "data.meters",
    "data.window",
    "data.batch_size",
    "model.channels",
    "model.blocks",
    "model.lr",
    "trainer.max_epochs",
    "trainer.accelerator",
    "ckpt_path",
    "output",
    "runs",
    "seed_everything",
)
# A checkpoint's hyperparameters that this run may set anew; the others make the model what it is.
OF_THE_RUN = {"lr", "weight_decay", "dropout"}
# Hyperparameters of the model that the command line sets elsewhere.
ELSEWHERE = {"window": "data.window", "covariates": "data.covariates"}


class TrainCLI(LightningCLI):
    """`python train.py [fit|validate|test|predict] [options]`."""

    def __init__(self, args: list[str]) -> None:
        self.raw_args = args
        super().__init__(
            S4ConvDModule,
            GEPIIIDataModule,
            trainer_defaults={"max_epochs": 2},
            seed_everything_default=1,
            save_config_kwargs={"overwrite": True},
            parser_kwargs={"exit_on_error": False}
            | {name: {"exit_on_error": False} for name in SUBCOMMANDS},
        )

    # -- parsing -------------------------------------------------------------------------------

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's subcommands; predictions go to a file, so none are kept in memory."""
        skip = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}
        return {name: skip | {"verbose", "return_predictions"} for name in SUBCOMMANDS}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The options of this application, and what is one setting under two names."""
        names = ", ".join(KERNELS)
        parser.add_argument(
            "--kernel", default="pytorch", help=f"the convolution's implementation: {names}"
        )
        parser.add_argument(
            "--runs", type=Path, default=Path("runs"), help="folder that the run's folder is made in"
        )
        parser.add_argument(
            "--output",
            type=Path | None,
            default=None,
            help="file for the forecasts, .csv or .parquet (default: in the run's folder)",
        )
        parser.link_arguments("kernel", "model.kernel")
        parser.link_arguments("data.window", "model.window")
        parser.link_arguments("data.covariates", "model.covariates")
        parser.link_arguments("model.transform", "data.transform")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; what was given explicitly is kept apart, a checkpoint must not contradict it."""
        self.config = parser.parse_args(self.raw_args)

    def _parse_ckpt_path(self) -> None:
        """Take over from the checkpoint what makes its model what it is.

        Lightning's own version lets the checkpoint win over the command line without a word.

        Raises:
            UsageError: there is no such checkpoint, or an option contradicts it.
        """
        subcommand = self.config["subcommand"]  # Lightning sets self.subcommand after this
        config = self.config[subcommand]
        path = config.get("ckpt_path")
        if path is None:
            if subcommand != "fit":
                raise UsageError(
                    f"{subcommand} needs a trained model: pass --ckpt_path "
                    f"{config.runs}/version_0/checkpoints/best.ckpt"
                )
            return
        checkpoint = read_checkpoint(Path(path))
        given = explicit_options(self.raw_args)
        for name, value in checkpoint["hyper_parameters"].items():
            option = ELSEWHERE.get(name, f"model.{name}")
            if option in given and config[option] != value:
                if name in OF_THE_RUN:
                    continue
                raise UsageError(
                    f"--{option} is {config[option]}, but {path} was trained with {value}; "
                    "leave the option out, or train anew without --ckpt_path"
                )
            config[option] = value
            config[f"model.{name}"] = value
        config["data.transform"] = config["model.transform"]
        if subcommand == "fit":
            refuse_finished(checkpoint, config, path)

    # -- running -------------------------------------------------------------------------------

    def before_instantiate_classes(self) -> None:
        """Refuse a kernel that cannot run before anything is read."""
        require_kernel(self.config[self.subcommand].kernel)

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Lightning's trainer with this application's logger and callbacks."""
        config = self.config[self.subcommand]
        settings = config.trainer
        if settings.logger in (None, True):
            kwargs["logger"] = TensorBoardLogger(config.runs, name="", default_hp_metric=False)
        callbacks: list[L.Callback] = [PredictionFile(config.output), ScoreTable()]
        if settings.enable_checkpointing is not False:
            common: dict[str, Any] = {"enable_version_counter": False}
            callbacks += [
                ModelCheckpoint(monitor="val/rmsle", filename="best", **common),
                ModelCheckpoint(filename="last", save_on_exception=True, **common),
            ]
        if kwargs.get("logger") or settings.logger:
            shown = {name: config[name] for name in ("kernel", "seed_everything", "model", "data")}
            shown["trainer"] = {
                name: settings[name]
                for name in ("max_epochs", "max_steps", "precision", "devices", "gradient_clip_val")
            }
            callbacks += [HParams(flatten(Namespace(shown).as_dict())), ForecastPanels()]
        trainer = self.config_init[self.subcommand].trainer
        trainer.callbacks = [*(trainer.callbacks or []), *callbacks]
        return super().instantiate_trainer(**kwargs)

    def before_fit(self) -> None:
        """Say what runs."""
        self._announce()

    before_validate = before_test = before_predict = before_fit

    def _announce(self) -> None:
        device = self.trainer.strategy.root_device
        rank_zero_info(f"kernel: {self.model.kernel} on {device}")

    def after_fit(self) -> None:
        """Score the best checkpoint beside the baselines, write its forecasts, say what is next."""
        if self.trainer.fast_dev_run or self.trainer.interrupted:
            return
        best = self.best_checkpoint()
        if "test" in self.datamodule.windows:
            self.trainer.test(self.model, self.datamodule, ckpt_path=best, verbose=False)
            self.trainer.predict(
                self.model, self.datamodule, ckpt_path=best, return_predictions=False
            )
        rank_zero_info(next_commands(Path(self.config.fit.runs), self.trainer.log_dir, best))

    def validate(self, **kwargs: Any) -> None:
        """Lightning's, with the checkpoint's path."""
        self.trainer.validate(**kwargs)

    def test(self, **kwargs: Any) -> None:
        """Lightning's; the table says more than its own."""
        self.trainer.test(verbose=False, **kwargs)

    def predict(self, **kwargs: Any) -> None:
        """Lightning's; the forecasts are in the file."""
        self.trainer.predict(return_predictions=False, **kwargs)

    def best_checkpoint(self) -> str | None:
        """The checkpoint with the lowest validation RMSLE, or the last one if none was scored."""
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.best_model_path:
                return callback.best_model_path
        return None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint of this application, on the CPU.

    Raises:
        UsageError: there is none, or it is something else.
    """
    if not path.is_file():
        raise UsageError(f"--ckpt_path: there is no file {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        hparams = checkpoint["hyper_parameters"]
        hparams.pop("_instantiator", None)
        if "covariates" not in hparams or "state_dict" not in checkpoint:
            raise KeyError("covariates")
    except Exception as error:
        raise UsageError(f"--ckpt_path: {path} is not a checkpoint of train.py ({error})") from error
    return checkpoint


def explicit_options(args: list[str]) -> set[str]:
    """The options given on the command line, dotted names without dashes."""
    return {arg[2:].split("=")[0].rstrip("+") for arg in args if arg.startswith("--")}


def refuse_finished(checkpoint: dict[str, Any], config: Namespace, path: str) -> None:
    """Resuming what has ended would stop at once and say nothing.

    Raises:
        UsageError: the checkpoint has reached this run's max_epochs or max_steps.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]
    epochs, steps = progress["completed"], checkpoint["global_step"]
    last = config.trainer.max_epochs
    # A checkpoint from the end of an epoch counts it as processed, not yet as completed.
    epochs = max(epochs, progress["processed"])
    if last is not None and 0 <= last <= epochs:
        raise UsageError(
            f"{path} has finished its {epochs} epochs; to train on, pass --trainer.max_epochs "
            f"{epochs + 1} or more"
        )
    if 0 <= config.trainer.max_steps <= steps:
        raise UsageError(
            f"{path} has finished its {steps} steps; to train on, pass --trainer.max_steps "
            f"{steps + 1} or more"
        )


def next_commands(runs: Path, log_dir: str | None, best: str | None) -> str:
    """What to do with a finished run, quoted so that it can be pasted."""
    lines = ["next:", shlex.join(["tensorboard", "--logdir", str(runs)])]
    if best and log_dir:
        config = str(Path(log_dir) / "config.yaml")
        for subcommand in ("test", "predict"):
            lines.append(
                shlex.join(["python", "train.py", subcommand, "--config", config, "--ckpt_path", best])
            )
    return "\n  ".join(lines)


def short_help(cli_parser: LightningArgumentParser) -> str:
    """The subcommands and the options that most people need."""
    lines = [
        "usage: python train.py [fit|validate|test|predict] [options]",
        "",
        *(f"  {name:<10}{what}" for name, what in SUBCOMMANDS.items()),
        "",
    ]
    actions = {action.dest: action for action in cli_parser._actions}
    for name in TOP_OPTIONS:
        action = actions[name]
        text = (action.help or "").split("(type:")[0].strip().rstrip(".")
        default = "" if action.default is None or name == "config" else f" [{action.default}]"
        lines.append(f"  --{name:<22}{text}{default}")
    lines += ["", "all options: python train.py fit --help"]
    return "\n".join(lines)


def explain(error: Exception, options: list[str]) -> str:
    """A parser's complaint in three lines at most."""
    text = " ".join(str(error).split())
    for word in text.split():
        name = word.strip("-,").split("=")[0]
        if word.startswith("--") and name not in options:
            close = get_close_matches(name, options, n=3)
            hint = f"did you mean {', '.join('--' + c for c in close)}?" if close else ""
            return f"unknown option --{name}. {hint}\n`python train.py --help` shows the options"
    return text[:400]


def main(args: list[str] | None = None) -> TrainCLI:
    """Run the command line; a user's mistake ends in one message and exit code 2."""
    args = list(sys.argv[1:] if args is None else args)
    if not args or args[0].startswith("-") and args[0] not in ("-h", "--help"):
        args.insert(0, "fit")
    try:
        return TrainCLI(args)
    except (ArgumentError, DataError, KernelUnavailableError, UsageError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
