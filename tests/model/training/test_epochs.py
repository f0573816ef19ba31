"""Nobody said how long to train: a number of epochs that suits the data, and a word about it."""

import pytest
import torch

from model.training.epochs import STEPS, choose_epochs
from tests.conftest import INPUTS, one_file

NINE = one_file(INPUTS / "B04_nine_windows.csv")


def test_a_small_file_gets_more_epochs(run, monkeypatch) -> None:
    monkeypatch.setitem(STEPS, "cpu", 10)
    r = run(*NINE, "--trainer.max_epochs=null")  # 9 windows, batches of 4: 3 steps an epoch
    assert "training for 3 epochs of 3 steps" in r.text
    assert torch.load(r.best, weights_only=True)["global_step"] <= 9
    assert r.cli.trainer.current_epoch == 3


@pytest.mark.parametrize(("device", "epochs"), [("cpu", 1), ("cuda", 24), ("mps", 1)])
def test_a_gpu_has_time_for_more(device: str, epochs: int) -> None:
    """A thousand steps are a minute on a CPU, and a second on a GPU."""
    assert choose_epochs(844, device) == epochs


def test_there_is_a_limit_and_a_choice_of_ones_own(run, monkeypatch) -> None:
    monkeypatch.setattr("model.training.epochs.MAX_EPOCHS", 2)
    assert "training for 2 epochs" in run(*NINE, "--trainer.max_epochs=null").text
    chosen = run(*NINE, "--trainer.max_epochs=1")
    assert "training for" not in chosen.text
    assert chosen.cli.trainer.current_epoch == 1


def test_resuming_what_has_had_its_share_is_refused(run, monkeypatch) -> None:
    monkeypatch.setitem(STEPS, "cpu", 6)
    last = run(*NINE, "--trainer.max_epochs=null").folder / "checkpoints" / "last.ckpt"
    refused = run(*NINE, "--trainer.max_epochs=null", "--ckpt_path", last)
    assert refused.code == 2
    assert "has finished its 2 epochs; to train on, pass --trainer.max_epochs 3" in refused.text


def test_a_refused_run_leaves_no_folder(run, tmp_path) -> None:
    assert run(*NINE, "--data.window=40").code == 2
    assert not (tmp_path / "runs").exists()
