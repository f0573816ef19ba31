"""The formulations agree with the definition, at any shape, stride and type."""

import pytest
import torch

from cuda_ops import (
    BLOCK_KERNELS,
    KERNELS,
    KernelUnavailableError,
    depthwise_conv,
    reference,
    require_kernel,
)
from cuda_ops.reference import fft_conv, grouped_conv, reference_conv, toeplitz_conv
from tests.cuda_ops.paths import by_definition, random_inputs, relative_error

FORMULATIONS = [toeplitz_conv, fft_conv, grouped_conv]
SHAPES = [
    # B, H, L, K: one of each, odd, K below, at and above L, around the tile sizes of the kernels
    (1, 1, 1, 1),
    (3, 2, 5, 3),
    (2, 3, 31, 33),
    (2, 4, 48, 48),
    (3, 1, 49, 47),
    (1, 130, 33, 32),
    (2, 2, 257, 300),
    (1, 2, 600, 4),
]


def definition(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """y[b,h,t] = sum_j k[h,j] x[b,h,t-j], by three loops."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(x.shape[2]):
        for j in range(min(t, k.shape[1] - 1) + 1):
            y[:, :, t] += k[:, j].double() * x[:, :, t - j].double()
    return y


@pytest.mark.parametrize("shape", [(2, 3, 17, 9), (2, 3, 9, 17), (1, 2, 1, 1)], ids=str)
def test_the_truth_is_the_definition(shape) -> None:
    """C18: three loops for y, and the gradients that autograd takes of y."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs(shape, torch.float64))
    gy = torch.randn(shape[:3], dtype=torch.float64)
    gx, gk = torch.autograd.grad(reference_conv(x, k), (x, k), gy)
    x, k = x.detach(), k.detach()
    truth = by_definition(x, k, gy)
    assert relative_error(reference_conv(x, k), definition(x, k)) < 1e-14
    assert relative_error(truth["forward"], definition(x, k)) < 1e-14
    assert relative_error(truth["input_grad"], gx) < 1e-14
    assert relative_error(truth["weight_grad"], gk) < 1e-14


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.__name__)
def test_forward_and_gradients_agree_with_the_reference(formulation, shape) -> None:
    x, k = random_inputs(shape)
    gy = torch.randn(shape[:3])
    found = [tensor.requires_grad_() for tensor in (x.clone(), k.clone())]
    truth = [tensor.double().requires_grad_() for tensor in (x, k)]
    y = formulation(*found)
    expected = reference_conv(*truth)
    y.backward(gy)
    expected.backward(gy.double())
    assert y.dtype == torch.float32
    assert relative_error(y.detach(), expected.detach()) < 2e-6
    for one, other in zip(found, truth, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert relative_error(one.grad, other.grad) < 2e-6


@pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.__name__)
def test_an_impulse_comes_out_as_the_filter_and_nothing_before_it(formulation) -> None:
    """C15: x = 1 at t = 31 only, k = ones: y is 0 before and 1 from there on."""
    x = torch.zeros(1, 1, 48)
    x[..., 31] = 1
    y = formulation(x, torch.ones(1, 48))
    torch.testing.assert_close(y[0, 0, :31], torch.zeros(31), atol=1e-6, rtol=0)
    torch.testing.assert_close(y[0, 0, 31:], torch.ones(17), atol=1e-6, rtol=0)
    first_tap = torch.zeros(2, 48)
    first_tap[:, 0] = 1
    x = torch.randn(3, 2, 48)
    torch.testing.assert_close(formulation(x, first_tap), x, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.__name__)
def test_first_and_second_derivatives(formulation) -> None:
    x, k = (tensor.requires_grad_() for tensor in random_inputs((2, 2, 5, 3), torch.float64))
    assert torch.autograd.gradcheck(formulation, (x, k))
    assert torch.autograd.gradgradcheck(formulation, (x, k))


def test_strides_do_not_matter() -> None:
    base = torch.randn(7, 5, 24)
    k = torch.randn(5, 12)
    for x in (base[1::2], base.transpose(0, 2).contiguous().transpose(0, 2), base[..., 3:20]):
        y = depthwise_conv(x, k)
        assert relative_error(y, reference_conv(x, k)) < 1e-6
    x = base.clone().requires_grad_()
    depthwise_conv(x, k).sum().backward()  # a gradient of strides 0
    truth = base.double().requires_grad_()
    reference_conv(truth, k).sum().backward()
    assert x.grad is not None
    assert truth.grad is not None
    assert relative_error(x.grad, truth.grad) < 1e-6


@pytest.mark.parametrize("length", [48, 300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_each_type_keeps_its_own_precision(dtype, length) -> None:
    x, k = random_inputs((2, 4, length, length), dtype)
    y = depthwise_conv(x, k)
    limit = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 2e-3}.get(dtype, 2e-2)
    assert y.dtype == dtype
    assert relative_error(y, reference_conv(x, k)) < limit


def test_mixed_types_and_autocast() -> None:
    """C06: half inputs beside a float32 filter, with and without autocast."""
    x, k = random_inputs((2, 4, 48, 48))
    truth = reference_conv(x, k)
    assert depthwise_conv(x.bfloat16(), k).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        k.requires_grad_()
        y = depthwise_conv(x.bfloat16(), k)
        y.float().sum().backward()
    assert relative_error(y.detach(), truth) < 2e-2
    assert k.grad is not None
    assert k.grad.dtype == torch.float32


@pytest.mark.parametrize("length", [48, 300])
def test_an_empty_batch(length) -> None:
    """C14: B = 0 gives an empty output and a zero filter gradient."""
    k = torch.randn(8, length, requires_grad=True)
    y = depthwise_conv(torch.randn(0, 8, length), k)
    y.sum().backward()
    assert y.shape == (0, 8, length)
    assert k.grad is not None
    assert not k.grad.any()


def test_wrong_arguments_are_named() -> None:
    x, k = random_inputs((2, 3, 5, 5))
    with pytest.raises(TypeError, match="int64"):
        depthwise_conv(x.long(), k)
    with pytest.raises(TypeError, match="complex64"):
        depthwise_conv(x, k.to(torch.complex64))
    with pytest.raises(ValueError, match=r"\(2, 3, 5\), \(2, 5\)"):
        depthwise_conv(x, k[:2])
    with pytest.raises(ValueError, match="one H"):
        depthwise_conv(x[0], k)


def test_a_kernel_is_taken_or_refused_never_replaced(monkeypatch) -> None:
    """C03, 14: a CUDA kernel does not quietly become another one where there is no GPU."""
    assert KERNELS == ("pytorch", "naive", "coalesced", "shared", "warp_tiled")
    assert require_kernel("pytorch") == "pytorch"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    choices = ", ".join(BLOCK_KERNELS)
    refused = {
        name: f"'{name}' runs on an NVIDIA GPU.*; these work: pytorch" for name in KERNELS[1:]
    }
    refused["magic"] = f"no kernel 'magic'; choose from: {choices}"
    for name, told in refused.items():
        with pytest.raises(KernelUnavailableError, match=told):
            require_kernel(name)
        with pytest.raises(KernelUnavailableError, match=told):
            depthwise_conv(*random_inputs((1, 1, 4, 4)), kernel=name)


def test_the_fastest_formulation_is_chosen_by_shape_and_device() -> None:
    choose = reference.fastest_formulation
    assert choose("cpu", 48, 48) is toeplitz_conv
    assert choose("cpu", 512, 512) is fft_conv
    assert choose("cuda", 512, 512) is toeplitz_conv
    assert choose("cuda", 1024, 1024) is fft_conv
    assert choose("cpu", 4096, 4) is grouped_conv


@pytest.mark.gpu
@pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.__name__)
def test_on_a_gpu_too(formulation) -> None:
    x, k = (tensor.cuda() for tensor in random_inputs((64, 128, 48, 48)))
    assert relative_error(formulation(x, k), reference_conv(x, k)) < 1e-6
