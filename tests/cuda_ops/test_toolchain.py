"""The tools that compile a kernel are found, or the user is told what to do."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cuda_ops import jit, toolchain
from cuda_ops.jit import compile_variant
from cuda_ops.toolchain import find_toolchain
from tests.cuda_ops.conftest import FakeToolkit, refusal


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
