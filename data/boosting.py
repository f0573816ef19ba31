"""LightGBM on the same windows: what many people forecast meters with today."""

from importlib.util import find_spec

import numpy as np

from data.baselines import log_windows, thinned
from data.grid import DAY, HOUR
from data.windows import Windows

TREES = 600
MAX_FIT_WINDOWS = 500_000
PARAMETERS = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 63,
    "seed": 0,
    "deterministic": True,
    "verbose": -1,
}


def boosting_is_installed() -> bool:
    """Whether `pip install -e '.[baselines]'` was run."""
    return find_spec("lightgbm") is not None


def lightgbm_forecast(train: Windows, test: Windows) -> np.ndarray:
    """Trees on log(1 + reading) of the window, the calendar and the meter, (n, horizon).

    A model for each tick ahead, fitted on the training windows, evenly thinned to
    `MAX_FIT_WINDOWS`, to the difference of the target from the window's last reading, as the
    network by default. A meter that is not among those trained on is a missing one.
    """
    import lightgbm

    chosen = thinned(train, MAX_FIT_WINDOWS)
    numbers = {label: number for number, label in enumerate(train.series.labels())}
    inputs, level = _inputs(chosen, numbers)
    actual = np.log1p(np.maximum(chosen.targets(), 0))
    columns = inputs.shape[1]
    fitted = lightgbm.Dataset(inputs, categorical_feature=[columns - 1])
    models = []
    for ahead in range(train.horizon):
        fitted.set_label(actual[:, ahead] - level)
        models.append(lightgbm.train(PARAMETERS, fitted, TREES))
    forecast = np.empty((len(test), test.horizon))
    for low in range(0, len(test), MAX_FIT_WINDOWS):  # bounds the memory
        part = slice(low, low + MAX_FIT_WINDOWS)
        inputs, level = _inputs(test.kept(part), numbers)
        for ahead, trees in enumerate(models):
            logs = np.asarray(trees.predict(inputs)) + level
            forecast[part, ahead] = np.expm1(np.clip(logs, 0, 80))
    return forecast


def _inputs(windows: Windows, numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, L + 5), the meter's number last, and the level (n,) that they are relative to."""
    series = windows.series
    logs = log_windows(windows)
    level = logs[:, -1].copy()
    logs -= level[:, None]  # in place, and below too: this is the most memory that a test takes
    minute = series.minute(series.tick_of(windows.cell) + windows.length)
    day = minute // DAY
    of_series = np.array([numbers.get(label, np.nan) for label in series.labels()])
    calendar = [minute % DAY / HOUR, day % 7, day % 365.25]
    meter = of_series[series.series_of(windows.cell)]
    inputs = np.empty((len(windows), windows.length + 5), dtype=np.float32)
    inputs[:, : windows.length] = logs
    for column, values in enumerate([level, *calendar, meter], windows.length):
        inputs[:, column] = values
    return inputs, level
