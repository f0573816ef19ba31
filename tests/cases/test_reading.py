"""What is read from odd files: cases (a) of formats, values, units and scaling."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from tests.cases.meter_files import (
    A04,
    AIR,
    SIX,
    RunTrain,
    batches,
    losses_are_finite,
    predictions,
    rows,
    same_data,
    scores,
    write,
)
from tests.conftest import INPUTS, assert_refused, one_file


def test_a01_excel_bom_and_crlf_load_like_the_plain_file(run: RunTrain) -> None:
    """A01: a byte-order mark glued itself to the first header: `timestamp` was not found."""
    plain = run(*one_file(INPUTS / "A01_plain.csv"), *AIR)
    excel = run(*one_file(INPUTS / "A01_bom_crlf.csv"), *AIR)
    assert "no such column" not in plain.text + excel.text
    assert len(plain.data.windows["train"]) == 2
    assert plain.data.windows["train"].series.reading.tolist() == SIX
    assert same_data(plain, excel)


def test_a02_semicolons_and_decimal_commas_are_read(run: RunTrain) -> None:
    """A02: a European export failed in the tokenizer, or its numbers stayed text."""
    r = run(*one_file(INPUTS / "A02_semicolon_decimal_comma.csv"), *AIR)
    series = r.data.windows["train"].series
    assert series.reading.tolist() == [10.5, 11.25, 1234.75, 13, 14.5, 15.5]
    assert series.covariates[:, 0].tolist() == [5, 5.5, 6, 6.5, 7, 7.5]
    assert "separator ';' and decimal mark ','" in r.text


@pytest.mark.parametrize(("offset", "peak", "missing"), [(-4, 15, 8), (None, 19, 12)])
def test_a04_weather_in_utc_is_shifted_to_local_time(
    run: RunTrain, offset: int | None, peak: int, missing: int
) -> None:
    """A04: UTC weather was joined to local meter hours by equal text, 4 to 8 hours wrong."""
    shift = [] if offset is None else ["--data.utc_offset", offset]
    r = run(*one_file(INPUTS / "A04_train.csv"), *A04, *shift)
    series = r.data.windows["train"].series
    air = series.covariates[series.covariate_cells(), 0]
    assert series.cell_ticks()[air.argmax()] % 24 == peak
    assert air.max() == 28
    assert air[missing] == pytest.approx((air[missing - 1] + air[missing + 1]) / 2)
    assert "air_temperature: 1 of 24 values missing, 1 interpolated" in r.text
    seen = batches(r)  # no row was lost, and the model sees the shifted weather
    assert seen.target.flatten().tolist() == list(range(104, 124))
    assert seen.covariates[peak - 3, 3, 0] == 28


def test_a04_an_offset_can_be_given_by_site_and_its_default_is_documented(
    run: RunTrain,
) -> None:
    """A04: the offset differs from site to site, and nobody could tell what held without one."""
    paths = one_file(INPUTS / "A04_train.csv")
    r = run(*paths, *A04, '--data.utc_offset={"3": -4, "5": 9}')
    series = r.data.windows["train"].series
    assert series.covariates[series.covariate_cells(), 0].argmax() == 15
    text = " ".join(run("fit", "--help", tiny=False).text.split())
    assert "hours to add to the weather's time stamps" in text
    assert "not given, 0" in text


def test_a13_a_constant_column_scales_to_zero(run: RunTrain) -> None:
    """A13: a constant column divided by its deviation of 0, and every prediction was NaN."""
    path = INPUTS / "A13_constant_feature.csv"
    r = run(*one_file(path), *AIR, "--model.transform", "none")
    scaling, forecaster = r.data.scaling, r.cli.model.forecaster
    assert "air_temperature is constant (21.5)" in r.text
    scaled = forecaster._scaled(batches(r).covariates, slice(None))
    assert (scaled == 0).all()
    assert scaling.covariate_mean[0] + 0 * scaling.covariate_std[0] == 21.5
    assert losses_are_finite(r)
    assert np.isfinite(predictions(r)["prediction"]).all()


def test_a13_constant_readings_train_too(run: RunTrain) -> None:
    """A13: a meter that never moves has a deviation of 0 as well."""
    r = run(*one_file(INPUTS / "B02_constant100.csv"))
    assert "the readings are constant" in r.text
    assert losses_are_finite(r)
    assert np.isfinite(predictions(r)["prediction"]).all()


def test_a14_blank_and_infinite_cells_are_missing(run: RunTrain) -> None:
    """A14: blank, NA, null and inf cells gave a NaN loss, or their rows' removal glued hours."""
    r = run(*one_file(INPUTS / "A14_nan_inf.csv"), *AIR)
    seen = batches(r)
    # The stated policy: covariates are interpolated, a missing reading is in no window.
    assert seen.target.flatten().tolist() == [16, 17, 18, 19, 20]
    assert (seen.reading.diff() == 1).all()
    assert (seen.covariates == 5).all()
    assert np.flatnonzero(np.isnan(r.data.windows["train"].series.reading)).tolist() == [1]
    assert "0 times have no row and 1 rows no reading" in r.text
    assert "air_temperature: 4 of 11 values missing, 4 interpolated" in r.text
    assert "column air_temperature: 2 infinite" in r.text
    assert losses_are_finite(r)


@pytest.mark.parametrize("cell", ["inf", "-inf", "1e39", "", "NA", "NaN", "null", None])
def test_a14_no_window_spans_a_missing_reading(
    run: RunTrain, tmp_path: Path, cell: str | None
) -> None:
    """A14, checklist 41: rows on both sides of a gap were taken as neighbours."""
    lines = rows([*range(10, 16), "" if cell is None else cell, *range(17, 24)])
    if cell is None:  # the whole row is absent
        del lines[6]
    r = run(*one_file(write(tmp_path / "x.csv", lines)))
    for split in ("train", "predict"):
        seen = batches(r, split)
        assert torch.isfinite(seen.reading).all()
        assert (seen.reading.diff() == 1).all()
    assert batches(r).target.flatten().tolist() == [14, 15, 21, 22, 23]
    expected = "1 times have no row and 0" if cell is None else "0 times have no row and 1"
    assert f"{expected} rows no reading" in r.text
    assert losses_are_finite(r)


def test_a15_negative_readings_are_reported_and_set_to_zero(run: RunTrain) -> None:
    """A15: negative readings made RMSLE NaN at the very end."""
    r = run(*one_file(INPUTS / "A15_negative.csv"))
    assert "2 negative readings, the first is -3.2 in line 4\n" in r.text
    assert "readings below zero are set to 0 (--model.transform none keeps them)" in r.text
    assert r.data.windows["train"].series.reading.tolist() == [10, 11, 0, 13, 14, 0, 15, 16]
    assert losses_are_finite(r)
    assert min(predictions(r)["prediction"]) >= 0


def test_a15_a_forecast_below_minus_one_has_a_score(run: RunTrain, tmp_path: Path) -> None:
    """A15: RMSLE was NaN for a raw prediction below -1."""
    path = write(tmp_path / "x.csv", rows([-50, -52, -54, -51, -53, -50, -52]))
    r = run(*one_file(path), "--model.transform", "none")
    assert "7 negative readings, the first is -50 in line 2\n" in r.text
    assert "set to 0" not in r.text
    assert max(predictions(r)["prediction"]) < -1
    assert losses_are_finite(r)
    assert scores(r)["test/mae"][0] < 20  # the units are the file's


def test_a16_the_scaling_is_of_the_training_rows(run: RunTrain, tmp_path: Path) -> None:
    """A16: the scaler was fitted on all data, or on each split by itself (-1.43 for 101)."""
    test = INPUTS / "A16_test.csv"
    train = ["--data.train_path", INPUTS / "A16_train.csv"]
    train += ["--data.val_path", test, "--model.transform", "none", *AIR]
    r = run(*train, "--data.test_path", test)
    assert r.data.scaling.reading_mean == 4.5
    assert r.data.scaling.reading_std == pytest.approx(2.2913, abs=1e-4)
    forecaster = r.cli.model.forecaster  # what the model itself uses
    assert float((101 - forecaster.reading_mean) / forecaster.reading_std) == pytest.approx(
        42.1161, abs=1e-3
    )
    assert forecaster.covariate_mean.tolist() == [6.75]
    # In the file's units, not 42 of the scaled ones.
    assert np.allclose(predictions(r)["prediction"], batches(r, "test").target, atol=15)

    edited = tmp_path / "edited.csv"
    edited.write_text(test.read_text().replace(",101,5.0", ",9999,-40"))
    assert run(*train, "--data.test_path", edited).data.scaling == r.data.scaling


def test_a16_hours_after_the_training_part_do_not_touch_the_scaling(
    run: RunTrain, tmp_path: Path
) -> None:
    """A16, checklist 42: statistics that saw the future, where one file is split by time."""
    past = rows(range(1, 29), air=5)  # 70 % of 40 hours
    found = []
    for name, level, air in (("a", 30, 6), ("b", 5000, -30)):
        future = rows(range(level, level + 12), start="2016-01-02 04", air=air)
        path = write(tmp_path / f"{name}.csv", past, future)
        r = run("--data.train_path", path, *AIR, "--model.transform", "none")
        assert [len(r.data.windows[s]) for s in ("train", "val", "test")] == [24, 2, 2]
        assert float(r.cli.model.forecaster.reading_mean) == r.data.scaling.reading_mean
        found.append(r.data.scaling)
    assert found[0] == found[1]
    assert found[0].reading_mean == 14.5
    assert found[0].covariate_mean == [5]


def test_a17_large_readings_survive(run: RunTrain) -> None:
    """A17: memory-saving casts to float16 and int8 turned readings into inf, ids into others."""
    r = run(*one_file(INPUTS / "A17_large_values.csv"), *AIR)
    reading = batches(r).reading[0]
    assert reading.dtype == torch.float32
    assert reading.tolist() == [21904700, 21000000, 70000, 65504]
    assert torch.log1p(reading)[0].item() == pytest.approx(16.9022, abs=1e-4)
    scaling = r.data.scaling
    statistics = [scaling.reading_mean, scaling.reading_std, *scaling.covariate_mean]
    assert np.isfinite(statistics).all()
    assert set(predictions(r)["building_id"]) == {1099}
    assert np.isfinite(predictions(r)["prediction"]).all()
    assert losses_are_finite(r)


def test_a21_parquet_with_odd_types(run: RunTrain) -> None:
    """A21: decimal, dictionary and nullable integer columns failed to become tensors."""
    path = INPUTS / "A21_decimal_dict_nullable.parquet"
    r = run(*one_file(path), "--data.covariates", "[air_temperature,floor_count]")
    series = r.data.windows["train"].series
    assert series.reading.tolist() == [10.5, 11, 12, 13, 14, 15, 16, 17.25]
    assert series.meter.tolist() == [0]
    assert series.covariates[:-1, 1].tolist() == [3] * 7
    assert np.isnan(series.covariates[-1, 1])
    assert (
        "floor_count: 1 of 8 values missing, 0 interpolated, 1 set to the training mean" in r.text
    )
    assert len(batches(r).target) == 4
    assert losses_are_finite(r)


SIX_HOURS = pa.array(np.arange(6) * 3600 + 1_451_606_400, pa.timestamp("s"))


def parquet(path: Path, **columns: pa.Array) -> Path:
    """A Parquet file of six hours with some columns in another type."""
    plain = {"timestamp": SIX_HOURS, "building_id": pa.array([1] * 6), "meter": pa.array([0] * 6)}
    pq.write_table(pa.table(plain | {"meter_reading": pa.array(SIX)} | columns), path)
    return path


@pytest.mark.parametrize(
    ("column", "values", "shown"),
    [
        ("meter_reading", pa.array([[1.0]] * 6), "list<"),
        ("meter_reading", pa.array([{"kwh": 1.0}] * 6), "struct<"),
        ("building_id", pa.array([[1]] * 6), "list<"),
        ("timestamp", pa.array([0.0] * 6), "double"),
        ("timestamp", SIX_HOURS.cast(pa.timestamp("us", "Europe/Berlin")), "Europe/Berlin"),
        ("meter", pa.array(["gas"] * 6), "'gas' is not a meter; write one of: 0 electricity"),
    ],
)
def test_a21_unsupported_types_are_named(
    run: RunTrain, tmp_path: Path, column: str, values: pa.Array, shown: str
) -> None:
    """A21: an unsupported type ended in a traceback far away."""
    path = parquet(tmp_path / "x.parquet", **{column: values})
    assert_refused(run(*one_file(path)), path, f"column {column}", shown)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a21_text_of_every_parquet_type_is_text(
    run: RunTrain, tmp_path: Path, kind: pa.DataType
) -> None:
    """A21, checklist 45: what pandas and polars write as text is not Arrow's plain string."""
    texts = {"building_id": ["B7"] * 6, "meter": ["hot_water"] * 6, "meter_reading": map(str, SIX)}
    columns = {name: pa.array(list(text)).cast(kind) for name, text in texts.items()}
    r = run(*one_file(parquet(tmp_path / "x.parquet", **columns)))
    assert batches(r).target.flatten().tolist() == [14, 15]
    assert predictions(r)["building_id"] == ["B7", "B7"]
    assert predictions(r)["meter"] == [3, 3]


@pytest.mark.parametrize(("rules", "reading"), [("gepiii", 29.31), ("none", 100)])
def test_a23_site_0_electricity_is_in_kbtu(
    run: RunTrain, tmp_path: Path, rules: str, reading: float
) -> None:
    """A23: GEPIII's site 0 has its electricity in kBTU, and nobody said so."""
    for name in ("building_metadata", "weather_train"):
        lines = (INPUTS / f"A04_{name}.csv").read_text().splitlines()
        moved = ["0" + line.removeprefix("3") if line[:2] == "3," else line for line in lines]
        assert moved != lines
        (tmp_path / f"{name}.csv").write_text("\n".join(moved) + "\n")
    r = run(
        *one_file(INPUTS / "A04_train.csv"),
        *("--data.weather_path", tmp_path / "weather_train.csv"),
        *("--data.metadata_path", tmp_path / "building_metadata.csv", *AIR, "--data.rules", rules),
    )
    series = r.data.windows["train"].series
    assert series.site.tolist() == [0]
    assert series.reading[0] == pytest.approx(reading)
    assert ("from kBTU to kWh (x 0.2931)" in r.text) == (rules == "gepiii")
    assert predictions(r)["prediction"][0] == pytest.approx(reading, rel=0.3)
    assert yaml.safe_load((r.folder / "config.yaml").read_text())["data"]["rules"] == rules
    # The rule set brings the site's offset along: 19:00 UTC is 14:00 at site 0.
    air = series.covariates[series.covariate_cells(), 0]
    assert air.argmax() == (14 if rules == "gepiii" else 19)


def test_x01_gzip_loads_like_the_plain_file(run: RunTrain) -> None:
    """X01: a compressed file is the same file."""
    plain = run(*one_file(INPUTS / "A01_plain.csv"), *AIR)
    packed = run(*one_file(INPUTS / "X01_train.csv.gz"), *AIR)
    assert len(batches(packed).target) == 2
    assert same_data(plain, packed)


def test_x02_an_unseen_building_is_predicted(run: RunTrain, tmp_path: Path) -> None:
    """X02: a building that training never saw has no learned id to fail on."""
    best = run(*one_file(INPUTS / "A10_exact_fit_5rows.csv")).best
    stranger = write(tmp_path / "x.csv", rows([500, 501, 502, 503, 504], building=77))
    r = run("predict", "--ckpt_path", best, "--data.predict_path", stranger)
    assert predictions(r)["building_id"] == [77]
    assert 50 < predictions(r)["prediction"][0] < 5000  # near its own level


def test_x02_a_building_without_metadata_is_refused(run: RunTrain, tmp_path: Path) -> None:
    """X02: without its site nobody knows a building's weather."""
    path = write(tmp_path / "x.csv", rows(SIX, building=77))
    r = run(*one_file(path), *A04)
    assert_refused(r, INPUTS / "A04_building_metadata.csv", "no row for building 77", path)


def test_x03_blank_metadata_loses_no_row(run: RunTrain, tmp_path: Path) -> None:
    """X03: year_built and floor_count are mostly blank in GEPIII; dropping such rows lost most."""
    metadata = tmp_path / "metadata.csv"
    text = (INPUTS / "A04_building_metadata.csv").read_text()
    metadata.write_text(text.replace(",1999,", ",,"))
    assert metadata.read_text().rstrip().endswith("Office,10000,,")
    r = run(*one_file(INPUTS / "A04_train.csv"), *A04, "--data.metadata_path", metadata)
    assert batches(r).target.flatten().tolist() == list(range(104, 124))
