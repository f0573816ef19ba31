"""The command line: help, mistakes, and what a run leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from data.module import SeriesDataModule
from data.series import SeriesSet
from data.windows import DeviceSeries
from model.training.help import COMMANDS, TOP_OPTIONS
from model.training.module import S4ConvDModule
from tests.conftest import INPUTS, Run, assert_refused, load_checkpoint, one_file

Runner = Callable[..., Run]
NINE_FILE = INPUTS / "B04_nine_windows.csv"
NINE = [*one_file(NINE_FILE), "--data.covariates=[air_temperature]", "--model.dropout=0"]


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_short(run: Runner, flag: str) -> None:
    """The help: hundreds of options hide the ten that matter, or break in a narrow terminal."""
    shown = run(flag, tiny=False)
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if len(line) > 80] == []
    usage = "usage: python train.py [command] [options]"
    assert lines[0] == usage
    for name in (*(f"--{name} " for name in TOP_OPTIONS), *COMMANDS):
        assert sum(line.strip().startswith(name) for line in lines) == 1, name
    assert "python train.py fit --help" in lines[-1]


def test_every_option_is_shown_where_the_help_says(run: Runner) -> None:
    """The help: the short one names a command that does not show every option."""
    shown = run("fit", "--help", tiny=False)
    assert shown.code == 0
    others = ("model.optimizer", "model.dropout", "data.utc_offset", "trainer.precision")
    for name in (*TOP_OPTIONS, *others):
        assert f"--{name} " in shown.text, name


def test_without_a_subcommand_it_is_fit(run: Runner) -> None:
    """A first run that only complains that a subcommand is missing."""
    done = run(*NINE)
    assert done.code == 0
    assert done.cli.subcommand == "fit"
    assert done.last.is_file()


# -- mistakes --------------------------------------------------------------------------------------

ANSWERS = [
    (["--model.lrr=3"], ["--model.lrr", "--model.lr"]),
    (["--data.batchsize", "3"], ["--data.batchsize", "--data.batch_size"]),
    (["test", "--model.chanels=3"], ["--model.chanels", "--model.channels"]),
    (["--xyzzy"], ["--xyzzy", "python train.py --help"]),
    (["--model.channels=x"], ["--model.channels", "'x'", "int"]),
    (["--model.channels=0"], ["--model.channels", "0", "1 or more"]),
    (["--model.state_size=5"], ["--model.state_size", "5", "even"]),
    (["--model.lr=fast"], ["--model.lr", "'fast'", "float"]),
    (["--model.init=foo"], ["--model.init", "'foo'", "s4d_lin, published"]),
    (["--model.optimizer=adam"], ["--model.optimizer", "'adam'", "adamw, sgd"]),
    (["--data.rules=foo"], ["--data.rules", "'foo'", "none, gepiii, cambridge"]),
    (["--data.window=1"], ["--data.window", "2 or more"]),
    (["--data.batch_size=0"], ["--data.batch_size", "1 or more"]),
    (["--data.train_path=absent.csv"], ["absent.csv"]),
    (["--model.lr"], ["--model.lr", "expected one argument"]),
    (["--model.kernel=pytorch"], ["model.kernel", '"kernel"']),
    (["--trainer.max_epochs=two"], ["--trainer.max_epochs", "'two'", "int"]),
    (["--trainer.precision=bf17"], ["--trainer.precision", "'bf17'", "bf16-mixed"]),
    (["--trainer.accelerator=toaster"], ["toaster", "cpu"]),
    (["--trainer.strategy=ddq"], ["ddq", "ddp"]),
    (["fitt"], ["'fitt'", "fit", "validate", "test", "predict"]),
    (["fitt", "--model.lr=3"], ["'fitt'", "fit", "validate", "test", "predict"]),
    (["--config=absent.yaml"], ["config", "absent.yaml"]),
    (["--config", "absent.yaml"], ["config", "absent.yaml"]),
    (["--kernel=warp"], ["'warp'", "pytorch"]),
    (["validate"], ["validate needs a trained model", "--ckpt_path"]),
    (["test"], ["test needs a trained model", "--ckpt_path"]),
    (["predict"], ["predict needs a trained model", "--ckpt_path"]),
    (["test", "--ckpt_path=absent.ckpt"], ["--ckpt_path", "absent.ckpt"]),
    (["fit", "--ckpt_path", str(NINE_FILE)], ["--ckpt_path", NINE_FILE.name]),
    (["predict", "--ckpt_path", str(INPUTS)], ["--ckpt_path", INPUTS.name]),
]


@pytest.mark.parametrize(("words", "told"), ANSWERS, ids=[" ".join(a[0])[:40] for a in ANSWERS])
def test_a_mistake_is_answered_in_a_line(run: Runner, words: list[str], told: list[str]) -> None:
    """A mistyped command ends in a page of usage or a traceback, or is taken for another one."""
    assert_refused(run(*words, tiny=False), *told)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the message of a machine without a GPU")
def test_gpu_where_there_is_none(run: Runner) -> None:
    """A GPU that is not there: nobody says what to pass instead."""
    assert_refused(run("--trainer.accelerator=gpu", tiny=False), "gpu", "--trainer.accelerator cpu")


def test_foreign_checkpoint_is_refused(run: Runner, tmp_path: Path) -> None:
    """A checkpoint of another program ends in a page of missing keys."""
    path = tmp_path / "foreign.ckpt"
    torch.save({"state_dict": {"weight": torch.ones(2)}}, path)
    assert_refused(run("test", f"--ckpt_path={path}"), "foreign.ckpt", "not written by train.py")


def test_config_that_is_no_config(run: Runner) -> None:
    """A file of another kind as --config fills the screen with its contents."""
    refused = run(f"--config={NINE_FILE}", tiny=False)
    assert_refused(refused)
    assert len(refused.text) <= 400


# -- checklist 36, 37, 38: what a run leaves -------------------------------------------------------


def test_a_run_folder_that_exists(run: Runner, tmp_path: Path) -> None:
    """Checklist 36: the configuration's saver raises where a run's folder exists."""
    folders = [run(*NINE).folder for _ in range(2)]
    assert [folder.name for folder in folders] == ["version_0", "version_1"]
    logger = [
        "--trainer.logger=lightning.pytorch.loggers.TensorBoardLogger",
        f"--trainer.logger.save_dir={tmp_path / 'mine'}",
        "--trainer.logger.version=same",
    ]
    for channels in (4, 6):
        done = run(*NINE, *logger, f"--model.channels={channels}")
        assert done.code == 0
        config = yaml.safe_load((done.folder / "config.yaml").read_text())
        assert config["model"]["channels"] == channels
        assert load_checkpoint(done.last)["hyper_parameters"]["channels"] == channels
    assert done.folder == tmp_path / "mine" / "lightning_logs" / "same"


@pytest.mark.slow
def test_checkpoint_names_are_those_of_the_plain_model(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 38: torch.compile puts _orig_mod. into the names, and loading breaks."""
    monkeypatch.setattr(
        S4ConvDModule, "on_fit_start", lambda self: self.forecaster.compile(backend="eager")
    )
    done = run(*NINE)
    assert done.code == 0
    names = list(load_checkpoint(done.last)["state_dict"])
    assert names == list(S4ConvDModule.load_from_checkpoint(done.last).state_dict())
    assert not any("_orig_mod" in name for name in names)
    monkeypatch.undo()
    assert run("test", *NINE, "--ckpt_path", done.best).code == 0


def test_tensors_are_made_once_the_device_is_known(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data are read before the trainer has them: what goes to a device must wait for it."""
    known: list[bool] = []
    make = SeriesDataModule.device_series

    def watched(data: SeriesDataModule, series: SeriesSet) -> DeviceSeries:
        known.append(data.trainer is not None)
        return make(data, series)

    monkeypatch.setattr(SeriesDataModule, "device_series", watched)
    assert run(*NINE).code == 0
    assert len(known) >= 4  # training, validation, test and prediction
    assert all(known)
