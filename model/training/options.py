"""The options of this application beside Lightning's, the model's and the data's."""

from pathlib import Path
from typing import Literal

from lightning.pytorch.cli import LightningArgumentParser

from cuda_ops import BLOCK_KERNELS
from data.grid import HOUR
from model.training.execution import AUTO
from model.training.start import PARTS


def add_options(parser: LightningArgumentParser) -> None:
    """Add them, and link what is one setting under two names."""
    names = ", ".join(BLOCK_KERNELS)
    parser.add_argument(
        "--kernel",
        default=AUTO,
        help=f"the convolution's implementation: {names} (the whole block); "
        f"{AUTO}: the fastest that runs here",
    )
    parser.add_argument(
        "--step",
        type=Literal["graph", "eager", "published"] | None,
        default=None,
        help="how a training step runs: graph replays it as one on a GPU (default with --kernel"
        f" {AUTO} and fused); eager times the convolution's paths; published is eager and in "
        "the published network's order of passes",
    )
    parser.add_argument(
        "--matmul_precision",
        type=Literal["highest", "high"] | None,
        default=None,
        help="float32 products on a GPU in full, or in TF32: high (with auto, fused, published)",
    )
    parser.add_argument(
        "--init_from",
        type=Path | None,
        default=None,
        help="a checkpoint whose weights fit begins with, on data that may be others; "
        "--ckpt_path instead goes on with that very run",
    )
    parser.add_argument(
        "--scaling",
        type=Literal["keep", "refit"],
        default="keep",
        help="with --init_from: the checkpoint's scaling, or that of the training rows",
    )
    parser.add_argument(
        "--freeze",
        type=list[str],
        default=[],
        help=f"parts that are not trained, of {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="folder that the run's folder is made in",
    )
    parser.add_argument(
        "--output",
        type=Path | None,
        default=None,
        help="file for the forecasts, .csv or .parquet (default: in the run's folder)",
    )
    parser.link_arguments("kernel", "model.kernel")
    parser.link_arguments("step", "model.published", lambda step: step == "published")
    for name in ("window", "horizon", "covariates", "known", "static"):
        parser.link_arguments(f"data.{name}", f"model.{name}")
    parser.link_arguments("model.transform", "data.transform")
    # No option: the data or a checkpoint say it.
    parser.link_arguments("data.window", "model.step", lambda window: HOUR)
    parser.link_arguments("data.window", "model.span", lambda window: None)
