"""Group (e) of the cases: what a run leaves for TensorBoard, read back as TensorBoard reads it."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, metadata

from model.training.callbacks.charts import CHARTS
from model.training.callbacks.hparams import METRICS, SCORES, flatten
from model.training.callbacks.panels import ForecastPanels
from tests.conftest import INPUTS, Run, one_file, second_kernel

Runner = Callable[..., Run]
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
OTHER = [
    "--model.lr=0.02",
    "--model.norm=false",
    "--model.optimizer=sgd",
    "--model.dropout=0.2",
    "--seed_everything=7",
    "--data.utc_offset={0: 5}",
    "--data.meters=[0]",
    "--trainer.gradient_clip_val=1.0",
    "--trainer.max_steps=2",
]
TIMES = ["data", "operator", "forward", "both_gradients", "optimizer", "rest", "step"]


def events(folder: Path) -> EventAccumulator:
    """All that the event files of one folder hold."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    found.Reload()
    return found


def steps(found: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in found.Scalars(tag)]


def last(found: EventAccumulator, tag: str) -> float:
    return found.Scalars(tag)[-1].value


def plugins(found: EventAccumulator) -> set[str]:
    """The dashboards that the event files fill."""
    return {name for name in ("hparams", "custom_scalars", "histograms") if _has(found, name)}


def _has(found: EventAccumulator, plugin: str) -> bool:
    try:
        return bool(found.PluginTagToContent(plugin))
    except KeyError:
        return False


def settings(found: EventAccumulator) -> dict[str, Any]:
    """Name -> value of the HPARAMS tab."""
    content = found.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    start = metadata.parse_session_start_info_plugin_data(content)
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def tab_metrics(found: EventAccumulator) -> dict[str, float]:
    """Name -> value of the HPARAMS tab, which shows the last scalar of the same name."""
    content = found.PluginTagToContent("hparams")[metadata.EXPERIMENT_TAG]
    experiment = metadata.parse_experiment_plugin_data(content)
    assert {info.name for info in experiment.hparam_infos} == set(settings(found))
    return {info.name.tag: last(found, info.name.tag) for info in experiment.metric_infos}


def status(found: EventAccumulator) -> int:
    content = found.PluginTagToContent("hparams")[metadata.SESSION_END_INFO_TAG]
    return metadata.parse_session_end_info_plugin_data(content).status


def layouts(found: EventAccumulator) -> list[dict[str, list[str]]]:
    """Every custom-scalars layout that was written: chart -> tags."""
    if "custom_scalars__config__" not in found.Tags()["tensors"]:
        return []
    charts = []
    for event in found.Tensors("custom_scalars__config__"):
        layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
        of_all = [chart for category in layout.category for chart in category.chart]
        charts.append({chart.title: list(chart.multiline.tag) for chart in of_all})
    return charts


def panel_steps(found: EventAccumulator) -> list[int]:
    return [event.step for event in found.Images("val_forecasts/electricity")]


def test_hparams_hold_settings_and_final_metrics(run: Runner) -> None:
    """E01: the HPARAMS tab is empty, or shows a metric that is not the real, final one."""
    done = run(*NINE, "--trainer.max_epochs=2", "--model.lr=0.003", "--seed_everything=5")
    found = events(done.folder)
    shown = settings(found)
    assert shown["kernel"] == "pytorch"
    assert (shown["data.window"], shown["model.lr"], shown["seed_everything"]) == (4, 0.003, 5)
    assert (shown["model.norm"], shown["model.init"]) == (True, "s4d_lin")
    metrics = tab_metrics(found)
    assert tuple(metrics) == METRICS
    assert status(found) == api_pb2.STATUS_SUCCESS

    # Another command scores the final weights: what the tab shows must be their score.
    final = done.folder / "checkpoints" / "last.ckpt"
    scored = run("validate", *NINE, f"--ckpt_path={final}").cli.trainer.callback_metrics
    for name in ("val/rmsle", "val/mae", "val/rmse"):
        assert metrics[name] == pytest.approx(scored[name].item(), rel=1e-5)
        assert metrics[name] > 0
    assert 0 < metrics["train/loss"] < 5


def test_hparams_name_the_kernel_that_ran(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """E01: runs of two kernels cannot be told apart in the HPARAMS tab."""
    with second_kernel(monkeypatch) as ran:
        done = run(*NINE, "--kernel=elsewhere")
    assert settings(events(done.folder))["kernel"] == "elsewhere"
    assert ran == {"elsewhere"}


@pytest.mark.usefixtures("keeps_sigint")
def test_hparams_of_an_interrupted_run(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E01: after Ctrl-C the HPARAMS tab has no run, or a run without real metrics."""
    seen: dict[str, float] = {}

    def interrupt(self: Any, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 7:
            seen.update({name: float(value) for name, value in trainer.callback_metrics.items()})
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ForecastPanels, "on_train_batch_start", interrupt)
    assert run(*NINE, "--trainer.max_epochs=5").code == 1
    found = events(tmp_path / "runs" / "version_0")
    assert settings(found)["kernel"] == "pytorch"
    assert steps(found, "val/rmsle") == [2, 5]
    assert status(found) == api_pb2.STATUS_FAILURE
    metrics = tab_metrics(found)
    assert tuple(metrics) == METRICS
    scores = {name: metrics[name] for name in SCORES}
    assert scores == pytest.approx({name: seen[name] for name in SCORES}, rel=1e-5)
    assert metrics["steady/step_ms"] > metrics["steady/operator_ms"] > 0


def test_every_run_has_the_same_settings(run: Runner) -> None:
    """E02: a setting of a later run has no column, since the first run did not write it."""
    plain, other = (settings(events(run(*NINE, *more).folder)) for more in ([], OTHER))
    assert set(plain) == set(other)
    changed = {name for name in plain if plain[name] != other[name]}
    assert changed == {word.lstrip("-").split("=")[0] for word in OTHER}
    assert "trainer.precision" in plain
    assert "model.weight_decay" in plain


def test_settings_that_are_mappings_stay_one() -> None:
    """E02: a mapping as a value, such as utc_offset by site, adds columns that others lack."""
    one = flatten({"seed": 1, "data": {"offset": {0: 5, 1: 6}, "root": None, "on": False}})
    two = flatten({"seed": True, "data": {"offset": 5, "root": Path("a"), "on": True}})
    assert one == {"seed": 1, "data.offset": "{0: 5, 1: 6}", "data.root": "None", "data.on": False}
    assert two == {"seed": True, "data.offset": 5, "data.root": "a", "data.on": True}


def test_x_is_the_optimiser_step(run: Runner) -> None:
    """E03: train and validation are drawn over different x, or lose points under one tag."""
    found = events(run(*NINE, "--trainer.max_epochs=2").folder)
    assert steps(found, "train/loss") == steps(found, "train/lr") == [0, 1, 2, 3, 4, 5]
    assert steps(found, "val/rmsle") == steps(found, "val/mae") == [2, 5]
    assert panel_steps(found) == [2, 5]
    times = [*(f"time/{name}_ms" for name in TIMES), "throughput/windows_per_s"]
    times += [f"bandwidth/{path}_gb_s" for path in ("forward", "both_gradients")]
    for tag in times:
        assert steps(found, tag) == [0, 1, 2, 3, 4, 5]
    assert steps(found, "steady/step_ms") == steps(found, "steady/operator_ms") == [5]
    assert set(found.Tags()["scalars"]) == {
        *("train/loss", "train/lr", "val/rmsle", "val/mae", "val/rmse"),
        *("test/rmsle", "test/mae", "test/rmse"),
        *("steady/step_ms", "steady/operator_ms"),
        *times,
    }


def test_tensorboard_starts() -> None:
    """E04: the TensorBoard of our requirements needs pkg_resources, which setuptools lost."""
    command = [sys.executable, "-m", "tensorboard.main", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    major, minor = done.stdout.split()[-1].split(".")[:2]
    assert (int(major), int(minor)) >= (2, 21)


def test_numpy_values_are_written(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """E05: what numpy 2 removed breaks writing scalars, text or hparams."""

    def log(self: Any, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        module.log("train/numpy", np.float32(0.25))
        writer = trainer.logger.experiment
        writer.add_scalar("train/direct", np.float32(0.5), index)
        writer.add_text("note", str(np.float32(0.75)), index)

    monkeypatch.setattr(ForecastPanels, "on_train_batch_end", log)
    found = events(run(*NINE).folder)
    for tag, value in (("train/numpy", 0.25), ("train/direct", 0.5)):
        assert [event.value for event in found.Scalars(tag)] == [value] * 3
        assert type(last(found, tag)) is float
    assert found.Tensors("note/text_summary")[-1].tensor_proto.string_val == [b"0.75"]
    assert settings(found)["kernel"] == "pytorch"


def test_no_empty_dashboards(run: Runner) -> None:
    """E06: a graph or an hp_metric that nothing stands behind."""
    found = events(run(*NINE).folder)
    assert plugins(found) == {"hparams", "custom_scalars"}
    tags = found.Tags()
    assert not tags["graph"]
    assert not tags["histograms"]
    assert tags["tensors"] == ["custom_scalars__config__"]
    assert "hp_metric" not in tags["scalars"]
    assert "hp_metric" not in tab_metrics(found)
    assert "hp_metric" not in settings(found)
    for tag in tags["scalars"]:
        assert -1 not in [event.value for event in found.Scalars(tag)], tag


CURVES = {
    "usual": [],
    "few": ["--trainer.limit_val_batches=0", "--trainer.log_every_n_steps=50"],
    "late": ["--trainer.check_val_every_n_epoch=2"],
}


@pytest.mark.parametrize("curves", CURVES)
def test_the_layout_shows_curves_that_exist(run: Runner, curves: str) -> None:
    """E06: the custom-scalars tab opens with empty charts, without some, or twice with the same."""
    found = events(run(*NINE, "--trainer.max_epochs=3", *CURVES[curves]).folder)
    (charts,) = layouts(found)
    drawn = {tag for tags in charts.values() for tag in tags}
    assert drawn <= set(found.Tags()["scalars"])
    absent = {"time/input_grad_ms", "time/weight_grad_ms"}
    absent |= {"bandwidth/input_grad_gb_s", "bandwidth/weight_grad_gb_s"}
    if curves == "few":
        absent |= {"val/rmsle", "val/mae", "val/rmse", "train/loss"}
    assert drawn == {tag for of in CHARTS.values() for tags in of.values() for tag in tags} - absent
    assert all(charts.values())
    assert "Where does a step go? (ms)" in charts
    assert "The operator, path by path (ms)" not in charts  # PyTorch's backward is one


@pytest.mark.usefixtures("keeps_sigint")
def test_the_layout_of_an_interrupted_run(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E06: a run that ends before its first validation has a layout of curves it never drew."""

    def interrupt(self: Any, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ForecastPanels, "on_train_batch_start", interrupt)
    assert run(*NINE).code == 1
    found = events(tmp_path / "runs" / "version_0")
    (charts,) = layouts(found)
    assert {tag for tags in charts.values() for tag in tags} <= set(found.Tags()["scalars"])
    assert "Errors in the meters' units" not in charts
    assert "The operator, both gradients in one (ms)" in charts


def test_event_files_stay_small(run: Runner, tmp_path: Path) -> None:
    """E07: histograms, graphs or pictures of every step make event files of gigabytes."""
    lines = ["timestamp,building_id,meter,meter_reading,air_temperature"]
    for hour in range(1004):  # 1,000 windows of 4 hours and a target
        when = np.datetime64("2016-01-01T00") + np.timedelta64(hour, "h")
        lines.append(f"{str(when).replace('T', ' ')}:00:00,1,0,{100 + hour % 24},{hour % 30}")
    hours = tmp_path / "hours.csv"
    hours.write_text("\n".join(lines) + "\n")
    options = ["--data.covariates=[air_temperature]", "--data.batch_size=1"]
    few = [f"--trainer.limit_{stage}_batches=9" for stage in ("val", "test", "predict")]
    done = run(*one_file(hours), *options, *few)
    found = events(done.folder)
    assert steps(found, "train/loss") == list(range(1000))
    size = sum(path.stat().st_size for path in done.folder.glob("events*"))
    assert 0 < size < 1_000_000  # the case allows 5 MB
    assert not found.Tags()["histograms"]
    assert panel_steps(found) == [999]


def test_one_folder_of_events_a_run(run: Runner, tmp_path: Path) -> None:
    """E09: a run appears as several runs, one for each curve or stage."""
    done = run(*NINE)
    assert (done.folder / "predictions.csv").is_file()
    holders = {path.parent for path in (tmp_path / "runs").rglob("*tfevents*")}
    assert holders == {done.folder}


def test_printed_command_opens_the_runs(run: Runner, tmp_path: Path) -> None:
    """E10: a folder's space or bracket cuts the printed command, so that pasting it fails."""
    runs = tmp_path / "my runs [v1]"
    done = run(*NINE, f"--runs={runs}")
    command = next(line for line in done.text.splitlines() if "tensorboard.main" in line)
    words = shlex.split(command)
    assert words[-2:] == ["--logdir", str(runs)]
    shown = subprocess.run([*words, "--inspect"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "train/loss" in shown.stdout
    assert str(done.folder) in shown.stdout


def test_panels_are_pictures(run: Runner) -> None:
    """Checklist: the forecast panels are blank, of a wrong size, or one is drawn twice."""
    found = events(run(*NINE, "--trainer.max_epochs=4").folder)
    tags = [tag for tag in found.Tags()["images"] if not tag.startswith("test_report/")]
    assert tags == ["val_forecasts/electricity"]
    assert panel_steps(found) == [2, 5, 11]  # epochs 1, 2 and 4, the last one once
    for event in found.Images(tags[0]):
        picture = Image.open(BytesIO(event.encoded_image_string))
        assert picture.size == (event.width, event.height) == (480, 240)
        red, _, blue = np.asarray(picture.convert("RGB"), dtype=int).reshape(-1, 3).T
        assert np.count_nonzero(red - blue > 150) > 50  # the forecast's orange
        assert np.count_nonzero(red < 80) > 50  # the reading's ink


def test_a_resumed_runs_curves_go_on_where_they_stopped(run: Runner) -> None:
    """E03: one run in two files has a gap, or two points at one step."""
    first = run(*NINE, "--trainer.max_epochs=2")
    found = events(run(*NINE, "--trainer.max_epochs=3", "--ckpt_path", str(first.last)).folder)
    for tag in ("train/loss", "train/lr", "time/step_ms"):
        assert steps(found, tag) == [6, 7, 8], tag
    assert steps(found, "val/rmsle") == [8]
