"""A comparison as a user runs it: short ones, and what they leave."""

import json
from pathlib import Path
from typing import Any

from model.training.callbacks.timing import WARM_UP
from tests.cases.timed_runs import NINE

STEPS = WARM_UP + 3  # more than the three of an epoch
FEW = [*NINE, f"--steps={STEPS}", "--rounds=2"]


def record_in(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads((folder / "compare.json").read_text(), parse_constant=refuse)
