"""A kernel is compiled once, whatever else runs, and kept where nothing stale is found."""

import multiprocessing
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuda_ops import jit
from cuda_ops.jit import SCALARS, compile_variant, library_path
from cuda_ops.toolchain import find_toolchain
from tests.cuda_ops.conftest import FakeToolkit, refusal

PROCESSES = multiprocessing.get_context("fork")  # they need not import PyTorch again


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
