"""Train, validate, test and predict with S4ConvD: `python train.py --help` shows the options."""

import sys

try:
    from model.training.cli import main
except ModuleNotFoundError as error:
    if error.name and error.name.split(".")[0] in ("model", "data", "cuda_ops"):
        raise
    sys.stderr.write(
        f"error: the package '{error.name}' is not installed for this Python ({sys.executable}).\n"
        "Install what is needed: `python3 -m venv .venv && .venv/bin/pip install -e .`\n"
        "and run `.venv/bin/python train.py`.\n"
    )
    sys.exit(2)

if __name__ == "__main__":
    main()
