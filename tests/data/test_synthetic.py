"""The generated data have the layout, the structure and the dirt that they promise."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.csv as pacsv
import pytest

from data import building_physics, synthetic

FILES = ("train.csv", "building_metadata.csv", "weather_train.csv")
HOURS = synthetic.YEAR
Grid = dict[tuple[int, int], npt.NDArray[np.float64]]


def _columns(path: Path) -> dict[str, npt.NDArray]:
    table = pacsv.read_csv(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def _runs(values: npt.NDArray, shortest: int) -> list[float]:
    """The value of each run of equal neighbours of at least `shortest`."""
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    starts, ends = np.r_[0, cuts], np.r_[cuts, len(values)]
    return [float(values[a]) for a, b in zip(starts, ends, strict=True) if b - a >= shortest]


def _autocorrelation(values: npt.NDArray, lag: int) -> float:
    both = ~np.isnan(values[lag:]) & ~np.isnan(values[:-lag])
    return float(np.corrcoef(values[lag:][both], values[:-lag][both])[0, 1])


def _correlation(left: npt.NDArray, right: npt.NDArray) -> float:
    both = ~np.isnan(left) & ~np.isnan(right)
    return float(np.corrcoef(left[both], right[both])[0, 1])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default data: a year of 24 buildings on 3 sites."""
    folder = tmp_path_factory.mktemp("synthetic") / "year"
    synthetic.write(folder)
    return folder


@pytest.fixture(scope="module")
def train(root: Path) -> dict[str, npt.NDArray]:
    return _columns(root / "train.csv")


@pytest.fixture(scope="module")
def metadata(root: Path) -> dict[str, npt.NDArray]:
    return _columns(root / "building_metadata.csv")


@pytest.fixture(scope="module")
def weather(root: Path) -> dict[str, npt.NDArray]:
    return _columns(root / "weather_train.csv")


def _hour_of(stamps: npt.NDArray) -> npt.NDArray:
    return (stamps.astype("datetime64[h]") - np.datetime64("2016-01-01", "h")).astype(int)


@pytest.fixture(scope="module")
def grid(train: dict[str, npt.NDArray]) -> Grid:
    """Readings by (building, meter), each (hours,), NaN where the row is absent."""
    hour = _hour_of(train["timestamp"])
    found: Grid = {}
    key = train["building_id"] * 4 + train["meter"]
    for code in np.unique(key):
        values = np.full(HOURS, np.nan)
        values[hour[key == code]] = train["meter_reading"][key == code]
        found[int(code) // 4, int(code) % 4] = values
    return found


@pytest.fixture(scope="module")
def clean(grid: Grid) -> Grid:
    """`grid` without zeros and spikes, which would drown any correlation."""
    found: Grid = {}
    for key, values in grid.items():
        sound = np.where(values > 0, values, np.nan)
        found[key] = np.where(sound > 6 * np.nanmedian(sound), np.nan, sound)
    return found


def _buildings(metadata: dict[str, npt.NDArray], *uses: str) -> list[int]:
    return [int(b) for b in metadata["building_id"][np.isin(metadata["primary_use"], uses)]]


def _air(weather: dict[str, npt.NDArray], site: int) -> npt.NDArray:
    values = np.full(HOURS, np.nan)
    here = weather["site_id"] == site
    values[_hour_of(weather["timestamp"][here])] = weather["air_temperature"][here]
    return values


def test_same_seed_same_bytes_other_seed_other_data(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        synthetic.write(tmp_path / name, seed=seed, buildings=5, sites=2, hours=800)
    for file in FILES:
        first = (tmp_path / "a" / file).read_bytes()
        assert first == (tmp_path / "b" / file).read_bytes()
        assert first != (tmp_path / "c" / file).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_building_does_not_depend_on_the_others(tmp_path: Path) -> None:
    for count in (2, 7):
        synthetic.write(tmp_path / str(count), buildings=count, hours=800)
    few = (tmp_path / "2" / "train.csv").read_text().splitlines()
    many = (tmp_path / "7" / "train.csv").read_text().splitlines()
    assert few[1:] == [line for line in many if line.startswith(("0,", "1,"))]


def test_chunks_leave_no_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.write(tmp_path / "one", buildings=3, hours=200)
    monkeypatch.setattr(synthetic, "CHUNK", 7)
    synthetic.write(tmp_path / "many", buildings=3, hours=200)
    one, many = (tmp_path / name / "train.csv" for name in ("one", "many"))
    assert one.read_bytes() == many.read_bytes()


def test_layout(root: Path) -> None:
    heads = {file: (root / file).read_text().splitlines()[:2] for file in FILES}
    assert heads["train.csv"][0] == "building_id,meter,timestamp,meter_reading"
    assert heads["building_metadata.csv"][0] == (
        "site_id,building_id,primary_use,square_feet,year_built,floor_count"
    )
    assert heads["weather_train.csv"][0] == (
        "site_id,timestamp,air_temperature,cloud_coverage,dew_temperature,precip_depth_1_hr,"
        "sea_level_pressure,wind_direction,wind_speed"
    )
    assert re.fullmatch(r"\d+,[0-3],2016-01-01 00:00:00,\d+(\.\d{1,2})?", heads["train.csv"][1])
    assert heads["weather_train.csv"][1].startswith("0,2016-01-01 00:00:00,")
    assert '"' not in (root / "building_metadata.csv").read_text()


def test_rows_are_ordered_by_time_building_meter(train: dict[str, npt.NDArray]) -> None:
    key = (_hour_of(train["timestamp"]) * 24 + train["building_id"]) * 4 + train["meter"]
    assert (np.diff(key) >= 0).all()
    assert key.max() // 96 == HOURS - 1


def test_meters_and_sizes(clean: Grid, metadata: dict[str, npt.NDArray]) -> None:
    buildings = {kind: {b for b, k in clean if k == kind} for kind in range(4)}
    assert buildings[0] == set(range(24))
    assert 6 <= len(buildings[1]) <= 12
    assert 5 <= len(buildings[2] | buildings[3]) <= 12
    assert buildings[2]
    assert buildings[3]
    assert not buildings[2] & buildings[3]
    means = [np.nanmean(values) for (_, kind), values in clean.items() if kind == 0]
    assert 3 < min(means) < max(means) < 5000
    assert set(metadata["site_id"]) == {0, 1, 2}


def test_meter_count_at_the_size_of_gepiii() -> None:
    for seed in (0, 1, 2):
        assert abs(sum(len(building_physics.meter_kinds(seed, b)) for b in range(1449)) - 2380) < 25


def test_weather_is_plausible(weather: dict[str, npt.NDArray]) -> None:
    depression = weather["air_temperature"] - weather["dew_temperature"]
    assert np.nanmin(depression) > 0
    cloud = weather["cloud_coverage"]
    assert set(cloud[~np.isnan(cloud)]) <= set(range(10))
    assert np.nanmax(weather["wind_direction"]) < 360
    air = _air(weather, 0)
    assert np.nanmean(air[4400:5100]) > np.nanmean(air[:700]) + 10  # July against January
    # The weather of the day before yesterday still tells: fronts, beyond season and daytime.
    daily = np.nanmean(air.reshape(-1, 24), axis=1)
    assert _autocorrelation(daily - np.convolve(daily, np.ones(61) / 61, "same"), 2) > 0.2


def test_day_rhythm(clean: Grid, metadata: dict[str, npt.NDArray]) -> None:
    occupied = _buildings(metadata, "Office", "Education", "Retail", "Public services")
    assert len(occupied) >= 10
    for building in occupied:
        values = clean[building, 0]
        assert _autocorrelation(values, 24) > _autocorrelation(values, 12) + 0.3


def test_week_rhythm(clean: Grid, metadata: dict[str, npt.NDArray]) -> None:
    offices = _buildings(metadata, "Office")
    assert offices
    hour = np.arange(HOURS)
    noon = (hour % 24 >= 11) & (hour % 24 <= 14)
    weekend = (hour // 24 + 4) % 7 >= 5  # 1 January 2016 was a Friday
    for building in offices:
        values = clean[building, 0]
        assert np.nanmean(values[noon & ~weekend]) > 1.4 * np.nanmean(values[noon & weekend])


def test_holidays(clean: Grid, metadata: dict[str, npt.NDArray]) -> None:
    last_week = np.arange(HOURS) // 24 >= 360  # Monday 26 December on
    before = np.roll(last_week, -14 * 24) & ~last_week
    noon = np.arange(HOURS) % 24 == 12
    ratios = [
        np.nanmean(clean[b, 0][last_week & noon]) / np.nanmean(clean[b, 0][before & noon])
        for b in _buildings(metadata, "Office", "Education")
    ]
    assert np.nanmedian(ratios) < 0.8


def test_weather_drives_the_thermal_meters(
    clean: Grid, weather: dict[str, npt.NDArray], metadata: dict[str, npt.NDArray]
) -> None:
    for (building, kind), values in clean.items():
        drive = _correlation(values, _air(weather, int(metadata["site_id"][building])))
        if kind == 1:
            assert drive > 0.5
        elif kind in (2, 3):
            assert drive < -0.5


def test_outages_and_duplicates(train: dict[str, npt.NDArray], grid: Grid) -> None:
    hour = _hour_of(train["timestamp"])
    key = (hour * 24 + train["building_id"]) * 4 + train["meter"]
    again = np.diff(key) == 0
    assert 1 <= again.sum() <= 40
    assert (train["meter_reading"][1:] == train["meter_reading"][:-1])[again].all()
    absent = np.stack([np.isnan(values) for values in grid.values()])
    assert 0.01 < absent.mean() < 0.06
    lengths = [len(run) for run in re.findall("1+", "0".join(map(_bits, absent)))]
    assert min(lengths) < 12
    assert max(lengths) > 72


def _bits(flags: npt.NDArray) -> str:
    return "".join("01"[int(flag)] for flag in flags)


def test_dead_and_stuck_meters(grid: Grid) -> None:
    present = [values[~np.isnan(values)] for values in grid.values()]
    dead = [value for values in present for value in _runs(values, 48) if value == 0]
    stuck = [value for values in present for value in _runs(values, 24) if value > 0]
    assert 1 <= len(dead) <= 12
    assert 1 <= len(stuck) <= 12


def test_single_zeros_and_spikes(grid: Grid) -> None:
    zeros = spikes = 0
    for values in grid.values():
        before, here, after = values[:-2], values[1:-1], values[2:]
        zeros += int(((here == 0) & (before > 0) & (after > 0)).sum())
        spikes += int(((before > 0) & (here > 5 * before) & (here > 5 * after) & (after > 0)).sum())
    assert 10 <= zeros <= 90
    assert 5 <= spikes <= 50


def test_blank_cells_and_missing_weather_hours(
    metadata: dict[str, npt.NDArray], weather: dict[str, npt.NDArray]
) -> None:
    for column in ("year_built", "floor_count"):
        assert 0.25 < np.isnan(metadata[column]).mean() < 1
    for column, rate in synthetic.WEATHER_BLANKS.items():
        blank = np.isnan(weather[column])
        assert blank.any()
        assert abs(blank.mean() - rate) < 0.02
    rows = len(weather["site_id"])
    assert 0.98 * 3 * HOURS < rows < 3 * HOURS


def test_short_run_has_a_duplicate(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "short", buildings=1, sites=1, hours=24, start="2017-03-04 05")
    lines = (tmp_path / "short" / "train.csv").read_text().splitlines()
    assert len(lines) > len(set(lines))
    assert ",2017-03-04 05:00:00," in lines[1]


def test_main_reports_and_refuses_a_full_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made" / "here"
    arguments = ["--root", str(folder), "--buildings", "2", "--sites", "1", "--hours", "48"]
    assert synthetic.main(arguments) == 0
    assert re.search(r" \d+ rows, 2 buildings, \d+ meters, 48 hours, ", capsys.readouterr().out)
    before = (folder / "train.csv").read_bytes()
    assert synthetic.main([*arguments, "--seed", "1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "not empty" in error
    assert (folder / "train.csv").read_bytes() == before


def test_an_empty_folder_is_used_and_bad_arguments_refused(tmp_path: Path) -> None:
    synthetic.write(tmp_path, buildings=1, sites=1, hours=24)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    with pytest.raises(ValueError, match="at least 1"):
        synthetic.write(tmp_path / "none", buildings=0)
    assert synthetic.main(["--root", str(tmp_path / "bad"), "--start", "yesterday"]) == 2


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(synthetic, "_train_table", fail)
    with pytest.raises(OSError, match="disk full"):
        synthetic.write(tmp_path / "data", buildings=1, sites=1, hours=24)
    assert not list(tmp_path.iterdir())
