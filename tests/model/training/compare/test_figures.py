"""The figures of a comparison, against numbers worked out by hand."""

from typing import Any

import pytest

from model.training.compare import tables
from model.training.compare.figures import (
    KernelFigures,
    apart,
    fastest,
    figures,
    has_other_masks,
    reference,
)
from model.training.compare.report import html
from tests.model.training.compare.small_record import hidden, on_a_cpu, on_a_gpu, without


def found(record: dict[str, Any]) -> dict[str, KernelFigures]:
    return {of.name: of for of in figures(record)}


def test_times_are_medians_of_the_rounds_medians() -> None:
    """A mean, or one round's times, let a single slow run decide."""
    naive = found(on_a_cpu())["naive"]
    assert naive.ms["step"] == 100
    assert naive.ms["weight_grad"] == 40
    assert naive.spread["step"] == pytest.approx((90, 130))
    assert naive.epoch_s == pytest.approx(0.7)  # seven steps of 100 ms
    assert naive.windows_per_s == 10_000  # of a million over 90, 130 and 100 ms
    assert naive.peak_memory is None


def test_speed_ups_are_over_the_first() -> None:
    """The ratio upside down, over another kernel, or of the wrong time."""
    of = found(on_a_cpu())
    assert list(of) == ["naive", "shared", "pytorch"]
    assert [k.operator_speedup for k in of.values()] == pytest.approx([1, 60 / 20, 60 / 12])
    assert [k.step_speedup for k in of.values()] == pytest.approx([1, 100 / 60, 100 / 48])
    assert fastest(list(of.values())).name == "pytorch"
    turned = on_a_cpu()
    turned["kernels"].reverse()
    assert found(turned)["naive"].operator_speedup == pytest.approx(12 / 60)


def test_amdahl() -> None:
    """The limit is that of the whole step, or of the part that is left."""
    of = found(on_a_cpu())
    assert [k.share for k in of.values()] == pytest.approx([0.6, 20 / 60, 12 / 48])
    assert [k.limit for k in of.values()] == pytest.approx([100 / 40, 60 / 40, 48 / 36])


def test_bandwidth_counts_every_block_and_each_tensor_once() -> None:
    """120 MB a step where a path moves two tensors, 180 MB for both gradients in one."""
    of = found(on_a_cpu())
    rates = {
        name: {path: each.effective_gb_s for path, each in k.paths.items()}
        for name, k in of.items()
    }
    assert rates["naive"] == pytest.approx({"forward": 20, "input_grad": 10, "weight_grad": 3})
    assert rates["pytorch"] == pytest.approx({"forward": 40, "both_gradients": 20})
    half = on_a_cpu() | {"dtype": "bfloat16"}
    assert found(half)["naive"].paths["forward"].effective_gb_s == pytest.approx(10)
    assert all(path.of_ceiling is None for k in of.values() for path in k.paths.values())


def test_a_path_is_held_against_the_pass_that_fits_it() -> None:
    """The weight gradient over a copy's rate, or the slower of two passes of a kind."""
    of = found(on_a_gpu())
    shares = {path: each.of_ceiling for path, each in of["naive"].paths.items()}
    assert shares == pytest.approx({"forward": 0.5, "input_grad": 0.25, "weight_grad": 0.1})
    assert of["pytorch"].paths["both_gradients"].of_ceiling == pytest.approx(0.4)


def test_fast_p_counts_paths_that_are_more_than_p_times_as_fast() -> None:
    """An equal one counts as faster, pytorch is held against itself, or both as a fourth path."""
    of = found(on_a_gpu())
    assert of["shared"].fast == pytest.approx({1: 2 / 3, 2: 2 / 3, 10: 1 / 3})
    assert of["naive"].fast == {1: 0, 2: 0, 10: 0}
    assert of["pytorch"].fast is None
    assert found(without(on_a_gpu(), "pytorch"))["shared"].fast is None
    assert found(on_a_cpu())["shared"].fast is None


def test_losses_are_held_against_pytorchs() -> None:
    """Against the kernel's own, with a sign, or the last step's alone."""
    record = on_a_cpu()
    of = found(record)
    assert of["naive"].apart == pytest.approx(0.25)  # 0.25 where pytorch has 0.2
    assert of["shared"].apart == pytest.approx(0.1)  # 0.9 where pytorch has 1
    assert of["pytorch"].apart == 0
    alone = without(record, "pytorch")
    assert reference(alone)["name"] == "naive"
    assert found(alone)["shared"].apart == pytest.approx(0.2)  # 0.2 where naive has 0.25
    with pytest.raises(ValueError, match="zip"):
        apart([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("dropout", "left_out", "held_against"),
    [
        (0.1, (), "naive"),
        (0.0, (), "pytorch"),
        (0.1, ("pytorch",), "naive"),
        (0.1, ("naive", "shared"), "pytorch"),
    ],
)
def test_other_masks_are_no_disagreement(dropout, left_out, held_against) -> None:
    """A dropout that PyTorch draws in another order is taken for a kernel's error."""
    record = without(on_a_gpu() | {"settings": {"model.dropout": dropout}}, *left_out)
    assert reference(record)["name"] == held_against
    differs = bool(dropout) and not left_out
    assert has_other_masks(record) == differs
    for words in (tables.text(record), html(record)):
        assert ("--model.dropout 0 compares" in " ".join(words.split())) == differs


def test_the_peak_is_that_of_all_rounds() -> None:
    assert found(on_a_gpu())["naive"].peak_memory == 1.5 * 2**30


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_hidden_operator_has_no_figures(rounds: int) -> None:
    """What only some rounds show is a median of those, or a step without an operator."""
    of = found(hidden(on_a_gpu(), "shared", rounds=rounds))
    shared = of["shared"]
    assert "operator" not in shared.ms
    assert (shared.operator_speedup, shared.share, shared.limit, shared.paths) == (
        *[None] * 3,
        {},
    )
    assert shared.step_speedup == pytest.approx(100 / 60)
    assert of["pytorch"].operator_speedup == pytest.approx(5)
    of = found(hidden(on_a_gpu(), "naive"))
    assert of["shared"].operator_speedup is None
    assert of["shared"].share == pytest.approx(1 / 3)
