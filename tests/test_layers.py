"""Which module may import which: arrows run one way."""

import ast
from pathlib import Path

import pytest

from model.training.cli import ROOT


def imports(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    below = ".".join(parts[:2])
    return below if below in MAY_IMPORT else parts[0]


MAY_IMPORT = {
    "cuda_ops": {"cuda_ops"},
    "data": {"data"},
    "model": {"model", "cuda_ops"},
    "model.inference": {"model", "model.inference", "cuda_ops", "data"},
    "model.training": {"model", "model.inference", "model.training", "cuda_ops", "data"},
}
SOURCES = sorted(p for name in ("cuda_ops", "data", "model") for p in (ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(ROOT)) for p in SOURCES])
def test_a_module_imports_only_from_its_layer_down(path: Path) -> None:
    """The operator and the data cannot be used alone, because they import what is above them."""
    ours, lightning = set(), False
    for name in imports(path):
        top = name.split(".")[0]
        lightning |= top in ("lightning", "pytorch_lightning")
        below = ".".join(name.split(".")[:2])
        if below in MAY_IMPORT:
            ours.add(below)
        elif top in ("cuda_ops", "data", "model", "train", "tests"):
            ours.add(top)
    assert ours <= MAY_IMPORT[layer(path)]
    allowed = layer(path) == "model.training" or path.name in ("module.py", "bench.py")
    assert allowed or not lightning
