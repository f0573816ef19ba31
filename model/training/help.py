"""What the command line says to somebody who asks, or who mistyped."""

import re
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches

from lightning.pytorch.cli import LightningArgumentParser

SUBCOMMANDS = {
    "fit": "train, then test and predict with the best checkpoint (the default)",
    "validate": "score a checkpoint on the validation part",
    "test": "score a checkpoint on the test part, beside the baselines",
    "predict": "write a checkpoint's forecasts to a file",
}
COMMANDS = SUBCOMMANDS | {
    "inspect": "say what was understood of a table, before anyone trains",
    "compare": "train with several kernels in turns, and say what each brings",
    "backtest": "train on growing histories, and score what follows each",
    "export": "write a checkpoint as a file for programs without this code",
    "submission": "answer GEPIII's test file, for Kaggle",
}
"""What stands behind train.py: Lightning's subcommands, and our own."""

TOP_OPTIONS = (
    "config",
    "kernel",
    "data.path",
    "data.root",
    "data.rules",
    "data.meters",
    "data.window",
    "data.batch_size",
    "model.channels",
    "model.blocks",
    "model.lr",
    "trainer.max_epochs",
    "trainer.accelerator",
    "ckpt_path",
    "output",
    "runs",
    "seed_everything",
)
OWN_WORDS = {
    "config": "a YAML file of options; later options go before it",
    "ckpt_path": "a checkpoint to resume, validate, test or predict from",
    "seed_everything": "the random seed",
    "trainer.accelerator": "auto, cpu or gpu",
    "trainer.max_epochs": "passes over the training windows [for 1,000 steps]",
}


def short_help(fit: LightningArgumentParser) -> str:
    """The subcommands and the options that most people need, 80 columns wide."""
    lines = ["usage: python train.py [command] [options]", ""]
    lines += [f"  {name:<11}{what}" for name, what in COMMANDS.items()]
    lines.append("")
    actions = {action.dest: action for action in fit._actions}
    for name in TOP_OPTIONS:
        action = actions[name]
        text = OWN_WORDS.get(name) or re.split(r"\. |\.$|,? \(|; |: a", action.help or "")[0]
        given = action.default is None or name == "config"
        line = f"  --{name:<21}{text}" + ("" if given else f" [{action.default}]")
        lines += textwrap.wrap(line, 80, subsequent_indent=" " * 25, break_on_hyphens=False)
    lines += ["", "every option: python train.py fit --help; the last five commands have one, too"]
    return "\n".join(lines)


def explain(complaint: str, options: Sequence[str]) -> str:
    """A parser's complaint in two lines at most, with the choices or the nearest option."""
    unknown = re.search(r"[Uu]nrecognized arguments: (.+)", complaint)
    if unknown:
        name = unknown[1].split()[0].split("=")[0]
        close = get_close_matches(name, options, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "there is nothing like it."
        return f"unknown option {name}: {hint}\n`python train.py --help` shows the options."
    key = re.search(r'[Kk]ey "([^"]+)"', complaint)
    value = re.search(r"(?:Got value|Given value): (.*)", complaint)
    literals = re.findall(r"Literal\[([^\]]*)\]", complaint)
    if key and value and literals:
        choices = dict.fromkeys(c.strip(" '") for group in literals for c in group.split(","))
        return f"--{key[1]}: {value[1]!r} is not one of {', '.join(choices)}"
    found = dict.fromkeys(re.findall(r"<class '(\w+)'>", complaint))
    kinds = [kind for kind in found if kind not in ("str", "NoneType")]  # what was written is text
    if key and value and kinds:
        return f"--{key[1]}: {value[1]!r} is not of type {' or '.join(kinds)}"
    return " ".join(complaint.split())[:300]
