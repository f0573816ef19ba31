"""The first use of the block's kernels, which PyTorch plays here on a CPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cuda_ops import KernelUnavailableError, block, block_launch

CPU = torch.device("cpu")
OPS = torch.ops.s4convd


class Played:
    """`BlockKernels`, of PyTorch's own functions in float32."""

    def __init__(self, device: torch.device) -> None:
        assert device == CPU

    def conv(self, x, k):
        return block._conv(x, k)

    def conv_gradients(self, gy, x, k, added):
        gx, gk = block._gradients(block._conv, (x, k), gy)
        return gx if added is None else gx + added, gk

    def last_step(self, x, k):
        return block._conv(x, k)[:, -1]

    def last_step_gradients(self, gy, x, k, added):
        return OPS.last_step_backward(gy, added, x, k)

    def images(self, w):
        return w

    def mix(self, x, z, w, b, p, seed):
        return x + block._mixed(z, w, b, p, seed if p else None)

    def mix_gradients(self, dout, z, w, b, p, seed):
        return block._gradients(
            lambda z, w, b: block._mixed(z, w, b, p, seed if p else None), (z, w, b), dout
        )

    def filters(self, parameters, length):
        return OPS.filters(*parameters, length)

    def filter_gradients(self, gk, parameters):
        return OPS.filters_backward(gk, *parameters)


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(block_launch, "BlockKernels", Played)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "a GPU")
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    block_launch.block_kernels.cache_clear()
    yield
    block_launch.block_kernels.cache_clear()


def test_right_kernels_pass() -> None:
    assert isinstance(block_launch.block_kernels(CPU), Played)


def test_the_first_use_may_be_within_an_operator() -> None:
    """There autograd is off, which the truth is computed with: the first use was refused."""
    with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
        assert isinstance(block_launch.block_kernels(CPU), Played)


@pytest.mark.parametrize(
    ("method", "result", "told"),
    [
        ("conv", None, "convolution, 64 channels"),
        ("conv_gradients", 0, "convolution, dx, 64"),
        ("conv_gradients", 1, "convolution, dk, 64"),
        ("last_step", None, "last step, 64"),
        ("last_step_gradients", 0, "last step, dx"),
        ("last_step_gradients", 1, "last step, dk"),
        ("mix", None, "mixing, 64"),
        ("mix_gradients", 0, "mixing, dz"),
        ("mix_gradients", 1, "mixing, dW"),
        ("mix_gradients", 2, "mixing, db"),
        ("filters", None, "filters, 64"),
        ("filter_gradients", 0, "filters, gradient of log_dt"),
        ("filter_gradients", 4, "filters, gradient of C_im"),
    ],
)
def test_a_kernel_that_is_off_by_a_hundredth_is_refused(
    monkeypatch: pytest.MonkeyPatch, method: str, result: int | None, told: str
) -> None:
    """C06: code that runs and is wrong."""
    right = getattr(Played, method)

    def wrong(self: Played, *arguments: Any) -> Any:
        found = right(self, *arguments)
        if result is None:
            return 1.01 * found
        return [1.01 * part if n == result else part for n, part in enumerate(found)]

    monkeypatch.setattr(Played, method, wrong)
    with pytest.raises(
        KernelUnavailableError, match=f"self-test on a GPU: {told}.* off by 1.0e-02"
    ):
        block_launch.block_kernels(CPU)
