"""`train.py compare` as a user runs it."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import cuda_ops
from data.windows import DeviceSeries
from model.published import PublishedS4ConvD
from model.training.callbacks.timing import WARM_UP
from model.training.compare import command
from model.training.compare.figures import figures
from model.training.module import S4ConvDModule
from tests.cases.timed_runs import NINE, Runner, curves
from tests.conftest import Run, assert_refused
from tests.model.training.compare.running import FEW, STEPS, record_in

GPU = ["--trainer.accelerator=gpu", "--trainer.devices=1"]


def announced(run: Run) -> list[tuple[str, ...]]:
    """Round and kernel of each run, as they were told."""
    lines = re.findall(r"^round (\d) of \d: (\w+), \d+ steps \.\.\. [\d.]+ s$", run.text, re.M)
    assert len(lines) == len(re.findall(r"^round \d", run.text, re.M))
    return lines


# -- a comparison ------------------------------------------------------------------------------


def test_pytorch_on_a_cpu(run: Runner, folder: Path) -> None:
    """What a user without a GPU gets: the record, the text, the report, and TensorBoard's files."""
    done = run("compare", "--kernels", "pytorch", *FEW)
    assert done.code == 0, done.text
    record = record_in(folder)
    assert (record["steps"], record["rounds"], record["blocks"]) == (STEPS, 2, 1)
    assert record["shape"] == {"batch": 4, "channels": 4, "length": 4, "taps": 4}
    assert (record["dtype"], record["operator"], record["fma"]) == ("float32", None, None)
    assert record["command"].startswith("python train.py compare --kernels pytorch --data.train")
    assert record["settings"]["data.batch_size"] == 4
    assert record["settings"]["trainer.max_steps"] == STEPS
    assert not {"kernel", "model.kernel"} & set(record["settings"])
    assert list(record["device"]) == ["name"]
    assert record["versions"]["torch"] == torch.__version__
    (kernel,) = record["kernels"]
    assert (kernel["name"], kernel["repeat"]) == ("pytorch", 0)
    assert len(kernel["losses"]) == STEPS
    assert len(set(kernel["losses"])) == STEPS
    assert [each["steps"] for each in kernel["summaries"]] == [STEPS - WARM_UP] * 2
    assert [each["left_out"] for each in kernel["summaries"]] == [{"warm-up": WARM_UP}] * 2
    (found,) = figures(record)
    assert found.share is not None
    assert 0 < found.share < 1

    assert announced(done) == [("1", "pytorch"), ("2", "pytorch")]
    assert "Table II: a training step" in done.text
    assert "no ceilings are measured on a CPU" in done.text
    assert "Amdahl's limit" in " ".join(done.text.split())
    assert f"tensorboard.main --logdir {folder}" in done.text
    shown = done.text[done.text.index("\npytorch on ") : done.text.index(str(folder))]
    assert max(map(len, shown.splitlines())) <= 80
    for said_for_fit_alone in ("steps measured", "max_steps=", "best: ", "left out: naive"):
        assert said_for_fit_alone not in done.text

    page = (folder / "report.html").read_text()
    assert "pytorch" in page
    assert page.lstrip().lower().startswith("<!doctype html>")
    events = EventAccumulator(str(folder / "comparison")).Reload()
    assert "step breakdown" in events.Tags()["images"]
    assert [image.step for image in events.Images("step breakdown")] == [STEPS]
    drawn = curves(folder / "pytorch")
    assert {"time/forward_ms", "time/step_ms", "steady/step_ms", "steady/operator_ms"} <= set(drawn)
    assert max(drawn["time/step_ms"]) == STEPS - 1
    assert len(drawn["time/step_ms"]) == STEPS
    assert not {"val/rmsle", "test/rmsle"} & set(drawn)
    left = sorted(path.name.split(".")[0] for path in (folder / "pytorch").iterdir())
    assert left == ["events", "hparams"]  # of the first round alone
    assert EventAccumulator(str(folder / "pytorch")).Reload().Tags()["images"] == []
    files = {path.name for path in folder.iterdir()}
    assert files == {"compare.json", "report.html", "comparison", "pytorch"}
    assert not list(folder.rglob("*.ckpt"))
    assert {path.name for path in folder.parent.iterdir()} == {"compare_0"}


@pytest.mark.usefixtures("no_pictures")
def test_a_run_is_that_of_fit(run: Runner, folder: Path) -> None:
    """Another seed, order of the batches, rate or mask of the dropout than fit's own."""
    options = [*NINE, "--model.dropout=0.3", "--seed_everything=3"]
    length = [f"--trainer.max_steps={STEPS}", "--trainer.max_epochs=-1"]
    fitted = curves(run(*options, *length).folder)["train/loss"]
    done = run("compare", *options, f"--steps={STEPS}", "--rounds=1")
    assert done.code == 0, done.text
    (kernel,) = record_in(folder)["kernels"]
    assert kernel["losses"] == pytest.approx(list(fitted.values()), rel=1e-6)
    assert kernel["repeat"] is None


@pytest.mark.usefixtures("no_pictures")
def test_the_operator_is_as_long_and_as_often_there_as_the_network_has_it(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several readings ahead are steps of the network, and each member has blocks of its own."""
    seen: list[tuple[int, ...]] = []

    def conv(x: torch.Tensor, k: torch.Tensor, kernel: str, last_only: bool) -> torch.Tensor:
        if torch.is_grad_enabled() and x.device.type != "meta":
            seen.append(tuple(x.shape))
        return cuda_ops.depthwise_conv(x, k, kernel, last_only)

    monkeypatch.setattr("model.block.depthwise_conv", conv)
    options = ["--data.horizon=3", "--model.members=2", "--model.blocks=2"]
    done = run("compare", "--kernels", "pytorch", *FEW, *options, "--rounds=1")
    assert done.code == 0, done.text
    record = record_in(folder)
    shape = tuple(record["shape"][name] for name in ("batch", "channels", "length"))
    assert shape == (4, 4, 4 + 2)
    assert record["blocks"] == 2 * 2
    assert shape in seen
    assert {each[1:] for each in seen} == {shape[1:]}
    assert len(seen) == record["blocks"] * STEPS


@pytest.mark.usefixtures("no_pictures")
def test_kernels_take_turns_and_see_the_same(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch, kernels_anywhere: list[str]
) -> None:
    """One kernel always runs first; weights, batches or masks differ; or one runs for another."""
    placed = Counter[str]()
    place = DeviceSeries.__init__

    def counted(self: Any, *arguments: Any) -> None:
        placed["on the device"] += 1
        place(self, *arguments)

    monkeypatch.setattr(DeviceSeries, "__init__", counted)
    names = ["shared", "naive", "pytorch"]
    few = [*NINE, f"--steps={STEPS}", "--rounds=3", "--model.blocks=2", "--model.dropout=0.3"]
    done = run("compare", f"--kernels={','.join(names)}", *few)
    assert done.code == 0, done.text
    order = [*names, *names[1:], names[0], names[2], *names[:2]]
    assert [kernel for _, kernel in announced(done)] == order
    assert kernels_anywhere == [name for name in order for _ in range(2 * STEPS)]
    assert placed == {"on the device": 1}
    assert done.text.count("data: windows of 4 rows") == 1

    record = record_in(folder)
    assert record["blocks"] == 2
    assert [kernel["name"] for kernel in record["kernels"]] == names
    for kernel in record["kernels"]:
        assert [each["kernel"] for each in kernel["summaries"]] == [kernel["name"]] * 3
        assert kernel["repeat"] == 0
    shared, naive, pytorch = record["kernels"]
    assert shared["losses"] == naive["losses"]  # the same code, in this test
    assert shared["losses"] == pytest.approx(pytorch["losses"], rel=1e-4)  # of the same masks
    assert "time/both_gradients_ms" not in curves(folder / "naive")
    assert "time/both_gradients_ms" in curves(folder / "pytorch")
    assert [kernel_of(folder / name) for name in names] == names
    for name in names:
        assert {"time/step_ms", "steady/step_ms"} <= set(curves(folder / name))


def kernel_of(folder: Path) -> str:
    """As HPARAMS compares runs by it."""
    (tags,) = (EventAccumulator(str(folder)).Reload().PluginTagToContent("hparams"),)
    start = HParamsPluginData.FromString(tags["_hparams_/session_start_info"])
    settings = start.session_start_info.hparams
    assert settings["model.kernel"].string_value == settings["kernel"].string_value
    return settings["kernel"].string_value


@pytest.mark.usefixtures("no_pictures")
def test_by_default_all_that_can_run(run: Runner, folder: Path) -> None:
    """On a CPU that is pytorch alone, said once; the options of fit that are idle are said, too."""
    of_fit = ["--trainer.accelerator=cpu", "--trainer.log_every_n_steps=4"]
    done = run("compare", *FEW, *of_fit, "--trainer.max_time=00:00:00:01")
    assert done.code == 0, done.text
    assert [kernel["name"] for kernel in record_in(folder)["kernels"]] == ["pytorch"]
    assert done.text.count("left out: naive, coalesced, shared, warp_tiled: ") == 1
    assert "NVIDIA GPU" in done.text
    idle = next(line for line in done.text.splitlines() if "this is idle" in line)
    assert "--trainer.max_time" in idle
    assert "accelerator" not in idle
    assert set(curves(folder / "pytorch")["time/step_ms"]) == {3, 7}


@pytest.mark.usefixtures("no_pictures", "kernels_anywhere")
def test_by_default_in_the_studys_order(run: Runner, folder: Path) -> None:
    """pytorch first would make it the baseline of the study's ladder."""
    assert run("compare", *NINE, f"--steps={WARM_UP + 2}", "--rounds=1").code == 0
    found = figures(record_in(folder))
    assert [of.name for of in found] == ["naive", "coalesced", "shared", "warp_tiled", "pytorch"]
    assert max(of.apart for of in found) < 1e-4
    assert found[-1].apart == 0


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_the_operators_type_is_the_one_it_works_in(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """The bandwidth of a float32 where half the bytes were moved."""
    seen: set[torch.dtype] = set()
    conv = cuda_ops.last_step_conv

    def watched(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen.add(x.dtype)
        return conv(x, k)

    monkeypatch.setattr(cuda_ops, "last_step_conv", watched)
    done = run("compare", *FEW, "--rounds=1", f"--trainer.precision={precision}")
    assert done.code == 0, done.text
    assert seen == {getattr(torch, record_in(folder)["dtype"])}


@pytest.mark.usefixtures("no_pictures")
def test_a_step_of_several_batches_has_one_loss(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With accumulated gradients a loss for each batch, or the last one's alone."""
    losses: list[float] = []
    step = S4ConvDModule.training_step

    def watched(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = step(self, batch, batch_idx)
        losses.append(float(loss.detach()))
        return loss

    monkeypatch.setattr(S4ConvDModule, "training_step", watched)
    few = ["--data.batch_size=3", "--trainer.accumulate_grad_batches=3", "--rounds=1"]
    assert run("compare", *NINE, *few, f"--steps={STEPS}").code == 0
    means = [sum(losses[n : n + 3]) / 3 for n in range(0, 3 * STEPS, 3)]
    assert record_in(folder)["kernels"][0]["losses"] == pytest.approx(means)


@pytest.mark.usefixtures("no_pictures")
def test_the_next_folder_is_a_new_one(run: Runner, folder: Path) -> None:
    """An earlier comparison is overwritten; 10 sorts before 9."""
    for name in ("compare_9", "compare_10", "compare_of_mine", "version_20"):
        (folder.parent / name).mkdir(parents=True)
    assert run("compare", *FEW, "--rounds=1").code == 0
    assert (folder.parent / "compare_11" / "compare.json").is_file()


# -- mistakes ----------------------------------------------------------------------------------

CHOICES = "naive, coalesced, shared, warp_tiled, pytorch"
MISTAKES = [
    (["--kernels=naive,wrap"], ["--kernels", "'wrap'", CHOICES]),
    (["--kernels=naive,"], ["--kernels", "''", CHOICES]),
    (["--kernels=naive,pytorch,naive"], ["--kernels", "'naive'", "twice"]),
    (["--kernels=pytorch,naive"], ["'naive'", "NVIDIA GPU", "these work: pytorch"]),
    (["--kernels"], ["--kernels", "expected one argument"]),
    (["--kernel=pytorch"], ["--kernels", "no --kernel"]),
    (["--kernel", "naive", "--kernels=pytorch"], ["--kernels", "no --kernel"]),
    ([f"--steps={WARM_UP + 1}"], ["--steps", f"{WARM_UP + 2} or more", f"not {WARM_UP + 1}"]),
    (["--steps=many"], ["--steps", "'many'", "int"]),
    (["--rounds=0"], ["--rounds", "1 or more", "not 0"]),
    (["--round=2"], ["--round", "--rounds"]),
    (["--model.lrr=3"], ["--model.lrr", "--model.lr"]),
    (["--trainer.devices=2"], ["one device", "--trainer.devices 1"]),
    (["--seed_everything=false"], ["--seed_everything"]),
    (["--ckpt_path=last.ckpt"], ["--ckpt_path"]),
    (["--data.train_path=absent.csv"], ["absent.csv"]),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[" ".join(m[0])[:40] for m in MISTAKES])
def test_a_mistake_is_answered_in_a_line(
    run: Runner, folder: Path, words: list[str], told: list[str]
) -> None:
    """It ends in a traceback, after the first round, or with an empty folder."""
    refused = run("compare", *NINE, *words)
    assert_refused(refused, *told)
    assert not folder.parent.exists()
    assert "data: " not in refused.text


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_short(run: Runner, flag: str) -> None:
    shown = run("compare", flag, tiny=False)
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert len(lines) <= 25
    assert [line for line in lines if len(line) > 80] == []
    assert lines[0] == "usage: python train.py compare [--kernels NAME,...] [options of fit]"
    for name in ("--kernels", "--steps", "--rounds"):
        assert sum(line.strip().startswith(f"{name} ") for line in lines) == 1, name
    for name in (*cuda_ops.KERNELS, str(command.STEPS), "--help", "report.html"):
        assert name in shown.text


@pytest.mark.usefixtures("no_pictures")
def test_the_published_passes_beside_the_network_as_it_is(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that speed-ups of the whole are told over is not among those that are compared."""
    passes: list[torch.Size] = []
    forward = PublishedS4ConvD.forward

    def counted(self: PublishedS4ConvD, x: torch.Tensor) -> torch.Tensor:
        passes.append(x.shape)
        return forward(self, x)

    monkeypatch.setattr(PublishedS4ConvD, "forward", counted)
    options = ["--model.blocks=2", "--model.dropout=0"]
    done = run("compare", "--kernels=published,pytorch", *FEW, *options)
    assert done.code == 0, done.text
    assert "published, its FFT by pytorch" in done.text
    record = record_in(folder)
    assert [kernel["name"] for kernel in record["kernels"]] == ["published", "pytorch"]
    assert not {"kernel", "model.kernel", "model.published"} & set(record["settings"])
    published, pytorch = figures(record)
    assert len(passes) == 2 * STEPS  # of two rounds
    assert max(published.apart, pytorch.apart) < 1e-4
    assert set(published.paths) == {"forward", "both_gradients"}


# -- on a GPU ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.usefixtures("no_pictures")
def test_the_fastest_step_on_a_gpu(run: Runner, folder: Path) -> None:
    """It is what fit runs: replayed, in TF32, and without times of the convolution."""
    options = ["--model.channels=64", "--model.dropout=0"]
    done = run("compare", "--kernels=warp_tiled,published,fused,naive", *FEW, *options, *GPU)
    assert done.code == 0, done.text
    assert "published, its FFT by pytorch, products in TF32" in done.text
    assert "fused (CUDA, sm_90), products in TF32" in done.text
    record = record_in(folder)
    assert [kernel["tf32"] for kernel in record["kernels"]] == [False, True, True, False]
    _, published, fused, naive = figures(record)
    assert fused.share is None
    assert published.share is not None
    assert naive.apart < 1e-4 < min(published.apart, fused.apart)
    assert max(published.apart, fused.apart) < 1e-1
    assert {row["name"] for row in record["operator"]["rows"]} == {"warp_tiled", "naive"}


@pytest.mark.gpu
def test_two_kernels_on_a_gpu(run: Runner, folder: Path) -> None:
    """All that a CPU has not: the kernels themselves, the ceilings, fast_p and the memory."""
    done = run("compare", "--kernels=naive,pytorch", *FEW, *GPU)
    assert done.code == 0, done.text
    record = record_in(folder)
    assert record["device"]["name"] == torch.cuda.get_device_name()
    assert [row["name"] for row in record["operator"]["rows"]] == ["pytorch", "naive"]
    assert record["operator"]["shape"] == record["shape"]
    assert record["fma"]["gflop_s"] > 0
    naive, pytorch = figures(record)
    assert naive.fast is not None
    assert naive.peak_memory is not None
    assert naive.peak_memory > 0
    assert set(naive.paths) == {"forward", "input_grad", "weight_grad"}
    assert all(path.of_ceiling for path in (*naive.paths.values(), *pytorch.paths.values()))
    assert naive.apart < 1e-3
    assert max(kernel["repeat"] for kernel in record["kernels"]) < 1e-3
    assert "its share of the ceiling" in done.text
    assert "fast_p: the share" in done.text
    events = EventAccumulator(str(folder / "comparison")).Reload()
    assert {"roofline", "step breakdown"} <= set(events.Tags()["images"])


@pytest.mark.gpu
@pytest.mark.usefixtures("no_pictures")
def test_a_gpu_too_small_for_the_operator_alone(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")

    monkeypatch.setattr(command.measured, "measure", cannot)
    done = run("compare", "--kernels=pytorch", *FEW, *GPU)
    assert done.code == 0, done.text
    record = record_in(folder)
    assert (record["operator"], record["fma"]) == (None, None)
    assert "the GPU's memory is too small to measure the operator on its own" in done.text
    assert "there are no ceilings" in done.text
