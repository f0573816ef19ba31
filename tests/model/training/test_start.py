"""Runs that begin with another run's weights, on other data."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import INPUTS, Run, assert_refused, load_checkpoint, one_file
from tests.data.tables import COLUMNS, long_table

RunTrain = Callable[..., Run]
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
NO_STEP = ["--trainer.max_steps=0", "--trainer.max_epochs=-1"]


def weights(run: Run) -> dict[str, torch.Tensor]:
    """Of the model as it stands at the end of a run."""
    return {name: tensor.clone() for name, tensor in run.cli.model.forecaster.state_dict().items()}


@pytest.fixture
def trained(run: RunTrain) -> Run:
    r = run(*NINE, "--model.lr=0.01", "--trainer.max_epochs=3")
    assert r.code == 0, r.text
    return r


def begun(run: RunTrain, *options: object) -> Run:
    """A run that ends before its first step: its weights are those it began with."""
    r = run(*options, *NO_STEP)
    assert r.code == 0, r.text
    return r


def state(path: str) -> dict[str, torch.Tensor]:
    stored = load_checkpoint(path)["state_dict"]
    return {name.removeprefix("forecaster."): tensor for name, tensor in stored.items()}


def test_all_weights_and_their_scaling_come_along(run: RunTrain, trained: Run) -> None:
    r = begun(run, *NINE, "--init_from", trained.best)
    assert "made anew: nothing" in r.text
    assert "their scaling" in r.text
    kept, found = state(trained.best), weights(r)
    assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())


def test_another_table_is_scaled_as_the_weights_were(
    run: RunTrain, trained: Run, tmp_path: Path
) -> None:
    """33: weights alone; another covariate has a column of its own, which begins at 0."""
    table = ["--data.path", long_table(tmp_path / "strom.csv"), *COLUMNS]
    fresh = weights(begun(run, *table, "--data.covariates=[Temp]"))
    kept = state(trained.best)
    r = begun(run, *table, "--data.covariates=[Temp]", "--init_from", trained.best)
    assert "made anew: the encoder's columns of Temp\n" in r.text
    found = weights(r)
    for name, tensor in found.items():
        if name == "network.encoder.weight":
            assert (tensor[:, 1] == 0).all()  # Temp, in the place of air_temperature
            others = [0, *range(2, tensor.shape[1])]
            assert torch.equal(tensor[:, others], kept[name][:, others])
        elif name.startswith("network."):
            assert torch.equal(tensor, kept[name])
    assert found["reading_mean"] == kept["reading_mean"] != fresh["reading_mean"]
    assert torch.equal(found["covariate_mean"], fresh["covariate_mean"])
    other = begun(
        run, *table, "--data.covariates=[Temp]", "--init_from", trained.best, "--scaling=refit"
    )
    assert "the scaling of these data" in other.text
    assert weights(other)["reading_mean"] == fresh["reading_mean"]


def test_columns_of_the_encoder_go_by_name(run: RunTrain) -> None:
    """F02: the same covariates in another order are no other covariates."""
    both = one_file(INPUTS / "F02_extra_feature.csv")
    first = run(*both, "--data.covariates=[air_temperature,humidity]")
    turned = begun(
        run, *both, "--data.covariates=[humidity,air_temperature]", "--init_from", first.best
    )
    assert "made anew: nothing" in turned.text
    a, b = state(first.best)["network.encoder.weight"], weights(turned)["network.encoder.weight"]
    assert torch.equal(a[:, [0, 2, 1]], b[:, :3])
    assert torch.equal(a[:, 3:], b[:, 3:])
    mean = state(first.best)["covariate_mean"]
    assert torch.equal(weights(turned)["covariate_mean"], mean.flip(0))


def test_meters_that_are_known_keep_their_numbers(run: RunTrain, tmp_path: Path) -> None:
    many = ["--data.path", long_table(tmp_path / "a.csv"), *COLUMNS]
    first = run(*many, "--model.meter_features=2", "--model.lr=0.01")
    text = (tmp_path / "a.csv").read_text().replace("K 2", "K 3")
    (tmp_path / "b.csv").write_text(text)
    r = begun(run, "--data.path", tmp_path / "b.csv", *COLUMNS, "--init_from", first.best)
    assert "made anew: 1 meters, which begin as unknown ones" in r.text
    old, new = state(first.best), weights(r)
    known = {
        int(key): row
        for key, row in zip(old["meters.known"], old["meters.weight"][1:], strict=True)
    }
    rows = [known.get(int(key), old["meters.weight"][0]) for key in new["meters.known"]]
    assert sum(int(key) in known for key in new["meters.known"]) == 1
    assert torch.equal(new["meters.weight"][1:], torch.stack(rows))
    wider = begun(run, *many, "--model.meter_features=3", "--init_from", first.best)
    assert "made anew: the encoder's columns of meter 2\n" in wider.text


def test_frozen_parts_stay_as_they_are(run: RunTrain, trained: Run) -> None:
    r = run(*NINE, "--init_from", trained.best, "--freeze=[blocks]", "--model.lr=0.01")
    assert r.code == 0, r.text
    before, after = state(trained.best), weights(r)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not {name for name in moved if name.startswith("network.blocks")}
    assert {"network.encoder.weight", "network.decoder.weight"} <= moved


def test_members_come_along_and_freeze_together(run: RunTrain) -> None:
    options = [*NINE, "--model.lr=0.01"]
    first = run(*options, "--model.members=2")
    assert first.code == 0, first.text
    r = run(*options, "--init_from", first.best, "--freeze=[blocks]")
    assert r.code == 0, r.text
    assert "made anew: nothing" in r.text
    before, after = state(first.best), weights(r)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not {name for name in moved if ".blocks." in name}
    assert {"network.encoder.weight", "others.0.encoder.weight"} <= moved
    assert not torch.equal(after["network.encoder.weight"], after["others.0.encoder.weight"])
    refused = run(*options, "--init_from", first.best, "--model.members=3")
    assert_refused(refused, "--model.members is 3", "for 2")


def test_a_linear_model_comes_along_where_it_fits(run: RunTrain) -> None:
    first = run(*NINE, "--model.linear=true", "--model.lr=0.01")
    assert first.code == 0, first.text
    before = state(first.best)["linear_weight"]
    assert (before != 0).any()
    other = [*one_file(INPUTS / "A08_two_series.csv"), "--data.covariates=[]"]
    r = begun(run, *other, "--init_from", first.best)
    assert torch.equal(weights(r)["linear_weight"], before)
    assert "the linear model" not in r.text
    longer = begun(run, *NINE, "--init_from", first.best, "--data.window=3")
    assert "made anew: the linear model, fitted to these data\n" in longer.text
    assert weights(longer)["linear_weight"].shape == (3, 1)
    assert (weights(longer)["linear_weight"] != 0).any()
    refused = run(*NINE, "--init_from", first.best, "--model.linear=false")
    assert_refused(refused, "--model.linear is False", "for True")


def test_such_a_run_is_resumed_as_any_other(run: RunTrain, trained: Run) -> None:
    """Its settings name --init_from; the weights are those that it had reached."""
    options = [*NINE, "--init_from", trained.best, "--model.lr=0.01"]
    short = run(*options, "--trainer.max_epochs=1")
    config = ["--config", short.folder / "config.yaml", "--ckpt_path", short.last]
    r = run(*config, "--trainer.max_epochs=2")
    assert r.code == 0, r.text
    assert "made anew" not in r.text
    assert load_checkpoint(r.last)["global_step"] == 2 * load_checkpoint(short.last)["global_step"]
    tested = run("test", *config[:2], "--ckpt_path", short.best)
    assert tested.code == 0, tested.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--model.channels=8"], ["--model.channels is 8", "are for 4"]),
        (["--model.transform=none"], ["--model.transform is none", "log1p"]),
        (["--freeze=[nose]"], ["--freeze", "'nose'", "encoder, blocks"]),
        (["--freeze=[meters]"], ["--freeze meters", "--model.meter_features"]),
        (["--freeze=[encoder,blocks,decoder]", "--model.norm=false"], ["--model.norm"]),
    ],
)
def test_what_does_not_fit_is_refused(run: RunTrain, trained: Run, options, told) -> None:
    refused = run(*NINE, "--init_from", trained.best, "--model.norm=true", *options)
    assert_refused(refused, *told)


def test_two_starts_are_refused(run: RunTrain, trained: Run, tmp_path: Path) -> None:
    refused = run(*NINE, "--init_from", trained.best, "--ckpt_path", trained.last)
    assert_refused(refused, "--init_from", "--ckpt_path", "leave one of them out")
    assert_refused(
        run(*NINE, "--init_from", tmp_path / "no.ckpt"), "--init_from", "there is no file"
    )


def test_nothing_left_to_train_is_refused(run: RunTrain) -> None:
    options = ["--model.norm=false", "--freeze=[encoder,blocks,decoder]"]
    assert_refused(run(*NINE, *options), "--freeze leaves nothing to train")
