"""Each test of a run leaves its report, and one process alone writes it."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from model.training.callbacks.report import ReportPage
from model.training.callbacks.scores import ScoreTable
from tests.conftest import INPUTS, Run, one_file
from tests.model.training.parsed import Parsed

Runner = Callable[..., Run]
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]


def pictures(folder: Path) -> dict[str, int]:
    """Tag -> step of the report's pictures in TensorBoard; all can be opened."""
    found = EventAccumulator(str(folder), size_guidance={"images": 0})
    found.Reload()
    steps = {}
    for tag in found.Tags()["images"]:
        if tag.startswith("test_report/"):
            (event,) = found.Images(tag)
            image = Image.open(BytesIO(event.encoded_image_string))
            assert len(np.unique(np.asarray(image))) > 5, "it is blank"
            steps[tag.removeprefix("test_report/")] = event.step
    return steps


def test_training_ends_with_a_report(run: Runner) -> None:
    done = run(*NINE)
    path = done.folder / "report.html"
    assert f"report: {path}" in done.text
    found = Parsed(path.read_text(encoding="utf-8"))
    table = found.table("S4ConvD", "persistence")
    assert "All 9 readings" in table
    (printed,) = (line for line in done.text.splitlines() if line.startswith("all   "))
    assert ["all", "9", *table["Relative error (RMSLE)"]] == printed.split()
    tags = ["forecasts_typical", "error_by_hour", "error_by_weekday"]  # 9 temperatures are few
    assert pictures(done.folder) == dict.fromkeys(tags, 2)  # the last of three steps


def test_a_test_leaves_a_report_of_its_own(run: Runner) -> None:
    trained = run(*NINE)
    done = run("test", "--ckpt_path", trained.best, *NINE)
    assert done.folder != trained.folder
    assert (done.folder / "report.html").read_text() == (trained.folder / "report.html").read_text()
    assert pictures(done.folder).keys() == pictures(trained.folder).keys()


def test_a_part_of_the_test_has_a_report(run: Runner) -> None:
    """8 of 9 windows: a baseline is held against other rows, or a series without any is drawn."""
    done = run(*NINE, "--trainer.limit_test_batches=2")
    assert done.code == 0, done.text
    text = Parsed((done.folder / "report.html").read_text(encoding="utf-8")).text
    assert "All 8 readings" in text


def test_no_report_where_there_is_no_test(run: Runner) -> None:
    done = run("validate", "--ckpt_path", run(*NINE).best, *NINE)
    assert not (done.folder / "report.html").exists()


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    """Two write one file at once."""
    table = ScoreTable()
    table.rows.add(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    trainer: Any = SimpleNamespace(is_global_zero=False, log_dir=str(tmp_path), logger=None)
    module: Any = None
    table.on_test_epoch_end(trainer, module)
    ReportPage(table).on_test_epoch_end(trainer, module)
    assert table.outcome is None
    assert not list(tmp_path.iterdir())
