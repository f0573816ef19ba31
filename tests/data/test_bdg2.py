"""Building Data Genome 2's wide files, in their published layout, through configs/bdg2.yaml."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Run, assert_refused
from tests.data.test_own_tables import read

RunTrain = Callable[..., Run]
CONFIG = ("--config", Path(__file__).parents[2] / "configs" / "bdg2.yaml")
BUILDINGS = ("Panther_office_Hannah", "Panther_lodging_Dean", "Fox_food_Scott")
HOURS = 24 * 12
SPLITS = ("--data.train_end=2017-01-08", "--data.val_end=2017-01-10", "--data.test_end=2017-01-12")
METADATA = (
    "building_id,site_id,building_id_kaggle,primaryspaceusage,sqm,sqft,timezone,electricity\n"
    "Fox_food_Scott,Fox,,Food sales and service,500.1,5383.0,US/Mountain,Yes\n"
    "Panther_lodging_Dean,Panther,12.0,Lodging/residential,,,US/Eastern,Yes\n"
    "Panther_office_Hannah,Panther,5.0,Office,2000.5,21533.0,US/Eastern,Yes\n"
)


def stamps() -> list[str]:
    hours = np.datetime64("2017-01-01T00") + np.arange(HOURS)
    return [str(hour).replace("T", " ") + ":00:00" for hour in hours]


def write(folder: Path, names: tuple[str, ...] = BUILDINGS, metadata: str = METADATA) -> list[str]:
    """The three files, with invented readings; the options that name them."""
    rows = [
        f"{stamp},{100 + n % 24},{'' if n == 30 else n % 7},{5.5}"
        for n, stamp in enumerate(stamps())
    ]
    (folder / "electricity.csv").write_text(f"timestamp,{','.join(names)}\n" + "\n".join(rows))
    heads = "timestamp,site_id,airTemperature,cloudCoverage,dewTemperature,precipDepth1HR,windSpeed"
    weather = [
        f"{stamp},{site},{shift + n / 10},{'' if n % 3 else 4.0},{shift - 3},-1.0,2.6"
        for site, shift in (("Fox", 30), ("Panther", 10))
        for n, stamp in enumerate(stamps())
    ]
    (folder / "weather.csv").write_text(heads + "\n" + "\n".join(weather))
    (folder / "metadata.csv").write_text(metadata)
    files = {"path": "electricity", "weather_path": "weather", "metadata_path": "metadata"}
    return [f"--data.{option}={folder / name}.csv" for option, name in files.items()]


def test_each_column_is_a_building_and_has_the_weather_of_its_site(
    run: RunTrain, tmp_path: Path
) -> None:
    r = run(*CONFIG, *write(tmp_path), *SPLITS)
    assert r.code == 0, r.text
    series = r.data.windows["train"].series
    assert [series.name(s) for s in range(3)] == list(BUILDINGS)
    assert series.site.tolist() == ["Panther", "Panther", "Fox"]
    assert series.reading[:3].tolist() == [100, 101, 102]
    assert np.isnan(series.reading[HOURS + 30])
    rows = series.covariates[series.covariate_cells()]
    assert rows.shape == (3 * HOURS, 3)
    for number, shift in enumerate((10, 10, 30)):
        of_one = rows[number * HOURS : (number + 1) * HOURS]
        assert of_one[:, 0].tolist() == pytest.approx((shift + np.arange(HOURS) / 10).tolist())
        assert (of_one[:, 2] == shift - 3).all()
    assert {row["series"] for row in read(r.folder / "predictions.csv")} == set(BUILDINGS)
    last = read(r.folder / "predictions.csv")[-1]["timestamp"]
    assert last == "2017-01-12 23:00:00"


def test_a_column_without_a_row_in_the_metadata_is_refused(run: RunTrain, tmp_path: Path) -> None:
    names = (*BUILDINGS[:2], "Fox_food_Nobody")
    refused = run(*CONFIG, *write(tmp_path, names), *SPLITS)
    assert_refused(refused, "metadata.csv", "no row for building Fox_food_Nobody")


def test_buildings_may_be_numbers(run: RunTrain, tmp_path: Path) -> None:
    """A header's names are text, and the metadata's column of numbers is not."""
    metadata = "building_id,site_id\n7,Fox\n8,Panther\n9,Fox\n"
    r = run("inspect", *CONFIG, *write(tmp_path, ("8", "7", "9"), metadata), *SPLITS)
    assert r.code == 0, r.text
    series = r.data.windows["train"].series
    by_name = dict(zip(series.ids["series"].tolist(), series.site.tolist(), strict=True))
    assert by_name == {"7": "Fox", "8": "Panther", "9": "Fox"}
