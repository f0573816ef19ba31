"""`python train.py export`: a trained model as a file for other programs."""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from model.inference.checkpoint import forecaster_of
from model.inference.program import Program, export_program, sample_inputs
from model.inference.safetensors import read_safetensors, write_safetensors
from model.training.checkpoint import read_checkpoint
from model.training.errors import UsageError
from model.training.module import S4ConvDModule

CHECKED = (1, 64)  # windows of the batches on which a file is held against the model
TOLERANCE = 1e-5  # of the largest forecast
ABOUT = "model.json"  # what either file says of the model beside its numbers
HELP = """\
usage: python train.py export --ckpt_path FILE --output FILE

Writes a trained model for programs that do not have this code, and holds the
file against the model before it is left there.

  --ckpt_path FILE  a checkpoint, such as runs/version_0/checkpoints/best.ckpt
  --output FILE     model.pt2: a program for a CPU, which torch.export.load
                    reads where there is PyTorch and nothing else
                    model.safetensors: weights, scaling and hyperparameters
"""

Forecast = Callable[..., torch.Tensor]


class _Parser(argparse.ArgumentParser):
    """Complains as the other commands do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"export: {message}; `python train.py export --help` shows the options")

    def format_help(self) -> str:
        return HELP


def export(args: list[str]) -> None:
    """Write the file that the options ask for.

    Raises:
        UsageError: it cannot be written, or would not forecast as the model does.
    """
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("--ckpt_path", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(args)
    output: Path = options.output
    if output.suffix not in WRITERS:
        raise UsageError(f"--output: {output} does not end in {' or '.join(WRITERS)}")
    checkpoint = read_checkpoint(options.ckpt_path)
    module = S4ConvDModule.load_from_checkpoint(options.ckpt_path, map_location="cpu").eval()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
            file = Path(scratch) / output.name
            forecast = WRITERS[output.suffix](file, checkpoint)
            off = _difference(forecast, module)
            if not off <= TOLERANCE:  # nor if it is no number
                raise UsageError(
                    f"--output: what was written differs from the model by {off:.1e} of its largest"
                    " forecast, and was taken away again; please report this"
                )
            file.replace(output)
    except OSError as error:
        raise UsageError(f"--output: {output} cannot be written: {error.strerror}") from error
    print(f"{output}: forecasts as {options.ckpt_path} does, within {off:.0e} of the largest")


def _program_file(path: Path, checkpoint: dict[str, Any]) -> Forecast:
    """Write a program; returns it as another process will have it."""
    window = checkpoint["hyper_parameters"]["window"]
    program = export_program(forecaster_of(checkpoint), window)
    torch.export.save(program, path, extra_files={ABOUT: json.dumps(_about(checkpoint))})
    return torch.export.load(path).module()


def _weights_file(path: Path, checkpoint: dict[str, Any]) -> Forecast:
    """Write weights and scaling; returns the forecaster that the file alone makes."""
    tensors = forecaster_of(checkpoint).state_dict()
    write_safetensors(path, tensors, {ABOUT: json.dumps(_about(checkpoint))})
    state, metadata = read_safetensors(path)
    return Program(forecaster_of(json.loads(metadata[ABOUT]) | {"state_dict": state}))


WRITERS = {".pt2": _program_file, ".safetensors": _weights_file}


def _about(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What makes the model what it is, in plain types."""
    hparams = {k: v for k, v in checkpoint["hyper_parameters"].items() if k != "_instantiator"}
    return {"hyper_parameters": hparams, "roles": checkpoint.get("roles", {})}


@torch.inference_mode()
def _difference(forecast: Forecast, module: S4ConvDModule) -> float:
    """The most that forecasts are off Lightning's, as a part of its largest."""
    off = []
    for batch in CHECKED:
        inputs = sample_inputs(module.forecaster, module.hparams["window"], batch)
        expected = module(*inputs)
        off.append(float((forecast(*inputs) - expected).abs().max() / expected.abs().max()))
    return max(off)
