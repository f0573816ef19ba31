"""The report on a test as one HTML file, which needs nothing but itself, and as pictures."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from model.training import page
from model.training.callbacks.drawing import draw_grid, draw_panel
from model.training.callbacks.scores import NAMES, measure_cells, score_cells
from model.training.forecasts import DAY, Tested, step_minutes
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


def html(tested: Tested) -> str:
    """The page."""
    errors = find_errors(tested)
    drawn = _charts(tested, errors, DENSITY)
    title = words.headline(tested)
    body = [
        page.element("p", f"{tested.model}: a test of the forecast", "kicker"),
        page.element("h1", f"{title}."),
        page.tiles(words.tiles(tested, errors)),
        page.facts(_facts(tested)),
        page.element("h2", "Can it be relied on?"),
        page.facts(words.verdicts(tested, errors)),
        *_scores(tested),
        *_fans(tested),
        *_by_time(tested, errors, drawn),
        *_by_temperature(tested, drawn),
        *_meters(tested, errors),
    ]
    return page.document(title, body)


def images(tested: Tested) -> dict[str, torch.Tensor]:
    """Name -> uint8 RGB image (3, H, W): the page's pictures, for TensorBoard."""
    scores = tested.scores[tested.model]
    drawn = {}
    for kind, chosen in vars(choose(scores)).items():
        if chosen:
            panels = [fan(tested.forecasts, series, scores) for series in chosen]
            drawn[f"forecasts_{kind}"] = draw_grid(panels, columns=1)
    charts_of_errors = _charts(tested, find_errors(tested))
    return drawn | {f"error_by_{name}": image for name, image in charts_of_errors.items()}


def _charts(tested: Tested, errors: Errors, density: int = 1) -> dict[str, torch.Tensor]:
    """What the errors are shown by -> its picture, where there is something to show."""

    def bars(title: str, labels: Sequence[str], group: np.ndarray) -> torch.Tensor:
        model, naive = errors.compared(group, len(labels))
        heights = {tested.model: model, errors.best: naive}
        return charts.bars(title, UNITS[errors.in_logs], labels, heights, density)

    drawn = {}
    if step_minutes(tested.forecasts.windows.series) < DAY:
        drawn["hour"] = bars("Error by hour of the day", HOURS, errors.hour)
    drawn["weekday"] = bars("Error by weekday", WEEKDAYS, errors.weekday)
    found = by_temperature(tested, errors)
    if found is not None:
        drawn["temperature"] = charts.temperature(found, SIGNED_UNITS[errors.in_logs], density)
    return drawn


# -- sections ----------------------------------------------------------------------------------


def _facts(tested: Tested) -> Iterator[tuple[str, str]]:
    forecasts = tested.forecasts
    yield "Tested on", f"{forecasts.windows.series.counted()}, {words.span(forecasts)}"
    known = int(np.isfinite(forecasts.actual).sum())
    yield "Forecast", f"{known:,} readings that the model had not seen"
    yield "From", f"the {forecasts.windows.length} readings before each forecast"


def _scores(tested: Tested) -> Iterator[str]:
    yield page.element("h2", "Beside other methods")
    forecasts = tested.forecasts
    known = np.isfinite(forecasts.actual)
    meter = np.broadcast_to(forecasts.windows.series.meter[forecasts.owner][:, None], known.shape)
    methods = {name: values[known] for name, values in tested.methods.items()}
    heads, everything, *types = score_cells(forecasts.actual[known], methods, meter[known])
    of_all, middle = measure_cells(tested.scores)
    rows = [[f"All {everything[1]} readings"], ["Relative error (RMSLE)", *everything[2:]]]
    rows += [[f"... {name} alone", *cells] for name, _, *cells in types]
    rows += [["All readings, in their own units"]]
    rows += [[IN_WORDS[name], *cells] for name, _, *cells in of_all[1:]]
    rows += [[f"The middle one {middle[0][1]} {words.meters(tested)}, in % of its mean reading"]]
    rows += [[IN_WORDS[name], *cells] for name, _, *cells in middle[1:]]
    yield page.table("Smaller is better, but in the last row.", ["", *heads[2:]], rows)
    yield page.element(
        "p",
        "The naive methods repeat a reading: persistence the last one, the others that of the same "
        "hour a day or a week ago. A method that lacks that reading leaves the row out. MASE is "
        "the mean error over that of yesterday's reading in training.",
        "note",
    )


def _fans(tested: Tested) -> Iterator[str]:
    yield page.element("h2", "What the forecast looks like")
    scores = tested.scores[tested.model]
    chosen = choose(scores)
    where = {"typical": "Near the median", "worst": "Among the worst"}
    for kind, numbers in vars(chosen).items():
        for series in numbers:
            panel = fan(tested.forecasts, series, scores)
            told = f"{where[kind]}: {panel.title}, {panel.subtitle}."
            yield page.figure(
                draw_panel(panel, *FAN_SIZE, DENSITY),
                DENSITY,
                f"The last week of the test, reading and forecast: {panel.title}.",
                told + _how_to_read(tested),
            )
    if not chosen.typical:
        yield page.element("p", "No series has a mean reading other than zero, so none is shown.")


def _how_to_read(tested: Tested) -> str:
    forecasts = tested.forecasts
    told = " Its last week of the test"
    if forecasts.horizon > 1:
        told += f"; a dot begins a forecast of {words.ahead(forecasts)}"
    if forecasts.has_band:
        told += f"; {words.percent(words.promised(tested))} of the readings should lie in the band"
    return f"{told}. A break is a missing reading or forecast."


def _by_time(tested: Tested, errors: Errors, drawn: Drawn) -> Iterator[str]:
    yield page.element("h2", "When it is off")
    naive = words.NAIVE_WORDS[errors.best]
    how = (
        f"Large and small {words.meters(tested)} count alike. Orange is {tested.model}; grey is "
        f"{naive}, the best that is to be had without a model. Where grey is shorter, the model is "
        "of no use."
    )
    for name, when in (("hour", "hour of the day"), ("weekday", "weekday")):
        if name in drawn:
            shows = f"Bars: the error by {when}, of {tested.model} and of {errors.best}."
            told = f"How far the forecasts for each {when} are off. {how}"
            yield page.figure(drawn[name], DENSITY, shows, told)


def _by_temperature(tested: Tested, drawn: Drawn) -> Iterator[str]:
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
        yield page.element("p", _no_temperature(tested))


def _no_temperature(tested: Tested) -> str:
    if any("temp" in name.lower() for name in tested.covariates):
        return "The temperature is known for too few of the readings to tell."
    return (
        'No covariate has "temp" in its name, so the errors cannot be shown by temperature: name '
        "one with --data.covariates."
    )


def _meters(tested: Tested, errors: Errors) -> Iterator[str]:
    yield page.element("h2", "The worst and the best")
    ranked = worst_first(tested.scores[tested.model])
    titles = ["", "mean reading", "CV(RMSE), %", f"of {NAMES.get(errors.best, errors.best)}, %"]
    titles += ["NMBE, %", "RMSLE", "readings"]
    rows: list[Sequence[str]] = []
    if ranked.size <= 2 * LISTED:
        rows += [["From the worst to the best"], *_meter_rows(tested, errors, ranked)]
    else:
        worst, best = ranked[:LISTED], ranked[::-1][:LISTED]
        rows += [["The worst"], *_meter_rows(tested, errors, worst)]
        rows += [["The best"], *_meter_rows(tested, errors, best)]
    yield page.table("By CV(RMSE). An NMBE above 0: the forecast is too high.", titles, rows)
    left = int((tested.scores[tested.model].rows > 0).sum()) - ranked.size
    if left:
        told = f"{left:,} more read zero in the mean, which no percentage can be of."
        yield page.element("p", told, "note")
    yield page.element("p", "All of them stand in scores.csv, beside this file.", "note")


def _meter_rows(tested: Tested, errors: Errors, numbers: np.ndarray) -> Iterator[list[str]]:
    of, naive = tested.scores[tested.model], tested.scores[errors.best]
    for s in numbers.tolist():
        sizes = (abs(of.cv_rmse[s]), abs(naive.cv_rmse[s]))
        cells = [f"{of.actual[s] / of.rows[s]:,.4g}"]
        cells += [f"{size:.1f}" if np.isfinite(size) else page.NONE for size in sizes]
        cells += [f"{of.nmbe[s]:+.2f}", f"{of.rmsle[s]:.4f}", f"{int(of.rows[s]):,}"]
        yield [tested.forecasts.windows.series.name(s), *cells]
