"""Each meter has its own numbers, and those that nobody knows share some."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from model import meters
from model.meters import MeterFeatures
from model.training.module import S4ConvDModule
from tests.conftest import Run, assert_refused, load_checkpoint, one_file

Runner = Callable[..., Run]
KEYS = torch.tensor([7, -5, 2**62, -(2**62), 7])
UNKNOWN = torch.tensor([0, 8, 2**63 - 1, -(2**63)])


@pytest.fixture
def learnt() -> MeterFeatures:
    torch.manual_seed(0)
    module = MeterFeatures(3).eval()
    module.learn(KEYS)
    return module


def test_a_meter_keeps_its_numbers(learnt: MeterFeatures) -> None:
    assert learnt.weight.shape == (5, 3)
    found = learnt(KEYS)
    assert torch.equal(found[0], found[4])
    assert len(found.unique(dim=0)) == 4
    assert torch.equal(learnt(KEYS.flip(0)), found.flip(0))


def test_unknown_meters_share_theirs(learnt: MeterFeatures) -> None:
    assert torch.equal(learnt(UNKNOWN), learnt.weight[:1].expand(4, -1))
    nobody = MeterFeatures(3)
    assert torch.equal(nobody(UNKNOWN), torch.zeros(4, 3))


def test_those_are_learnt_too(learnt: MeterFeatures, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a new meter is told something that no training has seen."""
    monkeypatch.setattr(meters, "HIDDEN", 0.25)
    learnt.train()
    found = learnt(KEYS[:1].expand(10_000))
    found.sum().backward()
    share = float((found == learnt.weight[0]).all(1).float().mean())
    assert share == pytest.approx(0.25, abs=0.02)
    assert learnt.weight.grad is not None
    assert learnt.weight.grad[0].ne(0).all()


def test_they_travel_in_the_state_dict(learnt: MeterFeatures) -> None:
    other = MeterFeatures(3).eval()
    other.make_room(4)
    other.load_state_dict(learnt.state_dict())
    assert torch.equal(other(KEYS), learnt(KEYS))


# -- through train.py --------------------------------------------------------------------------

READINGS = {1: [10, 11, 12, 13, 14, 15, 16], 2: [5, 9, 5, 9, 5, 9, 5]}


def write(path: Path, readings: dict[int, list[int]]) -> Path:
    """A file of hourly readings by building."""
    rows = [
        f"2016-01-01 {h:02}:00:00,{building},0,{value},5.0"
        for building, values in readings.items()
        for h, value in enumerate(values)
    ]
    head = "timestamp,building_id,meter,meter_reading,air_temperature"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


OPTIONS = ["--data.covariates=[air_temperature]", "--model.meter_features=2"]


def forecasts(run: Run) -> dict[str, list[float]]:
    lines = (run.folder / "predictions.csv").read_text().splitlines()[1:]
    found: dict[str, list[float]] = {}
    for line in lines:
        building, *_, value = line.split(",")
        found.setdefault(building, []).append(float(value))
    return found


def test_a_checkpoint_finds_a_meter_in_another_file(run: Runner, tmp_path: Path) -> None:
    """By its name, not by its place; a new one is forecast as well."""
    path = write(tmp_path / "two.csv", READINGS)
    done = run(*one_file(path), *OPTIONS, "--model.lr=0.05", "--trainer.max_epochs=5")
    assert done.code == 0, done.text
    state = load_checkpoint(done.best)["state_dict"]
    keys = state["forecaster.meters.known"]
    assert keys.tolist() == sorted(done.data.windows["train"].series.keys().tolist())
    assert len(state["forecaster.meters.weight"].unique(dim=0)) == 3
    other = write(tmp_path / "turned.csv", {2: READINGS[1], 9: READINGS[2]})
    both = run("predict", "--ckpt_path", done.best, *one_file(other), *OPTIONS)
    assert both.code == 0, both.text
    own, moved = forecasts(done), forecasts(both)
    assert moved["2"] != pytest.approx(own["1"], rel=1e-5)  # the readings of 1 as those of 2
    rebuilt = S4ConvDModule.load_from_checkpoint(done.best).eval()
    (batch, *_) = both.data.predict_dataloader()
    with torch.no_grad():
        of_nobody = rebuilt(batch.reading, batch.covariates, batch.minute)
        known = rebuilt.forecast(batch)
    new = ~torch.isin(batch.key, keys)
    assert 0 < new.sum() < len(new)
    assert torch.equal(known[new], of_nobody[new])
    assert not torch.equal(known[~new], of_nobody[~new])


def test_a_resumed_run_goes_on_with_them(run: Runner, tmp_path: Path) -> None:
    path = write(tmp_path / "two.csv", READINGS)
    options = [*one_file(path), *OPTIONS, "--model.optimizer=sgd", "--model.lr=0.1"]
    once = run(*options, "--trainer.max_epochs=1")
    twice = run(*options, "--trainer.max_epochs=2", "--ckpt_path", once.last)
    assert twice.code == 0, twice.text
    name = "forecaster.meters.weight"
    before, after = (load_checkpoint(done.last)["state_dict"][name] for done in (once, twice))
    assert before.shape == after.shape
    assert not torch.equal(before, after)


def test_a_negative_number_is_refused(run: Runner, tmp_path: Path) -> None:
    path = write(tmp_path / "two.csv", READINGS)
    refused = run(*one_file(path), OPTIONS[0], "--model.meter_features=-1")
    assert_refused(refused, "--model.meter_features", "0 or more")


def test_keys_follow_from_names_alone(run: Runner, tmp_path: Path) -> None:
    """Checkpoints hold them, so they must not change from version to version."""
    path = write(tmp_path / "two.csv", READINGS)
    series = run(*one_file(path), OPTIONS[0]).data.windows["train"].series
    assert series.keys().dtype == np.int64
    assert series.keys().tolist() == [9058474821545662747, -6407016180777851720]
