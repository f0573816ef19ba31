"""Every shipped configuration runs, on the data that it is for where they are at hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from data import synthetic
from data.baselines import naive_forecasts
from data.dlinear import dlinear_forecast
from model.training.callbacks.scores import rmsle

ROOT = Path(__file__).parents[1]
CAMBRIDGE = ROOT.parent / "shared" / "data" / "cambridge2019"
ETTH1 = ROOT.parent / "shared" / "data" / "etth1" / "ETTh1.csv"
SHORT = (
    "--trainer.max_steps=2",
    "--trainer.limit_val_batches=2",
    "--trainer.limit_test_batches=2",
    "--trainer.limit_predict_batches=2",
    "--data.window=48",
)


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("contest") / "files"
    synthetic.write(root, buildings=4, sites=2)
    return root


def test_each_configuration_names_its_reason() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        assert path.read_text().startswith("#"), path


def test_gepiii(run, contest) -> None:
    r = run("--config", ROOT / "configs" / "gepiii.yaml", "--data.root", contest, *SHORT)
    assert r.code == 0, r.text
    assert "electricity of buildings 0-104 before 2016-05-20 18:00" in r.text
    assert "from kBTU to kWh" in r.text
    windows = r.data.windows["test"]
    last = windows.series.tick_of(windows.cell).max() + 48
    assert np.datetime64(int(last), "h") == np.datetime64("2016-12-31T23")
    saved = yaml.safe_load((r.folder / "config.yaml").read_text())
    assert saved["data"]["rules"] == "gepiii"


@pytest.mark.parametrize("real", [False, True], ids=["generated", "contest"])
def test_study(run, contest, real) -> None:
    """The study's training, also on the contest's files with their rules."""
    study = ROOT / "configs" / "study.yaml"
    assert yaml.safe_load(study.read_text())["data"]["batch_size"] == 16_384
    files = ("--config", ROOT / "configs" / "gepiii.yaml", "--data.root", contest) if real else ()
    r = run(*files, "--config", study, *SHORT)
    assert r.code == 0, r.text
    assert ("from kBTU to kWh" in r.text) == real
    saved = yaml.safe_load((r.folder / "config.yaml").read_text())
    assert saved["trainer"]["precision"] == "32-true"
    assert saved["model"]["init"] == "published"
    (optimizer,) = r.cli.trainer.optimizers
    assert type(optimizer) is torch.optim.SGD
    for group in optimizer.param_groups:
        assert (group["lr"], group["momentum"], group["weight_decay"]) == (1e-5, 0.9, 0)
    network = r.cli.model.forecaster.network
    assert network.encoder.in_features == 4
    assert network.norm is None
    assert torch.load(r.last, weights_only=True)["global_step"] == 2


@pytest.mark.skipif(not CAMBRIDGE.is_dir(), reason="the Cambridge files are not at hand")
def test_cambridge(run) -> None:
    """The protocol's window counts and the published scores of the naive forecasts."""
    r = run("--config", ROOT / "configs" / "cambridge.yaml", "--data.root", CAMBRIDGE, *SHORT)
    assert r.code == 0, r.text
    counts = [len(r.data.windows[split]) for split in ("train", "val", "test")]
    assert counts == [231_563, 67_968, 100_331]
    windows = r.data.windows["test"]
    actual = windows.targets()
    scores = {name: rmsle(f, actual) for name, f in naive_forecasts(windows).items()}
    assert scores["persistence"] == pytest.approx(0.203, abs=5e-4)
    assert scores["same hour yesterday"] == pytest.approx(0.407, abs=5e-4)
    assert scores["same hour last week"] == pytest.approx(0.378, abs=5e-4)


@pytest.mark.skipif(not CAMBRIDGE.is_dir(), reason="the Cambridge files are not at hand")
def test_cambridge_a_day_ahead(run) -> None:
    """The second file changes what it names, and leaves the rest of the first."""
    hour, day = (ROOT / "configs" / f"cambridge{name}.yaml" for name in ("", "_day"))
    r = run("--config", hour, "--config", day, "--data.root", CAMBRIDGE, *SHORT)
    assert r.code == 0, r.text
    counts = [len(r.data.windows[split]) for split in ("train", "val", "test")]
    assert counts == [230_022, 66_864, 98_445]
    forecaster = r.cli.model.forecaster
    assert (forecaster.horizon, forecaster.quantiles) == (24, [0.1, 0.5, 0.9])
    assert len(forecaster.networks) == yaml.safe_load(hour.read_text())["model"]["members"]
    assert "quantiles 0.1 to 0.9 hold" in r.text


@pytest.mark.skipif(not ETTH1.is_file(), reason="ETTh1.csv is not at hand")
def test_etth1(run) -> None:
    """The common protocol's counts, and what the literature finds for a linear model of OT alone.

    Zeng et al. 2023 go from 0.056 for 96 steps; for 24, others give 0.026.
    """
    named = ("--config", ROOT / "configs" / "etth1.yaml", "--data.path", ETTH1)
    r = run("inspect", *named, "--data.window=336", "--data.covariates=[]")
    assert r.code == 0, r.text
    windows = r.data.windows
    assert {s: len(windows[s]) for s in ("train", "val", "test")} == {
        "train": 8640 - 336 - 23,
        "val": 2880 - 23,
        "test": 2880 - 23,
    }
    predicted = {
        split: np.unique(of.cell[:, None] + 336 + np.arange(24)) for split, of in windows.items()
    }
    assert predicted["train"].tolist() == list(range(336, 8640))
    assert predicted["val"].tolist() == list(range(8640, 8640 + 2880))
    assert predicted["test"].tolist() == list(range(8640 + 2880, 8640 + 2 * 2880))
    three = (windows[split] for split in ("train", "val", "test"))
    error = dlinear_forecast(*three, log1p=False) - windows["test"].targets()
    assert np.square(error / r.data.scaling.reading_std).mean() == pytest.approx(0.026, abs=1e-3)
