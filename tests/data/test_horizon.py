"""Windows that predict several readings, and covariates that are known ahead."""

import numpy as np
import torch

from data.baselines import naive_forecasts
from data.series import SeriesSet
from data.windows import DeviceSeries, find_windows

CPU = torch.device("cpu")


def series(*lengths: int) -> SeriesSet:
    """Series s reads 1000 s + 0, 1, 2, ...; its covariates are the reading + 0.25 and + 0.5."""
    reading = np.concatenate([1000 * s + np.arange(n) for s, n in enumerate(lengths)])
    offset = np.r_[0, np.cumsum(lengths)]
    return SeriesSet(
        ids={"series": np.arange(len(lengths))},
        site=np.zeros(len(lengths), dtype=np.int64),
        step=60,
        phase=0,
        first_tick=np.full(len(lengths), 400_000),
        offset=offset,
        reading=reading.astype(np.float32),
        covariates=(reading[:, None] + [0.25, 0.5]).astype(np.float32),
        covariate_start=offset[:-1].copy(),
    )


def test_windows_and_what_they_predict_lie_within_one_series_and_the_split() -> None:
    of = series(9, 6, 5)
    found = find_windows(of, 4, 400_000, 400_007, horizon=2)
    assert found.cell.tolist() == [0, 1, 2, 9]  # 3 would predict hours 7 and 8
    assert found.targets().tolist() == [[4, 5], [5, 6], [6, 7], [1004, 1005]]


def test_no_target_is_missing_unless_it_may_be() -> None:
    of = series(9)
    of.reading[6] = np.nan
    assert find_windows(of, 3, 0, 10**9, horizon=2).cell.tolist() == [0, 1]
    free = find_windows(of, 3, 0, 10**9, horizon=2, target_known=False)
    assert free.cell.tolist() == [0, 1, 2, 3]
    beyond = find_windows(of, 2, 0, 10**9, horizon=2, target_known=False, beyond_end=True)
    assert beyond.cell[-1] == 7
    assert np.isnan(beyond.targets()[-1]).all()


def test_a_batch_holds_the_targets_and_what_is_known_of_their_time() -> None:
    of = series(9, 6)
    source = DeviceSeries(of, 3, CPU, horizon=2, known=1)
    batch = source.gather(torch.tensor([1, 10]))
    assert batch.reading.tolist() == [[1, 2, 3], [1001, 1002, 1003]]
    assert batch.covariates[..., 0].tolist() == [[1.25, 2.25, 3.25], [1001.25, 1002.25, 1003.25]]
    assert batch.known[..., 0].tolist() == [[2.5, 3.5, 4.5, 5.5], [1002.5, 1003.5, 1004.5, 1005.5]]
    assert batch.target.tolist() == [[4, 5], [1004, 1005]]
    assert batch.minute.tolist() == [60 * 400_004, 60 * 400_004]


def test_beyond_a_series_nothing_is_known() -> None:
    """The cells that follow are another series', and after the last one there are none."""
    source = DeviceSeries(series(9, 6), 3, CPU, horizon=2, known=1)
    batch = source.gather(torch.tensor([5, 6, 12]))
    assert torch.isnan(batch.target).tolist() == [[False, True], [True, True], [True, True]]
    missing = torch.isnan(batch.known[..., 0]).tolist()
    assert missing == [[False] * 3 + [True], [False, False, True, True], [False, False, True, True]]


def test_naive_forecasts_repeat_the_latest_whole_season() -> None:
    of = series(400)
    windows = find_windows(of, 4, 0, 10**9, horizon=30)
    target = windows.targets()
    found = naive_forecasts(windows)
    assert (found["persistence"] == target[:, :1] - 1).all()
    back = np.where(np.arange(30) < 24, 24, 48)
    yesterday = found["same hour yesterday"]
    there = ~np.isnan(yesterday)
    assert (yesterday[there] == (target - back)[there]).all()
    assert there[20:].all()
    week = found["same hour last week"]
    assert (week[170:] == target[170:] - 168).all()
