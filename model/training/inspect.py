"""`python train.py inspect`: what was understood of a table, before anyone trains."""

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from lightning.pytorch.cli import LightningArgumentParser

from data.columns import GEPIII_ROLES, Roles
from data.grid import every
from data.module import SeriesDataModule
from data.series import SeriesSet
from model.training.cli import ROOT, TrainCLI, short_path

SHOWN = 12  # series
HELP = """\
usage: python train.py inspect --data.path FILE [options of fit]

Reads a table as training would, and says what was understood: its series, their
span and gaps, what was dropped or repaired, the splits and their windows. Ends
with the settings to go on with. Nothing is trained or written.

  --data.path FILE        csv, csv.gz or Parquet; [a.csv,b.csv]: one table in pieces
  --data.id COLUMN        what names a series, [a,b] for several, [] for none
  --data.timestamp COLUMN
  --data.target COLUMN    what is to be forecast
  --data.layout wide      each series has a column, under its name
  --data.covariates [...] columns beside the target

Every option of fit holds as well (python train.py fit --help)."""


class InspectCLI(TrainCLI):
    """Reads what fit would read, and stops there."""

    def __init__(self, args: list[str]) -> None:
        super().__init__(["fit", *args[1:]])

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Fit's options; nothing is to be written, and no accelerator is asked for."""
        if {"-h", "--help"} & set(self.raw_args):
            print(HELP)
            sys.exit(0)
        super().parse_arguments(parser, args)
        settings = self.config.fit.trainer
        settings.logger = settings.enable_checkpointing = False
        settings.accelerator = "cpu"

    def before_fit(self) -> None:
        """Say what the table is."""
        self.save_config_callback = None
        data = self.datamodule
        data.prepare_data()
        print(series_table(*data.read()))

    def fit(self, **_: Any) -> None:
        """Say what would be trained on, and how."""
        data = self.datamodule
        data.setup("fit")
        print(split_table(data))
        print(go_on(self.raw_args[1:], data))

    def after_fit(self) -> None:
        """Nothing was trained."""


def series_table(name: str, series: SeriesSet) -> str:
    """The first series of a table: how long they are and what is missing, 80 columns."""
    missing = np.isnan(series.reading)
    lines = [f"\n{name}: {series.counted()}, a row {every(series.step)}", ""]
    lines.append(f"{'series':<32}{'from':<18}{'rows':>8}{'missing':>9}{'mean':>12}")
    for s in range(min(SHOWN, len(series))):
        cells = slice(series.offset[s], series.offset[s + 1])
        there = series.reading[cells][~missing[cells]]
        mean = f"{there.mean():.4g}" if there.size else "-"
        lines.append(
            f"{series.name(s)[:31]:<32}{series.stamp(series.first_tick[s]):<18}"
            f"{series.length[s]:>8,}{int(missing[cells].sum()):>9,}{mean:>12}"
        )
    if len(series) > SHOWN:
        lines.append(f"and {len(series) - SHOWN:,} more")
    return "\n".join(lines)


def split_table(data: Any) -> str:
    """From when to when the splits are, and the windows that they hold."""
    lines = ["", f"{'split':<12}{'predicted from':<18}{'to':<18}{'windows':>12}"]
    for split, windows in data.windows.items():
        if split == "predict":
            continue
        ticks = windows.series.tick_of(windows.cell) + windows.length
        ends = ticks.min(), ticks.max() + windows.horizon - 1
        first, last = map(windows.series.stamp, ends)
        lines.append(f"{split:<12}{first:<18}{last:<18}{len(windows):>12,}")
    return "\n".join(lines)


def go_on(options: list[str], data: SeriesDataModule) -> str:
    """The settings as a file for --config, and the command that trains."""
    settings: dict[str, Any] = {}
    roles: Roles = data.roles
    if roles != GEPIII_ROLES:
        settings["timestamp"] = roles.timestamp
        if roles.time_format is not None:
            settings["time_format"] = roles.time_format
        if roles.wide:
            settings["layout"] = "wide"
        else:
            settings |= {"id": list(roles.id), "target": roles.target}
        if roles.series is not None:
            settings["series"] = list(roles.series)
    settings["covariates"] = list(data.covariates)
    if data.known:
        settings["known"] = list(data.known)
    settings |= {"window": data.window, "horizon": data.horizon}
    text = yaml.safe_dump({"data": settings}, sort_keys=False, default_flow_style=None)
    python, script = short_path(Path(sys.executable)), short_path(ROOT / "train.py")
    command = shlex.join([python, script, *options])
    return f"\nas a file for --config:\n{text}\ngo on with:\n  {command}"
