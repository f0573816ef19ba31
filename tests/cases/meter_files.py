"""Tiny meter files, and what a run made of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pacsv
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data.windows import Batch
from tests.conftest import INPUTS, Run

ROOT = Path(__file__).parents[2]
HEADER = "timestamp,building_id,meter,meter_reading,air_temperature"
AIR = ["--data.covariates", "[air_temperature]"]
A04 = ["--data.weather_path", INPUTS / "A04_weather_train.csv"]
A04 += ["--data.metadata_path", INPUTS / "A04_building_metadata.csv", *AIR]
SIX = [10, 11, 12, 13, 14, 15]
RunTrain = Callable[..., Run]


def rows(
    readings: Any, start: str = "2016-01-01 00", building: object = 1, air: object = 5
) -> list[str]:
    """Lines of a meter file, an hour each."""
    first = np.datetime64(start.replace(" ", "T"), "h")
    stamps = [
        str(first + np.timedelta64(n, "h")).replace("T", " ") + ":00:00"
        for n in range(len(readings))
    ]
    return [
        f"{stamp},{building},0,{reading},{air}"
        for stamp, reading in zip(stamps, readings, strict=True)
    ]


GOOD = "\n".join([HEADER, *rows(SIX)]) + "\n"


def write(path: Path, *parts: list[str], header: str = HEADER) -> Path:
    """A meter file of `parts`."""
    lines = [header, *(line for part in parts for line in part)]
    path.write_text("\n".join(lines) + "\n")
    return path


def hours(text: str) -> int:
    return int(np.datetime64(text.replace(" ", "T"), "h").astype(np.int64))


def batches(r: Run, split: str = "train") -> Batch:
    """All windows of a split as the model sees them, by series and time."""
    loader = getattr(r.data, f"{split}_dataloader")()
    whole = Batch(*(torch.cat(parts) for parts in zip(*loader, strict=True)))
    order = whole.cell.argsort()
    return Batch(*(part[order] for part in whole))


def predictions(r: Run) -> dict[str, list[Any]]:
    return pacsv.read_csv(r.folder / "predictions.csv").to_pydict()


def scores(r: Run) -> dict[str, list[float]]:
    """Everything that the run logged, by tag."""
    events = EventAccumulator(str(r.folder)).Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def losses_are_finite(r: Run) -> bool:
    logged = scores(r)
    return all(
        logged[tag] and np.isfinite(logged[tag]).all()
        for tag in ("train/loss", "val/rmsle", "test/rmsle")
    )


def same_data(left: Run, right: Run) -> bool:
    """Equal series, windows and forecasts, to the last bit."""
    a, b = left.data.windows["train"], right.data.windows["train"]
    names = ("first_tick", "offset", "reading", "covariates")
    return (
        a.series.labels() == b.series.labels()
        and all(
            np.array_equal(getattr(a.series, name), getattr(b.series, name), equal_nan=True)
            for name in names
        )
        and np.array_equal(a.cell, b.cell)
        and predictions(left) == predictions(right)
    )
