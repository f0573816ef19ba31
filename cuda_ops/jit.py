"""Compiles the CUDA kernels when they are first used, and keeps what was compiled.

A variant is one file of `csrc`. It is compiled once for each of its scalar types, and the objects
are linked into one library, which ctypes loads: no header of PyTorch is read. Libraries lie in
~/.cache/s4convd/kernels ($XDG_CACHE_HOME/s4convd/kernels, or $TORCH_EXTENSIONS_DIR/s4convd), each
in a folder named after everything that decides its contents.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from cuda_ops.errors import unavailable
from cuda_ops.toolchain import Toolchain, find_ninja, find_toolchain

VARIANTS = ("naive", "coalesced", "shared", "warp_tiled")
"""The CUDA kernels of arXiv 2604.25422, in the order of the study."""

BLOCK = ("channels_last", "mixing", "filters")
"""The CUDA kernels of a whole block, kernel 'fused': of float32, for Hopper alone."""

SCALARS = ("float32", "float64", "float16", "bfloat16")
"""The types that each variant is compiled for; they end the names of its functions."""

SOURCES = Path(__file__).parent / "csrc"
FLAGS = ("-O3", "-std=c++17", "--compiler-options", "-fPIC")


def architectures() -> list[str]:
    """What to compile for, as "90", "90a" or "90+PTX".

    Exactly what TORCH_CUDA_ARCH_LIST says, as in "8.0 9.0+PTX"; where it is not set, the devices
    that PyTorch sees.

    Raises:
        KernelUnavailableError: the list cannot be read, or it is not set and there is no device.
    """
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    names = [name for name in re.split(r"[;,\s]+", asked) if name]
    for name in names:
        if not re.fullmatch(r"\d+\.\da?(\+PTX)?", name):
            raise unavailable(
                f"TORCH_CUDA_ARCH_LIST={asked} holds '{name}', which is no architecture; write "
                "numbers such as '8.0 9.0' or '9.0+PTX'"
            )
    if not names:
        devices = range(torch.cuda.device_count())
        names = ["{}.{}".format(*torch.cuda.get_device_capability(device)) for device in devices]
    if not names:
        raise unavailable(
            "there is no NVIDIA GPU whose architecture the kernels could be compiled for; name it, "
            "as in TORCH_CUDA_ARCH_LIST=9.0"
        )
    return sorted({name.replace(".", "") for name in names})


def scalars_of(variant: str) -> tuple[str, ...]:
    """The types that a variant is compiled for."""
    return SCALARS[:1] if variant in BLOCK else SCALARS


def architectures_of(variant: str, archs: Sequence[str]) -> list[str]:
    """Those of `archs` that a variant is compiled for; `BLOCK` needs what Hopper alone has."""
    if variant not in BLOCK:
        return list(archs)
    return ["90a"] if any(arch.startswith("90") for arch in archs) else []


def preflight(variant: str) -> None:
    """Find out, without compiling, whether a variant can be compiled and run here.

    Raises:
        KernelUnavailableError: there is no GPU, or a program that compiles is missing.
    """
    if not torch.cuda.is_available():
        why = "sees none here" if torch.version.cuda else "is built without CUDA"
        name = "fused" if variant in BLOCK else variant
        raise unavailable(
            f"kernel '{name}' runs on an NVIDIA GPU, and PyTorch {torch.__version__} {why}"
        )
    archs = architectures_of(variant, architectures())
    if not library_path(variant, archs, find_toolchain()).is_file():
        find_ninja()


@functools.cache
def load(variant: str, capability: tuple[int, int]) -> ctypes.CDLL:
    """The library of a variant for a device of this compute capability, compiled if need be.

    Raises:
        KernelUnavailableError: it cannot be compiled here, or it is not for this device.
    """
    if variant in BLOCK and capability != (9, 0):
        raise unavailable(
            f"kernel 'fused' runs on a Hopper GPU, H100 or H200, of compute capability 9.0, and "
            f"this one's is {capability[0]}.{capability[1]}; --kernel warp_tiled runs on it"
        )
    archs = architectures_of(variant, architectures())
    if not any(_covers(arch, capability) for arch in archs):
        major, minor = capability
        raise unavailable(
            f"TORCH_CUDA_ARCH_LIST={os.environ['TORCH_CUDA_ARCH_LIST']} leaves out this GPU, which "
            f"is {major}.{minor}, so kernel '{variant}' would not run; add {major}.{minor} to it, "
            "or unset it"
        )
    path = compile_variant(variant, archs)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise unavailable(
            f"kernel '{variant}' cannot be loaded: {error}; delete {path.parent}, and it is "
            "compiled again"
        ) from error


def _covers(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a device runs what was compiled for `arch`.

    Machine code runs on later devices of its major version, PTX on all later ones, and what is
    marked "a" on its own alone.
    """
    number, _, ptx = arch.partition("+")
    if number.endswith("a"):
        return number == "{}{}a".format(*capability)
    built = divmod(int(number), 10)
    return built <= capability and (built[0] == capability[0] or bool(ptx))


def compile_variant(variant: str, archs: Sequence[str]) -> Path:
    """The library of a variant, for architectures as `architectures` names them.

    It is compiled where there is none yet. However many processes ask at once, one of them
    compiles, and the others wait for it.

    Raises:
        KernelUnavailableError: something is missing, or the compiler refuses.
    """
    tools = find_toolchain()
    path = library_path(variant, archs, tools)
    if path.is_file():
        return path
    known = tools.gpu_codes()
    for arch in archs:
        if re.sub(r"a?(\+PTX)?$", "", f"sm_{arch}") not in known:
            raise unavailable(
                f"{tools.nvcc} cannot compile for sm_{arch}, only for {' '.join(known)}; set "
                "TORCH_CUDA_ARCH_LIST, or install another release of the CUDA toolkit"
            )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.parent / "lock", variant):
            if not path.is_file():
                _compile(path, variant, archs, tools)
    except OSError as error:
        raise unavailable(
            f"kernel '{variant}' cannot be written: {error}; set TORCH_EXTENSIONS_DIR to a folder "
            "that can"
        ) from error
    return path


def library_path(variant: str, archs: Sequence[str], tools: Toolchain) -> Path:
    """Where the library lies once it is compiled: another folder for whatever could change it."""
    digest = hashlib.sha256()
    for source in [SOURCES / f"{variant}.cu", *sorted(SOURCES.glob("*.cuh"))]:
        digest.update(source.name.encode() + hashlib.sha256(source.read_bytes()).digest())
    own_flags = [os.environ.get(name) for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")]
    versions = (torch.__version__, torch.version.cuda, tools.version, tools.host)
    digest.update(repr((FLAGS, own_flags, versions, list(archs))).encode())
    if folder := os.environ.get("TORCH_EXTENSIONS_DIR"):
        root = Path(folder) / "s4convd"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = Path(base) / "s4convd" / "kernels"
    # Absolute: ctypes would look for a bare name among the system's libraries.
    return root.absolute() / f"{variant}-{digest.hexdigest()[:16]}" / f"{variant}.so"


@contextmanager
def _lock(path: Path, variant: str) -> Iterator[None]:
    """Holds a lock that ends with the process, however it ends; the file itself means nothing."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell(f"another process compiles kernel '{variant}': waiting for it (lock: {path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(path: Path, variant: str, archs: Sequence[str], tools: Toolchain) -> None:
    """Compile a variant into `path`. The caller holds the lock of its folder."""
    ninja = find_ninja()
    _tell(
        f"compiling kernel '{variant}' for {arch_names(archs)}, once; it is kept in {path.parent}"
    )
    start = time.perf_counter()
    for left in path.parent.glob("build-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        (Path(folder) / "build.ninja").write_text(_ninja_file(variant, archs, tools))
        done = subprocess.run(
            [ninja], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            log = path.with_name("build.log")
            log.write_text(done.stdout)
            raise unavailable(_why_it_failed(variant, done.stdout, log))
        (Path(folder) / "library.so").replace(path)  # whole or not at all
    _tell(f"compiled kernel '{variant}' in {time.perf_counter() - start:.0f} s")


def _ninja_file(variant: str, archs: Sequence[str], tools: Toolchain) -> str:
    """One object for each scalar type, at the same time, and the library of them all."""
    objects = [f"{scalar}.o" for scalar in scalars_of(variant)]
    lines = ["rule run", "  command = $line"]
    for scalar in scalars_of(variant):
        command = compile_command(variant, scalar, archs, tools)
        lines += [f"build {scalar}.o: run", f"  line = {_for_ninja(command)}"]
    # The nvcc of pip looks for its libraries in lib64, and pip puts them into lib.
    libraries = Path(tools.nvcc).parents[1] / "lib"
    link = [tools.nvcc, "-shared", "-ccbin", tools.host, *_gencode(archs), f"-L{libraries}"]
    link += ["-o", "library.so", *objects]
    lines += [f"build library.so: run {' '.join(objects)}", f"  line = {_for_ninja(link)}", ""]
    return "\n".join(lines)


def compile_command(variant: str, scalar: str, archs: Sequence[str], tools: Toolchain) -> list[str]:
    """The command that compiles a variant for one scalar type, into `<scalar>.o`."""
    flags = [*FLAGS, "-ccbin", tools.host, *_gencode(archs), f"-DSCALAR_{scalar}"]
    return [tools.nvcc, *flags, "-c", str(SOURCES / f"{variant}.cu"), "-o", f"{scalar}.o"]


def _gencode(archs: Sequence[str]) -> list[str]:
    flags = set()
    for arch in archs:
        number, _, ptx = arch.partition("+")
        for code in ("sm", "compute") if ptx else ("sm",):
            flags.add(f"-gencode=arch=compute_{number},code={code}_{number}")
    return sorted(flags)


def _for_ninja(command: list[str]) -> str:
    return shlex.join(command).replace("$", "$$")


def arch_names(archs: Sequence[str]) -> str:
    """Architectures as a user reads them."""
    return ", ".join(f"sm_{arch}" for arch in archs)


def _why_it_failed(variant: str, output: str, log: Path) -> str:
    """The compiler's first two complaints, as the four types repeat them, and where the rest is."""
    complaint = re.compile(r"(error|fatal) *:|not found|cannot find")
    told = [line for line in output.splitlines() if complaint.search(line)]
    first = "\n".join(list(dict.fromkeys(told or output.splitlines()))[:2])
    advice = ""
    if re.search(r"unsupported \w+ version|host compiler", output, re.IGNORECASE):
        advice = "; set NVCC_CCBIN to the path of a g++ that this nvcc supports"
    return f"kernel '{variant}' does not compile: {first}\nall of it: {log}{advice}"


def _tell(news: str) -> None:
    print(news, file=sys.stderr, flush=True)
