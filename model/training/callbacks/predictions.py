"""Forecasts as a file, a row for each tick that a window predicts."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from lightning.pytorch.utilities import rank_zero_info

from data.columns import TIME
from data.windows import Windows
from model.forecaster import MEDIAN
from model.training.callbacks.rows import RowCollector


def prediction_table(
    windows: Windows, cell: np.ndarray, forecast: np.ndarray, quantiles: list[float]
) -> pa.Table:
    """A row for each window and each tick that it predicts.

    The series' own columns, timestamp (as in the input), horizon (1 for the first tick after the
    window; where there are several), prediction (in the user's units) and a column a quantile.

    Args:
        windows: what was predicted.
        cell: (n,) the windows' first cells.
        forecast: (n, horizon, Q), the user's units.
        quantiles: their levels, or none.
    """
    series, ahead = windows.series, np.arange(windows.horizon)
    owner = np.repeat(series.series_of(cell), windows.horizon)
    minute = series.minute((series.tick_of(cell) + windows.length)[:, None] + ahead).ravel()
    columns = {name: pa.array(values[owner]) for name, values in series.ids.items()}
    columns[TIME] = pa.array(minute.astype("datetime64[m]").astype("datetime64[s]"))
    if windows.horizon > 1:
        columns["horizon"] = pa.array(np.tile(ahead + 1, cell.size))
    median = quantiles.index(MEDIAN) if quantiles else 0
    columns["prediction"] = pa.array(forecast[..., median].ravel())
    for number, level in enumerate(quantiles):
        columns[f"quantile_{level:g}"] = pa.array(forecast[..., number].ravel())
    return pa.table(columns)


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
