"""Every CUDA kernel behaves in PyTorch as an operator of its own: streams, graphs, compilers."""

from collections.abc import Iterator

import pytest
import torch

from cuda_ops import KernelUnavailableError, depthwise_conv, launch, prepare_kernel, require_kernel
from cuda_ops.jit import VARIANTS
from cuda_ops.op import conv_forward, conv_input_grad, conv_weight_grad
from tests.cuda_ops.paths import (
    by_definition,
    by_operator,
    errors_of,
    random_inputs,
    relative_error,
)

pytestmark = pytest.mark.gpu
every_variant = pytest.mark.parametrize("variant", VARIANTS)
HALF = [torch.float16, torch.bfloat16]
BOTH = (True, True)


def inputs_of(
    shape, dtype=torch.float32, device="cuda", wanted=(False, False)
) -> tuple[torch.Tensor, ...]:
    """x, k and gy; `wanted` says which of x and k want a gradient."""
    torch.manual_seed(0)
    x, k = random_inputs(shape, dtype, device)
    gy = torch.randn_like(x)
    return x.requires_grad_(wanted[0]), k.requires_grad_(wanted[1]), gy


def loaded(variant: str) -> launch.Kernels:
    return launch.kernels(variant, torch.device("cuda", torch.cuda.current_device()))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """No kernel has been used yet, and none stays as the test left it."""
    launch.kernels.cache_clear()
    yield
    launch.kernels.cache_clear()


@every_variant
@pytest.mark.parametrize(
    "shape", [(64, 128, 48, 48), (1000, 2, 168, 20), (5, 2, 6000, 30)], ids=str
)
def test_fifty_runs_give_equal_bits(shape, variant) -> None:
    """20, C16: of every path."""
    x, k, gy = inputs_of(shape)
    first = by_operator(x, k, gy, variant)
    for _ in range(49):
        again = by_operator(x, k, gy, variant)
        assert all(torch.equal(first[path], again[path]) for path in first)


GRIDS = [
    (16, 128, 48, 48),
    (1000, 130, 48, 48),
    (1000, 3, 168, 168),
    (33, 2, 49, 60),
    (1025, 1, 31, 7),
    (70, 2, 6000, 100),
]


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_the_size_of_the_grid_changes_no_bit(shape, dtype, variant) -> None:
    """20, C16: so a GPU with fewer multiprocessors finds the same weight gradient."""
    x, _, gy = inputs_of(shape, dtype)
    kernels = loaded(variant)
    whole = kernels.weight_grad(gy, x, shape[3])
    for most_blocks in (1, 2, 7, 132, 1000):
        found = kernels.weight_grad(gy, x, shape[3], most_blocks=most_blocks)
        assert torch.equal(found, whole)


@every_variant
def test_deterministic_algorithms_are_what_it_has(variant) -> None:
    """20, C16: `use_deterministic_algorithms` neither refuses nor changes it."""
    x, k, gy = inputs_of((64, 128, 48, 48), wanted=BOTH)
    plain = torch.autograd.grad(depthwise_conv(x, k, variant), (x, k), gy)
    torch.use_deterministic_algorithms(True)
    try:
        found = [torch.autograd.grad(depthwise_conv(x, k, variant), (x, k), gy) for _ in range(20)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(*pair) for one in found for pair in zip(one, plain, strict=True))


@every_variant
def test_a_stream_of_its_own(variant) -> None:
    """22: a kernel waits for the stream's earlier work, and is waited for by its later work."""
    sources = inputs_of((64, 128, 48, 48))
    expected = by_operator(*sources, variant)
    x, k, gy = (torch.full_like(source, torch.nan) for source in sources)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        by_operator(x, k, gy, variant)  # afterwards its allocator need not wait for the GPU
        stream.synchronize()
        torch.cuda._sleep(100_000_000)  # tens of milliseconds, in which another stream reads NaN
        for tensor, source in zip((x, k, gy), sources, strict=True):
            tensor.copy_(source)
        found = by_operator(x, k, gy, variant)
        copies = {path: tensor.clone() for path, tensor in found.items()}
    stream.synchronize()
    assert all(torch.equal(copies[path], expected[path]) for path in expected)


@every_variant
def test_graph_capture_and_replay_with_new_data(variant) -> None:
    """23, C11: forward and backward."""
    x, k, gy = inputs = inputs_of((64, 16, 48, 48), wanted=BOTH)

    def step() -> tuple[torch.Tensor, ...]:
        y = depthwise_conv(x, k, variant)
        return y.detach(), *torch.autograd.grad(y, (x, k), gy)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        with torch.no_grad():
            for tensor in inputs:
                tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        assert all(torch.equal(*pair) for pair in zip(captured, step(), strict=True))


@every_variant
def test_a_first_use_during_capture_is_refused(variant, forgotten) -> None:
    """23: compiling and testing itself would break the capture; after `prepare_kernel` it works."""
    x, k, _ = inputs_of((4, 3, 48, 48))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(KernelUnavailableError, match=r"call cuda_ops\.prepare_kernel"):
            depthwise_conv(x, k, variant)
        twice = x * 2  # the capture goes on
    graph.replay()
    assert torch.equal(twice, x * 2)
    major, minor = torch.cuda.get_device_capability()
    note = prepare_kernel(variant, torch.device("cuda"))
    assert note == f"{variant} (CUDA, sm_{major}{minor})"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = depthwise_conv(x, k, variant)
    graph.replay()
    assert torch.equal(y, depthwise_conv(x, k, variant))


@every_variant
def test_torch_compile_needs_no_graph_break(variant) -> None:
    """24, C10: forward and backward of two shapes equal what runs without the compiler."""

    def model(x, k):
        return torch.tanh(depthwise_conv(x, k, variant))

    torch.compiler.reset()
    backend = "inductor" if variant == "warp_tiled" else "aot_eager"
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for shape in ((4, 3, 48, 48), (6, 5, 33, 20)):
        x, k, gy = inputs_of(shape, wanted=BOTH)
        found, expected = (
            (y.detach(), *torch.autograd.grad(y, (x, k), gy)) for y in (compiled(x, k), model(x, k))
        )
        for one, other in zip(found, expected, strict=True):
            assert relative_error(one, other.double()) <= 1e-5


@every_variant
@pytest.mark.parametrize("path", ["forward", "input_grad", "weight_grad"])
def test_opcheck(path, variant) -> None:
    """25: schema, autograd, fake kernel and dynamic shapes, with transposed inputs."""
    x, k, gy = inputs_of((4, 3, 8, 5))
    x, gy = (t.mT.contiguous().mT.requires_grad_() for t in (x, gy))
    k.requires_grad_()
    done = {
        "forward": lambda: torch.library.opcheck(conv_forward, (x, k, variant)),
        "input_grad": lambda: torch.library.opcheck(conv_input_grad, (gy, k, variant)),
        "weight_grad": lambda: torch.library.opcheck(conv_weight_grad, (gy, x, 5, variant)),
    }[path]()
    assert set(done.values()) == {"SUCCESS"}


@every_variant
@pytest.mark.parametrize("k_dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("x_dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("autocast", HALF, ids=str)
def test_autocast_with_mixed_types(autocast, x_dtype, k_dtype, variant) -> None:
    """26, C06: y in autocast's type, each gradient in its parameter's."""
    x, k, gy = inputs_of((8, 16, 48, 48))
    truth = by_definition(x, k, gy)
    x, k = x.to(x_dtype).requires_grad_(), k.to(k_dtype).requires_grad_()
    with torch.autocast("cuda", autocast):
        y = depthwise_conv(x, k, variant)
    y.backward(gy.to(autocast))
    assert (y.dtype, x.grad.dtype, k.grad.dtype) == (autocast, x_dtype, k_dtype)
    found = {"forward": y.detach(), "input_grad": x.grad, "weight_grad": k.grad}
    assert max(errors_of(found, truth).values()) <= 2e-2


@every_variant
def test_mixed_types_without_autocast(variant) -> None:
    """26, C06: they are promoted; a type that is none of real numbers is refused."""
    x, k, _ = inputs_of((8, 16, 48, 48))
    y = depthwise_conv(x.bfloat16(), k, variant)
    assert y.dtype == torch.float32
    assert torch.equal(y, depthwise_conv(x.bfloat16().float(), k, variant))
    with torch.autocast("cuda", torch.float16):
        assert depthwise_conv(x.double(), k, variant).dtype == torch.float64
    for wrong in (torch.int32, torch.complex64):
        with pytest.raises(TypeError, match=str(wrong)):
            depthwise_conv(x.to(wrong), k, variant)


@every_variant
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("batch", [1, 64, 1024, 16384])
def test_half_precision_is_rounded_once_at_any_batch(batch, dtype, variant) -> None:
    """26: partial sums are float32, so the weight gradient's error does not grow with B."""
    x, k, gy = inputs_of((batch, 16, 48, 48), dtype)
    errors = errors_of(by_operator(x, k, gy, variant), by_definition(x, k, gy))
    assert max(errors.values()) <= torch.finfo(dtype).eps / 2


@every_variant
@pytest.mark.parametrize("shape", [(0, 8, 48, 48), (3, 0, 48, 48), (3, 8, 0, 48)], ids=str)
def test_empty_inputs(shape, variant) -> None:
    """28, C14: an empty output, zero gradients, and nothing that fails later."""
    x, k, _ = inputs_of(shape, wanted=BOTH)
    y = depthwise_conv(x, k, variant)
    y.sum().backward()
    torch.cuda.synchronize()
    assert y.shape == x.shape
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(k.grad, torch.zeros_like(k))


@every_variant
def test_a_launch_that_fails_is_an_error_at_once(variant) -> None:
    """C14: and not of a later innocent call."""
    x, _, _ = inputs_of((1, 1, 4, 4))
    nothing = launch.Shape(0, 1, 4, 4)  # a grid of no blocks
    with pytest.raises(RuntimeError, match=f"kernel '{variant}', forward: invalid"):
        loaded(variant)._launch("forward", x, 0, 0, 0, nothing)
    torch.cuda.synchronize()
    assert torch.equal(depthwise_conv(x, torch.ones_like(x[0, :, :1]), variant), x)


@every_variant
@pytest.mark.parametrize("mask", [(True, False), (False, True), (False, False)], ids=str)
def test_frozen_inputs(mask, variant) -> None:
    """30: they get no gradient, and the other's is right."""
    x, k, gy = inputs_of((8, 16, 48, 48), wanted=mask)
    truth = by_definition(x.detach(), k.detach(), gy)
    y = depthwise_conv(x, k, variant)
    assert y.requires_grad == any(mask)
    if any(mask):
        y.backward(gy)
    assert (x.grad is not None, k.grad is not None) == mask
    for grad, path in ((x.grad, "input_grad"), (k.grad, "weight_grad")):
        assert grad is None or relative_error(grad, truth[path]) <= 5e-7


@every_variant
def test_first_and_second_derivatives(variant) -> None:
    """29, C09: B=1, H=2, L=5, K=3 in float64."""
    inputs = inputs_of((1, 2, 5, 3), torch.float64, wanted=BOTH)[:2]
    exact = {"rtol": 1e-6, "atol": 1e-7}  # central differences of what is linear in each tensor
    assert torch.autograd.gradcheck(lambda x, k: depthwise_conv(x, k, variant), inputs, **exact)
    assert torch.autograd.gradgradcheck(lambda x, k: depthwise_conv(x, k, variant), inputs, **exact)


@every_variant
def test_the_second_gpu(variant) -> None:
    """22, C12: tensors on cuda:1 while cuda:0 is current; x on one and k on the other."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs, and PyTorch sees one")
    x, k, gy = inputs_of((8, 16, 48, 48), device="cuda:1", wanted=BOTH)
    with torch.cuda.device(0):
        y = depthwise_conv(x, k, variant)
        y.backward(gy)
        assert torch.cuda.current_device() == 0
    found = {"forward": y.detach(), "input_grad": x.grad, "weight_grad": k.grad}
    assert {tensor.device for tensor in found.values()} == {x.device}
    assert max(errors_of(found, by_definition(x.detach(), k.detach(), gy)).values()) <= 5e-7
    with pytest.raises(ValueError, match="x is on cuda:0 and k on cuda:1"):
        depthwise_conv(x.to("cuda:0"), k, variant)


@every_variant
def test_a_cpu_tensor_is_refused(variant) -> None:
    """C12, 14: beside a GPU tensor, and alone."""
    x, k, gy = inputs_of((1, 2, 4, 4))
    with pytest.raises(ValueError, match="x is on cuda:0 and k on cpu"):
        depthwise_conv(x, k.cpu(), variant)
    with pytest.raises(ValueError, match="x is on cpu and k on cuda:0"):
        depthwise_conv(x.cpu(), k, variant)
    with pytest.raises(ValueError, match="x is on cuda:0 and k on cpu"):
        conv_forward(x, k.cpu(), variant)
    with pytest.raises(ValueError, match="gy is on cuda:0 and x on cpu"):
        conv_weight_grad(gy, x.cpu(), 4, variant)
    with pytest.raises(KernelUnavailableError, match="not on 'cpu'"):
        depthwise_conv(x.cpu(), k.cpu(), variant)
    with pytest.raises(KernelUnavailableError, match="not on 'cpu'"):
        require_kernel(variant, "cpu")


@every_variant
def test_no_memory_but_the_result_and_few_partial_sums(variant) -> None:
    """What a call asks the allocator for, at the study's shape."""
    x, k, gy = inputs_of((16384, 128, 48, 48))

    def asked_for(call) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        call()
        return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before

    assert asked_for(lambda: conv_forward(x, k, variant)) == x.nbytes
    assert asked_for(lambda: conv_input_grad(gy, k, variant)) == x.nbytes
    partial_sums = asked_for(lambda: conv_weight_grad(gy, x, 48, variant)) - k.nbytes
    assert 0 <= partial_sums <= 0.03 * x.nbytes


@every_variant
@pytest.mark.parametrize("path", ["forward", "input_grad", "weight_grad"])
def test_a_library_that_computes_something_else_is_refused(
    path, variant, forgotten, monkeypatch
) -> None:
    """13: at its first use, for every path; a right one is taken afterwards."""
    right = getattr(launch.Kernels, path)
    x, k, _ = inputs_of((4, 3, 48, 48))
    with monkeypatch.context() as patch:
        patch.setattr(launch.Kernels, path, lambda *arguments: 1.001 * right(*arguments))
        told = f"'{variant}' fails its self-test on .*: {path.split('_')[0]}.*these work: pytorch"
        for _ in range(2):
            with pytest.raises(KernelUnavailableError, match=told):
                depthwise_conv(x, k, variant)
    assert relative_error(depthwise_conv(x, k, variant), depthwise_conv(x, k).double()) < 1e-6
