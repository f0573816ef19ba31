"""The operators of torch.library, on a CPU: what autograd, compilers and exporters make of them."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cuda_ops
from cuda_ops import KernelUnavailableError, depthwise_conv, launch
from cuda_ops.jit import VARIANTS
from cuda_ops.op import conv_forward, conv_input_grad, conv_weight_grad
from tests.cuda_ops.paths import (
    by_definition,
    by_operator,
    errors_of,
    random_inputs,
    relative_error,
)

B, H, L, K = 3, 2, 7, 5
OPERATORS = {
    "forward": conv_forward,
    "input_grad": conv_input_grad,
    "weight_grad": conv_weight_grad,
}
LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "expanded": lambda t: t[:, :1].expand(t.shape),  # one row for all channels, with stride 0
    "offset": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
}
MASKS = [(True, True), (True, False), (False, True)]
EXACT = {"rtol": 1e-6, "atol": 1e-7}  # central differences of what is linear in each tensor
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def arguments(
    path: str, dtype=torch.float64, layout="contiguous", mask=(False, False), taps: int = K
) -> tuple:
    """What the operator of a path takes; `mask` says which of its tensors want a gradient."""
    x, k = random_inputs((B, H, L, taps), dtype)
    tensors = [torch.randn_like(x), x] if path == "weight_grad" else [x, k]
    tensors = [LAYOUTS[layout](tensor) for tensor in tensors]
    for tensor, wanted in zip(tensors, mask, strict=True):
        tensor.requires_grad_(wanted)
    return (*tensors, taps, "naive") if path == "weight_grad" else (*tensors, "naive")


class Calls(TorchDispatchMode):
    """Counts the calls of this project's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "s4convd":
            self.counts[func.name().removeprefix("s4convd::conv_")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_three_paths_are_the_definition(layout, dtype) -> None:
    """17, 18, 27: any strides; half precision is summed in float32 and rounded once."""
    x, k = (LAYOUTS[layout](tensor) for tensor in random_inputs((B, H, L, K), dtype))
    gy = LAYOUTS[layout](torch.randn_like(x))
    found = by_operator(x, k, gy, "naive")
    errors = errors_of(found, by_definition(x, k, gy))
    assert all(tensor.dtype == dtype for tensor in found.values())
    assert all(tensor.is_contiguous() for tensor in found.values())
    once = torch.finfo(dtype).eps / 2
    assert max(errors.values()) < {torch.float32: 5e-7, torch.float64: 1e-15}.get(dtype, once)


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_opcheck_for_each_mask(mask, path) -> None:
    """25, 30: schema, autograd registration, fake kernel, and the graph with dynamic shapes."""
    done = torch.library.opcheck(OPERATORS[path], arguments(path, mask=mask))
    assert set(done.values()) == {"SUCCESS"}


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize("layout", ["transposed", "expanded", "offset"])
def test_opcheck_for_each_layout(layout, path) -> None:
    """25: transposed, expanded and misaligned inputs."""
    done = torch.library.opcheck(
        OPERATORS[path], arguments(path, torch.float32, layout, (True, True))
    )
    assert set(done.values()) == {"SUCCESS"}


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("taps", [K, L + 2])
def test_fake_kernels_foretell_shape_strides_and_type(taps, dtype, layout, path) -> None:
    """25: a fake kernel whose strides differ from the real ones makes compiled code wrong."""
    inputs = arguments(path, dtype, layout, taps=taps)
    real = OPERATORS[path](*inputs)
    fake = OPERATORS[path](*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in inputs))
    assert fake.is_meta
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
    assert real.shape == ((H, taps) if path == "weight_grad" else (B, H, L))


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_first_and_second_derivatives(mask, path) -> None:
    """C09, 29: of every path, so the gradients can be differentiated too."""
    first, second, *rest = arguments(path, mask=mask)

    def operator(first, second):
        return OPERATORS[path](first, second, *rest)

    assert torch.autograd.gradcheck(operator, (first, second), **EXACT)
    assert torch.autograd.gradgradcheck(operator, (first, second), **EXACT)


@pytest.mark.parametrize("taps", [3, 9])
def test_derivatives_of_the_convolution(taps) -> None:
    """C09: B=1, H=2, L=5, with fewer taps than steps and with more."""
    x, k = (t.requires_grad_() for t in random_inputs((1, 2, 5, taps), torch.float64))
    assert torch.autograd.gradcheck(lambda x, k: conv_forward(x, k, "naive"), (x, k), **EXACT)
    assert torch.autograd.gradgradcheck(lambda x, k: conv_forward(x, k, "naive"), (x, k), **EXACT)


# path -> what the gradient of its first tensor runs, and that of its second
DERIVATIVES = {
    "forward": ("input_grad", "weight_grad"),
    "input_grad": ("forward", "weight_grad"),
    "weight_grad": ("forward", "input_grad"),
}


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize("mask", [(False, False), *MASKS], ids=str)
def test_only_what_is_wanted_is_saved_and_computed(mask, path) -> None:
    """30: a frozen input costs neither memory nor time, and gets no gradient."""
    inputs = arguments(path, mask=mask)
    saved: list[torch.Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with Calls() as calls, hooks:
        out = OPERATORS[path](*inputs)
        assert calls.counts == {path: 1}
        if any(mask):
            out.backward(torch.ones_like(out))
    wanted = [name for name, one in zip(DERIVATIVES[path], mask, strict=True) if one]
    assert calls.counts - Counter([path]) == Counter(wanted)
    needed = [inputs[1 - i].data_ptr() for i in (0, 1) if mask[i]]  # each gradient needs the other
    assert sorted(tensor.data_ptr() for tensor in saved) == sorted(needed)
    assert [tensor.grad is not None for tensor in inputs[:2]] == list(mask)


def test_each_gradient_of_each_mask_is_right() -> None:
    """30: what is left out changes nothing in what is not."""
    both = [tensor.requires_grad_() for tensor in random_inputs((B, H, L, K))]
    conv_forward(*both, "naive").sin().sum().backward()
    for mask in MASKS[1:]:
        some = [t.detach().requires_grad_(wanted) for t, wanted in zip(both, mask, strict=True)]
        conv_forward(*some, "naive").sin().sum().backward()
        (found,) = [one.grad for one in some if one.grad is not None]
        assert torch.equal(found, both[mask.index(True)].grad)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_needs_no_graph_break(dynamic) -> None:
    """C10, 24: forward and backward of two shapes equal what runs without the compiler."""

    def model(x, k):
        return torch.tanh(conv_forward(x, k, "warp_tiled"))

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for shape in ((4, 3, 48, 48), (6, 5, 33, 20)):
        inputs = [tensor.requires_grad_() for tensor in random_inputs(shape)]
        gy = torch.randn(shape[:3])
        found, expected = (
            (y.detach(), *torch.autograd.grad(y, inputs, gy))
            for y in (compiled(*inputs), model(*inputs))
        )
        for one, other in zip(found, expected, strict=True):
            assert relative_error(one, other.double()) < 1e-6


def test_depthwise_conv_compiles_whole_under_autocast_too() -> None:
    """C10, C06: its checks of types, shapes and autocast are no graph break."""
    torch.compiler.reset()
    compiled = torch.compile(depthwise_conv, fullgraph=True, backend="aot_eager")
    x, k = random_inputs((4, 3, 48, 48))
    assert relative_error(compiled(x, k), depthwise_conv(x, k).double()) < 1e-6
    with torch.autocast("cpu", torch.bfloat16):
        y = compiled(x, k)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, depthwise_conv(x, k))


def test_torch_export_keeps_the_operator_and_any_batch() -> None:
    """24: the exported graph calls s4convd::conv_forward, and B stays free."""

    class Model(torch.nn.Module):
        def forward(self, x, k):
            return conv_forward(x, k, "shared") + 1

    x, k = random_inputs((4, 3, 8, 8))
    shapes = ({0: torch.export.Dim("batch")}, None)
    program = torch.export.export(Model(), (x, k), dynamic_shapes=shapes)
    targets = [str(node.target) for node in program.graph.nodes]
    assert "s4convd.conv_forward.default" in targets
    x, k = random_inputs((9, 3, 8, 8))
    assert torch.equal(program.module()(x, k), Model()(x, k))


@pytest.mark.parametrize("shape", [(0, 8, 48, 48), (3, 0, 48, 48), (3, 8, 0, 48)], ids=str)
def test_empty_inputs(shape) -> None:
    """C14, 28: an empty output, and a filter gradient of zeros."""
    x, k = (tensor.requires_grad_() for tensor in random_inputs(shape))
    y = conv_forward(x, k, "naive")
    y.sum().backward()
    assert y.shape == x.shape
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(k.grad, torch.zeros_like(k))


@pytest.mark.parametrize("kernel", VARIANTS)
@pytest.mark.parametrize("gpu", [False, True])
def test_a_cuda_kernel_never_meets_a_cpu_tensor(gpu, kernel, monkeypatch) -> None:
    """C03, 14: it is refused, with or without a GPU beside; nothing else computes instead."""
    if gpu:
        monkeypatch.setattr(cuda_ops, "preflight", lambda variant: None)
    else:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    x, k = (tensor.requires_grad_() for tensor in random_inputs((1, 1, 4, 4)))
    told = "NVIDIA GPU, not on 'cpu'" if gpu else "NVIDIA GPU, and PyTorch"
    with Calls() as calls:
        with pytest.raises(KernelUnavailableError, match=f"kernel '{kernel}' .*{told}"):
            depthwise_conv(x, k, kernel)
        assert not calls.counts


def changed(path: str, **tensors: torch.Tensor) -> tuple:
    """Good arguments of a path's operator, but for some."""
    names = {"forward": ("x", "k"), "input_grad": ("gy", "k"), "weight_grad": ("gy", "x")}[path]
    first, second, *rest = arguments(path, torch.float32)
    return (tensors.get(names[0], first), tensors.get(names[1], second), *rest)


ROWS = torch.ones(B, H, L)
WRONG = [
    ("forward", {"x": ROWS.long()}, TypeError, "float32, .*not torch.int64"),
    ("forward", {"x": ROWS.double()}, TypeError, "torch.float64 and torch.float32"),
    ("forward", {"x": ROWS.cfloat(), "k": torch.ones(H, K).cfloat()}, TypeError, "complex64"),
    ("forward", {"x": ROWS[0]}, ValueError, r"not \(2, 7\), \(2, 5\)"),
    ("forward", {"k": torch.ones(H + 1, K)}, ValueError, "one H"),
    ("forward", {"k": torch.ones(K)}, ValueError, r"\(H, K\)"),
    ("forward", {"k": torch.ones(H, 0)}, ValueError, r"\(2, 0\)"),
    ("forward", {"k": torch.ones(H, K, device="meta")}, ValueError, "x is on cpu and k on meta"),
    ("input_grad", {"gy": ROWS.half()}, TypeError, "torch.float16 and torch.float32"),
    ("input_grad", {"gy": ROWS[0]}, ValueError, r"not \(2, 7\), \(2, 5\)"),
    ("input_grad", {"gy": ROWS.to("meta")}, ValueError, "meta and k on cpu"),
    ("weight_grad", {"gy": ROWS.bfloat16()}, TypeError, "torch.bfloat16 and torch.float32"),
    ("weight_grad", {"gy": ROWS[:, :1]}, ValueError, r"not \(3, 1, 7\), \(3, 2, 7\)"),
    ("weight_grad", {"gy": ROWS[0], "x": ROWS[0]}, ValueError, r"not \(2, 7\), \(2, 7\)"),
    ("weight_grad", {"x": ROWS.to("meta")}, ValueError, "gy is on cpu and x on meta"),
]


@pytest.mark.parametrize(("path", "tensors", "error", "told"), WRONG, ids=range(len(WRONG)))
def test_operators_refuse_what_does_not_fit(path, tensors, error, told) -> None:
    """C06, C12: types, shapes and devices, named."""
    with pytest.raises(error, match=told):
        OPERATORS[path](*changed(path, **tensors))


@pytest.mark.parametrize("kernel", ["pytorch", *VARIANTS])
def test_depthwise_conv_refuses_two_devices_and_odd_types(kernel) -> None:
    """C12: before any kernel is looked for."""
    x, k = random_inputs((1, 2, 4, 4))
    with pytest.raises(ValueError, match="x is on cpu and k on meta"):
        depthwise_conv(x, k.to("meta"), kernel)
    with pytest.raises(TypeError, match="float8"):
        depthwise_conv(x.to(torch.float8_e5m2), k.to(torch.float8_e5m2), kernel)


class FaultyKernels:
    """The three paths on a CPU, with a fault in one of them."""

    variant = "faulty"

    def __init__(self, path: str = "", fault=None) -> None:
        self.path, self.fault = path, fault

    def _run(self, path: str, *arguments) -> torch.Tensor:
        out = OPERATORS[path](*arguments, "naive")
        return self.fault(out) if path == self.path else out

    def forward(self, x, k):
        return self._run("forward", x, k)

    def input_grad(self, gy, k):
        return self._run("input_grad", gy, k)

    def weight_grad(self, gy, x, taps):
        return self._run("weight_grad", gy, x, taps)


FAULTS = {
    "a step late": lambda out: out.roll(1, -1),
    "one row unwritten": lambda out: out.index_fill(0, torch.tensor([0]), 0),
    "last step lost": lambda out: out.index_fill(-1, torch.tensor([out.shape[-1] - 1]), 0),
    "NaN": lambda out: out * float("nan"),
    "float64 summed in float32": lambda out: out.float().to(out.dtype),
}


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_self_test_finds_a_wrong_kernel(fault, path, monkeypatch) -> None:
    """13: a path that computes something else is refused and named."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a GPU of this test")
    cpu = torch.device("cpu")
    launch._self_test(FaultyKernels(), cpu)
    told = f"'faulty' fails its self-test on a GPU of this test: {path.split('_')[0]}"
    with pytest.raises(KernelUnavailableError, match=told):
        launch._self_test(FaultyKernels(path, FAULTS[fault]), cpu)


def test_the_self_test_is_of_no_default_device(monkeypatch) -> None:
    """13: it runs wherever a kernel is first used, also under `torch.device` as a context."""
    random = torch.get_rng_state()
    with torch.device("meta"):
        launch._self_test(FaultyKernels(), torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), random)
