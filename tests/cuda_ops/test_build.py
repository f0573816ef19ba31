"""What is compiled, for which GPUs, by the real compiler too; `python -m cuda_ops.build`."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_ops import build, jit
from cuda_ops.jit import BLOCK, SCALARS, VARIANTS, compile_variant
from cuda_ops.toolchain import find_toolchain
from tests.cuda_ops.conftest import FakeToolkit, refusal

SUPPORTED = ["75", "90", "120"]  # the oldest, the one at hand, the newest: each takes a minute

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
    every = (*VARIANTS, *BLOCK)
    for variant in every:
        (jit.SOURCES / f"{variant}.cu").touch()
    monkeypatch.setattr(sys, "argv", ["build"])
    build.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(every)
    for variant, line in zip(every, lines, strict=True):
        archs = "sm_90a" if variant in BLOCK else "sm_80, sm_90"
        assert re.fullmatch(rf"\w+: \d+\.\d s, {archs}, /.*\.so", line)
        assert Path(line.split(", ")[-1]).is_file()

    monkeypatch.setattr(sys, "argv", ["compile", "naive"])
    build.main()
    assert capsys.readouterr().out.startswith("naive: 0.0 s")
    assert toolkit.compilations() == len(VARIANTS) * len(SCALARS) + len(BLOCK)

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    monkeypatch.setattr(sys, "argv", ["compile", "mixing"])
    build.main()
    assert "mixing: left out, it is for Hopper (9.0) alone" in capsys.readouterr().out


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
    assert (
        f"no kernel 'magic'; choose from: {', '.join((*VARIANTS, *BLOCK))}"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_the_command_warns_of_nothing() -> None:
    """Python warns of a module that is run after its package has imported it."""
    command = [sys.executable, "-m", "cuda_ops.build", "--help"]
    done = subprocess.run(command, cwd=Path(jit.__file__).parents[1], capture_output=True)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*VARIANTS, *BLOCK])
def test_every_variant_compiles_for_every_gpu(
    real_nvcc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert compile_variant(variant, jit.architectures_of(variant, SUPPORTED)).is_file()


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
