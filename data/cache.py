"""Parsed series in the user's cache folder, so that a file is read once."""

import hashlib
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import pyarrow

from data import columns, grid, load, metadata, read, rules, series, static, table, weather
from data.columns import DataError
from data.load import load_series
from data.rules import RULES
from data.series import SeriesSet
from data.table import Source

KEEP_ENTRIES = 12


def cache_folder() -> Path:
    """The user's cache folder for this project (XDG_CACHE_HOME is honoured)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "s4convd"


def cached_series(source: Source, rule: str) -> SeriesSet:
    """`load_series` and the named rule, from the cache where the same was read before.

    The key is what decides the result: the files' contents, the options, and the code that reads.
    A cache that cannot be written is done without.
    """
    path = cache_folder() / f"series-{_key(source, rule)}.npz"
    if path.is_file():
        try:
            found = SeriesSet.load(path)
            path.touch()
            return found
        except Exception:  # damaged, of which zipfile, zlib and numpy each tell in their own way
            pass  # read the files again and write it anew
    found = load_series(source)
    RULES[rule](found)
    try:
        _store(found, path)
    except OSError as error:
        found.notes.append(f"no cache was written: {error}")
    return found


def _key(source: Source, rule: str) -> str:
    digest = hashlib.sha256()
    modules = (columns, grid, load, metadata, read, rules, series, static, table, weather)
    for path in [*source.paths, *(Path(str(module.__file__)) for module in modules)]:
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    # Names too: a suffix decides how a file is read, and messages quote the name.
    digest.update(repr((asdict(source), rule, pyarrow.__version__)).encode())
    return digest.hexdigest()[:32]


def _store(found: SeriesSet, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        found.save(Path(name))
        Path(name).replace(path)  # whole or not at all
    finally:
        Path(name).unlink(missing_ok=True)
    entries = sorted(path.parent.glob("series-*.npz"), key=lambda entry: entry.stat().st_mtime)
    for old in entries[:-KEEP_ENTRIES]:
        old.unlink(missing_ok=True)
