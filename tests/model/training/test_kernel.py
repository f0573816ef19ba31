"""`--kernel`: what was asked for runs and is named, or the run stops before anything is read."""

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from lightning import Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cuda_ops import BLOCK_KERNELS
from data.module import SeriesDataModule
from model import block
from model.training import execution
from model.training.module import S4ConvDModule
from tests.conftest import INPUTS, Run, assert_refused, load_checkpoint, one_file

Runner = Callable[..., Run]
NINE = [*one_file(INPUTS / "B04_nine_windows.csv"), "--data.covariates=[air_temperature]"]
GPU = ["--trainer.accelerator=gpu", "--trainer.devices=1"]
CUDA_KERNELS = [name for name in BLOCK_KERNELS if name != "pytorch"]
# Plain descent, whose steps are as long as the gradients; no dropout; float32 throughout.
HUNDRED_STEPS = [
    "--data.window=48",
    "--data.batch_size=256",
    "--model.channels=64",
    "--model.blocks=2",
    "--model.state_size=64",
    "--model.dropout=0",
    "--model.optimizer=sgd",
    "--trainer.max_steps=100",
    "--trainer.limit_val_batches=2",
    "--trainer.limit_test_batches=2",
]


def forecasts(run: Run) -> list[float]:
    with (run.folder / "predictions.csv").open() as file:
        return [float(row["prediction"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("kernel", CUDA_KERNELS)
def test_a_cuda_kernel_on_a_cpu_is_refused(run: Runner, tmp_path: Path, kernel: str) -> None:
    """C03: a slow path runs unnoticed, or CUDA_HOME ends in a traceback; also beside a GPU."""
    refused = run(f"--kernel={kernel}", "--trainer.accelerator=cpu", *NINE)
    assert_refused(refused, f"'{kernel}'", "NVIDIA GPU", "these work: pytorch")
    assert refused.text.count("error:") == 1
    assert "data: " not in refused.text  # before any data are read
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_scoring_refuses_it_too(run: Runner, subcommand: str) -> None:
    """C03: only training asks whether the kernel can run."""
    best = run(*NINE).best
    refused = run(subcommand, "--kernel=shared", "--ckpt_path", best, *NINE)
    assert_refused(refused, "'shared'", "these work: pytorch")
    assert "data: " not in refused.text


def test_compiling_comes_before_the_data_and_what_it_made_is_logged(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D05: a kernel compiles within the first step, whose time then says nothing."""
    order: list[str] = []
    read = SeriesDataModule.prepare_data

    def prepare(name: str, device: torch.device) -> str:
        order.append(f"{name} for {device}")
        return f"{name}, compiled for a test"

    def watched(data: SeriesDataModule) -> None:
        order.append("data")
        read(data)

    monkeypatch.setattr(execution, "prepare_kernel", prepare)
    monkeypatch.setattr(SeriesDataModule, "prepare_data", watched)
    done = run(*NINE)
    assert done.code == 0
    assert order[:2] == ["pytorch for cpu", "data"]
    assert order.count("pytorch for cpu") == 1
    assert "kernel: pytorch, compiled for a test on cpu" in done.text


def test_the_checkpoint_notes_what_trained_it(run: Runner) -> None:
    """F04: nobody can tell what computed a checkpoint, or the note is needed to load it."""
    done = run(*NINE)
    notes = {"kernel": "pytorch", "device": "cpu", "torch": torch.__version__}
    for path in (done.best, done.last):
        checkpoint = load_checkpoint(path)
        assert checkpoint["notes"] == notes
        assert {type(value) for value in checkpoint["notes"].values()} == {str}
    bare = done.folder / "bare.ckpt"
    del checkpoint["notes"]
    torch.save(checkpoint, bare)
    assert S4ConvDModule.load_from_checkpoint(bare).kernel == "pytorch"
    assert run("predict", "--ckpt_path", bare, *NINE).code == 0


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", CUDA_KERNELS)
def test_each_kernel_trains_on_a_gpu_and_is_named(run: Runner, kernel: str) -> None:
    """Checklist 14: a slow path is used in silence. F04: the forecasts are another kernel's."""
    channels = ["--model.channels=64"] if kernel == "fused" else []
    done = run(*NINE, *GPU, *channels, f"--kernel={kernel}")
    assert done.code == 0, done.text
    assert f"kernel: {kernel}" in done.text
    assert (", products in TF32" in done.text) == (kernel == "fused")
    assert "test RMSLE" in done.text
    notes = load_checkpoint(done.best)["notes"]
    assert (notes["kernel"], notes["device"]) == (kernel, torch.cuda.get_device_name())
    on_cpu = run("predict", "--ckpt_path", done.best, *NINE, *channels)
    assert "kernel: pytorch on cpu" in on_cpu.text
    rel = 1e-2 if kernel == "fused" else 1e-4  # in TF32, or not
    assert forecasts(done) == pytest.approx(forecasts(on_cpu), rel=rel)


def loss_curve(run: Run) -> torch.Tensor:
    events = EventAccumulator(str(run.folder)).Reload()
    return torch.tensor([event.value for event in events.Scalars("train/loss")])


@pytest.mark.slow
@pytest.mark.gpu
def test_a_hundred_steps_with_every_kernel(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels draw one loss curve. Half the filter's gradient, and it is another one."""
    flags = [*GPU, *HUNDRED_STEPS, "--model.lr=0.003", "--step=eager"]
    pytorch = loss_curve(run(*flags, "--kernel=pytorch"))
    assert len(pytorch) == 100
    assert pytorch[-10:].mean() < 0.8 * pytorch[:10].mean()  # the rate is one at which it learns

    def apart(curve: torch.Tensor) -> float:
        return float(((curve - pytorch) / pytorch).abs().max())

    for kernel in CUDA_KERNELS:
        full = "--matmul_precision=highest"
        difference = apart(loss_curve(run(*flags, f"--kernel={kernel}", full)))
        print(f"{kernel}: at most {difference:.1e} of the loss away from pytorch")
        assert difference < 1e-4
    whole = block.depthwise_conv
    monkeypatch.setattr(
        block,
        "depthwise_conv",
        lambda x, k, *rest: whole(x, k / 2 + k.detach() / 2, *rest),
    )
    difference = apart(loss_curve(run(*flags, "--kernel=warp_tiled")))
    print(f"with half the filter's gradient: {difference:.1e}")
    assert difference > 1e-4


@pytest.mark.parametrize(
    ("options", "in_tf32"),
    [
        ([], False),
        (["--kernel=auto"], False),  # of a CPU
        (["--matmul_precision=high"], True),
        (["--step=published"], True),
        (["--step=published", "--matmul_precision=highest"], False),
    ],
)
def test_full_precision_is_that_of_all_products(run: Runner, options, in_tf32) -> None:
    """PyTorch has the published network's convolutions of size 1 in TF32 even so, unless told."""
    torch.backends.cudnn.allow_tf32 = not in_tf32
    run(*NINE, "--kernel=pytorch", *options)
    assert torch.backends.cudnn.allow_tf32 is in_tf32
    assert torch.get_float32_matmul_precision() == ("high" if in_tf32 else "highest")


@pytest.mark.parametrize(
    ("kernel", "options", "capability", "in_tf32"),
    [
        ("auto", {}, (8, 0), True),
        ("auto", {}, (7, 5), False),  # a T4 has none, and is not said to
        ("auto", {"matmul_precision": "highest"}, (9, 0), False),
        ("auto", {"precision": "bf16-mixed"}, (9, 0), False),
        ("warp_tiled", {}, (9, 0), False),
        ("warp_tiled", {"matmul_precision": "high"}, (9, 0), True),
    ],
)
def test_what_is_fast_is_in_tf32(
    monkeypatch: pytest.MonkeyPatch, kernel, options, capability, in_tf32
) -> None:
    """`auto` is, on a GPU that has it; what is asked for by name is in float32 unless told."""
    asked = {"matmul_precision": None, "precision": "32-true"} | options
    config = SimpleNamespace(kernel=kernel, matmul_precision=asked["matmul_precision"])
    strategy = SimpleNamespace(root_device=torch.device("cuda:0"))
    trainer = SimpleNamespace(precision=asked["precision"], strategy=strategy)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    said = execution.choose_precision(config, cast(Trainer, trainer), "graph", "warp_tiled")
    assert said is in_tf32


@pytest.mark.gpu
def test_auto_is_in_tf32_on_a_gpu(run: Runner) -> None:
    """Where no kernel 'fused' is, Lightning said to use TF32."""
    few = [*GPU, *NINE, "--data.horizon=2", "--model.channels=8"]
    done = run(*few)
    assert done.code == 0, done.text
    assert (", products in TF32" in done.text) == (torch.cuda.get_device_capability() >= (8, 0))
    assert "kernel: warp_tiled" in done.text
    assert "Tensor Cores" not in done.text
    assert ", products in TF32" not in run(*few, "--matmul_precision=highest").text


@pytest.mark.slow
@pytest.mark.gpu
def test_a_hundred_steps_in_tf32(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused block's curve is as near as PyTorch's own in TF32; with half a gradient it is not.

    What TF32 rounds away grows from step to step, so PyTorch's tells how much is right. At three
    times the rate the loss leaps, and it grows to what half a gradient makes.
    """
    flags = [*GPU, *HUNDRED_STEPS, "--model.lr=0.001"]
    exact = loss_curve(run(*flags, "--kernel=pytorch"))

    def apart(*options: str) -> float:
        return float(((loss_curve(run(*flags, *options)) - exact) / exact).abs().max())

    usual = apart("--kernel=pytorch", "--matmul_precision=high")
    right = apart("--kernel=fused")
    whole = block.fused_block
    monkeypatch.setattr(
        block, "fused_block", lambda x, u, k, *rest: whole(x, u, k / 2 + k.detach() / 2, *rest)
    )
    wrong = apart("--kernel=fused")
    print(f"in TF32: pytorch {usual:.1e} away, fused {right:.1e}; with half a gradient {wrong:.1e}")
    assert right < 3 * usual < wrong


def test_what_the_fused_kernels_are_not_written_for_is_refused(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 19: the run ends in the first step, in a traceback."""
    monkeypatch.setattr(execution, "prepare_kernel", lambda name, device: name)
    refused = run(*NINE, "--kernel=fused", "--model.channels=48")
    assert_refused(refused, "'fused'", "64 or 128 channels", "--kernel warp_tiled")
    assert "data: " not in refused.text
