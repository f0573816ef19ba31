"""`python train.py backtest`: trains anew on growing histories, and scores what follows each."""

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_info

from data.module import SeriesDataModule
from data.scores import MEASURES, Scores
from data.series import SeriesSet
from data.splits import end_tick
from model.training.callbacks.scores import Cells, ScoreTable, number_text, short, table_text
from model.training.checkpoint import command_line_options, config_file_options
from model.training.cli import TrainCLI
from model.training.compare.runs import announced, new_folder, quiet, release_memory
from model.training.errors import UsageError
from model.training.forecasts import Outcome
from model.training.logger import StepLogger

FOLDS = 4
CUTS = ("train_end", "val_end")  # options of the data that a backtest decides
HELP = f"""\
usage: python train.py backtest [--folds N] [options of fit]

Cuts the time of the data into N + 1 equal blocks. Each fold trains anew, from
the same seed, on all blocks before one of them, and is scored on that block,
beside the baselines: once for each block but the first. The last part of a
fold's history (--data.val_fraction) picks its best epoch.

  --folds N           how many [{FOLDS}]

Every option of fit holds as well (python train.py --help); --data.test_end is
the end of the last block.

Leaves in runs/backtest_N/ the scores of each fold (backtest.csv), and what a
test leaves of each in a folder of its own."""


Found = dict[str, Scores]
"""Name of the model or of a baseline -> its scores by series, in one fold; the model's first."""


@dataclass(frozen=True)
class Fold:
    """The last times of a history, of the part of it that picks the epoch, and of the block."""

    train_end: str
    val_end: str
    test_end: str


def cut(series: SeriesSet, folds: int, val_fraction: float, test_end: str | None) -> list[Fold]:
    """Growing histories and the block after each.

    Args:
        series: the data; their span is cut.
        folds: how many.
        val_fraction: share of a history, at its end, that is for validation.
        test_end: the end of the last block; None: of the data.
    """
    first, last = series.span()
    if test_end is not None:
        last = end_tick(series, "test_end", test_end)
    cuts = [first + round((last - first + 1) * k / (folds + 1)) for k in range(1, folds + 2)]
    return [
        Fold(
            series.stamp(first + round((begin - first) * (1 - val_fraction)) - 1),
            series.stamp(begin - 1),
            series.stamp(end - 1),
        )
        for begin, end in pairwise(cuts)
    ]


class BacktestCLI(TrainCLI):
    """A fit for each fold: fit's own options, and one more."""

    def __init__(self, args: list[str]) -> None:
        self.logger: StepLogger | bool = False
        super().__init__(["fit", *args[1:]])

    # -- parsing -------------------------------------------------------------------------------

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Fit's options and this command's own."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--folds", type=int, default=FOLDS, help="histories to train on")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, or end with a short help or a short complaint; then decide what is no option."""
        if {"-h", "--help"} & set(self.raw_args):
            print(HELP)
            sys.exit(0)
        super().parse_arguments(parser, args)
        config = self.config.fit
        _require(config.folds >= 2, f"--folds must be 2 or more, not {config.folds}")
        _require(config.ckpt_path is None, "backtest trains from the start: leave --ckpt_path out")
        seed = config.seed_everything
        _require(seed is not False, "backtest needs a seed, one for all folds: --seed_everything")
        for name in ("val_path", "test_path", "predict_path"):
            idle = config.data[name] is None
            _require(idle, f"backtest cuts one table by time: leave --data.{name} out")
        named = command_line_options(self.raw_args) | config_file_options(self.raw_args)
        overruled = [f"--data.{name}" for name in CUTS if f"data.{name}" in named]
        if overruled:
            rank_zero_info(f"a backtest cuts the time itself; idle: {', '.join(overruled)}")
        if config.data.boosting is None:
            config.data.boosting = False  # minutes for each fold
        config.trainer.logger = config.trainer.enable_progress_bar = False
        if config.trainer.devices == "auto":
            config.trainer.devices = 1

    # -- running -------------------------------------------------------------------------------

    def before_fit(self) -> None:
        """Cut the time, and refuse a fold without windows before one is trained."""
        _require(self.trainer.world_size == 1, "backtest runs on one device: --trainer.devices 1")
        self.datamodule.prepare_data()
        _, series = self.datamodule.read()
        data = self.config.fit.data
        self.folds = cut(series, self.config.fit.folds, data.val_fraction, data.test_end)
        for fold in self.folds:
            with quiet():  # what there is to say of the data is said by now
                self._cut_at(fold)
                SeriesDataModule(**data).setup("fit")

    def fit(self, **_: Any) -> None:
        """Train and score fold by fold; what is complete is never lost."""
        folder = new_folder(self.config.fit.runs, "backtest")
        found: list[Found] = []
        for number, fold in enumerate(self.folds, 1):
            what = f"fold {number} of {len(self.folds)}: trained to {fold.val_end}, scored to "
            with announced(what + fold.test_end), quiet():
                release_memory()
                outcome = self._run(fold, folder / f"fold_{number}")
                found.append(outcome.scores)
            write(found, self.folds, folder / "backtest.csv")
        print(f"\n{text(found, self.folds, outcome.measure)}\n\nby fold: {folder / 'backtest.csv'}")

    def _cut_at(self, fold: Fold) -> None:
        for name, end in vars(fold).items():
            self.config.fit.data[name] = end

    def after_fit(self) -> None:
        """Each fold was tested."""

    def _run(self, fold: Fold, folder: Path) -> Outcome:
        """Data, a model and a trainer of its own, from the same seed."""
        config = self.config.fit
        self._cut_at(fold)
        self.logger = StepLogger(folder.parent, "", version=folder.name, default_hp_metric=False)
        L.seed_everything(config.seed_everything, workers=True, verbose=False)
        self.instantiate_classes()
        super().before_fit()
        self.trainer.fit(self.model, datamodule=self.datamodule)
        best = self.best_checkpoint()
        self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best, verbose=False)
        callbacks: list[L.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        (table,) = (each for each in callbacks if isinstance(each, ScoreTable))
        assert table.outcome is not None
        return table.outcome

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Fit's, in the fold's folder; backtest.csv says what the folds are."""
        self.save_config_callback = None
        return super().instantiate_trainer(**kwargs | {"logger": self.logger})


# -- what was found ----------------------------------------------------------------------------


def text(found: list[Found], folds: list[Fold], leading: str) -> str:
    """A table for each of three measures: fold by fold, their mean and standard deviation.

    Args:
        found: of each fold.
        folds: likewise.
        leading: the first of the measures, rmsle or rmse.
    """
    measures = (leading, "mae", "cv_rmse")
    return "\n\n".join(table_text(_cells(found, folds, measure)) for measure in measures)


def _cells(found: list[Found], folds: list[Fold], measure: str) -> Cells:
    names = list(found[0])
    values = np.array([[_score(of[name], measure) for name in names] for of in found])
    rows = {f"fold {n}": (fold.val_end[:10], values[n - 1]) for n, fold in enumerate(folds, 1)}
    rows |= {"mean": ("", values.mean(0)), "spread": ("", values.std(0, ddof=1))}
    heads = [MEASURES[measure], "history to", *map(short, names)]
    return [heads, *([label, to, *map(number_text, of)] for label, (to, of) in rows.items())]


def _score(scores: Scores, measure: str) -> float:
    """Over all rows."""
    return float(getattr(scores.all(), measure)[0])


def write(found: list[Found], folds: list[Fold], path: Path) -> None:
    """A row for each fold and forecast, with all measures; empty where one has no value."""
    rows = [
        {"fold": number, **vars(fold), "forecast": name, "rows": int(scores.rows.sum())}
        | {measure: _score(scores, measure) for measure in MEASURES}
        for number, (of, fold) in enumerate(zip(found, folds, strict=False), 1)
        for name, scores in of.items()
    ]
    columns = {name: pa.array([row[name] for row in rows], from_pandas=True) for name in rows[0]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pacsv.write_csv(pa.table(columns), path)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
