"""The physics of the stand-in data: the weather of sites, the loads of buildings.

Every site has a climate (yearly and daily temperature swing, weather fronts that last days, clouds,
dew point, pressure, wind, rain). Every building has a use with its own opening hours, weekends and
holidays, a floor area, a thermal response to its site's weather, days that run above or below
normal, hourly noise and now and then an evening event or a partial shutdown. All have electricity
(0), some chilled water (1), some steam (2) or hot water (3).

Every number below was set from common knowledge of buildings, or from the published make-up of
GEPIII where it says so, before any training; none has been or may be tuned against a forecaster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Break = tuple[int, int, float]  # first and last day of the year (0-based), occupancy left


@dataclass(frozen=True)
class Use:
    """A primary use: share of buildings, weekday hours, and electricity in use."""

    name: str
    share: float
    opens: float
    closes: float  # past 24 means after midnight
    weekend: float  # occupancy relative to a weekday
    base: float  # share of the peak load that never switches off
    watts: float  # peak electricity without cooling, W per square metre
    breaks: tuple[Break, ...] = ()


YEAR_END = ((356, 365, 0.15), (0, 1, 0.15))  # 22 December to 2 January
SUMMER = ((165, 235, 0.45),)  # mid-June to late August: no classes, staff and research stay
VACATION = ((195, 230, 0.80),)  # mid-July to mid-August: office staff take turns
# Shares follow GEPIII's larger groups; hours, base loads and W/m2 are those of such buildings.
USES = (
    Use("Education", 0.38, 7.5, 19.0, 0.35, 0.45, 24.0, YEAR_END + SUMMER),
    Use("Office", 0.21, 7.5, 18.0, 0.15, 0.40, 28.0, YEAR_END + VACATION),
    Use("Entertainment/public assembly", 0.14, 9.0, 22.0, 1.05, 0.35, 24.0),
    Use("Lodging/residential", 0.12, 16.0, 24.5, 1.10, 0.50, 18.0),
    Use("Public services", 0.11, 7.0, 18.0, 0.40, 0.45, 22.0),
    Use("Retail", 0.04, 8.5, 21.0, 0.90, 0.30, 28.0),
)

SITE_STREAM, SPREAD_STREAM = 10_000_000, 20_000_000  # far above any building number

# Meters: a third each, as in GEPIII, so that 1,449 buildings have about its 2,380 meters.
CHILLED_SHARE, STEAM_SHARE, HOT_SHARE = 0.34, 0.20, 0.10
SPREAD = np.array([0.6180339887498949, 0.41421356237309515])  # irrational: even at any count

# Size and fabric.
AREA_MEDIAN, AREA_SIGMA, AREA_RANGE = 57_000.0, 1.0, (5_000.0, 900_000.0)  # sq ft, as in GEPIII
SQUARE_METRES = 0.092903  # per square foot
SPREAD_SIGMA = 0.3  # like buildings differ by about a third in intensity and fabric
INERTIA = (4.0, 24.0)  # hours: light facades to heavy masonry
HEAT_BALANCE, COOL_BALANCE = (12.0, 17.0), (13.0, 18.0)  # C: inner gains carry a few degrees
HEAT_SLOPE, COOL_SLOPE = 1.2, 2.0  # W/m2/K: envelope and fresh air; cooling also dries the air
COOL_COP = 3.5  # electricity per cooling of a usual chiller
FAN_SHARE = 0.05  # electricity for fans and pumps where the chilled water is bought
STANDBY = 2.0  # W/m2: pipe losses and tap water, so that a sound thermal meter never reads 0
SETBACK = 0.4  # share of heating and cooling that stays on when nobody is in
OPEN_SD, LENGTH_SD, RAMP = 0.6, 1.0, (1.0, 3.0)  # hours: schedules differ, people trickle in

# Unrest: days keep their mood for about a working week, hours for a shift; meters are good to 1 %.
DAY_SD, DAY_MEMORY, HOUR_SD, HOUR_MEMORY, METER_SD = 0.10, 4.0, 0.05, 6.0, 0.01
EVENING, EVENING_HOURS, EVENING_LEVEL = 0.015, (18, 22), 0.7  # daily odds: a handful a year
SHUTDOWN, SHUTDOWN_LEVEL = 0.005, 0.3  # daily odds: one or two a year, part of the building

# Climate: temperate northern sites; cold means go with wide seasons, fronts pass in 3 days.
MEAN_RANGE, YEAR_SWING, YEAR_SWING_SLOPE = (7.0, 20.0), 14.0, -0.5  # C at 7 C; C per C above
DAY_SWING, CLEAR_SKY_GAIN = (3.0, 6.0), 0.6  # C; clouds take up to this share of the daily swing
WARMEST_DAY, WARMEST_HOUR = 200, 15  # mid-July, mid-afternoon
FRONT_SD, FRONT_MEMORY = 3.5, 72.0  # C, hours
CLOUD_MEAN, CLOUD_SD, CLOUD_MEMORY = 4.0, 3.0, 12.0  # oktas, hours
PRESSURE_MEAN, PRESSURE_SD, PRESSURE_MEMORY = 1015.0, 7.0, 48.0  # hPa, hours
WIND_MEDIAN, WIND_SIGMA, WIND_MEMORY, WIND_TURN = 3.5, 0.5, 12.0, 60.0  # m/s, log, hours, degrees
RAIN_ABOVE, RAIN_MM = 7.0, 1.5  # oktas from which it may rain; mean mm in a wet hour


@dataclass(frozen=True)
class Clock:
    """The hours of the run and their place in day, week and year; every array is (hours,)."""

    stamps: npt.NDArray[np.datetime64]
    hour: Ints
    weekday: Ints  # Monday is 0
    year_day: Ints  # 1 January is 0
    day: Ints  # days since the run's first

    @classmethod
    def of(cls, start: str, hours: int) -> Clock:
        """Builds the clock of `hours` hours from `start`."""
        first = np.datetime64(start, "h")
        stamps = (first + np.arange(hours).astype("timedelta64[h]")).astype("datetime64[s]")
        days = stamps.astype("datetime64[D]")
        number = days.astype(np.int64)
        hour = (stamps - days).astype(np.int64) // 3600
        new_year = stamps.astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)
        # Day 0 of the epoch was a Thursday.
        return cls(stamps, hour, (number + 3) % 7, number - new_year, number - number[0])


def _recur(drive: Floats, keep: float) -> Floats:
    """Returns y[t] = keep * y[t-1] + drive[t], by doubling the reach instead of hour by hour."""
    out, reach = drive.copy(), 1
    while reach < len(out) and keep**reach > 1e-12:
        out[reach:] += keep**reach * out[:-reach]
        reach *= 2
    return out


def _red_noise(rng: np.random.Generator, size: int, memory: float) -> Floats:
    """Returns stationary AR(1) noise of unit variance that forgets over `memory` steps."""
    keep = float(np.exp(-1 / memory))
    drive = rng.standard_normal(size)
    drive[1:] *= np.sqrt(1 - keep**2)
    return _recur(drive, keep)


def _smooth(values: Floats, memory: float) -> Floats:
    """Returns `values` behind a first-order lag of `memory` steps."""
    keep = float(np.exp(-1 / memory))
    drive = (1 - keep) * values
    drive[0] = values[0]
    return _recur(drive, keep)


def site_weather(seed: int, site: int, clock: Clock) -> dict[str, Floats]:
    """Returns the site's true weather by column, each (hours,)."""
    rng, hours = np.random.default_rng([seed, SITE_STREAM + site]), len(clock.hour)
    mean, day_swing = rng.uniform(*MEAN_RANGE), rng.uniform(*DAY_SWING)
    year_swing = YEAR_SWING + YEAR_SWING_SLOPE * (mean - MEAN_RANGE[0])
    overcast = CLOUD_MEAN + CLOUD_SD * _red_noise(rng, hours, CLOUD_MEMORY)
    cloud = np.clip(np.round(overcast), 0, 9)
    season = np.cos(2 * np.pi * (clock.year_day - WARMEST_DAY) / 365.25)
    daytime = np.cos(2 * np.pi * (clock.hour - WARMEST_HOUR) / 24)
    front = FRONT_SD * _red_noise(rng, hours, FRONT_MEMORY)
    air = mean + year_swing * season + front
    air += day_swing * (1 - CLEAR_SKY_GAIN * cloud / 9) * daytime
    # Moist air under clouds, dry under a clear sky; never quite saturated.
    dryness = (1.0 + 6.0 * (1 - cloud / 9)) * np.exp(0.3 * _red_noise(rng, hours, CLOUD_MEMORY))
    wet = (overcast > RAIN_ABOVE) & (rng.random(hours) < 0.5)
    pressure = PRESSURE_MEAN + PRESSURE_SD * _red_noise(rng, hours, PRESSURE_MEMORY)
    turn = rng.uniform(0, 360) + WIND_TURN * _red_noise(rng, hours, WIND_MEMORY)
    wind = WIND_MEDIAN * np.exp(WIND_SIGMA * _red_noise(rng, hours, WIND_MEMORY))
    return {
        "air_temperature": np.round(air, 1),
        "cloud_coverage": cloud,
        "dew_temperature": np.round(air - np.maximum(dryness, 0.5), 1),
        "precip_depth_1_hr": np.where(wet, np.ceil(rng.exponential(RAIN_MM, hours)), 0.0),
        "sea_level_pressure": np.round(pressure, 1),
        "wind_direction": np.round(turn, -1) % 360,
        "wind_speed": np.round(wind, 1),
    }


def _calendar(rng: np.random.Generator, use: Use, clock: Clock) -> Floats:
    """Returns the occupancy that weekends and holidays leave, (hours,)."""
    weekend = use.weekend * np.exp(SPREAD_SIGMA * rng.standard_normal())
    level = np.where(clock.weekday >= 5, weekend, 1.0)
    for first, last, left in use.breaks:
        level[(clock.year_day >= first) & (clock.year_day <= last)] *= left
    return level


def _occupancy(rng: np.random.Generator, use: Use, clock: Clock) -> Floats:
    """Returns how full the building is, 0 to about 1, (hours,)."""
    opens = use.opens + OPEN_SD * rng.standard_normal()
    length = use.closes - use.opens + LENGTH_SD * rng.standard_normal()
    ramp = rng.uniform(*RAMP)
    since = (clock.hour - opens) % 24  # hours since opening, also past midnight
    level: Floats = np.clip(since / ramp, 0, 1) * np.clip((length - since) / ramp, 0, 1)
    level *= _calendar(rng, use, clock)
    days = int(clock.day[-1]) + 1
    mood = np.exp(DAY_SD * _red_noise(rng, days, DAY_MEMORY))
    mood[rng.random(days) < SHUTDOWN] *= SHUTDOWN_LEVEL
    evening = (rng.random(days) < EVENING)[clock.day]
    evening &= (clock.hour >= EVENING_HOURS[0]) & (clock.hour < EVENING_HOURS[1])
    level[evening] = np.maximum(level[evening], EVENING_LEVEL)
    level *= mood[clock.day]
    return level


def meter_kinds(seed: int, building: int) -> list[int]:
    """Returns the building's meters; spread evenly, so that small runs have every kind too."""
    shift = np.random.default_rng([seed, SPREAD_STREAM]).random(2)
    cooled, heated = (shift + building * SPREAD) % 1
    kinds = [0, 1] if cooled < CHILLED_SHARE else [0]
    if heated < STEAM_SHARE + HOT_SHARE:
        kinds.append(2 if heated < STEAM_SHARE else 3)
    return kinds


def draw_building(rng: np.random.Generator) -> tuple[Use, int]:
    """Draws a building's use and its floor area in square feet."""
    use = USES[rng.choice(len(USES), p=[use.share for use in USES])]
    area = np.clip(AREA_MEDIAN * np.exp(AREA_SIGMA * rng.standard_normal()), *AREA_RANGE)
    return use, round(area)


def meter_loads(
    rng: np.random.Generator, use: Use, kinds: Sequence[int], air: Floats, clock: Clock
) -> dict[int, Floats]:
    """Returns the true load of each meter in W per square metre, each (hours,)."""
    occupancy = _occupancy(rng, use, clock)
    felt = _smooth(air, rng.uniform(*INERTIA))
    running = SETBACK + (1 - SETBACK) * occupancy
    watts, heat, cool = np.exp(SPREAD_SIGMA * rng.standard_normal(3))
    heating = heat * HEAT_SLOPE * np.maximum(rng.uniform(*HEAT_BALANCE) - felt, 0) * running
    cooling = cool * COOL_SLOPE * np.maximum(felt - rng.uniform(*COOL_BALANCE), 0) * running
    power = watts * use.watts * (use.base + (1 - use.base) * occupancy)
    power += cooling * (FAN_SHARE if 1 in kinds else 1 / COOL_COP)
    demand = {0: power, 1: STANDBY * running + cooling}
    demand[2] = demand[3] = STANDBY * running + heating
    return {kind: demand[kind] for kind in kinds}


def metered(rng: np.random.Generator, load: Floats) -> Floats:
    """Returns a true load as a sound meter reads it: with the unrest of its hours, (hours,)."""
    hours = len(load)
    noise = HOUR_SD * _red_noise(rng, hours, HOUR_MEMORY) + METER_SD * rng.standard_normal(hours)
    readings: Floats = load * np.exp(noise)
    return readings
