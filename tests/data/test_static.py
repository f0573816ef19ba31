"""What is one value a series: columns of the metadata or the table, and how they become inputs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.static import columns_of, name_numbers, numbers
from tests.cases.meter_files import batches
from tests.conftest import Run, assert_refused, load_checkpoint
from tests.data.test_own_tables import read

RunTrain = Callable[..., Run]
HOURS = 60
USES = ["Office", "Lodging", "Office", ""]
FEET = ["900", "200000", "", "3000"]
BUILT = ["1950", "", "2010", ""]


def write(
    folder: Path, uses: list[str] = USES, feet: list[str] = FEET, first: int = 1
) -> list[str]:
    """A folder of GEPIII's layout without weather, a building for each use; what names it."""
    folder.mkdir(exist_ok=True)
    times = np.datetime64("2016-01-01T00") + np.arange(HOURS)
    rows = [
        f"{building},0,{str(time).replace('T', ' ')}:00:00,{building * 10 + n % 7}"
        for building in range(first, first + len(uses))
        for n, time in enumerate(times)
    ]
    (folder / "train.csv").write_text(
        "building_id,meter,timestamp,meter_reading\n" + "\n".join(rows)
    )
    lines = [
        f"{first + n},{use},{feet[n]},{BUILT[n % 4]}" for n, use in reversed([*enumerate(uses)])
    ]
    heads = "building_id,primary_use,square_feet,year_built\n"
    (folder / "building_metadata.csv").write_text(heads + "\n".join(lines) + "\n")
    return [f"--data.root={folder}", "--data.covariates=[]"]


STATIC = "--data.static=[square_feet,primary_use,year_built]"
NAMES = [
    *("log1p(square_feet)", "primary_use=Lodging", "primary_use=Office", "year_built"),
]


def test_columns_of_the_metadata_are_inputs_of_each_window(run: RunTrain, tmp_path: Path) -> None:
    """By value; a blank number takes no window away, and a blank word is no category."""
    files = write(tmp_path / "a")
    without = run(*files)
    r = run(*files, STATIC, "--data.horizon=2")
    assert r.code == 0, r.text
    assert "square_feet: used as log(1 + x)" in r.text
    assert "primary_use: 2 categories" in r.text
    assert load_checkpoint(r.best)["hyper_parameters"]["static"] == NAMES
    assert [name for name in r.cli.model.forecaster.features if "=" in name] == [
        f"{name} ahead" for name in NAMES[1:3]
    ]
    assert len(r.data.windows["train"]) == len(without.data.windows["train"]) - 4  # horizon
    seen = batches(r)
    assert seen.known.shape[1:] == (5, 4)
    assert (seen.known == seen.known[:, :1]).logical_or(seen.known.isnan()).all()
    owner = r.data.windows["train"].series.series_of(seen.cell.numpy())
    first = seen.known[[int((owner == s).argmax()) for s in range(4)], 0]
    expected = [
        [np.log1p(900), 0, 1, 1950],
        [np.log1p(200000), 1, 0, np.nan],
        [np.nan, 0, 1, 2010],
        [np.log1p(3000), 0, 0, np.nan],
    ]
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    scaling = r.data.scaling
    assert scaling.covariate_mean == pytest.approx(np.nanmean(expected, axis=0), rel=1e-5)
    assert scaling.covariate_std == pytest.approx(np.nanstd(expected, axis=0), rel=1e-4)


def test_a_checkpoint_makes_the_same_inputs_of_other_buildings(
    run: RunTrain, tmp_path: Path
) -> None:
    """X02: an unseen use is no category, and is said; so the forecasts are those of a blank one."""
    r = run(*write(tmp_path / "a"), STATIC)
    assert r.code == 0, r.text
    found = {}
    for name, use in (("b", "Stadium"), ("c", ""), ("d", "Office")):
        new = write(tmp_path / name, [use, "Office"], ["10", "20"], first=70)
        for options in ([], [STATIC], ["--config", r.folder / "config.yaml"]):
            done = run("predict", *options, *new, "--ckpt_path", r.best)
            assert done.code == 0, done.text
            assert done.cli.model.hparams["static"] == NAMES
            assert ("'Stadium' is no category of the training data" in done.text) == (name == "b")
            rows = [float(row["prediction"]) for row in read(done.folder / "predictions.csv")]
            assert found.setdefault(name, rows) == rows
    assert found["b"] == found["c"] != found["d"]
    refused = run(
        "test", *write(tmp_path / "a"), "--data.static=[year_built]", "--ckpt_path", r.best
    )
    assert_refused(refused, "--data.static", "year_built", "log1p(square_feet)")


def test_a_column_of_the_table_itself(run: RunTrain, tmp_path: Path) -> None:
    """One value a series, also where some rows are blank; a contradiction is found by line."""
    rows = [
        f"{name},2016-01-0{1 + n // 24} {n % 24:02}:00,{n},{tariff if n % 2 else ''}"
        for name, tariff in (("x", "night"), ("y", "day"))
        for n in range(HOURS)
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["id,timestamp,target,tariff", *rows]) + "\n")
    options = [
        "--data.path",
        path,
        "--data.id=id",
        "--data.target=target",
        "--data.static=[tariff]",
    ]
    r = run(*options)
    assert r.code == 0, r.text
    assert r.data.static == ("tariff=day", "tariff=night")
    again = run(*options, "--init_from", r.best)
    assert again.code == 0, again.text
    assert "made anew: nothing" in again.text
    path.write_text(
        path.read_text().replace("x,2016-01-01 05:00,5,night", "x,2016-01-01 05:00,5,day")
    )
    assert_refused(run(*options), "column tariff, line", "id x has", "night", "--data.covariates")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("[height]", ["building_metadata.csv", "'height'"]),
        ("[meter]", ["--data.static: meter has another part"]),
    ],
)
def test_columns_that_cannot_be_static_are_refused(
    run: RunTrain, tmp_path: Path, option: str, told: list[str]
) -> None:
    assert_refused(run(*write(tmp_path / "a"), f"--data.static={option}"), *told)


def test_a_column_that_is_nowhere_is_refused(run: RunTrain, tmp_path: Path) -> None:
    table = write(tmp_path / "a") and tmp_path / "a" / "train.csv"
    refused = run("--data.path", table, "--data.static=[square_feet]")
    assert_refused(refused, "train.csv", "'square_feet'", "--data.metadata_path")


def test_the_rarest_of_many_words_are_one() -> None:
    words = np.array([f"w{n:02}" for n in range(25) for _ in range(1 + (n < 20))] + [""])
    names, notes = name_numbers({"use": words})
    assert names == [*(f"use=w{n:02}" for n in range(20)), "use=other"]
    assert "25 categories, the 5 rarest as 'other'" in notes[0]
    made, notes = numbers({"use": np.array(["w03", "w24", "new", ""])}, names, 4)
    assert made.argmax(1)[:3].tolist() == [3, 20, 20]
    assert made.sum(1).tolist() == [1, 1, 1, 0]
    assert "counted as 'other'" in notes[0]


def test_numbers_are_logarithms_where_they_spread_widely() -> None:
    def names(*values: float) -> list[str]:
        return name_numbers({"x": np.array(values, dtype=np.float64)})[0]

    assert names(1, 90, np.nan) == names(-1, 5000) == names(0, 0) == names(np.nan) == ["x"]
    assert names(0, 1, 101) == ["log1p(x)"]
    assert columns_of(["log1p(a b)", "c=d=e", "c=f", "g"]) == ["a b", "c", "g"]
    with pytest.raises(ValueError, match="holds words"):
        numbers({"x": np.array(["y"])}, ["x"], 1)
