"""Models as files for other programs: each is held against what Lightning forecasts."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import model.training.export
from model.inference.program import sample_inputs
from model.inference.safetensors import write_safetensors
from model.training.module import S4ConvDModule
from tests.conftest import Run, assert_refused
from tests.data.tables import COLUMNS, long_table

RunTrain = Callable[..., Run]
FULL = [
    "--data.window=30",
    "--data.horizon=24",
    "--data.covariates=[]",
    "--data.known=[Temp]",
    "--model.quantiles=[0.1,0.5,0.9]",
    "--model.meter_features=3",
    "--model.seasons=[24,30]",
    "--model.flags=true",
    "--model.blocks=2",
    "--model.members=2",
    "--model.linear=true",
    "--model.amplitude=true",
]
SIGNED = ["--model.transform=none", "--model.init=published", "--model.norm=false"]
OPTIONS = [["--data.covariates=[Temp]"], FULL, SIGNED]
ELSEWHERE = """\
import sys, torch
program = torch.export.load(sys.argv[1]).module()
inputs = torch.load(sys.argv[2])
torch.save([program(*batch) for batch in inputs], sys.argv[3])
print(sorted(name for name in sys.modules if name.split(".")[0] in ("model", "data", "cuda_ops")))
"""


def trained(run: RunTrain, tmp_path: Path, options: list[str]) -> Run:
    """Of tables long enough for a window of 30 and 24 hours ahead, in each split."""
    splits = [f"--data.{split}_path={long_table(tmp_path / 't.csv')}" for split in ("train", "val")]
    r = run(*splits, *COLUMNS, *options, "--model.lr=0.05")
    assert r.code == 0, r.text
    return r


def exported(run: RunTrain, best: str, output: Path) -> Path:
    r = run("export", "--ckpt_path", best, "--output", output, tiny=False)
    assert r.code == 0, r.text
    assert f"{output}: forecasts as {best} does" in r.text
    return output


def batches(best: str) -> tuple[list[Any], list[torch.Tensor]]:
    """Windows in batches of several sizes, and what Lightning makes of them."""
    module = S4ConvDModule.load_from_checkpoint(best, map_location="cpu").eval()
    inputs = [sample_inputs(module.forecaster, module.hparams["window"], n) for n in (1, 2, 9)]
    with torch.inference_mode():
        return inputs, [module(*batch) for batch in inputs]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=["default", "full", "signed"])
def test_a_program_forecasts_where_this_code_is_not(
    run: RunTrain, tmp_path: Path, options: list[str]
) -> None:
    best = trained(run, tmp_path, options).best
    program = exported(run, best, tmp_path / "out" / "model.pt2")
    assert [path.name for path in program.parent.iterdir()] == ["model.pt2"]
    inputs, expected = batches(best)
    torch.save(inputs, tmp_path / "inputs.pt")
    paths = [program, tmp_path / "inputs.pt", tmp_path / "found.pt"]
    code = [sys.executable, "-I", "-c", ELSEWHERE, *map(str, paths)]
    done = subprocess.run(code, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    for found, wanted in zip(torch.load(tmp_path / "found.pt"), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_program_says_what_it_is(run: RunTrain, tmp_path: Path) -> None:
    best = trained(run, tmp_path, OPTIONS[0]).best
    about = {"model.json": ""}
    torch.export.load(exported(run, best, tmp_path / "model.pt2"), extra_files=about)
    said = json.loads(about["model.json"])
    assert said["hyper_parameters"]["covariates"] == ["Temp"]
    assert said["roles"]["id"] == ["Kunde"]


def parsed(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A safetensors file by the format's own words, apart from the code under test."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length].decode("utf-8"))
    data, end, tensors = content[8 + length :], 0, {}
    metadata = header.pop("__metadata__")
    types = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "BOOL": "?"}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        dtype = np.dtype(types[entry["dtype"]])
        assert begin == end  # no gaps
        assert begin % dtype.itemsize == 0
        end = stop
        tensors[name] = np.frombuffer(data[begin:stop], dtype).reshape(entry["shape"])
    assert end == len(data)
    return tensors, metadata


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "full", "signed"])
def test_weights_and_scaling_are_all_there(
    run: RunTrain, tmp_path: Path, options: list[str]
) -> None:
    best = trained(run, tmp_path, options).best
    tensors, metadata = parsed(exported(run, best, tmp_path / "model.safetensors"))
    checkpoint = torch.load(best, weights_only=True)
    state = {
        name.removeprefix("forecaster."): t.numpy() for name, t in checkpoint["state_dict"].items()
    }
    assert tensors.keys() == state.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == state[name].dtype
        assert tensor.shape == state[name].shape
        assert (tensor == state[name]).all()
    about = json.loads(metadata["model.json"])
    hparams = checkpoint["hyper_parameters"]
    assert about["hyper_parameters"] == {k: hparams[k] for k in hparams if k != "_instantiator"}
    assert about["roles"]["target"] == "kWh"


def test_the_formats_own_package_reads_the_same(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch")
    path = tmp_path / "x.safetensors"
    tensors = {
        "flag": torch.tensor(True),
        "none": torch.zeros(0, dtype=torch.int64),
        "wide": torch.arange(6).view(2, 3).t(),
        "half": torch.rand(3, 2, 1),
    }
    write_safetensors(path, tensors, {"words": "é"})
    found = package.load_file(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("name", ["model.pt2", "model.safetensors"])
def test_a_file_that_differs_is_not_left(
    run: RunTrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    best = trained(run, tmp_path, OPTIONS[0]).best
    honest = model.training.export.forecaster_of

    def wrong(checkpoint: dict[str, Any]) -> Any:
        forecaster = honest(checkpoint)
        forecaster.reading_mean.add_(0.01)
        return forecaster

    monkeypatch.setattr(model.training.export, "forecaster_of", wrong)
    output = tmp_path / "out" / name
    refused = run("export", "--ckpt_path", best, "--output", output, tiny=False)
    assert_refused(refused, "differs from the model by")
    assert list(output.parent.iterdir()) == []


def test_mistakes_are_told_in_one_message(run: RunTrain, tmp_path: Path) -> None:
    best = trained(run, tmp_path, OPTIONS[0]).best

    def refused(*args: object) -> Run:
        return run("export", *args, tiny=False)

    assert_refused(refused("--ckpt_path", best), "--output", "export --help")
    ckpt = ["--ckpt_path", best]
    assert_refused(refused(*ckpt, "--output", "x.onnx"), "x.onnx", ".pt2 or .safetensors")
    assert_refused(refused(*ckpt, "--output", "x.pt2", "--kernel=naive"), "--kernel=naive")
    assert_refused(
        refused("--ckpt_path", tmp_path / "no.ckpt", "--output", "x.pt2"), "there is no file"
    )
    folder = tmp_path / "file" / "x.pt2"
    folder.parent.write_text("")
    assert_refused(refused(*ckpt, "--output", folder), "cannot be written")
    shown = refused("--help")
    assert shown.code == 0
    assert "usage: python train.py export" in shown.text
    assert max(map(len, shown.text.splitlines())) <= 80
