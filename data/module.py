"""Meters, in the layout of GEPIII (the ASHRAE contest) or any other, as a DataModule."""

import hashlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from data import building_physics, synthetic
from data.baselines import linear_forecast, naive_forecasts, season
from data.boosting import MAX_FIT_WINDOWS, TREES, boosting_is_installed, lightgbm_forecast
from data.cache import cache_folder, cached_series
from data.columns import GEPIII_ROLES, TIME, DataError, Files, Roles, files_words
from data.dlinear import dlinear_forecast, linear_map
from data.parts import Cut, Part, refuse_empty, refuse_steps
from data.rules import GEPIII_UTC_OFFSET
from data.scaling import fit_scaling
from data.scores import scores
from data.series import SeriesSet
from data.splits import split_ranges
from data.static import columns_of, name_numbers, numbers
from data.table import Source
from data.windows import Batch, DeviceSeries, WindowLoader, Windows

SUFFIXES = (".csv", ".csv.gz", ".parquet")
SIGNED = 0.1  # share of all that is read, signs left out, above which negative ones are no slips
# Columns of predictions.csv and scores.csv.
RESERVED = ("prediction", "horizon", "forecast", "rows")


class SeriesDataModule(L.LightningDataModule):
    """Meters and weather: folders or files of the GEPIII layout, or a table of one's own.

    Without `root` and paths a seeded stand-in of GEPIII's layout is generated in the cache.

    Args:
        path: a table of readings, split by time; `id`, `timestamp` and `target` are its columns.
            Several files, [a.csv,b.csv], are one table in pieces.
        id: columns that name a series together; [] if the table is one series.
        timestamp: the column of times.
        time_format: how they are written, '%d.%m.%Y %H:%M' say; found out, where there is one way.
        target: the column of readings.
        layout: long has a row for each reading; wide a row for each time, a column for each series.
        series: those columns of a wide table; without it, all that play no other part.
        root: folder with train, weather_train and building_metadata (.csv, .csv.gz or .parquet).
        train_path: the meter file, if not in `root`; `path` by another name.
        val_path: a separate file for validation; without it, a part of the time of train_path.
        test_path: a separate file for test; likewise.
        predict_path: a file to predict; without it, the test part.
        weather_path: the weather file, if not in `root`.
        metadata_path: the building file, if not in `root`.
        train_end: last date of training; a date without a time is the whole day.
        val_end: last date of validation.
        test_end: last date of test; without it, the end of the data.
        val_fraction: share of time for validation, where no dates are given.
        test_fraction: share of time for test, where no dates are given.
        look_back: windows of validation and test may begin in the split before; what they predict
            lies in their own, so that every reading of it is predicted.
        window: readings that the model sees, 48 hours of hourly ones say.
        horizon: readings that it forecasts, all in one pass.
        covariates: columns beside the reading, of the weather or of the meter file; none beside
            `path`, unless they are named.
        known: others of these columns, which are known ahead, such as a tariff, a holiday or a
            weather forecast: to forecast beyond the last reading, let rows follow that hold them
            and no reading.
        static: columns of one value a series, of the table or of the metadata, such as
            [square_feet,primary_use]: numbers, of which those that spread widely are taken as
            logarithms, and words, each of which becomes a number that is 0 or 1.
        meters: meter codes to use (0 electricity, 1 chilled water, 2 steam, 3 hot water).
        rules: whose known errors to mend: none, gepiii or cambridge.
        utc_offset: hours to add to the weather's time stamps to get the meters' local time, for all
            sites or by site; not given, 0 (GEPIII's own under `rules gepiii`).
        duplicates: two contradicting readings for one time: error, or keep first, last or mean.
        transform: set with --model.transform.
        fraction: share of the series to train on, whole series drawn by the seed.
        beyond_end: predict also what follows the end of each series.
        batch_size: windows a batch.
        boosting: score LightGBM as well, where it is installed; by default for horizon 1 alone, as
            it takes a model for each reading ahead, and minutes.
    """

    def __init__(
        self,
        # The list comes first: of the other order jsonargparse writes no list to config.yaml.
        path: list[Path] | Path | None = None,
        id: str | list[str] = ["building_id", "meter"],  # noqa: B006 (as covariates below)
        timestamp: str = GEPIII_ROLES.timestamp,
        time_format: str | None = None,
        target: str = GEPIII_ROLES.target,
        layout: Literal["long", "wide"] = "long",
        series: list[str] | None = None,
        root: Path | None = None,
        train_path: list[Path] | Path | None = None,
        val_path: Path | None = None,
        test_path: Path | None = None,
        predict_path: Path | None = None,
        weather_path: Path | None = None,
        metadata_path: Path | None = None,
        train_end: str | None = None,
        val_end: str | None = None,
        test_end: str | None = None,
        val_fraction: float = 0.15,
        test_fraction: float = 0.15,
        look_back: bool = False,
        window: int = 48,
        horizon: int = 1,
        covariates: list[str] = ["air_temperature", "cloud_coverage", "dew_temperature"],  # noqa: B006 (jsonargparse shows it in --help; never changed)
        known: list[str] = [],  # noqa: B006
        static: list[str] = [],  # noqa: B006
        meters: list[int] | None = None,
        rules: Literal["none", "gepiii", "cambridge"] = "none",
        utc_offset: int | dict[str, int] | None = None,
        duplicates: Literal["error", "first", "last", "mean"] = "error",
        transform: Literal["auto", "log1p", "none"] = "auto",
        fraction: float = 1.0,
        beyond_end: bool = False,
        batch_size: int = 256,
        boosting: bool | None = None,
    ) -> None:
        super().__init__()
        _require(window >= 2, f"--data.window must be 2 or more, not {window}")
        _require(horizon >= 1, f"--data.horizon must be 1 or more, not {horizon}")
        _require(batch_size >= 1, f"--data.batch_size must be 1 or more, not {batch_size}")
        _require(0 < fraction <= 1, f"--data.fraction must be in (0, 1], not {fraction}")
        shares = val_fraction > 0 and test_fraction > 0 and val_fraction + test_fraction < 1
        _require(shares, "--data.val_fraction and --data.test_fraction must be > 0, their sum < 1")
        _require(not (path and train_path), "--data.path and --data.train_path name one file twice")
        _require(series is None or layout == "wide", "--data.series is for --data.layout wide")
        ids = (id,) if isinstance(id, str) else tuple(id)
        named = None if series is None else tuple(series)
        self.roles = Roles(ids, timestamp, target, layout == "wide", named, time_format)
        for word in sorted({TIME, *RESERVED} & set(ids)):
            raise DataError(
                f"--data.id: {word!r} is what a column of our own files is called; rename it"
            )
        self.root = root
        paths = {"train": path or train_path, "val": val_path, "test": test_path}
        self.tables = {split: _files(path) for split, path in paths.items()}
        self.predict_path = predict_path
        self.weather_path = weather_path
        self.metadata_path = metadata_path
        self.ends = {"train_end": train_end, "val_end": val_end, "test_end": test_end}
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.window = window
        self.horizon = horizon
        both = sorted(set(covariates) & set(known))
        _require(not both, f"--data.known: {', '.join(both)} stands in --data.covariates, too")
        self.covariates = tuple(covariates)
        self.known = tuple(known)
        busy = {*self.roles.id, timestamp, target, *covariates, *known} & set(columns_of(static))
        _require(not busy, f"--data.static: {', '.join(sorted(busy))} has another part already")
        self.static = tuple(static)
        self.meters = None if meters is None else tuple(meters)
        self.rules = rules
        self.utc_offset = utc_offset
        self.duplicates = duplicates
        self.transform = transform
        self.fraction = fraction
        self.cut = Cut(window, horizon, look_back, beyond_end)
        self.batch_size = batch_size
        if boosting and not boosting_is_installed():
            raise DataError("--data.boosting needs LightGBM: pip install -e '.[baselines]'")
        self.boosting = horizon == 1 if boosting is None else boosting
        self.windows: dict[str, Windows] = {}
        self._sources: dict[int, DeviceSeries] = {}
        self._said: set[str] = set()

    # -- files ---------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Generate the stand-in data, where no file was named and they are not there yet."""
        if self._is_synthetic and not self._synthetic_root.is_dir():
            rank_zero_info("no data were named: generating the stand-in, once")
            try:
                synthetic.write(self._synthetic_root)
            except OSError:
                if not self._synthetic_root.is_dir():  # else another process was first
                    raise

    @property
    def _is_synthetic(self) -> bool:
        return not (self.root or any(self.tables.values()) or self.predict_path)

    @cached_property
    def _synthetic_root(self) -> Path:
        """Named by the generator's code: another version of it writes another folder."""
        modules = (synthetic, building_physics)
        code = b"".join(Path(str(module.__file__)).read_bytes() for module in modules)
        return cache_folder() / f"synthetic-{hashlib.sha256(code).hexdigest()[:12]}"

    def find(self, stem: str) -> Path | None:
        """The file `stem` of the root folder, with whichever suffix it has."""
        root = self._synthetic_root if self._is_synthetic else self.root
        if root is None:
            return None
        _require(root.is_dir(), f"--data.root: there is no folder {root}")
        paths = (root / (stem + suffix) for suffix in SUFFIXES)
        return next((path for path in paths if path.is_file()), None)

    def source(self) -> Source:
        """The files that are trained on, and how they are read."""
        return self._source(self._train_table)

    def _source(self, table: Files) -> Source:
        by_site = dict(GEPIII_UTC_OFFSET) if self.rules == "gepiii" else {}
        offsets = {str(site): hours for site, hours in by_site.items()}
        if isinstance(self.utc_offset, dict):
            offsets |= self.utc_offset
        elif self.utc_offset is not None:
            offsets = {"*": self.utc_offset}
        files = (*table, self.weather_path, self.metadata_path)
        for path in files:
            _require(path is None or path.is_file(), f"there is no file {path}")
        return Source(
            table=table,
            roles=self.roles,
            weather_path=self.weather_path or self.find("weather_train"),
            metadata_path=self.metadata_path or self.find("building_metadata"),
            covariates=self.covariates + self.known,
            static=tuple(columns_of(list(self.static))),
            meters=self.meters,
            duplicates=self.duplicates,
            utc_offset=tuple(sorted(offsets.items())),
        )

    def _load(self, table: Files) -> SeriesSet:
        source = self._source(table)
        megabytes = sum(path.stat().st_size for path in table) / 1e6
        if megabytes > 50:  # takes seconds, the first time
            self._say(f"reading {files_words(table)} ({megabytes:,.0f} MB)")
        found = cached_series(source, self.rules)
        for note in found.notes:
            self._say(note)
        return found

    def _settle_transform(self, parts: list[Part]) -> None:
        """A logarithm for energy, which is negative by a slip alone; none for signed readings."""
        if self.transform == "auto":
            reading = parts[0].series.reading
            below, whole = np.nansum(np.maximum(-reading, 0)), np.nansum(np.abs(reading))
            self.transform = "none" if below > SIGNED * whole else "log1p"
            if self.transform == "none":
                self._say(
                    f"negative readings are {below / whole:.0%} of all that was read: readings are "
                    "modelled as they are, without a logarithm (--model.transform)"
                )
        if self.transform == "log1p":
            for part in parts:
                if part.series.clip():
                    self._say(
                        "readings below zero are set to 0 (--model.transform none keeps them)"
                    )

    def _say(self, text: str) -> None:
        """Tell the user, once."""
        if text not in self._said:
            self._said.add(text)
            rank_zero_info(f"data: {text}")

    def read(self) -> tuple[str, SeriesSet]:
        """The name of the table that is trained on, and its series, before they are split."""
        table = self._train_table
        if not table:
            raise DataError(
                f"--data.root: {self.root} holds no train{', train'.join(SUFFIXES)}"
                if self.root
                else "name the table with --data.path, or its folder with --data.root"
            )
        return files_words(table), self._load(table)

    def name_static(self) -> list[str]:
        """The numbers that the columns of `static` become, named after the training data."""
        self.prepare_data()
        _, series = self.read()
        names, notes = name_numbers(series.static)
        for note in notes:
            self._say(note)
        return names

    @property
    def _train_table(self) -> Files:
        return self.tables["train"] or _files(self.find("train"))

    # -- splits --------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Read the files and find the windows of every split, at the first call.

        Args:
            stage: fit, validate, test or predict; a file to predict is all that predict needs.
        """
        if self.windows:
            return
        parts = {} if stage == "predict" and self.predict_path else self._parts()
        to_predict = self._to_predict(parts.get("test"))
        loaded = [*parts.values(), *([to_predict] if to_predict else [])]
        refuse_steps(loaded)
        self._settle_transform(loaded)
        for split, part in parts.items():
            short = part.short_series(self.cut)
            if short:
                self._say(f"{short} series shorter than {self.cut.need} rows are skipped")
            self.windows[split] = part.windows(self.cut)
            refuse_empty(split, part, self.windows[split], self.cut)
        if "train" in parts:
            self._fit_scaling(parts["train"])
            self._thin_training()
        if parts:
            self._describe(next(iter(parts.values())).series)
        if to_predict is not None:
            self.windows["predict"] = to_predict.windows_to_predict(self.cut)

    def _parts(self) -> dict[str, Part]:
        """The splits: parts of the time of one file, or whole files of their own."""
        tables = self.tables | {"train": self._train_table}
        if not tables["val"] and not tables["test"]:
            name, series = self.read()
            reaches = split_ranges(series, self.ends, self.val_fraction, self.test_fraction)
            return {split: Part(series, reach, name) for split, reach in reaches.items()}
        _require(
            not tables["train"] or bool(tables["val"]),
            "--data.test_path was given without --data.val_path: name a file for validation too",
        )
        named = {split: table for split, table in tables.items() if table}
        loaded = {table: self._load(table) for table in set(named.values())}
        return {
            split: Part(loaded[table], loaded[table].span(), files_words(table))
            for split, table in named.items()
        }

    def _to_predict(self, test: Part | None) -> Part | None:
        """What predictions are made of: a file of its own, or else the test part."""
        if self.predict_path is None:
            return test
        series = self._load((self.predict_path,))
        return Part(series, series.span(), str(self.predict_path))

    @property
    def step(self) -> int:
        """Minutes from one reading to the next, once the data are set up."""
        return next(iter(self.windows.values())).series.step

    @property
    def span(self) -> int:
        """Minutes from the first reading that is trained on to the last."""
        ticks = self.windows["train"].series.tick_of(self.windows["train"].cell)
        return int(ticks.max() - ticks.min() + self.window + self.horizon) * self.step

    def _fit_scaling(self, train: Part) -> None:
        log1p = self.transform == "log1p"
        self.scaling, warnings = fit_scaling(
            train.series,
            self.covariates + self.known + self.static,
            self.static_numbers(train.series),
            *train.reach,
            log1p,
        )
        for warning in warnings:
            self._say(warning)

    def linear_map(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights (L, horizon) and offsets (horizon,) of a linear model, see data/dlinear.py."""
        train, val = self.windows["train"], self.windows["val"]
        return linear_map(train, val, self.transform == "log1p")

    def static_numbers(self, series: SeriesSet) -> np.ndarray:
        """(S, K) what `static` says of each series."""
        made, notes = numbers(series.static, list(self.static), len(series))
        for note in notes:
            self._say(note)
        return made

    def _thin_training(self) -> None:
        """Keep whole series for training, drawn by the seed: never random rows."""
        if self.fraction == 1:
            return
        train = self.windows["train"]
        owner = train.series.series_of(train.cell)
        owners = np.unique(owner)
        kept = np.random.default_rng(torch.initial_seed()).permutation(owners)
        kept = kept[: max(1, round(self.fraction * owners.size))]
        self.windows["train"] = train.kept(np.isin(owner, kept))
        self._say(f"training on {kept.size} of {owners.size} series (--data.fraction)")

    def _describe(self, series: SeriesSet) -> None:
        counts = ", ".join(f"{split} {len(self.windows[split]):,}" for split in self.windows)
        start, end = map(series.stamp, series.span())
        self._say(f"{series.counted()}, {start} to {end}")
        ahead = f" and the {self.horizon} after them" if self.horizon > 1 else ""
        self._say(f"windows of {self.window} rows{ahead}: {counts}")

    # -- loaders -------------------------------------------------------------------------------

    def device_series(self, series: SeriesSet) -> DeviceSeries:
        """`series` on the device where the model runs; put there once."""
        if id(series) not in self._sources:
            device = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
            self._sources[id(series)] = DeviceSeries(
                series,
                self.window,
                device,
                self.horizon,
                len(self.known),
                self.static_numbers(series),
            )
        return self._sources[id(series)]

    def _loader(self, split: str, shuffle: bool = False) -> WindowLoader:
        if split not in self.windows:
            raise DataError(f"there are no data to {split}: name a file with --data.{split}_path")
        windows = self.windows[split]
        return WindowLoader(
            self.device_series(windows.series),
            windows.cell,
            self.batch_size,
            shuffle=shuffle,
            seed=torch.initial_seed(),
            rank=self.trainer.global_rank if self.trainer else 0,
            world=self.trainer.world_size if self.trainer else 1,
        )

    def train_dataloader(self) -> WindowLoader:
        """All training windows, shuffled anew each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> WindowLoader:
        """All validation windows, by series and time."""
        return self._loader("val")

    def test_dataloader(self) -> WindowLoader:
        """All test windows, by series and time."""
        return self._loader("test")

    def predict_dataloader(self) -> WindowLoader:
        """All windows to predict, by series and time, also those whose target is not known."""
        return self._loader("predict")

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Nothing, where the batch was gathered: Lightning's own takes its time to see that."""
        if batch.cell.device == device:
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    # -- for reports ---------------------------------------------------------------------------

    def baselines(self, split: str) -> dict[str, np.ndarray]:
        """Forecasts to beat for the windows of `split`, (n, horizon) each, NaN where none."""
        windows = self.windows[split]
        forecasts = naive_forecasts(windows)
        if "train" in self.windows:
            train = self.windows["train"]
            log1p = self.transform == "log1p"
            if log1p:
                forecasts["linear"] = linear_forecast(train, windows)
            if self.horizon > 1 or not log1p:
                val = self.windows["val"]
                forecasts["DLinear"] = dlinear_forecast(train, val, windows, log1p)
            if self.boosting and boosting_is_installed():
                count = min(len(train), MAX_FIT_WINDOWS)
                models = f"{self.horizon} times " if self.horizon > 1 else ""
                rank_zero_info(f"\nLightGBM: fitting {models}{TREES} trees to {count:,} windows")
                forecasts["LightGBM"] = lightgbm_forecast(train, windows)
        return forecasts

    def naive_error(self, series: SeriesSet) -> np.ndarray:
        """The mean absolute error of the naive seasonal forecast on the training targets, (S,).

        MASE is in units of it. NaN for a series that has none, or that was not trained on.
        """
        train = self.windows.get("train")
        if train is None or train.series is not series:
            return np.full(len(series), np.nan)
        actual = series.reading[train.cell + train.length]
        # Of all training windows, of which there may be millions: one target each.
        next_one = replace(train, horizon=1)
        naive = naive_forecasts(next_one)[season(series.step)][:, 0]
        nothing = np.full(len(series), np.nan)
        return scores(naive, actual, series.series_of(train.cell), nothing).mae


def _files(path: list[Path] | Path | None) -> Files:
    """Those of an option that names a file, several or none."""
    if path is None:
        return ()
    return tuple(path) if isinstance(path, list) else (path,)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DataError(message)
