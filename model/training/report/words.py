"""What a test found, in sentences for those who run the buildings."""

from collections.abc import Iterator

import numpy as np

from data.columns import BUILDING
from data.grid import HOUR
from model.training.callbacks.scores import LIMITS, median, within_limits
from model.training.forecasts import Forecasts, Outcome
from model.training.report.errors import Errors, share_in_band

NEAR = 5  # points of percent between what a band holds and what it should


def by_hand(naive: str) -> str:
    """What one does who forecasts so; `naive` is a name of `data.baselines.look_backs`."""
    if naive == "persistence":
        return "repeating the last reading"
    same, unit, when = naive.split(" ", 2)
    return f"repeating the {same} {unit} of {when}"


def meters(outcome: Outcome) -> str:
    """What this data set's series are called, more than one."""
    return "meters" if BUILDING in outcome.forecasts.windows.series.ids else "series"


def ahead(forecasts: Forecasts) -> str:
    """What is forecast."""
    unit = "hour" if forecasts.windows.series.step == HOUR else "reading"
    return f"the next {unit}" if forecasts.horizon == 1 else f"the next {forecasts.horizon} {unit}s"


def span(forecasts: Forecasts) -> str:
    """First and last day that was forecast."""
    tick = forecasts.tick
    ends = forecasts.windows.series.minute(np.array([tick.min(), tick.max()]))
    first, last = ends.astype("datetime64[m]").astype("datetime64[D]")
    return f"{first} to {last}"


def percent(value: float) -> str:
    """A number of percent, with two significant digits below 10."""
    return f"{value:.0f} %" if abs(value) >= 9.5 else f"{value:.2g} %"


def promised(outcome: Outcome) -> float:
    """Percent of the readings that should lie in the band."""
    levels = outcome.forecasts.levels
    return 100 * (levels[-1] - levels[0])


def headline(outcome: Outcome) -> str:
    """The result in one sentence, without its full stop."""
    of = outcome.scores[outcome.model]
    count, typical = int((of.rows > 0).sum()), median(np.abs(of.cv_rmse))
    what = f"the forecast of {ahead(outcome.forecasts)}"
    if not np.isfinite(typical):
        return f"How far {what} is off, in percent of the mean reading, cannot be told"
    off = f"is typically off by {percent(typical)} of the mean reading"
    if count == 1:
        return f"T{what[1:]} {off}"
    return f"For the middle one of {count:,} {meters(outcome)}, {what} {off}"


def tiles(outcome: Outcome, errors: Errors) -> Iterator[tuple[str, str]]:
    """The numbers to remember, and what they are of."""
    of = outcome.scores[outcome.model]
    count = int((of.rows > 0).sum())
    middle = "" if count == 1 else f" for the middle one of {count:,}"
    typical, bias = (median(np.abs(values)) for values in (of.cv_rmse, of.nmbe))
    if np.isfinite(typical):
        yield percent(typical), f"typical error, of the mean reading (CV(RMSE)){middle}"
        yield percent(bias), f"the sum of all forecasts is off (NMBE){middle}"
    yield f"{within_limits(of):,} of {count:,}", f"{meters(outcome)} within ASHRAE's limits"
    model, naive = _beside_naive(errors)
    if np.isfinite(model) and naive > 0:
        word = "smaller" if model < naive else "larger"
        of_naive = f"error than by {by_hand(errors.best)}"
        yield percent(100 * abs(1 - model / naive)), f"{word} {of_naive}"
    if outcome.forecasts.has_band:
        share = 100 * share_in_band(outcome.forecasts)
        wanted = percent(promised(outcome))
        yield percent(share), f"of the readings lie in the band, {wanted} should"


def verdicts(outcome: Outcome, errors: Errors) -> Iterator[tuple[str, str]]:
    """What speaks for and against the forecast: a question, and its answer."""
    yield "Better than no model?", _about_naive(outcome, errors)
    yield "Better than other methods?", _beside_others(outcome, errors)
    of = outcome.scores[outcome.model]
    count = int((of.rows > 0).sum())
    yield (
        "Within ASHRAE's limits?",
        f"{within_limits(of):,} of {count:,} {meters(outcome)} are: Guideline 14 accepts a "
        f"CV(RMSE) of {LIMITS['cv_rmse']} % and an NMBE of {LIMITS['nmbe']} % of hourly models.",
    )
    if outcome.forecasts.has_band:
        yield "Is the band as wide as it should be?", _about_band(outcome)


def _beside_naive(errors: Errors) -> tuple[float, float]:
    """Typical relative errors of the model and of the best naive forecast, on the same rows."""
    everything = np.zeros(errors.model.size, dtype=np.int64)
    model, naive = errors.compared(everything, 1)
    return float(model[0]), float(naive[0])


def _about_naive(outcome: Outcome, errors: Errors) -> str:
    model, naive = _beside_naive(errors)
    if not np.isfinite(model):
        return "No, do not rely on it: its forecasts are no numbers."
    measure = "RMSLE" if errors.in_logs else "mean error over the mean reading"
    numbers = f"{measure} {model:.3f} against {naive:.3f}"
    otherwise = by_hand(errors.best)
    if not model < naive:
        return f"No, do not rely on it: {otherwise} is no further off ({numbers})."
    told = f"Yes: {otherwise}, the best that is to be had without one, is further off ({numbers})."
    ours, theirs = (outcome.scores[name].all().mae[0] for name in (outcome.model, errors.best))
    if ours < theirs:
        return told
    return (
        f"{told} But not in their own units, where the large {meters(outcome)} count most (MAE "
        f"{ours:.4g} against {theirs:.4g})."
    )


def _beside_others(outcome: Outcome, errors: Errors) -> str:
    measure, label = ("rmsle", "RMSLE") if errors.in_logs else ("mae", "MAE")
    found = {name: float(getattr(of.all(), measure)[0]) for name, of in outcome.scores.items()}
    ours = found.pop(outcome.model)
    if not np.isfinite(ours):
        return "No: there is nothing to compare."
    better = sorted((score, name) for name, score in found.items() if score < ours)
    if not better:
        return f"Yes, than all in the table below ({label} {ours:.3g})."
    named = ", ".join(f"{name} ({score:.3g})" for score, name in better)
    return f"Not than these: {named}. {outcome.model}'s {label} is {ours:.3g}."


def _about_band(outcome: Outcome) -> str:
    share, wanted = 100 * share_in_band(outcome.forecasts), promised(outcome)
    told = f"{percent(share)} of the readings lie in it, of {percent(wanted)} that should"
    if abs(share - wanted) <= NEAR:
        return f"Yes: {told}."
    return f"No, it is too {'narrow' if share < wanted else 'wide'}: {told}."
