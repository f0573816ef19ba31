"""The whole block as an operator, on a CPU: the formulas, the masks, and what is refused."""

import pytest
import torch

from cuda_ops import (
    BLOCK_KERNELS,
    KERNELS,
    KernelUnavailableError,
    depthwise_conv,
    fused_block,
    fused_filters,
    fused_last_step,
    jit,
    require_kernel,
)
from cuda_ops.dropout import dropout_mask, new_seed
from cuda_ops.reference import filters_by_formula, with_skip
from tests.cuda_ops.blocks import Block, conv, filter_parameters
from tests.cuda_ops.paths import relative_error

SHAPE = (3, 64, 11, 7)  # B, H, L, K


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_operator_is_the_formula(p: float, own: bool) -> None:
    block = Block.random(SHAPE, p, own)
    found, truth = block.outcome(), block.truth()
    assert found.keys() == truth.keys()
    assert {
        name: relative_error(found[name], truth[name]) < 1e-5 for name in truth
    } == dict.fromkeys(truth, True)


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_both_precisions_are_one_function(precision, p) -> None:
    """With TF32 the mixing is a kernel's, in full float32 it is PyTorch's: of one mask."""
    torch.set_float32_matmul_precision(precision)
    block = Block.random(SHAPE, p)
    torch.manual_seed(5)
    block.seed = new_seed(block.x.device) if p else None
    torch.manual_seed(5)
    out = fused_block(block.x, None, block.k, block.w, block.b, p)
    found = Block._with_gradients(out, block.leaves(), block.gy)
    for name, truth in block.truth().items():
        assert relative_error(found[name], truth) < 1e-5, name


def test_the_last_step_alone() -> None:
    block = Block.random(SHAPE)
    y, last = fused_last_step(block.x, block.k)
    wide_x, wide_k = (t.detach().double().requires_grad_() for t in (block.x, block.k))
    ends = (conv(wide_x, wide_k)[:, -1], wide_x[:, -1])
    assert relative_error(y, ends[0]) < 1e-6
    assert torch.equal(last, block.x[:, -1])
    given = torch.randn_like(y), torch.randn_like(y)
    found = torch.autograd.grad((y, last), (block.x, block.k), given)
    truth = torch.autograd.grad(ends, (wide_x, wide_k), [g.double() for g in given])
    assert all(relative_error(*pair) < 1e-6 for pair in zip(found, truth, strict=True))


def test_the_filters_are_the_formula_and_its_gradients() -> None:
    parameters = filter_parameters((2, 3), 5)
    k = fused_filters(*parameters, length=9)
    wide = [parameter.detach().double().requires_grad_() for parameter in parameters]
    truth = with_skip(filters_by_formula(*wide[:5], length=9), wide[5])
    assert relative_error(k, truth) < 1e-6
    gk = torch.randn_like(k)
    pairs = zip(
        torch.autograd.grad(k, parameters, gk),
        torch.autograd.grad(truth, wide, gk.double()),
        strict=True,
    )
    assert max(relative_error(*pair) for pair in pairs) < 1e-6


def test_pytorch_can_rely_on_the_operators() -> None:
    """Checklist 23: fake tensors, autograd and functionalisation agree with what is computed."""
    ops = torch.ops.s4convd
    block = Block.random((2, 64, 5, 5), 0.3, own=False)
    inputs = (block.x, block.residual, block.k, block.w, block.b, block.p, block.seed)
    torch.library.opcheck(ops.block.default, inputs)
    torch.library.opcheck(ops.rows_conv.default, (block.x, block.k))
    torch.library.opcheck(ops.last_step.default, (block.x, block.k))
    torch.library.opcheck(ops.filters.default, (*filter_parameters((2, 3), 4), 5))


def test_a_mask_keeps_its_share_and_its_scale() -> None:
    shape, p = (64, 48, 64), 0.25
    seeds = [new_seed(torch.device("cpu")) for _ in range(2)]
    masks = [dropout_mask(shape, p, seed) for seed in seeds]
    for mask in masks:
        kept = mask > 0
        assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
        assert float(kept.float().mean()) == pytest.approx(1 - p, abs=0.005)  # 5 deviations
        for axis in range(3):  # no pattern along any axis: neighbours are independent
            first, second = (
                kept.narrow(axis, 0, shape[axis] - 1),
                kept.narrow(axis, 1, shape[axis] - 1),
            )
            assert float((first & second).float().mean()) == pytest.approx((1 - p) ** 2, abs=0.005)
    both = (masks[0] > 0) & (masks[1] > 0)
    assert float(both.float().mean()) == pytest.approx((1 - p) ** 2, abs=0.005)
    assert torch.equal(masks[0], dropout_mask(shape, p, seeds[0]))


def test_the_generators_seed_decides_the_mask() -> None:
    block = Block.random(SHAPE)

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return fused_block(block.x, None, block.k, block.w, block.b, 0.5).detach()

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_what_the_kernels_are_not_written_for_is_refused() -> None:
    block = Block.random(SHAPE)
    x, k, w, b = block.x, block.k, block.w, block.b
    with pytest.raises(KernelUnavailableError, match=r"float32, not in torch.bfloat16"):
        fused_block(x.bfloat16(), None, k, w, b)
    with pytest.raises(
        KernelUnavailableError, match=r"64 or 128 channels .* not 32 and 11; .*warp_tiled"
    ):
        fused_block(x[..., :32], None, k[:32], w, b)
    with pytest.raises(KernelUnavailableError, match="up to 64 steps, not 64 and 65"):
        fused_last_step(torch.zeros(1, 65, 64), k)
    with pytest.raises(ValueError, match=r"x's H, 64, not \(32, 7\)"):
        fused_last_step(x, k[:32])


def test_fused_is_a_kernel_of_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """C03: what was asked for runs, or is refused."""
    assert (*KERNELS, "fused") == BLOCK_KERNELS
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(KernelUnavailableError, match=r"'fused' runs on an NVIDIA GPU"):
        require_kernel("fused")
    monkeypatch.setattr("cuda_ops.require_kernel", lambda *_: None)
    with pytest.raises(KernelUnavailableError, match="for a whole block"):
        depthwise_conv(torch.zeros(1, 1, 4), torch.zeros(1, 4), "fused")


@pytest.mark.parametrize("variant", jit.BLOCK)
def test_it_is_for_hopper_alone(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checklist 15: a GPU too old for a kernel ends in a driver's error."""
    assert jit.scalars_of(variant) == ("float32",)
    assert jit.architectures_of(variant, ["80", "90"]) == ["90a"]
    assert jit.architectures_of(variant, ["80"]) == []
    assert jit.architectures_of("naive", ["80", "90"]) == ["80", "90"]
    with pytest.raises(
        KernelUnavailableError, match=r"Hopper GPU, .* this one's is 8\.6; .*warp_tiled"
    ):
        jit.load(variant, (8, 6))
