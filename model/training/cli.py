"""The command line: Lightning's, with a short help, short errors and a clear word at the end."""

import logging
import math
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from cuda_ops import KernelUnavailableError
from data.columns import DataError
from data.grid import every
from data.module import SeriesDataModule
from data.scores import MEASURES, measure_of
from model.training.callbacks.charts import Charts
from model.training.callbacks.hparams import HParams, flatten
from model.training.callbacks.memory import MemoryForecast
from model.training.callbacks.panels import ForecastPanels
from model.training.callbacks.predictions import PredictionFile
from model.training.callbacks.progress import PacedProgressBar
from model.training.callbacks.report import ReportPage
from model.training.callbacks.scores import ScoreTable
from model.training.callbacks.timing import Timing
from model.training.checkpoint import (
    adopt_checkpoint,
    adopt_roles,
    command_line_options,
    config_file_options,
    read_checkpoint,
)
from model.training.epochs import choose_epochs, epochs_done, refuse_finished
from model.training.errors import UsageError
from model.training.execution import choose_kernel, choose_precision, choose_step, sizes_of
from model.training.help import SUBCOMMANDS, explain, short_help
from model.training.logger import StepLogger
from model.training.module import S4ConvDModule
from model.training.options import add_options
from model.training.start import Start, adopt_network, freeze

ROOT = Path(__file__).parents[2]
NOISE = ("Tip:", "TPU available", "Loading `", "Restoring states", "Loaded model weights")


class TrainCLI(LightningCLI):
    """`python train.py [fit|validate|test|predict] [options]`."""

    def __init__(self, args: list[str]) -> None:
        self.raw_args = args
        self.epochs_done = 0  # behind the checkpoint that is resumed
        self.best: ModelCheckpoint | None = None
        super().__init__(
            S4ConvDModule,
            SeriesDataModule,
            trainer_defaults={"enable_model_summary": False},
            seed_everything_default=1,
            save_config_kwargs={"overwrite": True},
            # An abbreviated option could not be told from a wrong one.
            parser_kwargs={"exit_on_error": False, "allow_abbrev": False}
            | {name: {"exit_on_error": False} for name in SUBCOMMANDS},
        )

    # -- parsing -------------------------------------------------------------------------------

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's subcommands; predictions go to a file, so none are kept in memory."""
        skip = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}
        return {name: skip | {"verbose", "return_predictions"} for name in SUBCOMMANDS}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The options of this application."""
        add_options(parser)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, or end with a short help or a short complaint."""
        fit = self._subcommand_parsers["fit"]
        if self.raw_args[:1] in (["-h"], ["--help"]):
            print(short_help(fit))
            sys.exit(0)
        try:
            self.config = parser.parse_args(self.raw_args)
        except ArgumentError as error:
            options = [name for action in fit._actions for name in action.option_strings]
            raise UsageError(explain(str(error), options)) from error
        config = self.config[self.config["subcommand"]]
        named = command_line_options(self.raw_args) | config_file_options(self.raw_args)
        if config.data.path is not None and "data.covariates" not in named:
            config.data.covariates = config.model.covariates = []

    def _parse_ckpt_path(self) -> None:
        """Take over from the checkpoint what makes its model what it is.

        Lightning's own version lets the checkpoint win over the command line without a word.

        Raises:
            UsageError: there is no such checkpoint, or an option contradicts it.
        """
        subcommand = self.config["subcommand"]  # Lightning sets self.subcommand after this
        config = self.config[subcommand]
        path = config.get("ckpt_path")
        self.start: Start | None = None
        if subcommand == "fit" and config.init_from is not None:
            self._adopt_start(config)
        if path is not None:
            checkpoint = read_checkpoint(Path(path))
            adopt_checkpoint(config, checkpoint, self.raw_args)
            adopt_roles(config, checkpoint, self.raw_args)
            if subcommand == "fit":
                self.epochs_done = epochs_done(checkpoint)
                steps = checkpoint["global_step"]
                refuse_finished(path, config.trainer.max_epochs, "epochs", self.epochs_done)
                refuse_finished(path, config.trainer.max_steps, "steps", steps)
        elif subcommand != "fit":
            raise UsageError(
                f"{subcommand} needs a trained model: pass --ckpt_path "
                f"{config.runs}/version_0/checkpoints/best.ckpt"
            )

    def _adopt_start(self, config: Any) -> None:
        """Build the network that the weights of --init_from fit."""
        if config.ckpt_path is not None:
            if "init_from" in command_line_options(self.raw_args):
                raise UsageError(
                    "--ckpt_path goes on with a run, --init_from begins another with its weights: "
                    "leave one of them out"
                )
            return  # it stands in the settings of a run that began so and is resumed
        checkpoint = read_checkpoint(config.init_from, "init_from")
        adopt_network(config, checkpoint, self.raw_args)
        self.start = Start(config.init_from, checkpoint, config.scaling)

    def before_instantiate_classes(self) -> None:
        """Name the numbers that --data.static stands for: the network has an input for each."""
        config = self.config[self.config["subcommand"]]
        if config.data.static and config.ckpt_path is None:
            data = SeriesDataModule(**config.data)
            config.data.static = config.model.static = data.name_static()

    # -- running -------------------------------------------------------------------------------

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Lightning's trainer with this application's logger and callbacks."""
        config = self.config[self.subcommand]
        settings = config.trainer
        if settings.logger in (None, True):
            kwargs["logger"] = StepLogger(config.runs, name="", default_hp_metric=False)
        table = ScoreTable()
        callbacks = [PredictionFile(config.output), table, ReportPage(table), MemoryForecast()]
        if settings.enable_progress_bar is not False:
            callbacks.append(PacedProgressBar())
        if settings.enable_checkpointing is not False:
            common: dict[str, Any] = {"enable_version_counter": False}
            self.best = ModelCheckpoint(monitor="val/rmsle", filename="best", **common)
            callbacks += [
                self.best,
                ModelCheckpoint(filename="last", save_on_exception=True, **common),
            ]
        if kwargs.get("logger") or settings.logger:
            callbacks += [Timing(), Charts(), HParams(self._shown_settings()), ForecastPanels()]
        if self._chooses_epochs:
            kwargs["max_epochs"] = 1  # until the data are known
        trainer = self.config_init[self.subcommand].trainer
        trainer.callbacks = [*(trainer.callbacks or []), *callbacks]
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError) as error:
            elsewhere = settings.accelerator in ("auto", "cpu")
            hint = "" if elsewhere else " --trainer.accelerator cpu works everywhere."
            raise UsageError(f"--trainer: {error}{hint}") from error

    def _shown_settings(self) -> dict[str, bool | int | float | str]:
        """What the HPARAMS tab shows: the same names in every run."""
        config = self.config[self.subcommand]
        shown = {name: config[name] for name in ("kernel", "seed_everything", "model", "data")}
        of_the_trainer = ("max_epochs", "max_steps", "precision", "devices", "gradient_clip_val")
        shown["trainer"] = {name: config.trainer[name] for name in of_the_trainer}
        return flatten(Namespace(shown).as_dict())

    @property
    def _chooses_epochs(self) -> bool:
        settings = self.config[self.subcommand].trainer
        return settings.max_epochs is None and settings.max_steps == -1

    def before_fit(self) -> None:
        """Say what runs, and read the data ahead: a refused run leaves no folder behind.

        A kernel that cannot run on this device is refused before any data are read, and one that
        can is compiled, so that no step's time holds the compiler's.
        """
        size = sum(parameter.numel() for parameter in self.model.parameters())
        device = self.trainer.strategy.root_device
        config = self.config[self.subcommand]
        step = choose_step(config, self.trainer)
        name, note = choose_kernel(config, self.trainer, step, sizes_of(self.model.hparams))
        self.model.run_as(name, replays=step == "graph")
        self.model.start = self.start
        if self.subcommand == "fit":
            freeze(self.model.forecaster, self.config.fit.freeze)
        in_tf32 = choose_precision(config, self.trainer, step, name)
        tf32 = ", products in TF32" if in_tf32 else ""
        form = {"graph": ", replayed as a graph", "published": ", passes as published"}
        how = f"{note} on {device}{tf32}{form.get(step, '')}"
        rank_zero_info(f"model: S4ConvD, {size:,} parameters; kernel: {how}")
        self.datamodule.prepare_data()
        self.datamodule.setup(self.subcommand)
        self._refuse_step()
        settled = {f"model.{of}": getattr(self.datamodule, of) for of in ("step", "transform")}
        self._show({"kernel": name, "model.kernel": name, **settled})
        self._watch()
        if self.subcommand == "fit" and self._chooses_epochs:
            share = self.datamodule.batch_size * self.trainer.world_size
            batches = math.ceil(len(self.datamodule.windows["train"]) / share)
            epochs = choose_epochs(batches, device.type)
            refuse_finished(self.config.fit.ckpt_path, epochs, "epochs", self.epochs_done)
            self.trainer.fit_loop.max_epochs = epochs

    def _watch(self) -> None:
        """Let the best checkpoint be that of the measure that suits the data."""
        if self.best is not None:
            self.best.monitor = f"val/{measure_of(self.datamodule.transform)}"

    def _show(self, settled: dict[str, str | int]) -> None:
        """Let the HPARAMS tab have what only the device and the data could settle."""
        callbacks: list[L.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, HParams):
                callback.settings |= settled

    def _refuse_step(self) -> None:
        """A trained model forecasts at the step that it was trained at.

        Raises:
            UsageError: the data have another.
        """
        path = self.config[self.subcommand].ckpt_path
        trained, found = self.model.hparams["step"], self.datamodule.step
        if path is not None and trained != found:
            raise UsageError(
                f"{path} was trained on a reading {every(trained)}, and these data have one "
                f"{every(found)}; bring them to that step, or train anew, with --init_from if the "
                "weights are to be a start"
            )

    before_validate = before_test = before_predict = before_fit

    def after_fit(self) -> None:
        """Score the best checkpoint beside the baselines, write its forecasts, say what is next."""
        trainer: Any = self.trainer
        if trainer.fast_dev_run or trainer.interrupted:
            return
        best = self.best_checkpoint()
        score = trainer.checkpoint_callback.best_model_score if best else None
        if score is not None:
            name = MEASURES[measure_of(self.datamodule.transform)]
            rank_zero_info(f"\nbest: validation {name} {score:.4g}, {best}")  # below the bar
        given: dict[str, Any] = {"model": self.model, "datamodule": self.datamodule}
        if "test" in self.datamodule.windows:
            self.test(ckpt_path=best, **given)
        if "predict" in self.datamodule.windows:
            self.predict(ckpt_path=best, **given)
        rank_zero_info(next_commands(Path(self.config.fit.runs), self.trainer.log_dir, best))

    def test(self, **kwargs: Any) -> None:
        """Lightning's; the table says more than its own."""
        self.trainer.test(verbose=False, **kwargs)

    def predict(self, **kwargs: Any) -> None:
        """Lightning's; the forecasts are in the file."""
        self.trainer.predict(return_predictions=False, **kwargs)

    def best_checkpoint(self) -> str | None:
        """The checkpoint with the lowest validation score, or the last one if none was scored."""
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.best_model_path:
                return callback.best_model_path
        return None


def next_commands(runs: Path, log_dir: str | None, best: str | None) -> str:
    """What to do with a finished run, quoted so that it can be pasted."""
    python, script = short_path(Path(sys.executable)), short_path(ROOT / "train.py")
    lines = ["next:", shlex.join([python, "-m", "tensorboard.main", "--logdir", str(runs)])]
    if best and log_dir:
        config = str(Path(log_dir) / "config.yaml")
        for subcommand in ("test", "predict"):
            lines.append(
                shlex.join([python, script, subcommand, "--config", config, "--ckpt_path", best])
            )
    return "\n  ".join(lines)


def short_path(path: Path) -> str:
    """Relative to the current folder, where it lies in it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _no_noise(record: logging.LogRecord) -> bool:
    """Leaves out what Lightning says of itself: tips, other hardware, each checkpoint it reads."""
    return not any(phrase in record.getMessage() for phrase in NOISE)


def main(args: list[str] | None = None) -> TrainCLI | None:
    """Run the command line; a user's mistake ends in one message and exit code 2."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_no_noise)
    for message in (".*LeafSpec.*", "The dirpath has changed"):
        warnings.filterwarnings("ignore", message=message)  # Lightning's talk with itself
    args = list(sys.argv[1:] if args is None else args)
    if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
        args.insert(0, "fit")
    try:
        if args[0] == "inspect":
            from model.training.inspect import InspectCLI  # which is a TrainCLI

            return InspectCLI(args)
        if args[0] == "compare":
            from model.training.compare.command import CompareCLI  # which is a TrainCLI

            return CompareCLI(args)
        if args[0] == "backtest":
            from model.training.backtest import BacktestCLI  # which is a TrainCLI

            return BacktestCLI(args)
        if args[0] == "submission":
            from model.training.submission import SubmissionCLI  # which is a TrainCLI

            return SubmissionCLI(args)
        if args[0] == "export":
            from model.training.export import export

            export(args[1:])
            return None
        return TrainCLI(args)
    except (DataError, KernelUnavailableError, UsageError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()  # left to the interpreter's end, it may abort
