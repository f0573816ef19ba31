"""Finds the programs that compile a CUDA kernel, or says what to install."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from cuda_ops.errors import unavailable

USUAL_HOME = "/usr/local/cuda"
"""Where NVIDIA's installers put the toolkit."""


@dataclass(frozen=True)
class Toolchain:
    """The compilers of one machine. Their paths are absolute: they are run from other folders."""

    nvcc: str
    version: str  # all that `nvcc --version` prints
    host: str  # the C++ compiler that nvcc calls

    def gpu_codes(self) -> list[str]:
        """The architectures that this nvcc can compile for, as "sm_90"."""
        return _output([self.nvcc, "--list-gpu-code"]).split()


def find_toolchain() -> Toolchain:
    """The nvcc and the C++ compiler to use.

    Raises:
        KernelUnavailableError: one of them is not here.
    """
    nvcc, version = find_nvcc()
    return Toolchain(nvcc, version, find_host_compiler())


def find_nvcc() -> tuple[str, str]:
    """The first nvcc of the CUDA major version of PyTorch, and what its `--version` prints.

    Raises:
        KernelUnavailableError: none is here, or PyTorch is built without CUDA.
    """
    cuda = torch.version.cuda
    if cuda is None:
        raise unavailable(
            f"the CUDA kernels need an NVIDIA GPU and a PyTorch for it, and PyTorch "
            f"{torch.__version__} is built without CUDA"
        )
    major = cuda.split(".")[0]
    seen = []
    for place, nvcc in _nvcc_places().items():
        if nvcc is None or not os.access(nvcc, os.X_OK):
            seen.append(f"{place} has none")
            continue
        version = _output([nvcc, "--version"])
        release = re.search(r"release (\d+)\.\d+", version)
        if release and release[1] == major:
            return str(Path(nvcc).absolute()), version
        seen.append(f"{nvcc} is {release[0] if release else 'broken: it prints no release'}")
    if os.environ.get("CUDA_HOME"):
        remedy = f"unset CUDA_HOME, or set it to the folder of a CUDA {cuda} toolkit"
    else:
        remedy = f"install the CUDA toolkit {cuda} and set CUDA_HOME to its folder"
        if int(major) >= 13:  # the packages of CUDA 12 hold no nvcc
            remedy += f", or run pip install 'cuda-toolkit[nvcc,cccl]=={cuda}.*'"
    raise unavailable(
        f"PyTorch {torch.__version__} is built for CUDA {cuda}, so its kernels are compiled by an "
        f"nvcc of CUDA {major}, and none was found: {', '.join(seen)}; {remedy}"
    )


def _nvcc_places() -> dict[str, str | None]:
    """Where an nvcc may be -> its path, in the order in which they are tried."""
    home = os.environ.get("CUDA_HOME")
    if home:  # who sets it means that one and no other
        return {f"CUDA_HOME={home}": f"{home}/bin/nvcc"}
    places = {
        "PATH": shutil.which("nvcc"),
        USUAL_HOME: f"{USUAL_HOME}/bin/nvcc",
        "pip's cuda-toolkit": _nvcc_of_pip(),
    }
    path = os.environ.get("CUDA_PATH")
    return {f"CUDA_PATH={path}": f"{path}/bin/nvcc", **places} if path else places


def _nvcc_of_pip() -> str | None:
    spec = importlib.util.find_spec("nvidia")  # the folder that NVIDIA's packages share
    roots = (spec and spec.submodule_search_locations) or []
    return next((str(path) for root in roots for path in Path(root).glob("*/bin/nvcc")), None)


def find_host_compiler() -> str:
    """The C++ compiler that nvcc is to call: NVCC_CCBIN, else CXX, else g++.

    Raises:
        KernelUnavailableError: it is not here.
    """
    variable = next((name for name in ("NVCC_CCBIN", "CXX") if os.environ.get(name)), None)
    program = os.environ[variable] if variable else "g++"
    found = shutil.which(program)
    if found is None:
        why = f"{variable}={program} names no program" if variable else "there is no g++ on PATH"
        raise unavailable(
            f"nvcc needs a C++ compiler, and {why}; install g++, or set NVCC_CCBIN to the path of "
            "one that is installed"
        )
    return str(Path(found).absolute())


def find_ninja() -> str:
    """The ninja beside the interpreter, which need not be on PATH, else another.

    Raises:
        KernelUnavailableError: there is none.
    """
    folders = [str(Path(sys.executable).parent)]
    if importlib.util.find_spec("ninja"):
        from ninja import BIN_DIR

        folders.append(BIN_DIR)
    folders.append(os.environ.get("PATH", ""))
    found = shutil.which("ninja", path=os.pathsep.join(filter(None, folders)))
    if found is None:
        raise unavailable(
            f"the kernels are compiled with ninja, and there is none in {folders[0]} or on PATH; "
            "run pip install ninja"
        )
    return found


def _output(command: list[str]) -> str:
    """What a command prints; nothing where it does not run."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""
