"""Mean and standard deviation of the training rows."""

from dataclasses import dataclass

import numpy as np

from data.series import SeriesSet


@dataclass(frozen=True)
class Scaling:
    """Statistics of training rows; the reading's are of its transformed values."""

    reading_mean: float
    reading_std: float
    covariate_mean: list[float]  # of what is static, too, behind the others
    covariate_std: list[float]


def _moments(values: np.ndarray) -> tuple[float, float, bool]:
    """Mean, standard deviation and whether the values are all one, of those that are not missing.

    A constant's deviation is given as 1, so that it scales to exactly 0 and back; so is that of no
    values at all.
    """
    values = values[~np.isnan(values)].astype(np.float64)
    if not values.size:
        return 0.0, 1.0, False
    if values.min() == values.max():
        return float(values[0]), 1.0, True
    return float(values.mean()), float(values.std()), False


def fit_scaling(
    series: SeriesSet,
    names: tuple[str, ...],
    static: np.ndarray,
    first_tick: int,
    last_tick: int,
    log1p: bool,
) -> tuple[Scaling, list[str]]:
    """Statistics of training rows, and warnings about them.

    Args:
        series: the data.
        names: of their W covariates and of the K numbers of `static`.
        static: (S, K) what is known of each series at all times.
        first_tick: of the training rows.
        last_tick: of the training rows.
        log1p: the reading's are of log(1 + reading).
    """
    ticks = series.cell_ticks()
    training = (ticks >= first_tick) & (ticks <= last_tick)
    reading = series.reading[training]
    mean, std, constant = _moments(np.log1p(reading) if log1p else reading)
    notes = ["the readings are constant in the training rows"] if constant else []
    used = np.zeros(len(series.covariates), dtype=np.bool_)  # weather counts once a site
    used[series.covariate_cells()[training]] = True
    moments = [_moments(column) for column in series.covariates[used].T]
    owner = series.cell_series()[training]
    moments += [_moments(column[owner]) for column in static.T]
    notes += [
        f"{name} is constant ({mean:g}) in the training rows: it scales to 0 and says nothing"
        for name, (mean, _, constant) in zip(names, moments, strict=True)
        if constant
    ]
    return Scaling(mean, std, [m[0] for m in moments], [m[1] for m in moments]), notes
