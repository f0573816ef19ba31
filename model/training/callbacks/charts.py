"""TensorBoard's custom scalars: the curves that answer a question, side by side."""

import lightning as L

from model.training.logger import StepLogger

CHARTS = {
    "What does a step cost?": {
        "Where does a step go? (ms)": [
            "time/data_ms",
            "time/operator_ms",
            "time/optimizer_ms",
            "time/rest_ms",
        ],
        "The operator, path by path (ms)": [
            "time/forward_ms",
            "time/input_grad_ms",
            "time/weight_grad_ms",
        ],
        "The operator, both gradients in one (ms)": ["time/forward_ms", "time/both_gradients_ms"],
        "Effective bandwidth, path by path (GB/s)": [
            "bandwidth/forward_gb_s",
            "bandwidth/input_grad_gb_s",
            "bandwidth/weight_grad_gb_s",
        ],
        "Effective bandwidth, both gradients in one (GB/s)": [
            "bandwidth/forward_gb_s",
            "bandwidth/both_gradients_gb_s",
        ],
        "Throughput (windows a second)": ["throughput/windows_per_s"],
    },
    "Is it learning?": {
        "RMSLE of validation and of single batches": ["val/rmsle", "train/loss"],
        "Errors in the meters' units": ["val/mae", "val/rmse"],
    },
}
"""Category -> chart -> tags. A run has a chart if it has the chart's last tag."""


def charts_of(tags: set[str]) -> dict[str, dict[str, list[str]]]:
    """`CHARTS`, as far as there is something to draw."""
    found = {
        category: {
            chart: [tag for tag in drawn if tag in tags]
            for chart, drawn in charts.items()
            if drawn[-1] in tags
        }
        for category, charts in CHARTS.items()
    }
    return {category: charts for category, charts in found.items() if charts}


class Charts(L.Callback):
    """Writes the layout once: when the curves have begun, or at the run's end those that have.

    TensorBoard reads a run's first layout alone, and shows charts without curves as empty boxes.
    """

    def __init__(self) -> None:
        self.written = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write, if there is nothing to wait for."""
        awaited = {"train/loss", "time/step_ms"}
        if trainer.enable_validation:
            awaited.add("val/rmsle")
        self._write(trainer, awaited)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write what there is."""
        self._write(trainer, set())

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Likewise for an interrupted run."""
        self._write(trainer, set())

    def _write(self, trainer: L.Trainer, awaited: set[str]) -> None:
        logger = trainer.logger
        if self.written or not trainer.is_global_zero or not isinstance(logger, StepLogger):
            return
        charts = charts_of(logger.tags)
        if charts and awaited <= logger.tags:
            layout = {
                category: {chart: ["Multiline", tags] for chart, tags in drawn.items()}
                for category, drawn in charts.items()
            }
            logger.experiment.add_custom_scalars(layout)
            self.written = True
