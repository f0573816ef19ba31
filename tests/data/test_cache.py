"""The input folder may be read-only, and a file is parsed once."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import data.cache
from tests.cases.meter_files import AIR, GOOD, RunTrain, batches, same_data
from tests.conftest import INPUTS, one_file


def test_a_read_only_folder_is_enough(run: RunTrain, tmp_path: Path) -> None:
    """Data often lie on a share that nobody may write to."""
    folder = tmp_path / "share"
    folder.mkdir()
    path = Path(shutil.copy(INPUTS / "A10_exact_fit_5rows.csv", folder / "train.csv"))
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        r = run("--data.root", folder, *one_file(path))
        assert batches(r).target.flatten().tolist() == [50]
        assert [entry.name for entry in folder.iterdir()] == ["train.csv"]
    finally:
        folder.chmod(0o755)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "s4convd"


def test_a_file_is_parsed_once(run: RunTrain, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run takes the series, and what was said about them, from the cache."""
    first = run(*one_file(INPUTS / "A14_nan_inf.csv"), *AIR)

    def fail(source: object) -> None:
        raise AssertionError(f"read again: {source}")

    monkeypatch.setattr(data.cache, "load_series", fail)
    second = run(*one_file(INPUTS / "A14_nan_inf.csv"), *AIR)
    assert same_data(first, second)
    assert "4 of 11 values missing" in second.text
    with pytest.raises(AssertionError, match="read again"):  # other options are another entry
        run(*one_file(INPUTS / "A14_nan_inf.csv"), "--data.covariates", "[humidity]")


def test_an_edited_file_is_read_anew(run: RunTrain, cache: Path, tmp_path: Path) -> None:
    """An edit that leaves name, size and time of the file as they were is seen."""
    path = tmp_path / "x.csv"
    path.write_text(GOOD)
    was = path.stat()
    assert batches(run(*one_file(path))).target.flatten().tolist() == [14, 15]
    path.write_text(GOOD.replace(",15,", ",99,"))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert path.stat().st_size == was.st_size
    assert batches(run(*one_file(path))).target.flatten().tolist() == [14, 99]
    assert len(list(cache.glob("series-*.npz"))) == 2


@pytest.mark.parametrize("damage", ["emptied", "cut", "overwritten", "flipped"])
def test_a_damaged_cache_entry_is_made_anew(run: RunTrain, cache: Path, damage: str) -> None:
    """A killed run or a full disk left half an entry, and every later run failed on it."""
    first = run(*one_file(INPUTS / "A05_sorted.csv"))
    (entry,) = cache.glob("series-*.npz")
    whole = entry.read_bytes()
    at = whole.index(np.float32([500, 510]).tobytes())
    entry.write_bytes(
        {
            "emptied": b"",
            "cut": whole[: len(whole) // 2],
            "overwritten": b"no archive at all",
            "flipped": whole[:at] + b"\xff" + whole[at + 1 :],
        }[damage]
    )
    second = run(*one_file(INPUTS / "A05_sorted.csv"))
    assert second.code == 0
    assert same_data(first, second)
    assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_a_note(
    run: RunTrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full or foreign home folder is no reason not to train."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    r = run(*one_file(INPUTS / "A10_exact_fit_5rows.csv"))
    assert "no cache was written" in r.text
    assert batches(r).target.flatten().tolist() == [50]
