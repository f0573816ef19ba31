"""The peak that was predicted is the one that PyTorch then measures."""

import gc
import time
from typing import Any

import lightning as L
import pytest
import torch

from cuda_ops import prepare_kernel
from data.module import SeriesDataModule
from model.training.callbacks.memory import MemoryForecast
from model.training.module import S4ConvDModule

pytestmark = pytest.mark.gpu
KERNELS = ["pytorch", "warp_tiled"]
STUDY: dict[str, Any] = {
    "init": "published",
    "relative": False,
    "calendar": False,
    "norm": False,
    "channels": 128,
    "blocks": 4,
    "dropout": 0.01,
    "optimizer": "sgd",
    "lr": 1e-5,
}


class Watched(MemoryForecast):
    """Measures what comes after it, and what it costs."""

    measured = 0
    seconds = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.cuda.synchronize()
        state, start = torch.cuda.get_rng_state(), time.perf_counter()
        super().on_train_start(trainer, pl_module)
        self.seconds = time.perf_counter() - start
        assert torch.equal(torch.cuda.get_rng_state(), state)
        torch.cuda.reset_peak_memory_stats()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.cuda.synchronize()
        self.measured = torch.cuda.max_memory_allocated()


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The compiler's time is no case's."""
    prepare_kernel("warp_tiled", torch.device("cuda", torch.cuda.current_device()))


def check(
    what: str, batch: int, precision: Any = "32-true", replays: bool = False, **options: Any
) -> Watched:
    """Three steps of a fit hold what was predicted, within 10 %."""
    data = SeriesDataModule(batch_size=batch)
    module = S4ConvDModule(data.window, list(data.covariates), **options)
    module.run_as(module.kernel, replays)
    gc.collect()
    torch.cuda.empty_cache()
    watched = Watched()
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision=precision,
        max_steps=3,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watched],
    )
    trainer.fit(module, datamodule=data)
    assert trainer.global_step == 3
    assert watched.peak is not None
    found = [f"{count / 2**20:,.1f}" for count in (watched.peak, watched.measured)]
    off = watched.peak / watched.measured - 1
    print(
        f"{what}, batch {batch:,}: {found[0]} MiB predicted, {found[1]} measured, {off:+.2%}; "
        f"said in {watched.seconds:.2f} s"
    )
    assert abs(off) < 0.1
    return watched


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("batch", [256, 16384])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_default_network(kernel: str, batch: int, optimizer: str, norm: bool) -> None:
    """It is said that a batch fits, and it does not; small batches are mostly cuBLAS's own."""
    what = f"{kernel}, {optimizer}, {'norm' if norm else 'no norm'}"
    check(what, batch, kernel=kernel, optimizer=optimizer, norm=norm)


@pytest.mark.parametrize("kernel", [*KERNELS, "fused"])
def test_the_published_network_and_the_time_it_takes(kernel: str) -> None:
    torch.set_float32_matmul_precision("high" if kernel == "fused" else "highest")
    watched = check(f"published, {kernel}", 16384, kernel=kernel, **STUDY)
    assert watched.seconds < 2


@pytest.mark.parametrize("batch", [256, 16384])
def test_a_replayed_step(batch: int) -> None:
    """A graph has its own batch, gradients and workspaces."""
    torch.set_float32_matmul_precision("high")
    check("replayed, fused", batch, kernel="fused", replays=True, **STUDY)


@pytest.mark.parametrize("kernel", KERNELS)
def test_half_precision(kernel: str) -> None:
    """What is predicted is the step in float32, whatever the run's precision."""
    check(f"bf16-mixed, {kernel}", 16384, "bf16-mixed", kernel=kernel)
