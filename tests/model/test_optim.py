"""Every parameter is trained, in the group where it belongs."""

from itertools import pairwise

import pytest
import torch

from model.forecaster import Forecaster
from model.optim import MAX_SSM_RATE, parameter_groups, warmup_cosine


def test_groups_hold_every_parameter_once() -> None:
    model = Forecaster(["a"], channels=8, blocks=2, norm=True)
    groups = parameter_groups(model, lr=0.1, weight_decay=0.05)
    ids = [id(p) for group in groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())
    names = {id(p): name for name, p in model.named_parameters()}
    matrices, vectors, filters = ([names[id(p)] for p in group["params"]] for group in groups)
    assert all("kernel_layer" in name for name in filters)
    assert len(filters) == 2 * 5
    assert all(name.endswith("weight") for name in matrices)
    assert {name.split(".")[-1] for name in vectors} == {"D", "bias", "weight"}
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0, 0.0]
    assert [group["lr"] for group in groups] == [0.1, 0.1, MAX_SSM_RATE]


def test_sgd_has_one_rate() -> None:
    groups = parameter_groups(Forecaster(["a"], channels=8), 0.1, 0.05, "sgd")
    assert [group["lr"] for group in groups] == [0.1, 0.1, 0.1]
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0, 0.0]


def test_schedule_rises_peaks_and_ends_at_zero() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = warmup_cosine(optimizer, total_steps=100)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(2.0 / 5)
    assert max(rates) == pytest.approx(2.0)
    assert rates.index(max(rates)) <= 5
    assert all(a >= b for a, b in pairwise(rates[5:]))
    assert rates[-1] < 0.01
