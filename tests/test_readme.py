"""The README's commands and its map of the code are true."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from model.training.help import COMMANDS as NAMES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("#")[0].split("train.py", 1)[1].split(";")[0]
    for block in re.findall(r"```bash\n(.*?)```", README, re.S)
    for line in block.splitlines()
    if "train.py" in line
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.strip() or "default")
def test_every_command_is_one_that_exists(run, command) -> None:
    """Given a checkpoint, a folder or a GPU that is not there, only that is complained about."""
    words = shlex.split(command.replace("$seed", "1").replace("DIR", "/nonexistent"))
    words = [str(ROOT / word) if word.startswith("configs/") else word for word in words]
    kept: list[str] = []
    skip = False
    for word in words:  # a run's own configuration file is there only after that run
        skip = skip or (word == "--config" and "runs/version_0/config.yaml" in words)
        if skip and word != "--config":
            skip = False
        elif not skip:
            kept.append(word)
    assert not kept or kept[0] in NAMES or kept[0].startswith("--")
    if kept[:1] == ["export"]:
        r = run(*kept, tiny=False)
    else:
        r = run(*kept, "--trainer.fast_dev_run=1", "--data.window=48")
    complaint = r.text[r.text.find("error:") :] if r.code else ""
    assert r.code in (0, 2), r.text
    cannot = "there is no f" in complaint or (not torch.cuda.is_available() and "GPU" in complaint)
    assert r.code == 0 or cannot, complaint


def test_the_map_of_the_code_names_every_module() -> None:
    section = README[README.index("## How it works") :]
    for package in ("cuda_ops", "model", "data"):
        for path in (ROOT / package).glob("*.py"):
            assert path.name in section or path.name == "__init__.py", path
    for package in ("training", "inference"):
        for path in (ROOT / "model" / package).glob("*.py"):
            assert path.name in section or path.name == "__init__.py", path


def test_files_that_the_readme_shows_exist() -> None:
    for target in re.findall(r"\]\(((?!http|#)[^)]+)\)", README):
        assert (ROOT / target).is_file(), target
