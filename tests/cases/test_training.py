"""Group (b) of the cases: training, scoring and what a checkpoint holds, as a user runs them."""

import csv
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import model.training.cli as cli
from model.losses import rmsle, signed_log1p
from model.training.module import S4ConvDModule
from tests.conftest import INPUTS, TINY, Run, one_file

Runner = Callable[..., Run]
AIR = "--data.covariates=[air_temperature]"
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), AIR]


def hourly_file(path: Path, readings: list[float]) -> list[str]:
    """Options that name a new file of one building, for all splits."""
    lines = ["timestamp,building_id,meter,meter_reading,air_temperature"]
    for hour, reading in enumerate(readings):
        day, of_day = divmod(hour, 24)
        lines.append(f"2016-01-{day + 1:02} {of_day:02}:00:00,1,0,{reading},{5 + hour % 7}")
    path.write_text("\n".join(lines) + "\n")
    return [*one_file(path), AIR]


def wave(hours: int) -> list[float]:
    return [
        round(100 + 40 * math.sin(hour / 24 * 2 * math.pi) + hour % 5, 2) for hour in range(hours)
    ]


def predicted(run: Run) -> dict[str, float]:
    """Timestamp -> forecast; a timestamp that comes twice fails."""
    with (run.folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {row["timestamp"]: float(row["prediction"]) for row in rows}
    assert len(found) == len(rows)
    return found


def metric(run: Run, name: str = "test/rmsle") -> float:
    return run.cli.trainer.callback_metrics[name].item()


def set_bias(network: Any, value: float) -> None:
    """Make the network's output `value`, whatever goes in."""
    with torch.no_grad():
        network.decoder.weight.zero_()
        network.decoder.bias.fill_(value)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, list[int]]]:
    """Loss and window names of every training step, as they happen."""
    seen: list[tuple[float, list[int]]] = []
    step = S4ConvDModule.training_step

    def recorded(self: S4ConvDModule, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = step(self, batch, batch_idx)
        seen.append((loss.item(), batch.cell.tolist()))
        return loss

    monkeypatch.setattr(S4ConvDModule, "training_step", recorded)
    return seen


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[list[torch.Tensor]]:
    """All gradients of every training step."""
    seen: list[list[torch.Tensor]] = []

    def record(self: S4ConvDModule) -> None:
        seen.append([p.grad.clone() for p in self.parameters() if p.grad is not None])

    monkeypatch.setattr(S4ConvDModule, "on_after_backward", record)
    return seen


def start_at(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Let training begin with a network whose output is `value`."""
    monkeypatch.setattr(
        S4ConvDModule, "on_fit_start", lambda self: set_bias(self.forecaster.network, value)
    )


# -- B01, B02: the loss ----------------------------------------------------------------------------


def test_loss_at_a_perfect_forecast_has_a_finite_gradient() -> None:
    """B01: the square root at 0 gives loss 0 and gradient NaN."""
    prediction = torch.tensor([0.5, 0.7], requires_grad=True)
    loss = rmsle(signed_log1p(prediction), prediction.detach().clone())
    loss.backward()
    assert loss.item() <= 1e-3
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()


def test_training_survives_a_perfect_forecast(
    run: Runner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list,
    gradients: list[list[torch.Tensor]],
) -> None:
    """B01: all-zero night readings are forecast exactly, and the weights become NaN."""
    start_at(monkeypatch, 0.0)  # relative to the last reading: exact for a constant series
    done = run(*hourly_file(tmp_path / "night.csv", [0.0] * 20), "--model.dropout=0")
    assert done.code == 0
    assert steps[0][0] <= 1e-3
    assert len(gradients) == len(steps) == 4
    assert all(g.isfinite().all() for step in gradients for g in step)
    assert all(math.isfinite(loss) for loss, _ in steps)
    assert all(p.isfinite().all() for p in done.cli.model.parameters())


def test_loss_of_negative_forecasts_has_a_gradient() -> None:
    """B02: a clamp at 0 in the loss leaves negative forecasts without a gradient."""
    prediction = torch.full((8,), -0.5, requires_grad=True)
    rmsle(signed_log1p(prediction), torch.full((8,), 100.0)).backward()
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()
    assert (prediction.grad < 0).all()  # a step down the gradient raises the forecast


def test_training_leaves_negative_forecasts(
    run: Runner,
    monkeypatch: pytest.MonkeyPatch,
    steps: list,
    gradients: list[list[torch.Tensor]],
) -> None:
    """B02: a model whose outputs are all negative never trains, and its loss looks excellent."""
    start_at(monkeypatch, -100.5)  # + the constant 100 of the file: every forecast is -0.5
    done = run(
        *one_file(INPUTS / "B02_constant100.csv"),
        AIR,
        "--model.transform=none",
        "--model.dropout=0",
        "--model.lr=0.05",
        "--data.batch_size=8",
        "--trainer.max_epochs=8",
    )
    assert done.code == 0
    losses = [loss for loss, _ in steps]
    assert losses[0] == pytest.approx(100.5, rel=1e-5)  # the readings deviate by 1, by convention
    assert len(losses) == 56
    assert losses[-1] < losses[0] - 0.5
    for step in gradients:
        assert all(g.isfinite().all() for g in step)
        assert any((g != 0).any() for g in step)


# -- B04, B05: the last batch ----------------------------------------------------------------------


def test_last_batch_of_one_window(run: Runner, steps: list) -> None:
    """B04: squeeze() drops the axis of a batch of one: a crash, or a window left out."""
    fitted = run(*NINE, "--data.batch_size=8")
    assert fitted.code == 0
    assert [len(cells) for _, cells in steps] == [8, 1]
    assert len(predicted(fitted)) == 9
    for subcommand in ("validate", "test", "predict"):
        assert run(subcommand, *NINE, "--ckpt_path", fitted.best, "--data.batch_size=8").code == 0
    other = run("predict", *NINE, "--ckpt_path", fitted.best, "--data.batch_size=3")
    assert predicted(other) == pytest.approx(predicted(fitted), rel=1e-6)


def test_scores_do_not_depend_on_the_batch_size(run: Runner) -> None:
    """B05: drop_last or a mean of batch means makes a score depend on the batch size."""
    best = run(*NINE).best
    scores: dict[str, list[float]] = {"validate": [], "test": []}
    for size in (1, 4, 9):
        for subcommand, prefix in (("validate", "val/"), ("test", "test/")):
            done = run(subcommand, *NINE, "--ckpt_path", best, f"--data.batch_size={size}")
            scores[subcommand] += [metric(done, prefix + name) for name in ("rmsle", "mae", "rmse")]
        rows = predicted(run("predict", *NINE, "--ckpt_path", best, f"--data.batch_size={size}"))
        assert len(rows) == 9
        # The score is that of the file's rows: no row was left out of it.
        logs = [
            math.log1p(rows[f"2016-01-01 {h:02}:00:00"]) - math.log1p(10 + h) for h in range(4, 13)
        ]
        assert scores["test"][-3] == pytest.approx(
            math.sqrt(sum(e * e for e in logs) / 9), rel=1e-6
        )
    for found in scores.values():
        assert found[3:6] == pytest.approx(found[:3], rel=1e-6)
        assert found[6:9] == pytest.approx(found[:3], rel=1e-6)
    assert scores["validate"] == pytest.approx(scores["test"], rel=1e-9)


# -- B06, B12: the checkpoint ----------------------------------------------------------------------


def leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from leaves(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def test_checkpoint_holds_plain_types_only(run: Runner) -> None:
    """B06: torch >= 2.6 refuses a checkpoint that carries other objects."""
    fitted = run(*NINE)
    for name in ("best.ckpt", "last.ckpt"):
        checkpoint = torch.load(Path(fitted.best).with_name(name), weights_only=True)
        kinds = {type(leaf) for leaf in leaves(checkpoint)}
        assert kinds <= {str, int, float, bool, type(None), torch.Tensor}, name
    assert "test RMSLE" in fitted.text  # the test after the fit loads the best checkpoint


def test_checkpoint_alone_rebuilds_the_model(run: Runner) -> None:
    """B12: a checkpoint that lacks hyperparameters cannot be loaded without repeating flags."""
    fitted = run(*NINE, "--model.relative=false", "--model.blocks=2")
    rebuilt = S4ConvDModule.load_from_checkpoint(fitted.best).eval()
    assert (rebuilt.hparams.window, rebuilt.hparams.covariates) == (4, ["air_temperature"])
    scaling = fitted.data.scaling
    for name in ("reading_mean", "reading_std", "covariate_mean", "covariate_std"):
        expected = torch.tensor(getattr(scaling, name))
        assert torch.equal(getattr(rebuilt.forecaster, name), expected), name
    (batch,) = [b for b in fitted.data.test_dataloader() if 0 in b.cell]
    with torch.no_grad():
        forecast = rebuilt(batch.reading, batch.covariates, batch.minute).flatten().tolist()
    assert forecast == pytest.approx(list(predicted(fitted).values())[:4], rel=1e-6)


@pytest.mark.parametrize(
    ("flag", "value", "trained"),
    [("data.window", "5", "4"), ("model.channels", "8", "4"), ("model.relative", "False", "True")],
)
def test_contradicting_the_checkpoint_is_refused(
    run: Runner, flag: str, value: str, trained: str
) -> None:
    """B12: a flag that contradicts the checkpoint is dropped, or ends in a size mismatch."""
    best = run(*NINE).best
    refused = run("test", *NINE, "--ckpt_path", best, f"--{flag}={value}")
    assert refused.code == 2
    assert f"--{flag} is {value}" in refused.text
    assert f"was trained with {trained};" in refused.text
    assert "Traceback" not in refused.text


# -- B08: one seed ---------------------------------------------------------------------------------


def test_one_seed_gives_one_run(run: Runner, tmp_path: Path, steps: list) -> None:
    """B08: sanity-check steps or chance change the shuffle under one seed."""
    data = hourly_file(tmp_path / "wave.csv", wave(54))
    runs = []
    changes = ("", "", "trainer.num_sanity_val_steps=0", "model.channels=6", "seed_everything=2")
    for change in changes:
        options = [f"--{change}"] if change else []
        steps.clear()
        assert run(*data, "--trainer.max_epochs=2", "--model.dropout=0.2", *options).code == 0
        runs.append(list(steps))
    first, again, without_sanity, _, other_seed = runs
    orders = [[cells for _, cells in seen] for seen in runs]
    assert sorted(chain(*orders[0][:13])) == list(range(50))
    assert first == again  # losses bit by bit, and the windows
    assert without_sanity == first
    assert orders[3] == orders[0]  # a model that draws more numbers sees the same windows
    assert orders[0][:13] != orders[0][13:]  # each epoch has its own order
    assert orders[4][:13] != orders[0][:13]
    assert other_seed != first


# -- B09, B10, B11: devices ------------------------------------------------------------------------


@pytest.mark.gpu
def test_gpu_memory_does_not_climb(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B09: logged tensors that keep their graphs fill the GPU epoch by epoch."""
    allocated: list[int] = []
    monkeypatch.setattr(
        S4ConvDModule,
        "on_train_epoch_end",
        lambda self: allocated.append(torch.cuda.memory_allocated()),
    )
    data = hourly_file(tmp_path / "wave.csv", wave(204))
    options = ("--trainer.max_epochs=10", "--trainer.accelerator=gpu", "--trainer.devices=1")
    assert run(*data, *options).code == 0
    assert len(allocated) == 10
    assert allocated[1] > 0
    assert abs(allocated[9] - allocated[1]) < 2**20


@pytest.mark.slow
def test_two_processes_score_and_predict_each_window_once(run: Runner, tmp_path: Path) -> None:
    """B10: a distributed sampler repeats windows, and the score of two devices is another one."""
    data = hourly_file(tmp_path / "wave.csv", wave(25))
    settings = TINY | {
        "runs": str(tmp_path / "two"),
        "trainer.devices": "2",
        "trainer.strategy": "ddp",
    }
    command = [sys.executable, str(cli.ROOT / "train.py"), "fit", *data]
    command += [f"--{name}={value}" for name, value in settings.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "two").iterdir()
    best = str(folder / "checkpoints" / "best.ckpt")
    alone = run("test", *data, "--ckpt_path", best)
    scores = {}
    for events in folder.glob("events.*"):
        read = EventAccumulator(str(events)).Reload()
        scores |= {tag: read.Scalars(tag)[-1].value for tag in read.Tags()["scalars"]}
    for name in ("rmsle", "mae", "rmse"):
        assert scores[f"test/{name}"] == pytest.approx(metric(alone, f"test/{name}"), rel=1e-6)
    with (folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({row["timestamp"] for row in rows}) == 21
    assert {row["timestamp"]: float(row["prediction"]) for row in rows} == pytest.approx(
        predicted(run("predict", *data, "--ckpt_path", best)), rel=1e-6
    )


def test_bfloat16_at_a_window_of_48(run: Runner, tmp_path: Path, steps: list) -> None:
    """B11: half precision reaches the FFT, which knows powers of two alone, or the filter."""
    data = [*hourly_file(tmp_path / "wave.csv", wave(96)), "--data.window=48"]
    # Without the last reading to lean on, the forecast is the network's own.
    data += ["--model.channels=16", "--model.state_size=16", "--model.relative=false"]
    fitted = run(*data, "--trainer.max_epochs=2", "--trainer.precision=bf16-mixed")
    assert fitted.code == 0
    assert len(steps) == 24
    assert all(math.isfinite(loss) for loss, _ in steps)
    forecasts = [
        predicted(run("predict", *data, "--ckpt_path", fitted.best, f"--trainer.precision={p}"))
        for p in ("bf16-mixed", "32-true")
    ]
    assert len(forecasts[1]) == 48
    assert forecasts[0] == pytest.approx(forecasts[1], rel=2e-2)
    assert forecasts[0] != forecasts[1]  # bfloat16 did run
