"""The report's page: one file, the numbers of the test, and words for what is missing."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import BytesIO
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor
from torchvision.transforms.functional import pil_to_tensor

from model.training.callbacks.drawing import BAND
from model.training.callbacks.scores import measure_cells, score_cells
from model.training.forecasts import Outcome
from model.training.report.document import html, images
from tests.model.training.parsed import Parsed
from tests.model.training.report.made import NOISE, QUANTILES, outcome, scored, series


def a_day_with_quantiles() -> Outcome:
    return outcome(horizon=24, levels=QUANTILES)


def one_series() -> Outcome:
    return outcome(series(count=1), covariates=())


def below_zero() -> Outcome:
    return outcome(series(-1.2))


def dead() -> Outcome:
    of = series()
    of.reading[:] = 0
    return outcome(of)


def no_numbers() -> Outcome:
    of = outcome()
    values = np.full_like(of.forecasts.values, np.nan)
    return scored(replace(of.forecasts, values=values), of.baselines, of.covariates)


def buildings() -> Outcome:
    meter = np.array([0, 1, 0, 1, 0])
    return outcome(series(ids={"building_id": np.arange(5), "meter": meter}))


MAKERS = [outcome, a_day_with_quantiles, one_series, below_zero, buildings, dead, no_numbers]


@cache
def parsed(make: Callable[[], Outcome] = outcome) -> Parsed:
    return Parsed(html(make()))


def pictures(of: Parsed) -> list[tuple[str, torch.Tensor]]:
    """What each shows, and it."""
    found = []
    for source, told in zip(of.values("img", "src"), of.values("img", "alt"), strict=True):
        with urlopen(source) as data:  # which stands in the page
            image = Image.open(BytesIO(data.read())).convert("RGB")
        found.append((told, pil_to_tensor(image)))
    return found


# -- one file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_the_page_needs_nothing_else(make: Callable[[], Outcome]) -> None:
    found = parsed(make)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in found.tags}
    assert not found.values("a", "href")
    assert all(source.startswith("data:image/png;") for source in found.values("img", "src"))


@pytest.mark.parametrize("make", MAKERS)
def test_no_number_is_missing_without_a_word(make: Callable[[], Outcome]) -> None:
    assert not re.search(r"\b(nan|NaN|inf|None)\b", parsed(make).text)
    assert all(cell.strip() for table in parsed(make).tables for row in table[1:] for cell in row)


@pytest.mark.parametrize("make", [dead, no_numbers])
def test_a_useless_forecast_has_a_report_too(make: Callable[[], Outcome]) -> None:
    found = parsed(make)
    assert "cannot be told." in found.text
    assert "No, do not rely on it" in found.text
    assert "so none is shown" in found.text
    assert images(make())


def test_names_are_escaped() -> None:
    assert "<b>C0" not in html(outcome())
    assert "<b>C0</b> & Co" in parsed().text


# -- what it says ------------------------------------------------------------------------------


def cv_rmse(of: Outcome, number: int) -> float:
    mine = of.forecasts.owner == number
    f, y = of.forecasts.point[mine], of.forecasts.actual[mine]
    f, y = f[np.isfinite(y)], y[np.isfinite(y)].astype(np.float64)
    return float(100 * np.sqrt(np.mean((f - y) ** 2)) / np.mean(y))


@pytest.mark.parametrize("make", [outcome, a_day_with_quantiles])
def test_the_headline_is_the_median_of_the_meters(make: Callable[[], Outcome]) -> None:
    typical = np.median([cv_rmse(make(), s) for s in range(5)])
    ahead = "hour" if make is outcome else "24 hours"
    assert (
        f"For the middle one of 5 series, the forecast of the next {ahead} is typically off by "
        f"{typical:.0f} % of the mean reading." in parsed(make).text
    )


def test_the_headline_of_one_series_is_its_own() -> None:
    typical = cv_rmse(one_series(), 0)
    told = f"The forecast of the next hour is typically off by {typical:.0f} % of the mean reading."
    assert told in parsed(one_series).text


@pytest.mark.parametrize("make", [outcome, buildings, a_day_with_quantiles])
def test_the_scores_are_those_that_are_printed(make: Callable[[], Outcome]) -> None:
    of = make()
    actual = of.forecasts.actual
    known = np.isfinite(actual)
    meter = np.broadcast_to(
        of.forecasts.windows.series.meter[of.forecasts.owner][:, None], known.shape
    )
    methods = {name: values[known] for name, values in of.methods.items()}
    relative = score_cells(actual[known], methods, meter[known])
    of_all, middle = measure_cells(of.scores)
    found = parsed(make).table("S4ConvD", "persistence")
    assert found["Relative error (RMSLE)"] == relative[1][2:]
    assert found["Mean error (MAE)"] == of_all[1][2:]
    assert found["Typical error, % (CV(RMSE))"] == middle[1][2:]
    assert found["Within ASHRAE's limits"] == middle[-1][2:]
    types = {name: cells for name, _, *cells in relative[2:]}
    assert {name: cells for name, cells in found.items() if name.startswith("... ")} == {
        f"... {name} alone": cells for name, cells in types.items()
    }
    assert bool(types) == (make is buildings)


def test_the_worst_and_the_best_are_listed_by_their_own_score() -> None:
    of = outcome()
    found = parsed().table("CV(RMSE), %", "mean reading")
    names = [name for name in found if name.startswith("customer")]
    assert names == [f"customer <b>C{k}</b> & Co" for k in np.argsort(NOISE)[::-1]]
    for k in range(5):
        mean, cv, *_ = found[f"customer <b>C{k}</b> & Co"]
        assert cv == f"{cv_rmse(of, k):.1f}"
        actual = of.forecasts.actual[of.forecasts.owner == k].astype(np.float64)
        assert mean == f"{np.nanmean(actual):,.4g}"


def test_of_many_meters_the_ends_are_listed() -> None:
    of = outcome(series(count=12))
    found = Parsed(html(of)).table("CV(RMSE), %", "mean reading")
    ranked = sorted(range(12), key=lambda k: -cv_rmse(of, k))
    names = [f"customer <b>C{k}</b> & Co" for k in (*ranked[:5], *ranked[:-6:-1])]
    assert [*found][1:] == ["The worst", *names[:5], "The best", *names[5:]]


def test_a_useless_model_is_called_so() -> None:
    of = outcome()
    actual = np.nan_to_num(of.forecasts.actual)
    perfect = dict.fromkeys(of.baselines, actual)
    found = Parsed(html(scored(of.forecasts, perfect, of.covariates)))
    assert "No, do not rely on it: repeating the last reading" in found.text
    assert "Not than these: persistence" in found.text
    better = replace(of.forecasts, values=1.01 * actual[..., None])
    found = Parsed(html(scored(better, of.baselines, of.covariates)))
    assert "Yes: repeating the same hour of yesterday, the best" in found.text
    assert "Yes, than all in the table below" in found.text
    assert "But not in their own units" not in found.text


def test_a_model_that_fails_the_large_meters_alone_is_called_so() -> None:
    """RMSLE weighs a small meter like a large one; a bill does not."""
    of = outcome()
    large = of.forecasts.owner == 4
    factor = np.where(large, 1.2, 1.01)[:, None, None]
    values = factor * np.nan_to_num(of.forecasts.actual)[..., None]
    yesterday = np.nan_to_num(of.forecasts.actual) * np.where(large, 1.1, 1.3)[:, None]
    baselines = dict.fromkeys(of.baselines, yesterday)
    found = Parsed(html(scored(replace(of.forecasts, values=values), baselines)))
    y = of.forecasts.actual.astype(np.float64)
    ours, theirs = (np.nanmean(np.abs(f - y)) for f in (values[..., 0], yesterday))
    assert f"(MAE {ours:.4g} against {theirs:.4g})" in found.text


@pytest.mark.parametrize(
    ("scale", "told"),
    [(1.0, "Yes: "), (0.3, "No, it is too narrow: "), (9.0, "No, it is too wide: ")],
)
def test_a_band_of_the_wrong_width_is_called_so(scale: float, told: str) -> None:
    """The made-up band of 0.1 to 0.9 is 2.4 standard deviations wide, about as it should be."""
    of = a_day_with_quantiles()
    f = of.forecasts
    values = f.point[..., None] + scale * (f.values - f.point[..., None])
    found = Parsed(html(scored(replace(f, values=values), of.baselines)))
    inside = (values[..., 1] <= f.actual) & (f.actual <= values[..., 3])
    share = 100 * inside[np.isfinite(f.actual)].mean()
    assert f"{told}{share:.0f} % of the readings lie in it, of 80 % that should." in found.text


def test_without_quantiles_no_band_is_spoken_of() -> None:
    assert "band as wide" not in parsed().text
    assert "in the band" not in parsed().text


# -- pictures ----------------------------------------------------------------------------------


def test_each_picture_is_told_and_sharp() -> None:
    found = parsed()
    told = [words.split(":")[0] for words, _ in pictures(found)]
    fans = ["The last week of the test, reading and forecast"] * 4
    assert told == [*fans, "Bars", "Bars", "A line with a band"]
    widths = [int(width) for width in found.values("img", "width")]
    assert [image.shape[2] for _, image in pictures(found)] == [2 * width for width in widths]


def test_a_band_is_drawn_where_there_are_quantiles() -> None:
    band = torch.tensor(ImageColor.getrgb(BAND))[:, None, None]
    for make, drawn in ((outcome, False), (a_day_with_quantiles, True)):
        fan = pictures(parsed(make))[0][1]
        near = (fan.int() - band).abs().amax(dim=0) < 12  # a palette's is a close one
        assert (near.sum() > 2000) == drawn


def test_no_temperature_is_said() -> None:
    told = 'No covariate has "temp" in its name'
    assert told in parsed(one_series).text
    assert told not in parsed().text
    assert not any("temperature" in words for words, _ in pictures(parsed(one_series)))
    unknown = series(covariates=np.full((5 * 504, 2), np.nan, dtype=np.float32))
    assert "known for too few of the readings" in Parsed(html(outcome(unknown))).text


def test_tensorboard_has_the_same_pictures() -> None:
    assert [*images(outcome())] == [
        "forecasts_typical",
        "forecasts_worst",
        "error_by_hour",
        "error_by_weekday",
        "error_by_temperature",
    ]
    assert [*images(one_series())] == ["forecasts_typical", "error_by_hour", "error_by_weekday"]
    for image in images(a_day_with_quantiles()).values():
        assert image.dtype == torch.uint8
        assert image.shape[0] == 3
        assert image.shape[2] in (480, 496, 560)
