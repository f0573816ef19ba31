"""S4ConvD as a LightningModule."""

from typing import Any, Literal

import lightning as L
import torch
from torch.optim import SGD, AdamW, Optimizer

from model.forecaster import Forecaster
from model.losses import rmsle
from model.optim import (
    MOMENTUM,
    OptimizerName,
    constant,
    group_rates,
    parameter_groups,
    warmup_cosine,
)
from model.training.errors import UsageError
from model.training.metrics import score_metrics


class S4ConvDModule(L.LightningModule):
    """Trains a `Forecaster` on RMSLE.

    Its hyperparameters rebuild the model from a checkpoint alone. The kernel is not one of them: it
    belongs to the run.

    Args:
        window: hours that the model sees; set with --data.window.
        covariates: columns beside the reading; set with --data.covariates.
        transform: log1p models log(1 + reading), for readings >= 0; none models the reading itself.
        relative: see each window relative to its last reading, and forecast the difference.
        calendar: tell the model the hour, weekday and season of the predicted hour.
        norm: LayerNorm in each block; the published network has none.
        init: start of the filters, s4d_lin or as published.
        channels: H, the width.
        blocks: the depth.
        state_size: N of each filter's state-space model.
        dropout: probability in each block; 0.01 as published.
        optimizer: adamw, warmed up and then a cosine, or the study's sgd: momentum 0.9, one rate.
        lr: peak learning rate (with sgd the rate itself).
        weight_decay: of the matrices.
        kernel: implementation of the convolution; set with --kernel.
    """

    def __init__(
        self,
        window: int,
        covariates: list[str],
        transform: Literal["log1p", "none"] = "log1p",
        relative: bool = True,
        calendar: bool = True,
        norm: bool = True,
        init: Literal["s4d_lin", "published"] = "s4d_lin",
        channels: int = 64,
        blocks: int = 2,
        state_size: int = 64,
        dropout: float = 0.0,
        optimizer: OptimizerName = "adamw",
        lr: float = 4e-3,
        weight_decay: float = 0.01,
        kernel: str = "pytorch",
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["kernel"])
        for name, value in (("channels", channels), ("blocks", blocks), ("state_size", state_size)):
            if value < 1 or (name == "state_size" and value % 2):
                kind = "an even number of 2 or more" if name == "state_size" else "1 or more"
                raise UsageError(f"--model.{name} must be {kind}, not {value}")
        self.forecaster = Forecaster(
            covariates,
            transform=transform,
            relative=relative,
            calendar=calendar,
            norm=norm,
            init=init,
            channels=channels,
            blocks=blocks,
            state_size=state_size,
            dropout=dropout,
            kernel=kernel,
        )
        self.kernel = kernel
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.val_metrics = score_metrics("val/")
        self.test_metrics = score_metrics("test/")

    def setup(self, stage: str) -> None:
        """Take the scaling from the training rows. A checkpoint, loaded later, brings its own."""
        if stage == "fit":
            scaling = self.trainer.datamodule.scaling  # type: ignore[attr-defined]
            self.forecaster.fit_scaling(
                scaling.reading_mean,
                scaling.reading_std,
                scaling.covariate_mean,
                scaling.covariate_std,
            )

    def forward(
        self, reading: torch.Tensor, covariates: torch.Tensor, hour: torch.Tensor
    ) -> torch.Tensor:
        """Forecast in the user's units, (B,); see `Forecaster` for the inputs."""
        return self.forecaster.to_user_units(self.forecaster(reading, covariates, hour))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """RMSLE of one batch."""
        forecast = self.forecaster(batch.reading, batch.covariates, batch.hour)
        loss = rmsle(self.forecaster.to_log1p(forecast), batch.target)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/lr", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add one batch to the validation scores."""
        self._score(self.val_metrics, batch)
        self.log_dict(self.val_metrics, prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Add one batch to the test scores; returns the forecast in the user's units."""
        forecast = self._score(self.test_metrics, batch)
        self.log_dict(self.test_metrics)
        return forecast

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The forecast in the user's units, (B,)."""
        return self(batch.reading, batch.covariates, batch.hour)

    def _score(self, metrics: torch.nn.Module, batch: Any) -> torch.Tensor:
        forecast = self(batch.reading, batch.covariates, batch.hour)
        if forecast.numel():  # a process may end on an empty batch, see WindowLoader
            metrics.update(forecast.double(), batch.target.double())  # type: ignore[operator]
        return forecast

    def configure_optimizers(self) -> Any:
        """AdamW and a cosine over all steps of the run, or SGD at one rate."""
        groups = parameter_groups(self.forecaster, self.lr, self.weight_decay, self.optimizer)
        optimizer: Optimizer
        if self.optimizer == "sgd":
            optimizer = SGD(groups, lr=self.lr, momentum=MOMENTUM)
            scheduler = constant(optimizer)
        else:
            optimizer = AdamW(groups, lr=self.lr)
            scheduler = warmup_cosine(optimizer, int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_train_start(self) -> None:
        """Let this run's settings hold, and a resumed run go on where it stopped."""
        self._set_rates()
        self._place_loader()

    def _set_rates(self) -> None:
        """Learning rate and weight decay of this run, over those that a checkpoint restored."""
        scheduler: Any = self.lr_schedulers()
        scheduler.base_lrs = group_rates(self.lr, self.optimizer)
        factor = scheduler.lr_lambdas[0](scheduler.last_epoch)
        groups = scheduler.optimizer.param_groups
        for group, rate in zip(groups, scheduler.base_lrs, strict=True):
            group["initial_lr"], group["lr"] = rate, rate * factor
        groups[0]["weight_decay"] = self.weight_decay  # the matrices, see `parameter_groups`

    def _place_loader(self) -> None:
        """Let the training loader hand out the windows that a resumed run has not trained on yet.

        Lightning would load the loader's state, but not where configure_optimizers asked for the
        number of steps; and it counts a batch as seen that an interrupted step threw away.
        """
        loop: Any = self.trainer.fit_loop
        done = loop.epoch_loop.batch_progress.current.processed
        epoch = loop.epoch_progress.current.ready - (1 if done else 2)
        if done >= self.trainer.num_training_batches:
            done = 0
        loader: Any = self.trainer.train_dataloader
        loader.load_state_dict({"epoch": max(epoch, -1), "done": done})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note what trained these weights, for whoever asks; no run reads it.

        Plain types, so that the file loads with `weights_only=True`.
        """
        on_cuda = self.device.type == "cuda"
        checkpoint["notes"] = {
            "kernel": self.kernel,
            "device": torch.cuda.get_device_name(self.device) if on_cuda else self.device.type,
            "torch": str(torch.__version__),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights without the scaling that they were trained with.

        Raises:
            UsageError: the checkpoint holds none.
        """
        if not checkpoint["state_dict"].get("forecaster.fitted", torch.tensor(False)):
            raise UsageError(
                "the checkpoint holds no scaling, so its forecasts would be in no known unit; "
                "take one that train.py wrote"
            )
