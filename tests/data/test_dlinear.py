"""The linear model for several readings ahead, and the protocol of the papers that it is from."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data import dlinear
from data.dlinear import dlinear_forecast, linear_map
from data.series import SeriesSet
from data.windows import Windows, find_windows
from tests.conftest import Run

RunTrain = Callable[..., Run]
FAR = 10**9


def series(reading: np.ndarray, covariate: np.ndarray) -> SeriesSet:
    return SeriesSet(
        ids={},
        site=np.zeros(1, dtype=np.int64),
        first_tick=np.zeros(1, dtype=np.int64),
        offset=np.array([0, reading.size]),
        reading=reading.astype(np.float32),
        covariates=covariate[:, None].astype(np.float32),
        covariate_start=np.zeros(1, dtype=np.int64),
    )


def parts(of: SeriesSet, length: int, horizon: int) -> list[Windows]:
    windows = find_windows(of, length, 0, FAR, horizon=horizon)
    n = len(windows)
    return [windows.kept(slice(a * n // 4, b * n // 4)) for a, b in ((0, 2), (2, 3), (3, 4))]


def test_it_continues_waves_on_a_slope_below_zero() -> None:
    """A law of the own past, which a covariate of pure noise must not spoil."""
    hour = np.arange(1_200)
    reading = -5 + hour / 20 + np.sin(2 * np.pi * hour / 24) + np.cos(2 * np.pi * hour / 9)
    noise = np.random.default_rng(0).standard_normal(hour.size)
    train, val, test = parts(series(reading, noise), 48, 6)
    forecast = dlinear_forecast(train, val, test, log1p=False)
    assert forecast.shape == (len(test), 6)
    assert np.abs(forecast - test.targets()).max() < 0.1


@pytest.mark.parametrize("log1p", [True, False])
def test_as_one_map_it_is_the_same(log1p: bool) -> None:
    rng = np.random.default_rng(1)
    reading = 20 + rng.standard_normal(900).cumsum().clip(-15, 15) + rng.standard_normal(900)
    of = series(np.maximum(reading, 0), np.zeros(900))
    three = parts(of, 40, 4)
    weight, offset = linear_map(*three[:2], log1p)
    assert (weight.shape, offset.shape) == ((40, 4), (4,))
    windows = three[2]
    view = np.lib.stride_tricks.sliding_window_view(of.reading, 40)[windows.cell]
    seen = np.log1p(view.astype(float)) if log1p else view.astype(float)
    last = seen[:, -1:]
    found = last + (seen - last) @ weight + offset
    found = np.expm1(found) if log1p else found
    np.testing.assert_allclose(found, dlinear_forecast(*three, log1p), rtol=1e-8)


def test_a_covariate_that_tells_the_future_is_used() -> None:
    """Noise can be forecast by nothing but the covariate, which is its own value 3 hours later."""
    noise = np.random.default_rng(0).standard_normal(1_500)
    told = np.roll(noise, -3)
    told[100:110] = np.nan  # the training mean stands in
    train, val, test = parts(series(noise, told), 8, 3)
    forecast = dlinear_forecast(train, val, test, log1p=False)
    assert np.square(forecast - test.targets()).mean() < 0.02
    blind = dlinear_forecast(*parts(series(noise, 0 * noise), 8, 3), log1p=False)
    assert np.square(blind - test.targets()).mean() > 0.8


def test_under_a_logarithm_it_is_one_of_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thinned and in parts or not; never below zero."""
    hour = np.arange(2_000)
    reading = np.expm1(3 + np.sin(2 * np.pi * hour / 24))
    windows = parts(series(reading, 0 * reading), 30, 4)
    whole = dlinear_forecast(*windows, log1p=True)
    target = windows[2].targets()
    assert np.abs(np.log1p(whole) - np.log1p(target)).max() < 0.02
    monkeypatch.setattr(dlinear, "MAX_VALUES", 60 * 150)
    small = dlinear_forecast(*windows, log1p=True)
    assert small.min() >= 0
    assert np.abs(np.log1p(small) - np.log1p(target)).max() < 0.05


def signed_table(path: Path) -> Path:
    """480 hours of a wave about zero and a little noise, and a covariate."""
    hour = np.arange(480)
    reading = 9 * np.sin(2 * np.pi * hour / 24) + np.random.default_rng(0).normal(0, 0.5, 480)
    times = np.datetime64("2017-01-01T00") + hour
    rows = [f"{t},{y:.4f},{n % 7}" for n, (t, y) in enumerate(zip(times, reading, strict=True))]
    path.write_text("\n".join(["date,OT,HUFL", *rows]) + "\n")
    return path


OPTIONS = (
    *("--data.id=[]", "--data.timestamp=date", "--data.target=OT", "--data.covariates=[HUFL]"),
    *("--data.train_end=2017-01-10", "--data.val_end=2017-01-15", "--model.transform=none"),
    *("--data.window=48", "--data.horizon=24"),
)


def test_windows_may_look_back_into_the_split_before(run: RunTrain, tmp_path: Path) -> None:
    """Without it today's counts; with it every reading of a split is predicted, and no other."""
    path = signed_table(tmp_path / "signed.csv")
    plain = run("inspect", "--data.path", path, *OPTIONS)
    assert plain.code == 0, plain.text
    counts = [len(plain.data.windows[split]) for split in ("train", "val", "test")]
    assert counts == [240 - 71, 120 - 71, 120 - 71]
    r = run("inspect", "--data.path", path, *OPTIONS, "--data.look_back=true")
    assert r.code == 0, r.text
    windows = r.data.windows
    assert np.array_equal(windows["train"].cell, plain.data.windows["train"].cell)
    for split, first in (("val", 240), ("test", 360)):
        predicted = windows[split].cell[:, None] + 48 + np.arange(24)
        assert np.unique(predicted).tolist() == list(range(first, first + 120))
        assert len(windows[split]) == 120 - 23


def test_signed_readings_are_scored_without_a_logarithm(run: RunTrain, tmp_path: Path) -> None:
    """The printed figures by value: RMSE first, and in deviations of the training rows."""
    path = signed_table(tmp_path / "signed.csv")
    r = run("--data.path", path, *OPTIONS, "--data.look_back=true")
    assert r.code == 0, r.text
    assert "RMSLE" not in r.text
    head = re.search(r"test RMSE +rows (.*)", r.text)
    assert head is not None
    names = head[1].split()
    assert names == ["S4ConvD", "persistence", "yesterday", "last", "week", "DLinear"]
    found = re.search(r"standardised .*\nMSE +(.*)\nMAE +(.*)", r.text)
    assert found is not None
    windows = r.data.windows["test"]
    reading = windows.series.reading.astype(np.float64)
    actual = windows.targets()
    yesterday = reading[windows.cell[:, None] + 24 + np.arange(24)]
    deviation = reading[:240].std()
    squares, sizes = ([float(word) for word in line.split()] for line in found.groups())
    assert squares[2] == pytest.approx(np.square((yesterday - actual) / deviation).mean(), abs=6e-5)
    assert sizes[2] == pytest.approx(np.abs((yesterday - actual) / deviation).mean(), abs=6e-5)
    assert squares[-1] < squares[2] / 1.3  # yesterday has the noise of two days
    saved = ("--config", r.folder / "config.yaml", "--ckpt_path", r.best)
    again = run("test", *saved, "--data.window=48")
    assert again.code == 0, again.text
    assert found[0] in again.text
    logged = float(again.cli.trainer.callback_metrics["test/rmse"])
    assert squares[0] == pytest.approx((logged / deviation) ** 2, rel=1e-3)
    assert "RMSLE" not in (r.folder / "report.html").read_text()
