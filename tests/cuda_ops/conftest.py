"""A toolkit that compiles nothing, a cache of the test's own, and machines with or without GPU."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuda_ops import jit
from cuda_ops.errors import KernelUnavailableError
from cuda_ops.toolchain import find_toolchain

# It prints what nvcc prints, writes down how it was called, and makes the file it was asked for.
FAKE_NVCC = """#!/bin/sh
case "$1" in
  --version) echo 'Cuda compilation tools, {release}'; exit;;
  --list-gpu-code) printf 'sm_80\\nsm_90\\n'; exit;;
esac
echo "$@" >> '{calls}'
{meanwhile}
while [ "$1" != -o ]; do shift; done
echo not a library > "$2"
"""


class FakeToolkit:
    """A folder as CUDA_HOME names one, with a fake nvcc that takes part in no compiling."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.nvcc = home / "bin" / "nvcc"
        self.calls = home / "calls"
        self.nvcc.parent.mkdir(parents=True)
        self.write()

    def write(self, release: str = "release 13.0, V13.0.88", meanwhile: str = "") -> None:
        self.nvcc.write_text(
            FAKE_NVCC.format(release=release, calls=self.calls, meanwhile=meanwhile)
        )
        self.nvcc.chmod(0o755)

    def compilations(self) -> int:
        """How often the compiler ran, once for each type of a variant."""
        return self.calls.read_text().count(" -c ") if self.calls.exists() else 0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and a folder of sources, of the test's own."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "tiny.cu").write_text('#include "tiny.cuh"\n')
    (sources / "tiny.cuh").write_text("#define ANSWER 42\n")
    monkeypatch.setattr(jit, "SOURCES", sources)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    jit.load.cache_clear()
    return tmp_path / "cache" / "s4convd"


@pytest.fixture
def toolkit(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeToolkit:
    """The only nvcc of the machine, and a PyTorch that fits it."""
    fake = FakeToolkit(tmp_path / "my $HOME 100%")
    monkeypatch.setenv("CUDA_HOME", str(fake.home))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("NVCC_CCBIN", sys.executable)  # never called
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return fake


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says that there are two devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8 + device, 0))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def real_nvcc() -> None:
    try:
        find_toolchain()
    except KernelUnavailableError as error:
        pytest.skip(f"nothing can be compiled here: {error}")


def refusal(call: Callable[..., object], *args: object) -> str:
    """The message with which a call is refused: short, and with the way out."""
    with pytest.raises(KernelUnavailableError) as caught:
        call(*args)
    message = str(caught.value)
    assert len(message.splitlines()) <= 3
    assert message.endswith("these work: pytorch")
    return message
