"""The kernels of a whole block against float64, and in what a training does with them."""

import pytest
import torch

from cuda_ops import (
    KernelUnavailableError,
    block_launch,
    fused_block,
    fused_filters,
    fused_last_step,
)
from cuda_ops.block_launch import BlockKernels, block_kernels
from cuda_ops.reference import filters_by_formula, with_skip
from tests.cuda_ops.blocks import Block, conv, filter_parameters
from tests.cuda_ops.paths import relative_error

pytestmark = pytest.mark.gpu
TF32 = 2**-10  # of the norm: each of two factors is rounded by at most 2^-11 of itself
STUDY = (16384, 128, 48, 48)  # B, H, L, K
SHAPES = [
    (7, 128, 48, 48),
    (70, 64, 48, 48),
    (1, 128, 1, 1),
    (1, 64, 64, 64),
    (33, 128, 47, 47),
    (50, 64, 33, 40),
    (5, 64, 16, 9),
    (300, 128, 64, 64),
    (4001, 128, 48, 48),
]


@pytest.fixture(autouse=True)
def no_memory_is_clean() -> None:
    """What the kernels are given to write to holds NaNs."""
    torch.cuda.empty_cache()
    for size in (2**29, 2**24, 2**18):
        torch.full((size,), float("nan"), device="cuda")


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_block_against_float64(shape, p, own) -> None:
    block = Block.random(shape, p, own, "cuda")
    found, truth = block.outcome(), block.truth()
    errors = {name: relative_error(found[name], truth[name]) for name in truth}
    assert max(errors.values()) < TF32, errors


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_convolutions_against_float64(shape) -> None:
    block = Block.random(shape, device="cuda")
    x, k = block.x, block.k
    wide_x, wide_k = (t.detach().double().requires_grad_() for t in (x, k))
    y, truth = torch.ops.s4convd.rows_conv(x, k), conv(wide_x, wide_k)
    pairs = [(y, truth)]
    gradients = torch.autograd.grad(truth, (wide_x, wide_k), block.gy.double(), retain_graph=True)
    pairs += zip(torch.autograd.grad(y, (x, k), block.gy), gradients, strict=True)

    y, last = fused_last_step(x, k)
    assert torch.equal(last, x[:, -1])
    pairs.append((y, truth[:, -1]))
    given = torch.randn_like(y), torch.randn_like(y)
    ends = (truth[:, -1], wide_x[:, -1])
    gradients = torch.autograd.grad(ends, (wide_x, wide_k), [g.double() for g in given])
    pairs += zip(torch.autograd.grad((y, last), (x, k), given), gradients, strict=True)
    assert max(relative_error(*pair) for pair in pairs) < 5e-7


def test_at_the_studys_batch_too() -> None:
    """Sums over 786,432 rows, against float64 in parts."""
    block = Block.random(STUDY, device="cuda")
    found = block.outcome()
    sums = {name: torch.zeros_like(getattr(block, name), dtype=torch.float64) for name in "kwb"}
    for start in range(0, STUDY[0], 512):
        rows = slice(start, start + 512)
        part = Block(block.x[rows], None, block.k, block.w, block.b, 0.0, None, block.gy[rows])
        truth = part.truth()
        assert relative_error(found["out"][rows], truth["out"]) < TF32
        assert relative_error(found["x"][rows], truth["x"]) < TF32
        for name in sums:
            sums[name] += truth[name]
    assert max(relative_error(found[name], sums[name]) for name in sums) < TF32


@pytest.mark.parametrize("channels", block_launch.CHANNELS)
def test_the_same_bits_every_time(channels) -> None:
    """B03: sums in an order that a race decides."""
    block = Block.random((3000, channels, 48, 48), 0.1, device="cuda")
    first = block.outcome()
    for _ in range(3):
        again = block.outcome()
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    ("rows", "modes", "length"),
    [((4, 128), 32, 48), ((1, 1), 1, 1), ((3,), 70, 200), ((2, 5), 33, 64)],
)
def test_the_filters_against_float64(rows, modes, length) -> None:
    """The derivatives in csrc/filters.cu are by hand."""
    parameters = filter_parameters(rows, modes, "cuda")
    k = fused_filters(*parameters, length=length)
    wide = [parameter.detach().double().requires_grad_() for parameter in parameters]
    truth = with_skip(filters_by_formula(*wide[:5], length=length), wide[5])
    gk = torch.randn_like(k)
    found = torch.autograd.grad(k, parameters, gk)
    truths = torch.autograd.grad(truth, wide, gk.double())
    pairs = [(k, truth), *zip(found, truths, strict=True)]
    assert max(relative_error(*pair) for pair in pairs) < 2e-7


def test_strides_do_not_matter_and_nothing_is_no_batch() -> None:
    block = Block.random((9, 64, 20, 20), device="cuda")
    expected = block.outcome()
    wide = torch.zeros(9, 20, 128, device="cuda")
    wide[..., 1:65] = block.x.detach()
    block.x = wide[..., 1:65].requires_grad_()
    found = block.outcome()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    empty = Block.random((0, 64, 20, 20), device="cuda").outcome()
    assert empty["out"].shape == (0, 20, 64)
    assert not empty["w"].any()


def test_a_graph_draws_a_new_mask_at_each_replay() -> None:
    """23: a captured step repeats the mask that it was captured with."""
    torch.set_float32_matmul_precision("high")
    block = Block.random((64, 128, 48, 48), device="cuda")
    with torch.no_grad():
        inputs = (block.x, None, block.k, block.w, block.b)
        plain = fused_block(*inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            masked, unmasked = fused_block(*inputs, 0.5), fused_block(*inputs)
        results = []
        for _ in range(2):
            graph.replay()
            results.append(masked.clone())
        assert torch.equal(unmasked, plain)
    assert not torch.equal(*results)


def test_a_miscompiled_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """C06: code that runs and is wrong; nvcc 13.0 made such of the mixing with dropout."""
    right = BlockKernels.mix_gradients

    def wrong(self, *arguments):
        dz, dw, db = right(self, *arguments)
        return dz, dw * (1 + 0.01 * (arguments[-2] > 0)), db

    monkeypatch.setattr(BlockKernels, "mix_gradients", wrong)
    block_kernels.cache_clear()
    with pytest.raises(KernelUnavailableError, match=r"self-test on .*: mixing, dW, 64 channels"):
        block_kernels(torch.device("cuda", torch.cuda.current_device()))
    block_kernels.cache_clear()


def test_it_takes_no_more_memory_than_its_results() -> None:
    """B09: of a step, z and the gradients alone; 3 % for sums of parts."""
    torch.set_float32_matmul_precision("high")
    block = Block.random(STUDY, 0.1, device="cuda")
    block.outcome()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    block.outcome()
    tensor = block.x.nbytes
    peak = torch.cuda.max_memory_allocated() - held
    assert peak < 4.03 * tensor + 2**25  # out, z, dz, dx
