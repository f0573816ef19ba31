"""The table at the end: the model beside what it has to beat."""

from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from data.columns import meter_label
from model.training.callbacks.rows import RowCollector

NAMES = {"same hour yesterday": "yesterday", "same hour last week": "last week"}


def rmsle(forecast: np.ndarray, actual: np.ndarray) -> float:
    """RMSLE over the rows where there is a forecast; negative values count as 0."""
    there = ~np.isnan(forecast)
    if not there.any():
        return float("nan")
    logs = [np.log1p(np.maximum(v[there].astype(np.float64), 0)) for v in (forecast, actual)]
    return float(np.sqrt(np.mean((logs[0] - logs[1]) ** 2)))


def score_table(actual: np.ndarray, forecasts: dict[str, np.ndarray], meter: np.ndarray) -> str:
    """RMSLE of each forecast, over all rows and by meter type, as text of at most 80 columns."""
    rows = {"all": np.ones(meter.size, dtype=bool)}
    if np.unique(meter).size > 1:
        rows |= {meter_label(int(code)): meter == code for code in np.unique(meter)}
    heads = [NAMES.get(name, name) for name in forecasts]
    table = [["test RMSLE", "rows", *heads]]
    for label, chosen in rows.items():
        scores = [rmsle(forecast[chosen], actual[chosen]) for forecast in forecasts.values()]
        cells = [f"{score:.4f}" if np.isfinite(score) else "-" for score in scores]
        table.append([label[:15], f"{int(chosen.sum()):,}", *cells])
    widths = [10, *(max(len(head), 7) + 2 for head in heads)]
    lines = []
    for label, *cells in table:
        pairs = zip(cells, widths, strict=True)
        lines.append(f"{label:<15}" + "".join(f"{cell:>{width}}" for cell, width in pairs))
    return "\n".join(lines)


class ScoreTable(L.Callback):
    """After a test: RMSLE of the model and of the baselines, per meter type, on the same rows."""

    def __init__(self) -> None:
        self.rows = RowCollector()

    def on_test_batch_end(
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

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the table."""
        cell, forecast = self.rows.collect()
        if not trainer.is_global_zero:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        windows = data.windows["test"]
        baselines = data.baselines("test")
        scored = np.isin(windows.cell, cell)  # all, unless --trainer.limit_test_batches
        series = windows.series
        actual = series.reading[cell + windows.length]
        meter = series.meter[series.series_of(cell)]
        forecasts = {"S4ConvD": forecast}
        forecasts |= {name: values[scored] for name, values in baselines.items()}
        rank_zero_info("\n" + score_table(actual, forecasts, meter))
        for name, values in forecasts.items():
            without = int(np.isnan(values).sum())
            if without:
                rank_zero_info(
                    f"{NAMES.get(name, name)}: scored without {without:,} rows, "
                    "whose reading to repeat is missing"
                )
        error = np.abs(forecast.astype(np.float64) - actual)
        rank_zero_info(
            f"S4ConvD in the meters' units: MAE {error.mean():.4g}, "
            f"RMSE {np.sqrt(np.mean(error**2)):.4g}"
        )
