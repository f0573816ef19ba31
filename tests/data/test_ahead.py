"""A horizon, quantiles and what is known ahead, as a user meets them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cases.timed_runs import curves
from tests.conftest import Run, assert_refused
from tests.data.tables import times
from tests.data.test_own_tables import read

RunTrain = Callable[..., Run]
HOURS, AHEAD = 80, 3
OWN = ["--data.id=[]", "--data.target=kwh"]
THREE = ["--data.horizon=3", "--model.quantiles=[0.1,0.5,0.9]"]


def table(path: Path, blank: int = 0) -> Path:
    """One series and what a tariff is; the last `blank` rows have no reading yet."""
    lines = ["timestamp,kwh,tariff"]
    for n, time in times(HOURS):
        reading = 10 + n % 7 if n < HOURS - blank else ""
        lines.append(f"{time},{reading},{n % 3}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_forecast_has_a_row_for_each_reading_ahead(run: RunTrain, tmp_path: Path) -> None:
    r = run("--data.path", table(tmp_path / "own.csv"), *OWN, *THREE)
    assert r.code == 0, r.text
    assert "windows of 4 rows and the 3 after them" in r.text
    found = read(r.folder / "predictions.csv")
    names = ["timestamp", "horizon", "prediction", "quantile_0.1", "quantile_0.5", "quantile_0.9"]
    assert list(found[0]) == names
    first = np.datetime64(found[0]["timestamp"].replace(" ", "T"))
    for number, row in enumerate(found):
        window, ahead = divmod(number, AHEAD)
        assert int(row["horizon"]) == ahead + 1
        hours = np.timedelta64(window + ahead, "h")
        assert np.datetime64(row["timestamp"].replace(" ", "T")) == first + hours
        band = [float(row[f"quantile_{level}"]) for level in (0.1, 0.5, 0.9)]
        assert band == sorted(band)
    assert any(row["prediction"] != row["quantile_0.5"] for row in found)
    assert "hold" in r.text
    assert "mean pinball loss" in r.text
    assert "best: validation RMSLE" in r.text


def test_what_is_said_of_the_quantiles_is_true_of_the_predictions(
    run: RunTrain, tmp_path: Path
) -> None:
    """Their share and their loss, in the terminal and for TensorBoard."""
    r = run("--data.path", table(tmp_path / "own.csv"), *OWN, *THREE, "--model.lr=0.02")
    assert r.code == 0, r.text
    known = {row["timestamp"]: float(row["kwh"]) for row in read(tmp_path / "own.csv")}
    losses, inside = [], []
    for row in read(r.folder / "predictions.csv"):
        y = known[row["timestamp"][:16]]
        band = {level: float(row[f"quantile_{level}"]) for level in (0.1, 0.5, 0.9)}
        losses += [max(q * (y - f), (q - 1) * (y - f)) for q, f in band.items()]
        inside.append(band[0.1] <= y <= band[0.9])
    share, loss = np.mean(inside), np.mean(losses)
    assert f"hold {100 * share:.1f} % of the readings; mean pinball loss {loss:.4g}" in r.text
    logged = curves(r.folder)
    assert list(logged["test/coverage"].values()) == pytest.approx([share])
    assert list(logged["test/pinball"].values()) == pytest.approx([loss], rel=1e-4)


def test_a_checkpoint_of_ones_own_watches_what_it_was_told(run: RunTrain, tmp_path: Path) -> None:
    """Ours goes by the measure that suits the data, and moves no other."""
    own = ["--trainer.callbacks=ModelCheckpoint", "--trainer.callbacks.monitor=val/mae"]
    own += ["--trainer.callbacks.filename=mine"]
    r = run("--data.path", table(tmp_path / "own.csv"), *OWN, *THREE, *own)
    assert r.code == 0, r.text
    watched = {each.filename: each.monitor for each in r.cli.trainer.checkpoint_callbacks}
    assert watched == {"best": "val/rmsle", "last": None, "mine": "val/mae"}


def test_what_is_known_ahead_leads_past_the_last_reading(run: RunTrain, tmp_path: Path) -> None:
    """Rows without a reading are forecast, with the tariff that they have."""
    trained = run("--data.path", table(tmp_path / "own.csv"), *OWN, *THREE, "--data.known=[tariff]")
    assert trained.code == 0, trained.text
    predict = ["predict", "--config", trained.folder / "config.yaml", "--ckpt_path", trained.best]
    ahead = table(tmp_path / "ahead.csv", blank=AHEAD)
    found = read(run(*predict, "--data.predict_path", ahead).folder / "predictions.csv")
    last = [row["timestamp"] for row in found[-AHEAD:]]
    assert last == [f"2023-03-14 0{hour}:00:00" for hour in (5, 6, 7)]
    text = ahead.read_text()
    ahead.write_text(text.removesuffix(",1\n") + ",2\n")  # another tariff in the last hour
    other = read(run(*predict, "--data.predict_path", ahead).folder / "predictions.csv")
    assert other[:-1] == found[:-1]
    assert other[-1]["prediction"] != found[-1]["prediction"]


def test_beyond_the_end_without_a_row(run: RunTrain, tmp_path: Path) -> None:
    path = table(tmp_path / "own.csv")
    r = run("--data.path", path, *OWN, "--data.horizon=3", "--data.beyond_end=true")
    assert r.code == 0, r.text
    found = read(r.folder / "predictions.csv")
    last = [row["timestamp"] for row in found[-AHEAD:]]
    assert last == [f"2023-03-14 {hour:02}:00:00" for hour in (8, 9, 10)]


def test_weights_of_another_horizon_are_a_start(run: RunTrain, tmp_path: Path) -> None:
    path = table(tmp_path / "own.csv")
    trained = run("--data.path", path, *OWN)
    longer = run("--data.path", path, *OWN, *THREE, "--init_from", trained.best)
    assert longer.code == 0, longer.text
    made_anew = "the encoder's columns of is ahead, the decoder's rows beside the median"
    assert f"made anew: {made_anew}" in longer.text


def test_other_quantiles_keep_the_forecast(run: RunTrain, tmp_path: Path) -> None:
    """Before its first step the run forecasts what the weights did."""
    path = ["--data.path", table(tmp_path / "own.csv"), *OWN]
    trained = run(*path, "--model.lr=0.01")
    no_step = ["--trainer.max_steps=0", "--trainer.max_epochs=-1"]
    begun = run(*path, "--model.quantiles=[0.1,0.5,0.9]", "--init_from", trained.best, *no_step)
    assert begun.code == 0, begun.text
    assert "made anew: the decoder's rows beside the median" in begun.text
    (batch, *_) = trained.data.predict_dataloader()
    point, band = (r.cli.model.eval().forecast(batch).detach() for r in (trained, begun))
    assert torch.equal(band[..., 0], point[..., 0])
    torch.testing.assert_close(band[..., 2], point[..., 0])  # the median begins there, too
    assert (band[..., 1] < band[..., 2]).all()
    assert (band[..., 2] < band[..., 3]).all()


def test_quantiles_without_a_forecast_are_refused(run: RunTrain, tmp_path: Path) -> None:
    """As an earlier version trained them: its decoder has no row for the forecast."""
    trained = run("--data.path", table(tmp_path / "own.csv"), *OWN, *THREE)
    checkpoint = torch.load(trained.best, weights_only=True)
    for name in ("weight", "bias"):
        rows = checkpoint["state_dict"][f"forecaster.network.decoder.{name}"]
        checkpoint["state_dict"][f"forecaster.network.decoder.{name}"] = rows[1:].clone()
    torch.save(checkpoint, tmp_path / "old.ckpt")
    r = run(
        "test", "--config", trained.folder / "config.yaml", "--ckpt_path", tmp_path / "old.ckpt"
    )
    assert_refused(r, "old.ckpt", "no forecast beside them", "train anew")


def test_a_linear_map_that_was_trained_is_refused(run: RunTrain, tmp_path: Path) -> None:
    """As an earlier version had one beside each network."""
    trained = run("--data.path", table(tmp_path / "own.csv"), *OWN, *THREE, "--model.linear=true")
    checkpoint = torch.load(trained.best, weights_only=True)
    state = checkpoint["state_dict"]
    state["forecaster.linear.0.weight"] = state.pop("forecaster.linear_weight").T
    torch.save(checkpoint, tmp_path / "old.ckpt")
    r = run("predict", "--ckpt_path", tmp_path / "old.ckpt", "--data.path", tmp_path / "own.csv")
    assert_refused(r, "old.ckpt", "a linear map that was trained", "train anew")


def test_a_checkpoint_of_a_later_version_is_refused(run: RunTrain, tmp_path: Path) -> None:
    """It was a traceback: whatever its new setting does would be left out."""
    trained = run("--data.path", table(tmp_path / "own.csv"), *OWN, *THREE)
    checkpoint = torch.load(trained.best, weights_only=True)
    checkpoint["hyper_parameters"]["holidays"] = ["GB"]
    torch.save(checkpoint, tmp_path / "new.ckpt")
    for command in (["predict", "--ckpt_path"], ["fit", *OWN, *THREE, "--init_from"]):
        r = run(*command, tmp_path / "new.ckpt", "--data.path", tmp_path / "own.csv")
        assert_refused(r, "new.ckpt", "a later version", "holidays")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--model.quantiles=[0.1,0.9]"], ["--model.quantiles", "hold 0.5"]),
        (["--model.quantiles=[0.9,0.5,0.1]"], ["--model.quantiles", "ascend"]),
        (["--model.quantiles=[0,0.5]"], ["--model.quantiles", "within 0 and 1"]),
        (["--data.horizon=0"], ["--data.horizon must be 1 or more"]),
        (["--data.horizon=77"], ["too short", "needed=81"]),
        (["--model.seasons=[24]"], ["--model.seasons: 24", "--data.window, 4"]),
        (["--model.linear=true", "--model.relative=false"], ["--model.linear", "relative false"]),
        (["--model.calendar=[month]"], ["--model.calendar", "month"]),
        (["--data.known=[tariff]", "--data.covariates=[tariff]"], ["--data.known: tariff"]),
        (["--data.boosting=true"], ["--data.boosting", "LightGBM"]),
    ],
)
def test_what_cannot_be_is_refused(
    run: RunTrain, tmp_path: Path, options: list[str], told: list[str]
) -> None:
    assert_refused(run("--data.path", table(tmp_path / "own.csv"), *OWN, *options), *told)


def test_signed_readings_are_modelled_as_they_are(run: RunTrain, tmp_path: Path) -> None:
    """A tenth of all that was read is the border; below it negative readings are slips."""
    lines = ["timestamp,kwh", *(f"{time},{n % 7 - 3}" for n, time in times(HOURS))]
    path = tmp_path / "signed.csv"
    path.write_text("\n".join(lines) + "\n")
    r = run("--data.path", path, *OWN)
    assert r.code == 0, r.text
    assert "without a logarithm" in r.text
    assert "best: validation RMSE" in r.text
    assert r.data.windows["train"].series.reading.min() == -3
    assert r.cli.model.hparams["transform"] == "none"
    again = run("test", "--config", r.folder / "config.yaml", "--ckpt_path", r.best)
    assert again.cli.model.forecaster.transform == "none"
    plain = run("--data.path", table(tmp_path / "own.csv"), *OWN)
    assert plain.cli.model.forecaster.transform == "log1p"
