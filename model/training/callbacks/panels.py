"""Forecast panels in TensorBoard: some meters' last week of validation, reading by reading."""

from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from data.columns import meter_label
from data.grid import HOUR, WEEK
from data.windows import Windows
from model.training.callbacks.drawing import Panel, draw_grid
from model.training.callbacks.scores import rmsle

PANELS = 6
LEAST = 48  # readings, where a week has fewer


def choose_series(windows: Windows) -> np.ndarray:
    """At most `PANELS` series that have windows, every meter type among them, in a fixed order."""
    series = windows.series
    owners = np.unique(series.series_of(windows.cell))
    # The first series of each type come first, then the second ones, and so on.
    rank = np.zeros(owners.size, dtype=np.int64)
    for code in np.unique(series.meter[owners]):
        of_type = series.meter[owners] == code
        rank[of_type] = np.arange(of_type.sum())
    return np.sort(owners[np.lexsort((owners, rank))][:PANELS])


class ForecastPanels(L.Callback):
    """Draws the panels after epochs 1, 2, 4, 8, ... and at the end, so that files stay small.

    A meter type's panels stand one under the other: TensorBoard shrinks an image to the width of
    a card.
    """

    def __init__(self) -> None:
        self.drawn = -1  # the step of the latest panels

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw, if this epoch's turn has come."""
        epoch = trainer.current_epoch + 1
        if not trainer.sanity_checking and epoch & (epoch - 1) == 0:
            self._draw(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw what the run ended with."""
        self._draw(trainer, pl_module)

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not (trainer.is_global_zero and isinstance(trainer.logger, TensorBoardLogger)):
            return
        step = max(trainer.global_step - 1, 0)  # as Lightning counts for the scores
        if step == self.drawn:
            return
        self.drawn = step
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        windows = data.windows["val"]
        chosen = choose_series(windows)
        meters = windows.series.meter[chosen]
        for code in np.unique(meters):
            panels = [self._panel(pl_module, data, windows, s) for s in chosen[meters == code]]
            tag = "val_forecasts/" + meter_label(int(code)).replace(" ", "_")
            trainer.logger.experiment.add_image(tag, draw_grid(panels, columns=1), step)

    def _panel(self, pl_module: Any, data: Any, windows: Windows, series: int) -> Panel:
        low, high = windows.series.offset[series : series + 2]
        cell = windows.cell[(windows.cell >= low) & (windows.cell < high)]
        shown = max(WEEK // windows.series.step, LEAST)
        cell = cell[cell > cell[-1] - shown]
        cell = cell[(cell - cell[0]) % windows.horizon == 0]  # forecasts that follow one another
        source = data.device_series(windows.series)
        batch = source.gather(torch.from_numpy(cell).to(source.reading.device))
        training = pl_module.training
        pl_module.eval()
        with torch.no_grad():
            forecast = pl_module.forecast(batch)[..., 0]
        forecast = forecast.flatten().float().cpu().numpy()
        pl_module.train(training)
        actual = batch.target.flatten().cpu().numpy()
        step = windows.series.step
        ahead = step * torch.arange(windows.horizon, device=batch.minute.device)
        minutes = (batch.minute.unsqueeze(1) + ahead).flatten().cpu().numpy()
        return Panel(
            title=windows.series.name(series),
            subtitle=f"RMSLE {rmsle(forecast, actual):.3f}",
            hours=minutes / HOUR,
            step=step / HOUR,
            actual=actual,
            forecast=forecast,
        )
