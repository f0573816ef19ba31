"""S4ConvD as a LightningModule."""

from dataclasses import asdict
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch.optim import SGD, AdamW, Optimizer

from model.calendar import Cycle
from model.forecaster import MEDIAN, Forecaster
from model.inference.checkpoint import NO_SCALING
from model.optim import (
    MOMENTUM,
    OptimizerName,
    constant,
    group_rates,
    parameter_groups,
    warmup_cosine,
)
from model.training.errors import UsageError
from model.training.graph import GraphedLoss
from model.training.metrics import ScoreMetrics
from model.training.start import Start


class S4ConvDModule(L.LightningModule):
    """Trains a `Forecaster`.

    Its hyperparameters rebuild the model from a checkpoint alone. The kernel and the form of the
    step are none of them: they belong to the run.

    Args:
        window: readings that the model sees; set with --data.window.
        covariates: columns beside the reading; set with --data.covariates.
        known: those of them that are known ahead; set with --data.known.
        static: names of what is known of each meter at all times; set with --data.static.
        horizon: how many readings ahead are forecast; set with --data.horizon.
        quantiles: levels to forecast beside the forecast itself, 0.5 among them, such as
            [0.1,0.5,0.9]; their pinball loss is added to the loss.
        transform: log1p models log(1 + reading), for readings >= 0; none models the reading itself;
            auto is none where negative readings are more than a tenth of all that was read.
        relative: see each window relative to its last reading, and forecast the difference.
        amplitude: see each window in units of its own standard deviation, and forecast in them.
        linear: fit a linear model of the window first; the network learns what it leaves.
        calendar: tell the model the time of day, weekday and season of what it predicts; false is
            none of them, and [day,week] is these two.
        flags: tell the model which readings are 0 and which repeat the one before.
        seasons: tell the model the reading that lies so many ticks before each predicted one.
        meter_features: numbers that are learnt for each meter, by which it is told from the others.
        step: minutes from one reading to the next, which the data say.
        span: minutes that the training rows span, likewise: the calendar has no longer cycle.
        members: networks that are trained side by side, and averaged: better, and so many times
            slower.
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
        published: the network pass by pass as published; set with --step.
    """

    def __init__(
        self,
        window: int,
        covariates: list[str],
        known: list[str] = [],  # noqa: B006 (never changed, as below)
        static: list[str] = [],  # noqa: B006
        horizon: int = 1,
        quantiles: list[float] = [],  # noqa: B006
        transform: Literal["auto", "log1p", "none"] = "auto",
        relative: bool = True,
        amplitude: bool = False,
        linear: bool = False,
        calendar: bool | list[Cycle] = True,
        flags: bool = False,
        seasons: list[int] = [],  # noqa: B006
        meter_features: int = 0,
        step: int = 60,
        span: int | None = None,
        members: int = 1,
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
        published: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["kernel", "published"])
        _refuse_quantiles(quantiles)
        for season in seasons:
            if not 1 <= season <= window:
                raise UsageError(
                    f"--model.seasons: {season} does not lie in --data.window, {window}"
                )
        if linear and not relative:
            raise UsageError(
                "--model.linear forecasts from a window's last reading on, and so does the network "
                "beside it: leave --model.relative false out"
            )
        if meter_features < 0:
            raise UsageError(f"--model.meter_features must be 0 or more, not {meter_features}")
        sizes = {"channels": channels, "blocks": blocks, "state_size": state_size}
        for name, value in (sizes | {"members": members}).items():
            if value < 1 or (name == "state_size" and value % 2):
                kind = "an even number of 2 or more" if name == "state_size" else "1 or more"
                raise UsageError(f"--model.{name} must be {kind}, not {value}")
        self.forecaster = Forecaster(
            covariates,
            known=[*known, *static],
            horizon=horizon,
            quantiles=quantiles,
            transform="log1p" if transform == "auto" else transform,  # see `setup`
            relative=relative,
            amplitude=amplitude,
            linear=window * linear,
            calendar=calendar,
            flags=flags,
            seasons=seasons,
            meter_features=meter_features,
            step=step,
            span=span,
            members=members,
            norm=norm,
            init=init,
            channels=channels,
            blocks=blocks,
            state_size=state_size,
            dropout=dropout,
            kernel=kernel,
            published=published,
        )
        self.start: Start | None = None  # weights to begin with, instead of random ones
        self.kernel = kernel
        self.replays = False
        self._graphed: GraphedLoss | None = None
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.val_metrics = ScoreMetrics("val/", quantiles)
        self.test_metrics = ScoreMetrics("test/", quantiles)

    def run_as(self, kernel: str, replays: bool = False) -> None:
        """Settle how steps run, once the device is known.

        Args:
            kernel: a name from `cuda_ops.BLOCK_KERNELS`.
            replays: let a CUDA graph make loss and gradients, see `GraphedLoss`.
        """
        self.kernel, self.replays = kernel, replays
        for network in self.forecaster.networks:
            network.use_kernel(kernel)

    def setup(self, stage: str) -> None:
        """Take the data's step, transform and span, and the scaling from the training rows.

        A checkpoint, loaded later, brings its own scaling.
        """
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        for name in ("step", "transform", "span")[: 3 if stage == "fit" else 2]:
            value = getattr(data, name)
            setattr(self.forecaster, name, value)
            self.hparams[name] = value
            # What Lightning logs.
            self._hparams_initial[name] = value  # type: ignore[index,operator]
        if stage == "fit":
            self._graphed = None  # of tensors that may lie elsewhere by now
            scaling = data.scaling
            self.forecaster.fit_scaling(
                scaling.reading_mean,
                scaling.reading_std,
                scaling.covariate_mean,
                scaling.covariate_std,
            )
            if self.forecaster.linear:
                self.forecaster.fit_linear(*map(torch.from_numpy, data.linear_map()))
            if self.forecaster.meters is not None:
                self.forecaster.meters.learn(torch.from_numpy(data.windows["train"].series.keys()))
            if self.start is not None:
                rank_zero_info(self.start.apply(self.forecaster))

    def forward(
        self,
        reading: torch.Tensor,
        covariates: torch.Tensor,
        minute: torch.Tensor,
        key: torch.Tensor | None = None,
        known: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Forecast in the user's units, (B, horizon, 1 + Q); see `Forecaster` for the inputs."""
        forecast = self.forecaster(reading, covariates, minute, key, known)
        return self.forecaster.to_user_units(forecast)

    def forecast(self, batch: Any) -> torch.Tensor:
        """The same of a batch."""
        return self(*batch.inputs)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Let Lightning's logs go by the number of the step.

        It counts one more from where a run was resumed within an epoch.
        """
        loop: Any = self.trainer.fit_loop
        loop.epoch_loop._batches_that_stepped = self.trainer.global_step

    def loss(self, batch: Any, weight: torch.Tensor | None = None) -> torch.Tensor:
        """Of one batch, its windows weighted alike or as told, see `Forecaster.loss`."""
        of = self.forecaster
        return of.loss(of.of_members(*batch.inputs), batch.target, weight)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The loss of one batch; where a graph is replayed, the gradients are there too."""
        loss = self._replayed(batch) if self._replaying else self.loss(batch)
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and (self.trainer.global_step + 1) % every == 0:  # at others it would be for show
            self.log("train/loss", loss)
            self.log("train/lr", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return loss

    @property
    def _replaying(self) -> bool:
        """A callback may ask for gradients to be accumulated, which a graph overwrites."""
        return self.replays and self.trainer.accumulate_grad_batches == 1

    def _replayed(self, batch: Any) -> torch.Tensor:
        if self._graphed is None:
            trained = [p for p in self.parameters() if p.requires_grad]
            self._graphed = GraphedLoss(self.loss, trained)
        return self._graphed(batch)

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Lightning's, unless a graph has made the gradients."""
        if not self._replaying:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Lightning's, unless a graph writes each gradient anew."""
        if not self._replaying:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def on_train_end(self) -> None:
        """Give the graph's memory back."""
        self._graphed = None

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add one batch to the validation scores."""
        self._score(self.val_metrics, batch)

    def on_validation_epoch_end(self) -> None:
        """Log the scores, once."""
        self.log_dict(self.val_metrics.point, prog_bar=True)
        self.log_dict(self.val_metrics.band, prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Add one batch to the test scores; returns the forecasts, (B, horizon, 1 + Q)."""
        return self._score(self.test_metrics, batch)

    def on_test_epoch_end(self) -> None:
        """Log the scores, once."""
        self.log_dict(self.test_metrics.point)
        self.log_dict(self.test_metrics.band)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The forecasts in the user's units, (B, horizon, 1 + Q)."""
        return self.forecast(batch)

    def _score(self, metrics: ScoreMetrics, batch: Any) -> torch.Tensor:
        forecast = self.forecast(batch)
        if forecast.numel():  # a process may end on an empty batch, see WindowLoader
            metrics.update(forecast.double(), batch.target.double())
        return forecast

    def configure_optimizers(self) -> Any:
        """AdamW and a cosine over all steps of the run, or SGD at one rate."""
        groups = parameter_groups(self.forecaster, self.lr, self.weight_decay, self.optimizer)
        fused = self._fused_optimizer()
        optimizer: Optimizer
        if self.optimizer == "sgd":
            optimizer = SGD(groups, lr=self.lr, momentum=MOMENTUM, fused=fused)
            scheduler = constant(optimizer)
        else:
            optimizer = AdamW(groups, lr=self.lr, fused=fused)
            scheduler = warmup_cosine(optimizer, int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _fused_optimizer(self) -> bool | None:
        """One launch for all parameters; None leaves it to PyTorch.

        PyTorch's choice is many launches. With 16-mixed a fused step undoes the loss's scaling
        itself, which is too late for clipping.
        """
        known = self.device.type in ("cpu", "cuda") and self.trainer.precision != "16-mixed"
        return True if known else None

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
            group["fused"] = self._fused_optimizer()
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

    def _keep_epoch_open(self, loops: dict[str, Any]) -> None:
        """An epoch that --trainer.max_steps ended is as unfinished as after a crash.

        Lightning counts it as trained, and a resumed run would train one epoch less.
        """
        progress = loops["fit_loop"]["epoch_progress"]
        done = loops["fit_loop"]["epoch_loop.batch_progress"]["current"]["processed"]
        if 0 < done < self.trainer.num_training_batches:
            for counts in (progress["current"], progress["total"]):
                for name in ("processed", "completed"):
                    counts[name] = min(counts[name], counts["ready"] - 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say which columns were trained on, and note what trained: no run reads the note.

        Plain types, so that the file loads with `weights_only=True`.
        """
        self._keep_epoch_open(checkpoint["loops"])
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        checkpoint["roles"] = asdict(data.roles)
        on_cuda = self.device.type == "cuda"
        checkpoint["notes"] = {
            "kernel": self.kernel,
            "device": torch.cuda.get_device_name(self.device) if on_cuda else self.device.type,
            "torch": str(torch.__version__),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights without the scaling that they were trained with; make room for meters.

        Raises:
            UsageError: the checkpoint holds none.
        """
        if not checkpoint["state_dict"].get("forecaster.fitted", torch.tensor(False)):
            raise UsageError(NO_SCALING)
        if self.forecaster.meters is not None:
            known = checkpoint["state_dict"]["forecaster.meters.known"]
            self.forecaster.meters.make_room(known.numel())


def _refuse_quantiles(levels: list[float]) -> None:
    ascending = all(0 < level < 1 for level in levels) and levels == sorted(set(levels))
    if levels and not (ascending and MEDIAN in levels):
        raise UsageError(
            f"--model.quantiles must ascend within 0 and 1 and hold {MEDIAN}, as [0.1,0.5,0.9]; "
            f"not {levels}"
        )
