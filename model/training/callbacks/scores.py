"""The tables at the end, and a file by meter: the model beside what it has to beat."""

import re
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from lightning.pytorch.utilities import rank_zero_info

from data.columns import meter_label
from data.scores import MEASURES, Scores, measure_of, scores
from data.series import SeriesSet
from model.training.callbacks.rows import RowCollector
from model.training.forecasts import Forecasts, Outcome

LIMITS = {"cv_rmse": 30, "nmbe": 10}  # %, of ASHRAE Guideline 14, for hourly data


def rmsle(forecast: np.ndarray, actual: np.ndarray) -> float:
    """RMSLE over the rows where there is a forecast; negative values count as 0."""
    there = ~np.isnan(forecast)
    if not there.any():
        return float("nan")
    logs = [np.log1p(np.maximum(v[there].astype(np.float64), 0)) for v in (forecast, actual)]
    return float(np.sqrt(np.mean((logs[0] - logs[1]) ** 2)))


def rmse(forecast: np.ndarray, actual: np.ndarray) -> float:
    """RMSE over the rows where there is a forecast."""
    error = (forecast.astype(np.float64) - actual)[~np.isnan(forecast)]
    return float(np.sqrt(np.mean(error**2))) if error.size else float("nan")


Cells = list[list[str]]
"""A table, its first row the heads."""


def score_table(
    actual: np.ndarray,
    forecasts: dict[str, np.ndarray],
    meter: np.ndarray,
    measure: str = "rmsle",
) -> str:
    """`score_cells` as text of at most 80 columns, if there are no more than six forecasts."""
    return table_text(score_cells(actual, forecasts, meter, measure))


def score_cells(
    actual: np.ndarray,
    forecasts: dict[str, np.ndarray],
    meter: np.ndarray,
    measure: str = "rmsle",
) -> Cells:
    """RMSLE or RMSE of each forecast, over all rows and by meter type.

    Args:
        actual: (n,) readings.
        forecasts: name -> (n,), NaN where there is none.
        meter: (n,) the code of each row's meter type.
        measure: rmsle, or rmse.
    """
    score, form = (rmsle, "{:.4f}".format) if measure == "rmsle" else (rmse, number_text)
    rows = {"all": np.ones(meter.size, dtype=bool)}
    if np.unique(meter).size > 1:
        rows |= {meter_label(int(code)): meter == code for code in np.unique(meter)}
    table = [[f"test {MEASURES[measure]}", "rows", *_heads(forecasts)]]
    for label, chosen in rows.items():
        found = [score(forecast[chosen], actual[chosen]) for forecast in forecasts.values()]
        cells = [form(value) if np.isfinite(value) else "-" for value in found]
        table.append([label[:15], f"{int(chosen.sum()):,}", *cells])
    return table


def measure_table(found: dict[str, Scores]) -> str:
    """`measure_cells` as text of at most 80 columns, if there are no more than six forecasts."""
    return "\n".join(map(table_text, measure_cells(found)))


def measure_cells(found: dict[str, Scores]) -> tuple[Cells, Cells]:
    """Errors in the readings' unit, and what they are for a meter in the middle.

    Args:
        found: name of a forecast -> its scores by meter.
    """
    heads = _heads(found)
    table = [["all rows", "", *heads]]
    for measure in ("mae", "rmse"):
        values = [getattr(of.all(), measure)[0] for of in found.values()]
        table.append([MEASURES[measure], "", *map(number_text, values)])
    meters = max(int((of.rows > 0).sum()) for of in found.values())
    middle = [["median meter", f"of {meters:,}", *heads]]
    for measure in ("cv_rmse", "nmbe", "mase"):
        medians = [median(np.abs(getattr(of, measure))) for of in found.values()]
        label = MEASURES[measure].replace("NMBE", "|NMBE|")
        middle.append([label, "", *map(number_text, medians)])
    middle.append(["in the limits", "", *(f"{within_limits(of):,}" for of in found.values())])
    return table, middle


def standardised_table(found: dict[str, Scores], deviation: float) -> str:
    """Errors of all rows in units of the training rows' standard deviation, as papers give them.

    Args:
        found: name of a forecast -> its scores by meter.
        deviation: of the readings in the training rows.
    """
    everything = [of.all() for of in found.values()]
    squares = [number_text((of.rmse[0] / deviation) ** 2) for of in everything]
    sizes = [number_text(of.mae[0] / deviation) for of in everything]
    heads = ["standardised", "", *_heads(found)]
    return table_text([heads, ["MSE", "", *squares], ["MAE", "", *sizes]])


def meter_scores(found: dict[str, Scores], series: SeriesSet) -> pa.Table:
    """A row for each meter and forecast, with all measures; empty where one has no value."""
    tables = []
    for name, of in found.items():
        kept = np.flatnonzero(of.rows)
        columns = {name: pa.array(values[kept]) for name, values in series.ids.items()}
        columns |= {
            "forecast": pa.array([name] * kept.size, pa.string()),
            "rows": pa.array(of.rows[kept].astype(np.int64)),
        }
        columns |= {
            measure: pa.array(getattr(of, measure)[kept], from_pandas=True) for measure in MEASURES
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def within_limits(of: Scores) -> int:
    """Meters whose errors ASHRAE's Guideline 14 would accept of a model of hourly readings."""
    return int(sum(np.all([np.abs(getattr(of, name)) <= most for name, most in LIMITS.items()], 0)))


def median(values: np.ndarray) -> float:
    """Of the finite ones; NaN of none."""
    there = values[np.isfinite(values)]
    return float(np.median(there)) if there.size else float("nan")


def _heads(forecasts: dict[str, Any]) -> list[str]:
    return [short(name) for name in forecasts]


def short(name: str) -> str:
    """Yesterday, for the same hour yesterday."""
    return re.sub(r"^same \w+ ", "", name)


def number_text(value: float) -> str:
    """Four digits, or all of a large one's."""
    if not np.isfinite(value):
        return "-"
    if abs(value) < 1000:
        return f"{value:.4f}" if abs(value) < 1 else f"{value:#.4g}"
    return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2e}"


def table_text(table: Cells) -> str:
    """Columns below their heads, closer together where there are many."""
    heads = table[0][2:]
    first, gap = (15, 2) if len(heads) < 6 else (13, 1)
    widths = [10, *(max(len(head), 7) + gap for head in heads)]
    lines = []
    for label, *cells in table:
        pairs = zip(cells, widths, strict=True)
        lines.append(f"{label:<{first}}" + "".join(f"{cell:>{width}}" for cell, width in pairs))
    return "\n".join(lines)


class ScoreTable(L.Callback):
    """After a test: what the model and the baselines are worth on the same rows.

    RMSLE by meter type (RMSE, if readings are modelled without a logarithm) and the other measures
    are printed, and all of them by meter are written to scores.csv in the run's folder.

    Attributes:
        outcome: what the latest test found, in the process that tells of it; None elsewhere.
    """

    def __init__(self) -> None:
        self.rows = RowCollector()
        self.outcome: Outcome | None = None

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
        folder = trainer.log_dir  # which all processes have to ask for
        if not trainer.is_global_zero:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        windows = data.windows["test"]
        baselines = data.baselines("test")
        scored = np.isin(windows.cell, cell)  # all, unless --trainer.limit_test_batches
        series = windows.series
        actual = windows.targets()[scored].ravel()
        owner = np.repeat(series.series_of(cell), windows.horizon)
        meter = series.meter[owner]
        levels: Any = pl_module.hparams["quantiles"]
        found_by_model = Forecasts(windows, cell, tuple(levels), forecast)
        forecasts = {"S4ConvD": found_by_model.point.ravel()}
        forecasts |= {name: values[scored].ravel() for name, values in baselines.items()}
        measure = measure_of(data.transform)
        rank_zero_info("\n" + score_table(actual, forecasts, meter, measure))
        for name, values in forecasts.items():
            without = int(np.isnan(values).sum())
            if without:
                rank_zero_info(
                    f"{short(name)}: scored without {without:,} rows, "
                    "whose reading to repeat is missing"
                )
        naive_error = data.naive_error(series)
        band = (tuple(levels), forecast[..., 1:].reshape(actual.size, -1)) if levels else ()
        found = {
            name: scores(values, actual, owner, naive_error, *(band if name == "S4ConvD" else ()))
            for name, values in forecasts.items()
        }
        self.outcome = Outcome(
            found_by_model,
            {name: values[scored] for name, values in baselines.items()},
            found,
            data.covariates + data.known,
            measure,
        )
        rank_zero_info("\n" + measure_table(found))
        if measure == "rmse" and "train" in data.windows:
            rank_zero_info(standardised_table(found, data.scaling.reading_std))
        if levels:
            of = found["S4ConvD"].all()
            rank_zero_info(
                f"quantiles {levels[0]:g} to {levels[-1]:g} hold {of.coverage[0]:.1f} % of the "
                f"readings; mean pinball loss {of.pinball[0]:.4g}"
            )
        rank_zero_info(
            "limits: ASHRAE Guideline 14's for hourly models, CV(RMSE) 30 % and NMBE 10 %"
        )
        if folder is not None:
            path = Path(folder) / "scores.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            pacsv.write_csv(meter_scores(found, series), path)
            rank_zero_info(f"by meter: {path}")
