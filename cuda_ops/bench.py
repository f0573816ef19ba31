"""The operator's speed, beside what the memory allows: `python -m cuda_ops.bench`.

Each path of the CUDA kernels and of PyTorch's formulations is held against the definition in
float64, timed, and held against it again. A call is timed by itself, in turn with all the others,
on inputs that are not in the L2, into memory filled with NaN, and is compared with the passes over
memory of `cuda_ops.ceilings`.

    python -m cuda_ops.bench --json record.json     measures the study's shape
    python -m cuda_ops.bench --table record.json    prints a record in Markdown
    python -m cuda_ops.bench --roofline record.json   prints what bounds its kernels, in words

The study's shape takes about 11 GiB of the GPU's memory, with --no-formulations about 6.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cuda_ops import report, roofline
from cuda_ops.ceilings import multiply_adds
from cuda_ops.contenders import STUDY, Size, contenders
from cuda_ops.environment import environment
from cuda_ops.jit import VARIANTS
from cuda_ops.launch import SCALARS
from cuda_ops.measure import measure
from cuda_ops.timing import eviction_buffer, tell
from cuda_ops.verify import WrongResultError


def size_option(word: str) -> Size:
    """The shape that a command line names, as in 16384x128x48; for argparse."""
    numbers = word.split("x")
    if len(numbers) not in (3, 4) or not all(n.isdecimal() and int(n) for n in numbers):
        raise argparse.ArgumentTypeError(
            f"'{word}' is no shape; write batch x channels x length, as in 16384x128x48, and the "
            "number of taps behind it where it is not the length"
        )
    return Size(*map(int, numbers), *[int(numbers[2])][: 4 - len(numbers)])


def _variants(words: str) -> list[str]:
    names = [name for name in words.split(",") if name]
    for name in names:
        if name not in VARIANTS:
            raise argparse.ArgumentTypeError(
                f"there is no CUDA kernel '{name}'; choose from: {', '.join(VARIANTS)}"
            )
    return list(dict.fromkeys(names))


def _rounds(word: str) -> int:
    if not word.isdecimal() or int(word) < 2:
        raise argparse.ArgumentTypeError(f"'{word}' is no whole number of 2 or more")
    return int(word)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cuda_ops.bench",
        description="Verify and time the CUDA kernels and PyTorch's formulations of the operator.",
    )
    parser.add_argument(
        "--shape",
        type=size_option,
        action="append",
        metavar="BxHxL[xK]",
        help=f"batch, channels, length and taps; may be repeated; default {STUDY}",
    )
    parser.add_argument("--dtype", choices=SCALARS.values(), default="float32")
    parser.add_argument(
        "--kernels",
        type=_variants,
        default=list(VARIANTS),
        metavar="NAME,...",
        help=f"default {','.join(VARIANTS)}",
    )
    parser.add_argument(
        "--formulations",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="PyTorch's formulations as well, which is the default",
    )
    parser.add_argument(
        "--repeats",
        type=_rounds,
        default=50,
        metavar="N",
        help="times that each call is timed; fewer where it takes more than 20 ms; default 50",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here as well")
    parser.add_argument("--commit", help="the commit to record, for a copy without its git history")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="only print this record, in Markdown"
    )
    parser.add_argument(
        "--roofline", type=Path, metavar="FILE", help="only print what bounds this record's kernels"
    )
    return parser


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record that the command line asks for."""
    device = torch.device("cuda", torch.cuda.current_device())
    dtype = next(dtype for dtype, name in SCALARS.items() if name == args.dtype)
    found = contenders(args.kernels, args.formulations, dtype, device)
    record = environment(device)
    record["commit"] = args.commit or record["commit"]
    evict = eviction_buffer(device, record["device"]["l2_bytes"])
    record["fma"] = asdict(multiply_adds(device, args.repeats))
    runs = [measure(size, dtype, found, args.repeats, evict) for size in args.shape or [STUDY]]
    tell(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    return record | {"runs": [asdict(run) for run in runs]}


def _markdown(path: Path, table: Callable[[dict[str, Any]], str]) -> str:
    """A table of a record; raises ValueError where the file holds none."""
    try:
        return table(json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no record of this bench: {error!r}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, 1 where a result is wrong, 2 where nothing can run."""
    args = _parser().parse_args(argv)
    try:
        if args.table:
            print(_markdown(args.table, report.markdown))
            return 0
        if args.roofline:
            print(_markdown(args.roofline, roofline.markdown))
            return 0
        if not (args.kernels or args.formulations):
            raise ValueError("--no-formulations and no --kernels leave nothing to measure")
        if args.json and not args.json.parent.is_dir():
            raise ValueError(f"there is no folder {args.json.parent} to write {args.json.name} to")
        if not torch.cuda.is_available():
            raise ValueError("the bench needs an NVIDIA GPU, and PyTorch sees none here")
        record = _measure(args)
        print(report.text(record))
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    except WrongResultError as error:
        print(f"error: wrong results, so no times are shown\n{error}", file=sys.stderr)
        return 1
    except torch.OutOfMemoryError:
        print("error: the GPU's memory is too small; take a smaller batch", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
