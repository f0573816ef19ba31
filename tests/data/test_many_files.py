"""One table in several files: a file a year, a file a customer."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cases.meter_files import same_data
from tests.conftest import Run, assert_refused
from tests.data.tables import COLUMNS, LONG, long_table, times

RunTrain = Callable[..., Run]
OPTIONS = [*COLUMNS, "--data.covariates=[Temp]"]


def halves(whole: Path, cut: int) -> list[Path]:
    """The same rows in two files, from row `cut` on in the second."""
    head, *rows = whole.read_text().splitlines()
    paths = [whole.with_name(f"{name}.csv") for name in ("first", "second")]
    for path, part in zip(paths, (rows[:cut], rows[cut:]), strict=True):
        path.write_text("\n".join([head, *part]) + "\n")
    return paths


def listed(paths: list[Path]) -> str:
    return f"--data.path=[{','.join(map(str, paths))}]"


@pytest.mark.parametrize("cut", [LONG, 20])
def test_files_together_are_one_table(run: RunTrain, tmp_path: Path, cut: int) -> None:
    """A file for each customer, or one that begins in the middle of a series."""
    whole = long_table(tmp_path / "whole.csv")
    one = run("--data.path", whole, *OPTIONS)
    many = run(listed(halves(whole, cut)), *OPTIONS)
    assert many.code == 0, many.text
    assert same_data(one, many)
    config = ["--config", many.folder / "config.yaml", "--ckpt_path", many.best]
    again = run("predict", *config)
    assert again.code == 0, again.text
    shown = run("inspect", listed(halves(whole, cut)), *OPTIONS)
    assert "first.csv and 1 more file: 2 series, a row every hour" in shown.text


def test_wide_files_together_are_one_table(run: RunTrain, tmp_path: Path) -> None:
    whole = tmp_path / "wide.csv"
    rows = [f"{time},{n},{2 * n},{n % 7}" for n, time in times(LONG)]
    whole.write_text("\n".join(["Zeit,a,b,Temp", *rows]))
    wide = ["--data.layout=wide", "--data.timestamp=Zeit", "--data.covariates=[Temp]"]
    files = halves(whole, 33)
    assert same_data(run("--data.path", whole, *wide), run(listed(files), *wide))
    files[1].write_text(files[1].read_text().replace("Zeit,a,b", "Zeit,a,c"))
    assert_refused(run(listed(files), *wide), "second.csv has other columns than", "first.csv")


def test_ids_that_are_numbers_in_one_file_alone(run: RunTrain, tmp_path: Path) -> None:
    for name in ("7", "x7"):
        lines = [f"{time},{name},{n}" for n, time in times(LONG)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["timestamp,id,kwh", *lines]))
    files = [tmp_path / "7.csv", tmp_path / "x7.csv"]
    r = run(listed(files), "--data.id=id", "--data.target=kwh")
    assert r.code == 0, r.text
    assert r.data.windows["train"].series.ids["id"].tolist() == ["7", "x7"]


def edited(path: Path, line: int, old: str, new: str) -> None:
    lines = path.read_text().splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    path.write_text("\n".join(lines))


def test_what_is_wrong_is_found_in_its_file(run: RunTrain, tmp_path: Path) -> None:
    whole = long_table(tmp_path / "whole.csv")
    files = halves(whole, LONG)
    edited(files[1], 4, " 02:00", " 02:10")
    refused = run(listed(files), *OPTIONS)
    assert_refused(refused, f"{files[1]}, column Zeit, line 4: 2023-03-11 02:10 is not a whole")
    files = halves(whole, LONG)
    edited(files[1], 3, "K 2;201", "Müller & Co;7")
    refused = run(listed(files), *OPTIONS)
    assert_refused(refused, f"{files[0]}, line 3 and {files[1]}, line 3: Kunde Müller & Co has two")
    averaged = run(listed(files), *OPTIONS, "--data.duplicates=mean")
    assert "first.csv and 1 more file: 1 duplicate row dropped" in averaged.text
    series = averaged.data.windows["train"].series
    assert series.reading[series.offset[1] + 1] == np.float32((1.5 + 7) / 2)
    files = halves(whole, LONG)
    edited(files[1], 5, "203,0", "-203,0")
    noted = run(listed(files), *OPTIONS)
    assert f"the first is -203 in {files[1]}, line 5" in noted.text
    files[1].unlink()
    assert_refused(run(listed(files), *OPTIONS), f"there is no file {files[1]}")
