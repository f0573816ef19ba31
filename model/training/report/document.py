"""The report on a test as one HTML file, which needs nothing but itself, and as pictures."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from data.grid import DAY
from data.scores import MEASURES
from model.training import page
from model.training.callbacks.drawing import draw_grid, draw_panel
from model.training.callbacks.scores import measure_cells, score_cells, short
from model.training.forecasts import Outcome
from model.training.report import charts, words
from model.training.report.errors import Errors, by_temperature, find_errors, worst_first
from model.training.report.fans import choose, fan

DENSITY = 2  # of the page's pictures, which is sharp on a phone and on most laptops
FAN_SIZE = (560, 250)
LISTED = 5  # meters at either end of the table
HOURS = [str(hour) if hour % 3 == 0 else "" for hour in range(24)]
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
IN_WORDS = {
    "MAE": "Mean error (MAE)",
    "RMSE": "Large misses weigh more (RMSE)",
    "CV(RMSE), %": "Typical error, % (CV(RMSE))",
    "|NMBE|, %": "Off in the sum, % (|NMBE|)",
    "MASE": "Of yesterday's error (MASE)",
    "in the limits": "Within ASHRAE's limits",
}
LEADS = {"rmsle": "Relative error (RMSLE)", "rmse": "Error, in the readings' unit (RMSE)"}
"""What `Outcome.measure` is called."""
Drawn = dict[str, torch.Tensor]
"""The pictures of `_charts`."""

UNITS = {
    True: "RMSLE: 0.1 is a forecast that is about 10 % off",
    False: "mean error over the meter's mean reading: 0.1 is 10 % of it",
}
SIGNED_UNITS = {
    True: "above 0 the forecast is too high; 0.1 is about 10 %",
    False: "above 0 the forecast is too high; 0.1 is 10 % of the mean reading",
}
"""Whether errors are differences of logarithms -> what their axis shows."""


def html(outcome: Outcome) -> str:
    """The page."""
    errors = find_errors(outcome)
    drawn = _charts(outcome, errors, DENSITY)
    title = words.headline(outcome)
    body = [
        page.element("p", f"{outcome.model}: a test of the forecast", "kicker"),
        page.element("h1", f"{title}."),
        page.tiles(words.tiles(outcome, errors)),
        page.facts(_facts(outcome)),
        page.element("h2", "Can it be relied on?"),
        page.facts(words.verdicts(outcome, errors)),
        *_scores(outcome),
        *_fans(outcome),
        *_by_time(outcome, errors, drawn),
        *_by_temperature(outcome, drawn),
        *_meters(outcome, errors),
    ]
    return page.document(title, body)


def images(outcome: Outcome) -> dict[str, torch.Tensor]:
    """Name -> uint8 RGB image (3, H, W): the page's pictures, for TensorBoard."""
    scores = outcome.scores[outcome.model]
    drawn = {}
    for kind, chosen in vars(choose(scores)).items():
        if chosen:
            panels = [fan(outcome.forecasts, series, scores) for series in chosen]
            drawn[f"forecasts_{kind}"] = draw_grid(panels, columns=1)
    charts_of_errors = _charts(outcome, find_errors(outcome))
    return drawn | {f"error_by_{name}": image for name, image in charts_of_errors.items()}


def _charts(outcome: Outcome, errors: Errors, density: int = 1) -> dict[str, torch.Tensor]:
    """What the errors are shown by -> its picture, where there is something to show."""

    def bars(title: str, labels: Sequence[str], group: np.ndarray) -> torch.Tensor:
        model, naive = errors.compared(group, len(labels))
        heights = {outcome.model: model, errors.best: naive}
        return charts.bars(title, UNITS[errors.in_logs], labels, heights, density)

    drawn = {}
    if outcome.forecasts.windows.series.step < DAY:
        drawn["hour"] = bars("Error by hour of the day", HOURS, errors.hour)
    drawn["weekday"] = bars("Error by weekday", WEEKDAYS, errors.weekday)
    found = by_temperature(outcome, errors)
    if found is not None:
        drawn["temperature"] = charts.temperature(found, SIGNED_UNITS[errors.in_logs], density)
    return drawn


# -- sections ----------------------------------------------------------------------------------


def _facts(outcome: Outcome) -> Iterator[tuple[str, str]]:
    forecasts = outcome.forecasts
    yield "Tested on", f"{forecasts.windows.series.counted()}, {words.span(forecasts)}"
    known = int(np.isfinite(forecasts.actual).sum())
    yield "Forecast", f"{known:,} readings that the model had not seen"
    yield "From", f"the {forecasts.windows.length} readings before each forecast"


def _scores(outcome: Outcome) -> Iterator[str]:
    yield page.element("h2", "Beside other methods")
    forecasts = outcome.forecasts
    known = np.isfinite(forecasts.actual)
    meter = np.broadcast_to(forecasts.windows.series.meter[forecasts.owner][:, None], known.shape)
    methods = {name: values[known] for name, values in outcome.methods.items()}
    actual = forecasts.actual[known]
    heads, everything, *types = score_cells(actual, methods, meter[known], outcome.measure)
    of_all, middle = measure_cells(outcome.scores)
    rows = [[f"All {everything[1]} readings"], [LEADS[outcome.measure], *everything[2:]]]
    rows += [[f"... {name} alone", *cells] for name, _, *cells in types]
    rows += [["All readings, in their own units"]]
    rows += [[IN_WORDS[name], *cells] for name, _, *cells in of_all[1:]]
    rows += [[f"The middle one {middle[0][1]} {words.meters(outcome)}, in % of its mean reading"]]
    rows += [[IN_WORDS[name], *cells] for name, _, *cells in middle[1:]]
    yield page.table("Smaller is better, but for the last row, a count.", ["", *heads[2:]], rows)
    yield page.element(
        "p",
        "The naive methods repeat readings: persistence the last one, the others those of the same "
        "time a day or a week ago. A method that lacks that reading leaves the row out. MASE is "
        "the mean error over that of yesterday's reading in training.",
        "note",
    )


def _fans(outcome: Outcome) -> Iterator[str]:
    yield page.element("h2", "What the forecast looks like")
    scores = outcome.scores[outcome.model]
    chosen = choose(scores)
    where = {"typical": "Near the median", "worst": "Among the worst"}
    for kind, numbers in vars(chosen).items():
        for series in numbers:
            panel = fan(outcome.forecasts, series, scores)
            told = f"{where[kind]}: {panel.title}, {panel.subtitle}."
            yield page.figure(
                draw_panel(panel, *FAN_SIZE, DENSITY),
                DENSITY,
                f"The last week of the test, reading and forecast: {panel.title}.",
                told + _how_to_read(outcome),
            )
    if not chosen.typical:
        yield page.element("p", "No series has a mean reading other than zero, so none is shown.")


def _how_to_read(outcome: Outcome) -> str:
    forecasts = outcome.forecasts
    told = " Its last week of the test"
    if forecasts.horizon > 1:
        told += f"; a dot begins a forecast of {words.ahead(forecasts)}"
    if forecasts.has_band:
        told += f"; {words.percent(words.promised(outcome))} of the readings should lie in the band"
    return f"{told}. A break is a missing reading or forecast."


def _by_time(outcome: Outcome, errors: Errors, drawn: Drawn) -> Iterator[str]:
    yield page.element("h2", "When it is off")
    naive = words.by_hand(errors.best)
    how = (
        f"Large and small {words.meters(outcome)} count alike. Orange is {outcome.model}; grey is "
        f"{naive}, the best that is to be had without a model. Where grey is shorter, the model is "
        "of no use."
    )
    for name, when in (("hour", "hour of the day"), ("weekday", "weekday")):
        if name in drawn:
            shows = f"Bars: the error by {when}, of {outcome.model} and of {errors.best}."
            told = f"How far the forecasts for each {when} are off. {how}"
            yield page.figure(drawn[name], DENSITY, shows, told)


def _by_temperature(outcome: Outcome, drawn: Drawn) -> Iterator[str]:
    yield page.element("h2", "Does it know the weather?")
    if "temperature" in drawn:
        yield page.figure(
            drawn["temperature"],
            DENSITY,
            "A line with a band: the forecast's error by temperature.",
            "A good forecast's line stays near zero over the whole range. A line that rises or "
            "falls to one end means that heating or cooling is not understood there; a band that "
            "opens means that the forecast is less certain there. Ranges with few readings are "
            "left out.",
        )
    else:
        yield page.element("p", _no_temperature(outcome))


def _no_temperature(outcome: Outcome) -> str:
    if any("temp" in name.lower() for name in outcome.covariates):
        return "The temperature is known for too few of the readings to tell."
    return (
        'No covariate has "temp" in its name, so the errors cannot be shown by temperature: name '
        "one with --data.covariates."
    )


def _meters(outcome: Outcome, errors: Errors) -> Iterator[str]:
    yield page.element("h2", "The worst and the best")
    ranked = worst_first(outcome.scores[outcome.model])
    titles = ["", "mean reading", "CV(RMSE), %", f"of {short(errors.best)}, %"]
    titles += ["NMBE, %", MEASURES[outcome.measure], "readings"]
    rows: list[Sequence[str]] = []
    if ranked.size <= 2 * LISTED:
        rows += [["From the worst to the best"], *_meter_rows(outcome, errors, ranked)]
    else:
        worst, best = ranked[:LISTED], ranked[::-1][:LISTED]
        rows += [["The worst"], *_meter_rows(outcome, errors, worst)]
        rows += [["The best"], *_meter_rows(outcome, errors, best)]
    yield page.table("By CV(RMSE). An NMBE above 0: the forecast is too high.", titles, rows)
    left = int((outcome.scores[outcome.model].rows > 0).sum()) - ranked.size
    if left:
        told = f"{left:,} more read zero in the mean, which no percentage can be of."
        yield page.element("p", told, "note")
    yield page.element("p", "All of them stand in scores.csv, beside this file.", "note")


def _meter_rows(outcome: Outcome, errors: Errors, numbers: np.ndarray) -> Iterator[list[str]]:
    of, naive = outcome.scores[outcome.model], outcome.scores[errors.best]
    leading = getattr(of, outcome.measure)
    for s in numbers.tolist():
        sizes = (abs(of.cv_rmse[s]), abs(naive.cv_rmse[s]))
        cells = [f"{of.actual[s] / of.rows[s]:,.4g}"]
        cells += [f"{size:.1f}" if np.isfinite(size) else page.NONE for size in sizes]
        cells += [f"{of.nmbe[s]:+.2f}", f"{leading[s]:.4f}", f"{int(of.rows[s]):,}"]
        yield [outcome.forecasts.windows.series.name(s), *cells]
