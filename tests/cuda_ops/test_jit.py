"""The CUDA kernels are compiled once, by the right tools, or the user is told what to do."""

import ctypes
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cuda_ops import build, jit, toolchain
from cuda_ops.errors import KernelUnavailableError
from cuda_ops.jit import SCALARS, VARIANTS, compile_variant, library_path
from cuda_ops.toolchain import find_toolchain

SUPPORTED = ["75", "80", "86", "90", "100", "120"]
PROCESSES = multiprocessing.get_context("fork")  # they need not import PyTorch again

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


def test_it_is_compiled_once(toolkit: FakeToolkit, capfd: pytest.CaptureFixture[str]) -> None:
    """Checklist 5: it was compiled anew at every start, or in silence.

    What is finished takes no lock: it may lie in a folder that is read-only.
    """
    path = compile_variant("tiny", ["90"])
    news = capfd.readouterr().err
    assert "compiling kernel 'tiny' for sm_90" in news
    assert str(path.parent) in news
    assert re.search(r"compiled kernel 'tiny' in \d+ s", news)
    assert toolkit.compilations() == len(SCALARS)

    assert sorted(entry.name for entry in path.parent.iterdir()) == ["lock", "tiny.so"]
    (path.parent / "lock").unlink()
    again = PROCESSES.Process(target=compile_variant, args=("tiny", ["90"]))
    again.start()
    again.join()
    assert again.exitcode == 0
    assert toolkit.compilations() == len(SCALARS)
    assert capfd.readouterr().err == ""
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.so"]


def test_eight_processes_compile_once(
    toolkit: FakeToolkit, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checklist 2, C02: ranks that started together corrupted the cache."""
    toolkit.write(meanwhile="sleep 0.3")
    ready = PROCESSES.Barrier(8)

    def rank() -> None:
        ready.wait()
        assert compile_variant("tiny", ["90"]).is_file()

    ranks = [PROCESSES.Process(target=rank) for _ in range(8)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * 8
    assert toolkit.compilations() == len(SCALARS)
    assert "another process compiles kernel 'tiny': waiting" in capfd.readouterr().err


def test_a_killed_build_is_made_anew(toolkit: FakeToolkit, tmp_path: Path) -> None:
    """Checklist 1, C01: the lock of a killed build made every later run hang.

    Its compiler outlives it, and must not write among the files of the next build.
    """
    hold = tmp_path / "hold"
    hold.touch()
    toolkit.write(meanwhile=f"while [ -e '{hold}' ]; do sleep 0.02; done")
    killed = PROCESSES.Process(target=compile_variant, args=("tiny", ["90"]))
    killed.start()
    try:
        while toolkit.compilations() == 0:
            time.sleep(0.01)
        killed.kill()
        killed.join()
        toolkit.write()
        path = compile_variant("tiny", ["90"])
    finally:
        hold.unlink()
    assert path.is_file()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["lock", "tiny.so"]


def test_an_old_lock_file_stops_nobody(toolkit: FakeToolkit) -> None:
    """C01: a lock that was only a file stayed behind for ever."""
    path = library_path("tiny", ["90"], find_toolchain())
    path.parent.mkdir(parents=True)
    (path.parent / "lock").touch()
    assert compile_variant("tiny", ["90"]) == path
    assert path.is_file()


def _set(target: object, name: str, value: object) -> Callable[..., None]:
    return lambda monkeypatch, toolkit: monkeypatch.setattr(target, name, value)


def _edit(name: str) -> Callable[..., None]:
    return lambda monkeypatch, toolkit: (jit.SOURCES / name).write_text("// edited\n")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_edit("tiny.cu"), id="source"),
        pytest.param(_edit("tiny.cuh"), id="header"),
        pytest.param(_edit("other.cuh"), id="new-header"),
        pytest.param(_set(jit, "FLAGS", ("-O2",)), id="flags"),
        pytest.param(_set(torch, "__version__", "9.9"), id="torch"),
        pytest.param(_set(torch.version, "cuda", "13.1"), id="torch-cuda"),
        pytest.param(lambda _, kit: kit.write("release 13.1, V13.1.2"), id="nvcc"),
        pytest.param(lambda patch, _: patch.setenv("NVCC_CCBIN", "/bin/sh"), id="host"),
        pytest.param(lambda patch, _: patch.setenv("NVCC_APPEND_FLAGS", "-g"), id="own-flags"),
    ],
)
def test_what_could_change_the_library_names_another_folder(
    toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    """Checklist 3 and 4, C04: a library outlived what it was compiled from, by or for."""
    before = library_path("tiny", ["90"], find_toolchain())
    assert library_path("tiny", ["90"], find_toolchain()) == before
    assert library_path("tiny", ["80"], find_toolchain()).parent != before.parent
    change(monkeypatch, toolkit)
    assert library_path("tiny", ["90"], find_toolchain()).parent != before.parent


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"TORCH_EXTENSIONS_DIR": "{}/ext"}, "ext/s4convd"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/s4convd/kernels"),
        ({"HOME": "{}"}, ".cache/s4convd/kernels"),
    ],
)
def test_where_the_cache_is(
    toolkit: FakeToolkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    root: str,
) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert library_path("tiny", ["90"], find_toolchain()).parents[1] == tmp_path / root


def test_relative_paths_are_of_the_folder_that_is_worked_in(
    toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler runs in another folder, where they would name something else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "cache")
    monkeypatch.setenv("CUDA_HOME", toolkit.home.name)
    monkeypatch.setenv("NVCC_CCBIN", f"{toolkit.home.name}/bin/nvcc")
    path = compile_variant("tiny", ["90"])
    assert path.is_absolute()
    assert path.is_relative_to(tmp_path)
    assert f"-ccbin {toolkit.nvcc}" in toolkit.calls.read_text()


def test_a_cache_that_cannot_be_written_is_named(
    toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    message = refusal(compile_variant, "tiny", ["90"])
    assert str(tmp_path / "file") in message
    assert "set TORCH_EXTENSIONS_DIR" in message


def test_a_damaged_library_is_named(toolkit: FakeToolkit, gpu: None) -> None:
    message = refusal(jit.load, "tiny", (9, 0))
    assert "tiny.so" in message
    assert "delete" in message


SOURCE = """
#include "tiny.cuh"
#if defined(SCALAR_float32)
#define NAME answer_float32
#elif defined(SCALAR_float64)
#define NAME answer_float64
#elif defined(SCALAR_float16)
#define NAME answer_float16
#elif defined(SCALAR_bfloat16)
#define NAME answer_bfloat16
#endif
static __global__ void kernel(int* answer) { *answer = ANSWER; }
extern "C" int NAME(int* answer) {
  if (answer) kernel<<<1, 1>>>(answer);
  return ANSWER;
}
"""


def test_real_compiler_odd_paths_and_an_edited_header(
    real_nvcc: None, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 4, C17: a space in a path broke the build, and an edited header went unseen."""
    odd = tmp_path / "it's mine: 100%"
    odd.mkdir()
    jit.SOURCES.rename(odd / "src")
    monkeypatch.setattr(jit, "SOURCES", odd / "src")
    (odd / "src" / "tiny.cu").write_text(SOURCE)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(odd / "my cache"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX")
    library = jit.load("tiny", (9, 0))
    assert [library[f"answer_{scalar}"](None) for scalar in SCALARS] == [42] * 4
    assert jit.load("tiny", (9, 0)) is library

    (odd / "src" / "tiny.cuh").write_text("#define ANSWER 43\n")
    jit.load.cache_clear()
    assert jit.load("tiny", (9, 0)).answer_float32(None) == 43


def test_a_real_complaint_is_shown(real_nvcc: None, cache: Path) -> None:
    """The first error of the compiler was lost in pages of output."""
    (jit.SOURCES / "tiny.cu").write_text("\n\nint f() { return missing_name; }\n")
    message = refusal(compile_variant, "tiny", ["90"])
    assert "tiny.cu(3): error: " in message
    assert "missing_name" in message
    (log,) = cache.glob("*/build.log")
    assert str(log) in message
    assert log.read_text().count("missing_name") >= 1
    assert sorted(entry.name for entry in log.parent.iterdir()) == ["build.log", "lock"]


def test_no_nvcc_where_cuda_home_says(
    toolkit: FakeToolkit, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 6, C03: a wrong CUDA_HOME ended in a traceback, or in another compiler."""
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    monkeypatch.setenv("PATH", str(toolkit.nvcc.parent))
    for call in (jit.preflight, lambda _: compile_variant("tiny", ["90"])):
        message = refusal(call, "tiny")
        assert "CUDA_HOME=/nonexistent has none" in message
        assert "unset CUDA_HOME" in message


@pytest.fixture
def bare(toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where no nvcc is found, and an empty folder that is all of PATH."""
    monkeypatch.delenv("CUDA_HOME")
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setattr(toolchain, "USUAL_HOME", str(empty / "cuda"))
    monkeypatch.setattr(toolchain, "_nvcc_of_pip", lambda: None)
    return empty


def test_no_nvcc_at_all(bare: Path) -> None:
    """Checklist 6: the missing compiler showed as a NameError far away."""
    message = refusal(compile_variant, "tiny", ["90"])
    assert f"PATH has none, {bare}/cuda has none, pip's cuda-toolkit has none" in message
    assert "install the CUDA toolkit 13.0 and set CUDA_HOME" in message
    assert "pip install 'cuda-toolkit[nvcc,cccl]==13.0.*'" in message


def test_pip_is_not_advised_where_it_has_no_nvcc(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    message = refusal(compile_variant, "tiny", ["90"])
    assert "install the CUDA toolkit 12.8" in message
    assert "pip install" not in message


def test_a_pytorch_without_cuda_is_named(
    toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    message = refusal(compile_variant, "tiny", ["90"])
    assert "NVIDIA GPU" in message
    assert f"PyTorch {torch.__version__} is built without CUDA" in message


@pytest.mark.parametrize("place", ["CUDA_PATH", "PATH", "/usr/local/cuda", "pip"])
def test_every_place_is_looked_at(
    bare: Path, toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    match place:
        case "CUDA_PATH":
            monkeypatch.setenv("CUDA_PATH", str(toolkit.home))
        case "PATH":
            monkeypatch.setenv("PATH", str(toolkit.nvcc.parent))
        case "/usr/local/cuda":
            monkeypatch.setattr(toolchain, "USUAL_HOME", str(toolkit.home))
        case "pip":
            monkeypatch.setattr(toolchain, "_nvcc_of_pip", lambda: str(toolkit.nvcc))
    assert find_toolchain().nvcc == str(toolkit.nvcc)


def test_nvcc_among_the_packages_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert toolchain._nvcc_of_pip() == str(nvcc)


def test_another_major_version_is_refused(toolkit: FakeToolkit) -> None:
    """Checklist 7: nvcc and PyTorch of different CUDA failed somewhere in a header."""
    toolkit.write("release 12.4, V12.4.131")
    message = refusal(compile_variant, "tiny", ["90"])
    assert f"PyTorch {torch.__version__} is built for CUDA 13.0" in message
    assert f"{toolkit.nvcc} is release 12.4" in message
    assert "the folder of a CUDA 13.0 toolkit" in message
    assert toolkit.compilations() == 0


def test_one_that_fits_is_found_behind_one_that_does_not(
    bare: Path, toolkit: FakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 7: an old nvcc of the distribution hid the toolkit that was installed for it."""
    old = FakeToolkit(tmp_path / "old")
    old.write("release 11.8, V11.8.89")
    monkeypatch.setenv("PATH", str(old.nvcc.parent))
    monkeypatch.setattr(toolchain, "USUAL_HOME", str(toolkit.home))
    assert find_toolchain().nvcc == str(toolkit.nvcc)


@pytest.mark.parametrize(
    ("cuda", "release"),
    [
        ("13.0", "release 13.0, V13.0.88"),
        ("13.0", "release 13.12, V13.12.1"),
        ("13.4", "release 13.0, V13.0.88"),
        ("14.0", "release 14.2"),
        ("9.2", "release 9.10, V9.10.7"),
    ],
)
def test_every_release_of_the_major_version_fits(
    toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch, cuda: str, release: str
) -> None:
    """Checklist 8: a version newer than those known was refused."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    toolkit.write(release)
    assert compile_variant("tiny", ["90"]).is_file()


@pytest.mark.parametrize("broken", ["exit 1", "echo nothing of use", "#!/nonexistent"])
def test_an_nvcc_that_does_not_run_is_named(toolkit: FakeToolkit, broken: str) -> None:
    first = "" if broken.startswith("#!") else "#!/bin/sh\n"
    toolkit.nvcc.write_text(f"{first}{broken}\n")
    assert f"{toolkit.nvcc} is broken" in refusal(compile_variant, "tiny", ["90"])


def _program(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_ninja_need_not_be_on_path(
    toolkit: FakeToolkit, gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 9: the environment was not activated, so its ninja was not on PATH."""
    import ninja

    beside, of_package, on_path = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setattr(ninja, "BIN_DIR", str(of_package))
    monkeypatch.setenv("PATH", str(on_path))
    message = refusal(jit.preflight, "tiny")
    assert f"there is none in {beside} or on PATH" in message
    assert "pip install ninja" in message
    for folder in (on_path, of_package, beside):
        expected = _program(folder / "ninja")
        assert toolchain.find_ninja() == expected
    jit.preflight("tiny")


@pytest.mark.parametrize("package", [None, SimpleNamespace(BIN_DIR="", __spec__="something")])
def test_ninja_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: object
) -> None:
    """The package is not there, or does not find its own program."""
    monkeypatch.setitem(sys.modules, "ninja", package)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    _program(tmp_path / "ninja")  # in the folder that is worked in: nobody asked for that one
    expected = _program(tmp_path / "bin" / "ninja")
    assert toolchain.find_ninja() == expected


def test_what_is_compiled_already_needs_no_ninja(
    toolkit: FakeToolkit, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_variant("tiny", jit.architectures())
    monkeypatch.setattr(jit, "find_ninja", lambda: pytest.fail("looked for ninja"))
    jit.preflight("tiny")


@pytest.mark.parametrize(
    ("variable", "program", "told"),
    [
        ("NVCC_CCBIN", "/nonexistent/g++", "NVCC_CCBIN=/nonexistent/g++ names no program"),
        ("CXX", "g++-99", "CXX=g++-99 names no program"),
        ("PATH", "/nonexistent", "there is no g++ on PATH"),
    ],
)
def test_no_host_compiler(
    toolkit: FakeToolkit,
    gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    program: str,
    told: str,
) -> None:
    """Checklist 10: without a C++ compiler, nvcc's own message named no remedy."""
    monkeypatch.delenv("NVCC_CCBIN")
    monkeypatch.setenv(variable, program)
    message = refusal(jit.preflight, "tiny")
    assert told in message
    assert "set NVCC_CCBIN" in message


@pytest.mark.parametrize(
    "complaint",
    [
        "host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions later than 15 "
        "are not supported!",
        "nvcc fatal   : Failed to preprocess host compiler properties.",
        "nvcc fatal   : Host compiler targets unsupported OS.",
    ],
)
def test_a_host_compiler_that_nvcc_refuses(toolkit: FakeToolkit, complaint: str) -> None:
    """Checklist 10: a g++ too new for nvcc; the advice names the variable to set."""
    toolkit.write(meanwhile=f"echo '{complaint}' >&2; exit 1")
    message = refusal(compile_variant, "tiny", ["90"])
    assert message.count(complaint) == 1
    assert "set NVCC_CCBIN" in message


def test_a_failure_without_the_word_error_is_shown(toolkit: FakeToolkit) -> None:
    toolkit.write(meanwhile="echo 'Segmentation fault'; exit 139")
    message = refusal(compile_variant, "tiny", ["90"])
    assert "FAILED" in message
    assert "NVCC_CCBIN" not in message


@pytest.mark.parametrize(
    ("asked", "archs"),
    [
        ("8.0", ["80"]),
        ("8.0;9.0+PTX", ["80", "90+PTX"]),
        ("9.0a 8.6", ["86", "90a"]),
        ("12.0, 7.5,7.5", ["120", "75"]),
    ],
)
def test_the_list_is_taken_as_it_is(
    gpu: None, monkeypatch: pytest.MonkeyPatch, asked: str, archs: list[str]
) -> None:
    """Checklist 11: set, TORCH_CUDA_ARCH_LIST says exactly what is compiled."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
    assert sorted(jit.architectures()) == archs


@pytest.mark.parametrize("unset", ["", " ; "])
def test_without_a_list_the_devices_decide(
    gpu: None, monkeypatch: pytest.MonkeyPatch, unset: str
) -> None:
    """Checklist 11: unset, the devices present are compiled for."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", unset)
    assert jit.architectures() == ["80", "90"]


@pytest.mark.parametrize("word", ["Hopper", "90", "9.0+ptx", "sm_90", "9.0b"])
def test_no_architecture(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", f"8.0 {word}")
    message = refusal(jit.architectures)
    assert f"TORCH_CUDA_ARCH_LIST=8.0 {word} holds '{word}'" in message
    assert "'9.0+PTX'" in message


def test_no_list_and_no_device(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    assert "TORCH_CUDA_ARCH_LIST=9.0" in refusal(jit.architectures)


def test_nvcc_is_told_the_architectures(toolkit: FakeToolkit) -> None:
    compile_variant("tiny", ["80", "90", "90+PTX"])
    for call in toolkit.calls.read_text().splitlines():  # the compilations, and the link
        assert re.findall(r"arch=(\w+),code=(\w+)", call) == [
            ("compute_80", "sm_80"),
            ("compute_90", "compute_90"),
            ("compute_90", "sm_90"),
        ]


@pytest.mark.parametrize("arch", ["60", "60a", "100+PTX"])
def test_an_architecture_that_nvcc_does_not_know(toolkit: FakeToolkit, arch: str) -> None:
    message = refusal(compile_variant, "tiny", ["90", arch])
    assert f"{toolkit.nvcc} cannot compile for sm_{arch}, only for sm_80 sm_90" in message
    assert toolkit.compilations() == 0


@pytest.mark.parametrize(
    ("asked", "capability", "runs"),
    [
        ("9.0", (9, 0), True),
        ("8.0", (8, 6), True),
        ("8.6", (8, 0), False),
        ("8.0", (9, 0), False),
        ("8.0+PTX", (9, 0), True),
        ("10.0+PTX", (9, 0), False),
        ("8.0 9.0", (9, 0), True),
        ("9.0a", (9, 0), True),
        ("9.0a+PTX", (10, 0), False),
        ("10.0a", (10, 3), False),
        ("10.0", (10, 3), True),
        ("10.0", (12, 0), False),
    ],
)
def test_a_library_for_other_devices_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, asked: str, capability: tuple[int, int], runs: bool
) -> None:
    """Checklist 12, C04: "no kernel image is available", at the first launch."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
    monkeypatch.setattr(jit, "compile_variant", lambda *_: Path("library"))
    monkeypatch.setattr(ctypes, "CDLL", lambda path: path)
    jit.load.cache_clear()
    if runs:
        assert jit.load("tiny", capability) == "library"
    else:
        message = refusal(jit.load, "tiny", capability)
        name = "{}.{}".format(*capability)
        assert f"TORCH_CUDA_ARCH_LIST={asked} leaves out this GPU, which is {name}" in message
    jit.load.cache_clear()


def test_no_gpu(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """C03: what is missing, and a kernel that works."""
    for cuda, why in (("13.0", "sees none here"), (None, "is built without CUDA")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        message = refusal(jit.preflight, "warp_tiled")
        assert "kernel 'warp_tiled' runs on an NVIDIA GPU" in message
        assert why in message


def test_preflight_compiles_nothing(toolkit: FakeToolkit, gpu: None, cache: Path) -> None:
    jit.preflight("tiny")
    assert toolkit.compilations() == 0
    assert not cache.exists()


def test_the_command_compiles_ahead(
    toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0 9.0")
    for variant in VARIANTS:
        (jit.SOURCES / f"{variant}.cu").touch()
    monkeypatch.setattr(sys, "argv", ["build"])
    build.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(VARIANTS)
    for line in lines:
        assert re.fullmatch(r"\w+: \d+\.\d s, sm_80, sm_90, /.*\.so", line)
        assert Path(line.split(", ")[-1]).is_file()

    monkeypatch.setattr(sys, "argv", ["compile", "naive"])
    build.main()
    assert capsys.readouterr().out.startswith("naive: 0.0 s")
    assert toolkit.compilations() == len(VARIANTS) * len(SCALARS)


def test_the_command_ends_in_one_message(
    toolkit: FakeToolkit,
    no_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["build"])
    with pytest.raises(SystemExit) as end:
        build.main()
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: there is no NVIDIA GPU")
    assert printed.err.count("\n") == 1


def test_the_command_refuses_an_unknown_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compile", "magic"])
    with pytest.raises(SystemExit) as end:
        build.main()
    assert end.value.code == 2
    assert f"no kernel 'magic'; choose from: {', '.join(VARIANTS)}" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_warns_of_nothing() -> None:
    """Python warns of a module that is run after its package has imported it."""
    command = [sys.executable, "-m", "cuda_ops.build", "--help"]
    done = subprocess.run(command, cwd=Path(jit.__file__).parents[1], capture_output=True)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_compiles_for_every_gpu(
    real_nvcc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert compile_variant(variant, SUPPORTED).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["warp_tiled"])
def test_no_register_is_spilled(real_nvcc: None, tmp_path: Path, variant: str) -> None:
    """Registers that do not fit are kept in memory, which costs the bandwidth that was saved."""
    command = jit.compile_command(variant, "float32", SUPPORTED, find_toolchain())
    done = subprocess.run(
        [*command, "-Xptxas", "-v"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = re.findall(
        r"Compiling entry function '(\S+)' for '(\w+)'\n.*Function properties.*\n *(.*)\n",
        done.stderr,
    )
    assert {arch for _, arch, _ in found} == {f"sm_{arch}" for arch in SUPPORTED}
    spilled = [
        f"{arch} {name}: {used}"
        for name, arch, used in found
        if " 0 bytes spill stores" not in used
    ]
    assert spilled == []
