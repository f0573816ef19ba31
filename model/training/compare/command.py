"""`python train.py compare`: trains kernels side by side and says what each is worth."""

import json
import shlex
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import torch
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.tensorboard import SummaryWriter

from cuda_ops import KERNELS, KernelUnavailableError, check_sizes, prepare_kernel
from cuda_ops.contenders import Size
from cuda_ops.environment import environment
from model.training.callbacks.panels import ForecastPanels
from model.training.callbacks.timing import WARM_UP
from model.training.checkpoint import command_line_options
from model.training.cli import TrainCLI, next_commands
from model.training.compare import measured, tables
from model.training.compare.runs import (
    Run,
    announced,
    kernel_record,
    new_folder,
    quiet,
    release_memory,
    train,
)
from model.training.errors import UsageError
from model.training.execution import allow_tf32, sizes_of
from model.training.graph import reason_against
from model.training.logger import StepLogger

STEPS, ROUNDS = 50, 3
LADDER = (*KERNELS[1:], KERNELS[0])  # the study's kernels in its order, and what they have to beat
PUBLISHED = "published"  # the network in the published order of passes, its convolution by FFT
CONTENDERS = (*LADDER, "fused", PUBLISHED)
DECIDED: dict[str, Any] = {
    "max_epochs": -1,
    "max_time": None,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "logger": False,
    "fast_dev_run": False,
}
"""Options of the trainer that a comparison decides, whatever was asked for; --steps is another."""

HELP = f"""\
usage: python train.py compare [--kernels NAME,...] [options of fit]

Trains each kernel from the same seed on the same batches, in turns, and says
what it is worth: in the convolution, and end to end.

  --kernels NAME,...  the kernels, the first of which the others are held
                      against: {", ".join(LADDER[:3])},
                      {", ".join(LADDER[3:])} [all that can run here], and
                      fused, the fastest step, and published, FFT and all
  --steps N           steps of a run [{STEPS}]
  --rounds N          runs of each kernel [{ROUNDS}]

Every option of fit holds as well (python train.py --help), as in
  python train.py compare --config configs/study.yaml

Leaves in runs/compare_N/ what was measured (compare.json), a report with
pictures (report.html), and curves for TensorBoard."""


class CompareCLI(TrainCLI):
    """A fit of several kernels in turns: fit's own options, and three more."""

    def __init__(self, args: list[str]) -> None:
        self.tf32: dict[str, bool] = {}  # kernel -> whether its products are
        self.command = shlex.join(["python", "train.py", *args])
        super().__init__(["fit", *args[1:]])

    # -- parsing -------------------------------------------------------------------------------

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Fit's options and this command's own."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--kernels", type=str | None, default=None, help="names, with commas")
        parser.add_argument("--steps", type=int, default=STEPS, help="steps of a run")
        parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each kernel")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, or end with a short help or a short complaint; then decide what is no option."""
        if {"-h", "--help"} & set(self.raw_args):
            print(HELP)
            sys.exit(0)
        super().parse_arguments(parser, args)
        config, given = self.config.fit, command_line_options(self.raw_args)
        _require("kernel" not in given, "compare takes --kernels NAME,..., and no --kernel")
        _require(
            config.step != "graph",
            "compare times the convolution's paths, and a replayed graph has none: leave out --step"
            " graph",
        )
        _require(config.ckpt_path is None, "compare trains from the start: leave --ckpt_path out")
        _require(config.rounds >= 1, f"--rounds must be 1 or more, not {config.rounds}")
        least = WARM_UP + 2
        _require(
            config.steps >= least,
            f"--steps must be {least} or more, not {config.steps}: the first {WARM_UP} warm up",
        )
        self.asked = None if config.kernels is None else _names(config.kernels)
        settings = config.trainer
        decided = DECIDED | {"max_steps": config.steps}
        idle = [f"--trainer.{name}" for name in decided if f"trainer.{name}" in given]
        if idle:
            rank_zero_info(f"a comparison decides for itself, so this is idle: {', '.join(idle)}")
        for name, value in decided.items():
            settings[name] = value
        if settings.devices == "auto":
            settings.devices = 1
        if settings.log_every_n_steps is None:
            settings.log_every_n_steps = max(1, config.steps // 5)  # a curve, with few waits

    # -- running -------------------------------------------------------------------------------

    def before_fit(self) -> None:
        """Refuse what cannot be compared, compile the kernels, and read the data."""
        trainer = self.trainer
        device = trainer.strategy.root_device
        _require(trainer.world_size == 1, "compare runs on one device: --trainer.devices 1")
        _require(
            device.type in ("cpu", "cuda"),
            f"compare has no clock for '{device.type}': --trainer.accelerator cpu works everywhere",
        )
        seed = self.config.fit.seed_everything
        _require(seed is not False, "compare needs a seed, the same in each run: --seed_everything")
        self.dtype = measured.operator_type(str(trainer.precision))
        self.kernels = self._prepare(device)
        self.datamodule.prepare_data()
        self.datamodule.setup("fit")
        self.config.fit.model.step = self.datamodule.step

    def _prepare(self, device: torch.device) -> list[str]:
        """Compile what was asked for, or else all that can run here; returns their names."""
        names, notes, problem = [], [], None
        for name in self.asked or LADDER:
            try:
                notes.append(self._prepare_one(name, device))
                names.append(name)
            except KernelUnavailableError as error:
                if self.asked:
                    raise
                problem = problem or error
        rank_zero_info(f"kernels on {device}: {', '.join(notes)}")
        if problem:
            left_out = ", ".join(name for name in LADDER if name not in names)
            rank_zero_info(f"left out: {left_out}: {problem}")
        return names

    def _prepare_one(self, name: str, device: torch.device) -> str:
        """Returns a note of what will run.

        Raises:
            KernelUnavailableError: it cannot.
        """
        note = prepare_kernel(kernel_of(name), device)
        if name == "fused":
            config = self.config.fit
            _require(
                config.step != PUBLISHED,
                f"--step {PUBLISHED} keeps the passes apart that fused makes one: leave it out",
            )
            check_sizes(*sizes_of(config.model))
        as_published = f"{name}, its FFT by {note}" if name == PUBLISHED else note
        self.tf32[name] = self._allow_tf32_for(name, device)
        return as_published + ", products in TF32" * self.tf32[name]

    def fit(self, **_: Any) -> None:
        """Train in turns, measure the operator on its own, and write down what was found.

        A whole round is never lost, whatever happens after it.
        """
        warnings.filterwarnings("ignore", message=".*smaller than the logging interval")
        config, device = self.config.fit, self.trainer.strategy.root_device
        folder = new_folder(config.runs, "compare")
        rounds: list[dict[str, Run]] = []
        record: dict[str, Any] = {}
        failure: BaseException | None = None
        try:
            with tempfile.TemporaryDirectory() as unread:
                for number in range(config.rounds):
                    rounds.append(self._round(number, Path(unread) if number else folder))
                    record = self._record(rounds)
                    _save(record, folder)
            del self.datamodule, self.config_init  # and what they hold on the GPU
            release_memory()
            size = Size(**record["shape"])
            record |= measured.operator_alone(self.kernels, size, self.dtype, device)
            _save(record, folder)
        except BaseException as error:  # Ctrl-C is one, too
            failure = error
        if record:
            _publish(record, folder)
        if failure is not None:
            shown = f"what is shown is of {len(rounds)} of {config.rounds} rounds\n"
            sys.stderr.write(shown if rounds else "no round was complete: nothing is shown\n")
            _fail(failure)

    def after_fit(self) -> None:
        """Nothing is scored or forecast."""

    def _round(self, number: int, folder: Path) -> dict[str, Run]:
        """Each kernel once, beginning with another one in each round; curves go to `folder`."""
        first = number % len(self.kernels)
        of = f"round {number + 1} of {self.config.fit.rounds}"
        runs = {}
        for kernel in [*self.kernels[first:], *self.kernels[:first]]:
            with announced(f"{of}: {kernel}, {self.config.fit.steps} steps"), quiet():
                release_memory()
                runs[kernel] = self._run(kernel, folder)
        return runs

    def _allow_tf32_for(self, name: str, device: torch.device) -> bool:
        published = PUBLISHED in (name, self.config.fit.step)
        usual = published or name == "fused"
        return allow_tf32(self.config.fit.matmul_precision, usual, device)

    def _run(self, kernel: str, folder: Path) -> Run:
        """A model and a trainer of its own, from the same seed; the data stay where they are."""
        config = self.config.fit
        config.kernel = config.model.kernel = kernel_of(kernel)
        config.model.published = PUBLISHED in (kernel, config.step)
        L.seed_everything(config.seed_everything, workers=True, verbose=False)
        self.config_init = self.parser.instantiate_classes(self.config)
        logger = StepLogger(folder, name="", version=kernel, default_hp_metric=False)
        trainer = self.instantiate_trainer(logger=logger)
        model = self.config_init.fit.model
        fastest = kernel == "fused" and config.step is None and not reason_against(trainer)
        model.run_as(model.kernel, replays=fastest)
        self._allow_tf32_for(kernel, trainer.strategy.root_device)
        return train(trainer, model, self.datamodule)

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Fit's, without the forecasts and the file of settings; compare.json holds those."""
        self.save_config_callback = None
        trainer: Any = super().instantiate_trainer(**kwargs)
        trainer.callbacks = [
            each for each in trainer.callbacks if not isinstance(each, ForecastPanels)
        ]
        return trainer

    # -- the end -------------------------------------------------------------------------------

    def _record(self, rounds: Sequence[dict[str, Run]]) -> dict[str, Any]:
        """What the training says, in the form of `model.training.compare.figures`."""
        config = self.config.fit
        settings = self._shown_settings()
        of_a_kernel = ("kernel", "model.kernel", "model.published")
        batch = min(config.data.batch_size, len(self.datamodule.windows["train"]))
        channels, length = sizes_of(config.model)
        size = {"batch": batch, "channels": channels, "length": length, "taps": length}
        return environment(self.trainer.strategy.root_device) | {
            "settings": {k: v for k, v in settings.items() if k not in of_a_kernel},
            "command": self.command,
            "shape": size,
            "blocks": config.model.blocks * config.model.members,
            "dtype": self.dtype,
            "steps": config.steps,
            "rounds": len(rounds),
            "kernels": [
                kernel_record(name, self.tf32[name], [runs[name] for runs in rounds])
                for name in self.kernels
            ],
            "operator": None,
            "fma": None,
        }


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


def kernel_of(name: str) -> str:
    """The kernel that one of `CONTENDERS` runs."""
    return KERNELS[0] if name == PUBLISHED else name


def _names(words: str) -> list[str]:
    """Those of `CONTENDERS` that a list with commas names.

    Raises:
        UsageError: one is unknown or named twice, or there is none.
    """
    names = [word.strip() for word in words.split(",")]
    for name in names:
        _require(
            name in CONTENDERS,
            f"--kernels: there is no '{name}'; choose from {', '.join(CONTENDERS)}",
        )
        _require(names.count(name) == 1, f"--kernels: '{name}' is named twice")
    return names


def _fail(failure: BaseException) -> NoReturn:
    """End with what went wrong; with a message alone, where the user can do something about it."""
    if isinstance(failure, torch.OutOfMemoryError):
        message = "the GPU's memory is too small: take a smaller --data.batch_size"
        raise UsageError(message) from failure
    if isinstance(failure, KeyboardInterrupt | SystemExit):  # Lightning makes the one of the other
        sys.stderr.write("interrupted\n")
        sys.exit(1)
    raise failure


def _save(record: dict[str, Any], folder: Path) -> None:
    (folder / "compare.json").write_text(json.dumps(record, indent=1) + "\n")


def _publish(record: dict[str, Any], folder: Path) -> None:
    """The record as text, as pictures in TensorBoard and as one HTML file."""
    from model.training.compare.charts import pictures
    from model.training.compare.report import html

    print(f"\n{tables.text(record)}\n")
    (folder / "report.html").write_text(html(record))
    with SummaryWriter(str(folder / "comparison")) as writer:
        for tag, picture in pictures(record).items():
            writer.add_image(tag, picture, record["steps"])
    for name in ("compare.json", "report.html"):
        print(folder / name)
    print(next_commands(folder, None, None))
