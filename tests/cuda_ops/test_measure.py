"""Measurements on a CPU, with the definition in the kernels' place and the host's clock."""

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuda_ops import ceilings, contenders, measure, reference, timing, verify
from cuda_ops.contenders import PATHS, Contender, Inputs, Size, kernel_contender

SMALL = Size(batch=5, channels=3, length=7, taps=4)
EVICT = torch.zeros(1)


class Definition:
    """Paths of a kernel, computed by definition; `spoil` is done to a path's result."""

    def __init__(self, **spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.spoil = spoil

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return self._spoilt("forward", reference.forward_by_definition(x, k))

    def input_grad(self, gy: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return self._spoilt("input_grad", reference.input_grad_by_definition(gy, k))

    def weight_grad(self, gy: torch.Tensor, x: torch.Tensor, taps: int) -> torch.Tensor:
        return self._spoilt("weight_grad", reference.weight_grad_by_definition(gy, x, taps))

    def _spoilt(self, path: str, result: torch.Tensor) -> torch.Tensor:
        return self.spoil.get(path, lambda same: same)(result)


def formulation(name: str) -> Contender:
    function = contenders.FORMULATIONS[name]
    return Contender(
        name, "pytorch", lambda path, inputs: contenders.call_of(function, path, inputs)
    )


def run(*found: Contender, dtype: torch.dtype = torch.float32, size: Size = SMALL) -> measure.Run:
    return measure.measure(size, dtype, found, 3, EVICT)


@pytest.fixture(autouse=True)
def host_clock(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def timed(call: contenders.Call) -> tuple[float, Any]:
        start = time.perf_counter()
        result = call()
        return (time.perf_counter() - start) * 1000, result

    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(timing, "timed", timed)


# -- the measurement ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, Size(2, 1, 3, 5)], ids=str)
def test_a_run_has_a_figure_for_every_path(size) -> None:
    found = [kernel_contender("warp_tiled", Definition())]
    found += [formulation(name) for name in contenders.FORMULATIONS]
    result = run(*found, size=size)
    assert [row.name for row in result.rows] == ["warp_tiled", "Toeplitz", "FFT", "grouped conv1d"]
    assert result.shape == size
    assert {c.kind for c in result.ceilings} == {"copy", "read", "add"}
    for row in result.rows:
        assert list(row.paths) == list(PATHS)
        assert row.total_ms == row.paths["forward"].ms + row.paths["both"].ms
        for path, figure in row.paths.items():
            assert 0 < figure.p10 <= figure.ms <= figure.p90
            assert list(figure.errors) == list(PATHS[path])
            assert max(figure.errors.values()) < 1e-6
            best = max(c.gb_s for c in result.ceilings if c.kind == ceilings.CEILING[path])
            assert figure.of_ceiling == pytest.approx(figure.gb_s / best)
            assert figure.suspicious == (figure.of_ceiling > 1.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_held_to_limits_of_their_own(dtype) -> None:
    """Half precision: the sums are exact here, then rounded once, so as good as PyTorch's own."""
    right = Definition()
    if dtype == torch.bfloat16:
        right = SimpleNamespace(
            **{
                path: lambda a, b, *taps, function=function: function(
                    a.double(), b.double(), *taps
                ).to(dtype)
                for path, function in (
                    ("forward", reference.forward_by_definition),
                    ("input_grad", reference.input_grad_by_definition),
                    ("weight_grad", reference.weight_grad_by_definition),
                )
            }
        )
    run(kernel_contender("shared", right), dtype=dtype)
    noisy = Definition(forward=lambda y: y * 1.02)
    with pytest.raises(verify.WrongResultError, match=r"shared, forward, .*: y is off by"):
        run(kernel_contender("shared", noisy), dtype=dtype)


def poke_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[-1] = math.nan
    return tensor


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ({"input_grad": lambda t: t / 2}, ["input_grad", "gx is off by 5.0e-01"]),
        ({"weight_grad": lambda t: t / 2}, ["weight_grad", "both", "gk is off by 5.0e-01"]),
        ({"forward": poke_nan}, ["forward", "y is off by nan"]),
        ({"weight_grad": lambda t: t[:, :-1]}, ["weight_grad", "gk is off by nan"]),
    ],
    ids=["halved gx", "halved gk", "NaN in y", "a tap too few"],
)
def test_a_wrong_result_is_named_with_path_and_shape(spoil, told) -> None:
    right = kernel_contender("naive", Definition())
    wrong = kernel_contender("shared", Definition(**spoil))
    with pytest.raises(verify.WrongResultError) as caught:
        run(right, wrong)
    message = str(caught.value)
    assert [part for part in [*told, "shared", str(SMALL)] if part not in message] == []
    assert "naive" not in message


def test_a_result_that_goes_wrong_while_it_is_timed_is_caught() -> None:
    calls = []

    def later(gx: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        return gx / 2 if len(calls) > 4 else gx

    with pytest.raises(verify.WrongResultError, match="shared, input_grad"):
        run(kernel_contender("shared", Definition(input_grad=later)))


def test_a_formulation_may_lose_digits_but_not_be_another_function() -> None:
    def conv(scale: float) -> Contender:
        return Contender(
            "Toeplitz TF32",
            "pytorch",
            lambda path, inputs: contenders.call_of(
                lambda x, k: scale * reference.toeplitz_conv(x, k), path, inputs
            ),
        )

    assert run(conv(1.001)).rows[0].paths["both"].errors["gx"] == pytest.approx(1e-3, rel=0.01)
    with pytest.raises(verify.WrongResultError, match="Toeplitz TF32, both"):
        run(conv(1.2))


def test_limits_grow_with_the_terms_and_naive_has_its_own() -> None:
    inputs = contenders.draw(SMALL, torch.float32, torch.Generator())
    kernel, naive = (kernel_contender(name, Definition()) for name in ("shared", "naive"))
    study = verify.Checks(contenders.STUDY, inputs)
    assert study.limits(kernel, "both") == {"y": 5e-7, "gx": 5e-7, "gk": 2e-6}
    assert study.limits(naive, "both")["gk"] == 5e-5
    assert verify.Checks(SMALL, inputs).limits(kernel, "both")["gk"] == 2e-6
    longer = verify.Checks(Size(65536, 2, 192, 192), inputs).limits(kernel, "both")
    assert longer == pytest.approx({"y": 1e-6, "gx": 1e-6, "gk": 8e-6})


def test_what_is_faster_than_memory_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(call: contenders.Call) -> tuple[float, Any]:
        result = call()  # a path returns a tuple, a pass over memory does not
        return (0.9 if isinstance(result, tuple) and len(result) == 1 else 1.0), result

    monkeypatch.setattr(timing, "timed", timed)
    paths = run(kernel_contender("shared", Definition())).rows[0].paths
    shares = {path: figure.of_ceiling for path, figure in paths.items()}
    assert shares == pytest.approx(dict.fromkeys(PATHS, 1 / 0.9) | {"both": 1.0})
    assert [path for path in PATHS if paths[path].suspicious] == list(PATHS)[:3]


def test_a_call_is_timed_from_a_cold_cache_and_into_poison(monkeypatch) -> None:
    inputs = contenders.draw(SMALL, torch.float32, torch.Generator())
    events: list[str] = []
    monkeypatch.setattr(timing, "poison", lambda like: events.append(f"poison {like.dim()}D"))
    evict = SimpleNamespace(sum=lambda: events.append("evict"))

    def prepare(given: Inputs) -> contenders.Call:
        assert given is inputs
        events.append("prepare")
        return lambda: events.append("call")

    timing.once(timing.Job(prepare), inputs, evict)
    assert events == ["prepare", "poison 3D", "evict", "poison 2D", "call"]


def test_the_truth_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = contenders.draw(SMALL, torch.float64, torch.Generator())
    whole = verify.truth_of(inputs)
    monkeypatch.setattr(verify, "CHUNK", 2 * 3 * 7)
    parts = verify.truth_of(inputs)
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-13, atol=1e-13)
        assert verify.relative_error(tensor * 1.25, parts[name]) == pytest.approx(0.25)


def test_what_does_not_fit_is_left_out_or_refused() -> None:
    def out_of_memory(path: str, inputs: Inputs) -> contenders.Call:
        raise torch.OutOfMemoryError("CUDA out of memory")

    kernel = kernel_contender("shared", Definition())
    result = run(kernel, Contender("FFT", "pytorch", out_of_memory))
    assert [row.name for row in result.rows] == ["shared"]
    with pytest.raises(torch.OutOfMemoryError):
        run(Contender("naive", "kernel", out_of_memory))


# -- inputs, ceilings, clocks ------------------------------------------------------------------


def test_inputs_are_fresh_and_aligned() -> None:
    generator = torch.Generator()
    one, two = (contenders.draw(SMALL, torch.float32, generator) for _ in range(2))
    assert not torch.equal(one.x, two.x)
    assert one.x.shape == one.gy.shape == (5, 3, 7)
    assert one.k.shape == (3, 4)
    assert one.x.is_contiguous()
    assert (one.gy.data_ptr() - one.x.data_ptr()) % 256 == 0
    assert one.gy.data_ptr() == one.pair[1].data_ptr()


def test_both_gradients_alone_or_together_do_only_what_is_asked() -> None:
    inputs = contenders.draw(SMALL, torch.float32, torch.Generator())
    truth = verify.truth_of(inputs)
    for path, outputs in PATHS.items():
        found = contenders.call_of(reference.fft_conv, path, inputs)()
        assert len(found) == len(outputs)
        for output, tensor in zip(outputs, found, strict=True):
            assert verify.relative_error(tensor.detach(), truth[output]) < 1e-6
    assert not inputs.x.requires_grad


def test_bytes_of_the_study_and_passes() -> None:
    x = torch.empty(16384, 128, 48, device="meta")
    assert ceilings.bandwidth(x, 2, 0.2) == pytest.approx(2 * 402.653184e6 / 0.2e-3 / 1e9)
    assert ceilings.bandwidth(x.half(), 3, 1.0) == pytest.approx(3 * 201.326592e6 / 1e-3 / 1e9)
    assert ceilings.TENSORS == {"forward": 2, "input_grad": 2, "weight_grad": 2, "both": 3}
    kinds = {"forward": "copy", "input_grad": "copy", "weight_grad": "read", "both": "add"}
    assert kinds == ceilings.CEILING
    huge = torch.empty(2**16, 2**8, 2**7, device="meta")
    assert "torch.dot" not in [p.name for p in ceilings.passes_for(huge)]
    inputs = contenders.draw(SMALL, torch.float32, torch.Generator())
    out = torch.empty_like(inputs.x)
    for each in ceilings.passes_for(out):
        result = each.run(inputs, out)
        expected = {"copy": inputs.x, "add": inputs.x + inputs.gy}
        if each.kind in expected:
            assert torch.equal(out, expected[each.kind])
        else:
            assert isinstance(result, torch.Tensor)
            assert result.numel() == 1


def test_statistics() -> None:
    found = timing.spread([float(n) for n in range(11)])
    assert found == timing.Spread(ms=5, p10=1, p90=9, samples=11)
    assert timing.spread([2.0, 1.0]) == timing.Spread(
        1.5, pytest.approx(1.1), pytest.approx(1.9), 2
    )


def test_jobs_take_turns_and_slow_ones_skip_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator()
    sets = [contenders.draw(SMALL, torch.float32, generator) for _ in range(2)]
    calls: list[tuple[str, int]] = []
    finished: list[str] = []

    def job(name: str) -> timing.Job:
        def prepare(inputs: Inputs) -> contenders.Call:
            return lambda: calls.append((name, 0 if inputs is sets[0] else 1)) or name

        return timing.Job(prepare, finished.append)

    def timed(call: contenders.Call) -> tuple[float, Any]:
        name = call()
        return (55.0 if name == "slow" else 1.0), name

    monkeypatch.setattr(timing, "timed", timed)
    timing.time_rounds([job("a"), job("b"), job("c")], sets, 4, EVICT)
    counted = calls[timing.WARM_UP * 3 :]
    assert "".join(name for name, _ in counted) == "abc" + "cab" + "bca" + "abc"
    assert [number for name, number in counted if name == "a"] == [1, 0, 1, 0]
    assert finished == ["a", "b", "c"]

    calls.clear()
    jobs = [job("a"), job("slow")]
    timing.time_rounds(jobs, sets, 16, EVICT)
    assert [len(job.times) for job in jobs] == [16, 6]
    counted = calls[timing.WARM_UP * 2 :]
    assert [number for name, number in counted if name == "slow"] == [1, 0, 1, 0, 1, 0]


def test_tf32_is_allowed_only_inside() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with contenders.matrix_products(True):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, False)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


@pytest.mark.gpu
def test_poisoned_memory_is_what_comes_next() -> None:
    like = torch.empty(64, 128, 48, device="cuda")
    timing.poison(like)
    assert torch.empty_like(like).isnan().all()
