"""Every CUDA kernel computes the definition: at any shape, type and stride, and past 32 bits."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import pytest
import torch

from cuda_ops import depthwise_conv
from cuda_ops.jit import VARIANTS
from tests.cuda_ops.paths import (
    Paths,
    Shape,
    by_definition,
    by_operator,
    by_pytorch,
    errors_of,
    guarded_memory,
    random_inputs,
    relative_error,
    surrounded,
)

pytestmark = pytest.mark.gpu
every_variant = pytest.mark.parametrize("variant", VARIANTS)

LENGTHS = [1, 2, 3, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 168, 257, 1023, 1025]
ROWS = [(1, 1), (3, 3), (1, 127), (3, 128), (2, 130)]  # B, H
STUDY = (16384, 128, 48, 48)
HALF = [torch.float16, torch.bfloat16]


class Case(NamedTuple):
    """Inputs, and the three paths' truth and size."""

    x: torch.Tensor
    k: torch.Tensor
    gy: torch.Tensor
    truth: Paths
    size: dict[str, float]

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.x, self.k, self.gy

    def errors(self, found: Paths) -> dict[str, float]:
        errors = {path: (found[path].double() - truth).norm() for path, truth in self.truth.items()}
        return {path: float(error) / self.size[path] for path, error in errors.items()}


@lru_cache(maxsize=64)  # the variants come to a shape one after the other
def case(shape: Shape, dtype: torch.dtype = torch.float32) -> Case:
    """Random inputs. The size of a path is the norm of its truth, as large as its terms make it:
    where a path has one or two numbers, they may cancel."""
    torch.manual_seed(0)
    x, k = random_inputs(shape, dtype, "cuda")
    gy = torch.randn_like(x)
    truth = by_definition(x, k, gy)
    squares = by_definition(*(tensor.double().square() for tensor in (x, k, gy)))
    size = {path: float(max(t.norm(), squares[path].sum().sqrt())) for path, t in truth.items()}
    return Case(x, k, gy, truth, size)


def limits(shape: Shape, dtype: torch.dtype, variant: str) -> dict[str, float]:
    """How far off a path may be, in float32 and float64: by rounding, and no more.

    A chain of n float32 additions is off by 1.8e-8 sqrt(n), whoever makes it: the limits hold up to
    500 taps, and 4000 steps of a sample, and grow with the root from there.
    """
    length, taps = shape[2], min(shape[2:])
    if dtype == torch.float64:
        chain, sums = 1e-14, 1e-13 if variant == "naive" else 1e-14
    else:
        chain = 5e-7 * max(1, taps / 500) ** 0.5
        sums = 5e-5 if variant == "naive" else 2e-6 * max(1, length / 4000) ** 0.5
    return {"forward": chain, "input_grad": chain, "weight_grad": sums}


def run(one: Case, variant: str) -> Paths:
    """The three paths, from inputs that lie in NaN to outputs that start as NaN and lie in it."""
    inputs = [surrounded(tensor) for tensor in one.inputs]
    with guarded_memory():
        found = by_operator(*inputs, variant)
    untouched = [torch.equal(*pair) for pair in zip(inputs, one.inputs, strict=True)]
    assert untouched == [True, True, True]
    return found


def too_far(one: Case, variant: str) -> dict[str, tuple[float, float]]:
    """Path -> its error and what is allowed, for each that is off by more.

    For half precision twice the error of the PyTorch backend is allowed.
    """
    errors = one.errors(run(one, variant))
    if one.x.dtype in HALF:
        allowed = one.errors(by_pytorch(*one.inputs))
        allowed = {path: 2 * error for path, error in allowed.items()}
    else:
        shape = (*one.x.shape, one.k.shape[1])
        allowed = limits(shape, one.x.dtype, variant)
    # Written so that NaN is too far.
    return {p: (e, allowed[p]) for p, e in errors.items() if not e <= allowed[p]}


def wrong(shapes: list[Shape], variant: str, dtype: torch.dtype = torch.float32) -> dict:
    found = {shape: too_far(case(shape, dtype), variant) for shape in shapes}
    return {shape: errors for shape, errors in found.items() if errors}


@every_variant
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_with_every_filter(length, variant) -> None:
    """C18, 19, 21: K below, at and above L, any B and H; every element is written, none beside."""
    filters = sorted({1, 2, 31, 32, 33, 47, length, length + 5})
    assert wrong([(*rows, length, taps) for taps in filters for rows in ROWS], variant) == {}


@every_variant
@pytest.mark.parametrize("row", [(3, 5, 5), (2, 48, 48), (1, 16, 7)], ids=str)
def test_every_batch(row, variant) -> None:
    """C18: the parts that a batch is cut into are full, short by one, and over by one."""
    near = [n + d for n in (32, 64, 128, 256, 512, 1024) for d in (-1, 0, 1)]
    assert wrong([(b, *row) for b in [2, 3, 5, *near, 1000, 8193, 10000]], variant) == {}


@every_variant
@pytest.mark.parametrize("dtype", [torch.float64, *HALF], ids=str)
def test_every_type(dtype, variant) -> None:
    """C06, 26: rows that fill 16 bytes and rows that do not, of each type."""
    lengths = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 50, 52, 56, 168, 257, 1032]
    shapes = [(b, h, n, n) for n in lengths for b, h in ((3, 3), (2, 130))]
    shapes += [(3, 33, 48, taps) for taps in (1, 2, 5, 17, 40, 53)]
    assert wrong(shapes, variant, dtype) == {}


@every_variant
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("length", [16, 32, 48, 64])
def test_half_precision_in_samples_and_channels(length, dtype, variant) -> None:
    """C06, 18: tensor cores take 16 samples and 8 channels at once: full, one short, one over."""
    shapes = [(b, h, length, 7) for b in (15, 16, 17, 31, 33, 255, 257, 1025) for h in (1, 9)]
    shapes += [(3, h, length, length + 5) for h in (7, 8, 130)] + [(16385, 2, length, length)]
    assert wrong(shapes, variant, dtype) == {}


def need_memory(gib: int) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] / 2**30
    if free < gib:
        pytest.skip(f"needs {gib} GiB of GPU memory, and {free:.0f} GiB are free")


@pytest.fixture(scope="module")
def study() -> Iterator[list[Case]]:
    """The study's full size, released after the last variant."""
    need_memory(12)
    cases = [case.__wrapped__(STUDY)]
    yield cases
    cases.clear()
    torch.cuda.empty_cache()


@every_variant
def test_the_study_shape(study, variant) -> None:
    """27: B = 16384, H = 128, L = K = 48, where rounding errors of long sums show."""
    assert too_far(study[0], variant) == {}


LONG = [
    (2, 2, 40000, 5),
    (2, 2, 40000, 300),
    (2, 3, 40000, 301),  # filters that do not start on 16 bytes, rows that do
    (2, 2, 40001, 5),
    (2, 2, 40001, 300),
    (5, 3, 2000, 2000),
    (70, 1, 8000, 20),
    (5, 2, 6000, 6000),
    (1, 2, 12000, 12000),
    (1, 2, 12001, 12006),
]


@every_variant
@pytest.mark.parametrize("shape", LONG, ids=str)
def test_rows_too_long_for_shared_memory(shape, variant) -> None:
    """C18, 19: whether or not a row fills 16 bytes."""
    assert too_far(case(shape), variant) == {}


@every_variant
@pytest.mark.parametrize("dtype", [torch.float64, *HALF], ids=str)
def test_long_rows_of_every_type(dtype, variant) -> None:
    """C18, 19: as above, in the other types."""
    shapes = [(2, 3, 40000, 5), (2, 3, 40000, 301), (2, 3, 40004, 20), (2, 3, 40001, 300)]
    shapes.append((3, 2, 2001, 1999))
    assert wrong(shapes, variant, dtype) == {}


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF], ids=str)
def test_an_impulse_comes_out_as_the_filter(dtype, variant) -> None:
    """C15: x = 1 at t = 31 only, k = ones: 0 before, 1 from there; k = 1 at tap 0: y = x."""
    x = torch.zeros(1, 1, 48, dtype=dtype, device="cuda")
    x[..., 31] = 1
    y = depthwise_conv(x, torch.ones_like(x[0]), variant)
    assert torch.equal(y, (torch.arange(48, device="cuda") >= 31).to(dtype).view(1, 1, 48))
    first_tap = torch.zeros(2, 48, dtype=dtype, device="cuda")
    first_tap[:, 0] = 1
    x = torch.randn(3, 2, 48, dtype=torch.float64, device="cuda").to(dtype)
    assert torch.equal(depthwise_conv(x, first_tap, variant), x)


@every_variant
@pytest.mark.parametrize(("length", "taps"), [(48, 48), (65, 40), (50, 61), (168, 168)])
def test_an_impulse_at_every_step(length, taps, variant) -> None:
    """C15: sample b has its impulse at step b, so that each product of x and k shows by itself."""
    impulses = torch.eye(length, device="cuda").unsqueeze(1)  # (L, 1, L)
    k = torch.randn(1, taps, device="cuda")
    lag = torch.arange(length, device="cuda") - torch.arange(length, device="cuda")[:, None]
    delayed = torch.where((lag >= 0) & (lag < taps), k[0, lag.clamp(0, taps - 1)], 0)
    found = by_operator(impulses, k, impulses, variant)
    assert torch.equal(found["forward"][:, 0], delayed)
    assert torch.equal(found["input_grad"][:, 0], delayed.T)
    for step in (0, length // 2, length - 1):
        x = torch.randn(1, 1, length, device="cuda")
        gk = by_operator(x, k, impulses[step : step + 1], variant)["weight_grad"]
        past = x[0, 0, : step + 1].flip(0)[:taps]  # x[step], x[step-1], ...
        assert torch.equal(gk[0], torch.nn.functional.pad(past, (0, taps - len(past))))


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("length", [48, 49, 168])
def test_nothing_of_the_future_or_of_another_row_comes_in(length, dtype, variant) -> None:
    """C15: NaN from step t on leaves no trace before t, NaN in a row none in the others."""
    x, k, gy = case((3, 5, length, length), dtype).inputs
    clean = by_operator(x, k, gy, variant)
    for step in (1, 16, 31, 32, length - 1):
        late, early = x.clone(), gy.clone()
        late[..., step:] = torch.nan
        early[..., :step] = torch.nan
        found = by_operator(late, k, early, variant)
        assert torch.equal(found["forward"][..., :step], clean["forward"][..., :step])
        assert torch.equal(found["input_grad"][..., step:], clean["input_grad"][..., step:])
    torn_x, torn_gy = x.clone(), gy.clone()
    torn_x[1, 2] = torn_gy[1, 2] = torch.nan
    found = by_operator(torn_x, k, torn_gy, variant)
    for path in ("forward", "input_grad"):
        whole = clean[path].clone()
        whole[1, 2] = torch.nan
        assert torch.equal(found[path].nan_to_num(9), whole.nan_to_num(9))
    whole = clean["weight_grad"].clone()
    whole[2] = torch.nan
    assert torch.equal(found["weight_grad"].nan_to_num(9), whole.nan_to_num(9))


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_infinity_goes_where_the_definition_takes_it(dtype, variant) -> None:
    """C15: to the outputs that its taps reach, with their signs; NaN meets a tap of 0 as well."""
    x, k, gy = (tensor.clone() for tensor in case((18, 9, 48, 16), dtype).inputs)
    k[:, 3] = 0
    x[:, :, 13], gy[:, :, 30] = torch.inf, -torch.inf
    x[4, 2, 40] = gy[5, 8, 2] = torch.nan
    found, truth = by_operator(x, k, gy, variant), by_definition(x, k, gy)
    for path in ("forward", "input_grad"):
        same = found[path].double(), truth[path]
        for of in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(*map(of, same))
        finite = truth[path].isfinite()
        assert relative_error(*(tensor[finite] for tensor in same)) < 1e-2


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


VIEWS = {
    "every second sample": lambda t: t.repeat_interleave(2, 0)[::2],
    "every second step": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "steps from the middle": lambda t: torch.nn.functional.pad(t, (3, 2))[..., 3:-2],
    "channels last": lambda t: t.mT.contiguous().mT,
    "batch last": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "one for all": lambda t: t[:1].expand(t.shape),  # sample, or filter
    "offset of one": _offset,
}


@every_variant
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("length", [47, 48])
def test_strides_and_offsets_do_not_matter(length, view, variant) -> None:
    """17, 18: of x, of the filter and of the gradient; any of them may be off 16 bytes."""
    dense = case((4, 6, length, length))
    x, k, gy = (VIEWS[view](tensor) for tensor in dense.inputs)
    assert not (x.is_contiguous() and x.data_ptr() % 16 == 0)
    x, k = x.detach().requires_grad_(), k.detach().requires_grad_()
    y = depthwise_conv(x, k, variant)
    y.backward(gy)
    found = {"forward": y.detach(), "input_grad": x.grad, "weight_grad": k.grad}
    errors = errors_of(found, by_definition(x.detach(), k.detach(), gy))
    assert max(errors.values()) <= 5e-7


@every_variant
def test_the_gradient_of_a_sum(variant) -> None:
    """17: `y.sum().backward()` gives a gradient of strides 0."""
    x, k = (tensor.clone().requires_grad_() for tensor in case((4, 6, 48, 48)).inputs[:2])
    depthwise_conv(x, k, variant).sum().backward()
    truth = by_definition(x.detach(), k.detach(), torch.ones_like(x))
    assert relative_error(x.grad, truth["input_grad"]) <= 5e-7
    assert relative_error(k.grad, truth["weight_grad"]) <= 5e-7


@every_variant
@pytest.mark.parametrize("shape", [(2, 70000, 3, 2), (70000, 1, 3, 3), (66000, 1, 1, 1)], ids=str)
def test_more_rows_than_a_grid_has_in_y(shape, variant) -> None:
    """16: B H > 65,535, by many channels and by many samples."""
    assert too_far(case(shape), variant) == {}


@every_variant
@pytest.mark.parametrize(
    "shape",
    [(5600, 8192, 48, 48), (1, 32769, 65536, 4)],
    ids=["many samples", "C07"],
)
def test_more_elements_than_32_bits_count(shape, variant) -> None:
    """15, C07: B H L > 2^31 in bfloat16: what lies past 2^31 equals the same rows alone."""
    b, h, length, taps = shape
    need_memory(24)
    torch.manual_seed(0)
    x = torch.randn(b, h, length, dtype=torch.bfloat16, device="cuda")
    k = torch.randn(h, taps, dtype=torch.bfloat16, device="cuda")
    # The last samples, or of one sample the last channel. Only they have a gradient, so the
    # filter's gradient is theirs alone: from anywhere else it would be zero.
    tail = (slice(-32, None), slice(None)) if b > 1 else (slice(None), slice(-1, None))
    assert x[tail].storage_offset() >= 2**31
    gy = torch.zeros_like(x)
    gy[tail] = torch.randn_like(x[tail])
    with guarded_memory():
        found = by_operator(x, k, gy, variant)
    truth = by_definition(x[tail].clone(), k[tail[1]].clone(), gy[tail].clone())
    there = {"forward": found["forward"][tail], "input_grad": found["input_grad"][tail]}
    there["weight_grad"] = found["weight_grad"][tail[1]]
    errors = errors_of(there, truth)
    del x, gy, found, there
    torch.cuda.empty_cache()
    assert max(errors.values()) <= torch.finfo(torch.bfloat16).eps / 2
