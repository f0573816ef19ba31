"""Forecasts as a file."""

from pathlib import Path
from typing import Any

import lightning as L
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from lightning.pytorch.utilities import rank_zero_info

from model.inference.predictions import prediction_table
from model.training.callbacks.rows import RowCollector


class PredictionFile(L.Callback):
    """Writes the forecasts of a predict loop to csv or, by the file's suffix, to Parquet.

    Args:
        path: the file; None is predictions.csv in the run's folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows = RowCollector()

    def on_predict_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the forecasts."""
        self.rows.add(batch.cell, outputs)

    def on_predict_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the file."""
        cell, forecast = self.rows.collect()
        path = self.path or Path(trainer.log_dir or trainer.default_root_dir) / "predictions.csv"
        if not trainer.is_global_zero:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        quantiles: Any = pl_module.hparams["quantiles"]
        table = prediction_table(data.windows["predict"], cell, forecast, quantiles)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".parquet", ".pq"):
            pq.write_table(table, path)
        else:
            pacsv.write_csv(table, path)
        rank_zero_info(f"\npredictions: {table.num_rows:,} rows in {path}")  # below the bar
