"""After a test: a page and pictures that show whether to trust the forecast."""

from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info

from model.training.callbacks.scores import ScoreTable
from model.training.report.document import html, images


class ReportPage(L.Callback):
    """Writes report.html into the run's folder and its pictures for TensorBoard.

    Args:
        table: which has gathered the forecasts; it stands before this one in the trainer's list.
    """

    def __init__(self, table: ScoreTable) -> None:
        self.table = table

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write both."""
        folder = trainer.log_dir  # which all processes have to ask for
        outcome = self.table.outcome
        if outcome is None:
            return
        if isinstance(trainer.logger, TensorBoardLogger):
            step = max(trainer.global_step - 1, 0)  # as Lightning counts for the scores
            for name, image in images(outcome).items():
                trainer.logger.experiment.add_image(f"test_report/{name}", image, step)
        if folder is not None:
            path = Path(folder) / "report.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(html(outcome), encoding="utf-8")
            rank_zero_info(f"report: {path}")
