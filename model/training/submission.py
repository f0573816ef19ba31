"""`python train.py submission`: an answer to GEPIII's test file, for Kaggle."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_info
from tqdm import tqdm

from data.columns import GEPIII_ROLES, TIME
from data.grid import every
from data.rules import recorded_units
from data.series import SeriesSet
from data.submission import add_weather, asked, extended, write_answer
from model.inference.checkpoint import forecaster_of, load_checkpoint
from model.inference.recursion import fill_ahead
from model.training.cli import TrainCLI
from model.training.errors import UsageError

OUTPUT = Path("submission.csv")
HELP = """\
usage: python train.py submission --ckpt_path FILE --data.root DIR [options]

Forecasts every row of GEPIII's test file from the end of the training file on:
each block of readings from the forecasts before it, with the weather of
weather_test, where it is there. Writes row_id and meter_reading.

  --ckpt_path FILE     a checkpoint; the longer its horizon, the fewer steps
  --data.root DIR      train, test, building_metadata, weather_train and
                       weather_test (.csv, .csv.gz or .parquet)
  --data.rules gepiii  if it was trained so; answers are in the units recorded
  --output FILE        [submission.csv]

Every option of predict holds as well (python train.py predict --help)."""


class SubmissionCLI(TrainCLI):
    """Reads what predict would read, and answers the test file."""

    def __init__(self, args: list[str]) -> None:
        super().__init__(["predict", *args[1:]])

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Predict's options; no run is begun."""
        if {"-h", "--help"} & set(self.raw_args):
            print(HELP)
            sys.exit(0)
        super().parse_arguments(parser, args)
        settings = self.config.predict.trainer
        settings.logger = settings.enable_checkpointing = False

    def before_predict(self) -> None:
        """Refuse what cannot be answered."""
        self.save_config_callback = None
        if self.datamodule.root is None:
            raise UsageError("submission needs GEPIII's files: name their folder with --data.root")
        if self.datamodule.roles != GEPIII_ROLES:
            raise UsageError("submission is for GEPIII's own columns: leave --data.id and such out")

    def predict(self, **_: Any) -> None:
        """Forecast, and write the answer."""
        data, config = self.datamodule, self.config.predict
        test = data.find("test")
        if test is None:
            raise UsageError(f"--data.root: there is no file test.csv in {data.root}")
        device = self.trainer.strategy.root_device
        forecaster = forecaster_of(load_checkpoint(Path(config.ckpt_path))).to(device)
        series = self._series(max(int(columns[TIME].max()) for columns in asked(test)))
        if series.step != forecaster.step:
            raise UsageError(
                f"{config.ckpt_path} was trained on a reading {every(forecaster.step)}, and these "
                f"data have one {every(series.step)}"
            )
        otherwise = _medians(series)
        reading, without = fill_ahead(forecaster, series, data.device_series(series), _shown)
        if without:
            rank_zero_info(f"{without} meters have no {data.window} readings in a row: median")
        units = recorded_units(series, data.rules)
        reading *= np.repeat(units, series.length)
        output: Path = config.output or OUTPUT
        output.parent.mkdir(parents=True, exist_ok=True)
        rows, strangers = write_answer(test, output, series, reading, otherwise * units)
        rank_zero_info(f"{output}: {rows:,} rows")
        if strangers:
            rank_zero_info(f"{strangers:,} rows are of meters that were not trained on: 0")

    def _series(self, last_minute: int) -> SeriesSet:
        """The meters' readings, up to the last time that is asked for, with the weather."""
        data = self.datamodule
        _, trained = data.read()
        series = extended(trained, int(trained.tick_at(np.array(last_minute))))
        source = data.source()
        weather = [path for path in (source.weather_path, data.find("weather_test")) if path]
        add_weather(series, source.covariates, weather, source.utc_offset)
        for note in series.notes:
            rank_zero_info(f"data: {note}")
        return series


def _shown(blocks: range) -> Iterable[int]:
    """A progress bar, in a terminal."""
    return tqdm(blocks, desc="forecasting", unit="block", leave=False, disable=None)


def _medians(series: SeriesSet) -> np.ndarray:
    """(S,) of what was read of each meter, 0 where nothing was."""
    found = np.zeros(len(series))
    for s in range(len(series)):
        own = series.reading[series.offset[s] : series.offset[s + 1]]
        own = own[~np.isnan(own)]
        found[s] = np.median(own) if own.size else 0
    return found
