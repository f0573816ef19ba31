"""A comparison as one HTML file, which needs nothing but itself.

python -m model.training.compare.report compare.json report.html
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from model.training import page
from model.training.compare import sections
from model.training.compare.charts import pictures
from model.training.compare.figures import KernelFigures, fastest, figures
from model.training.compare.words import (
    device_name,
    gibibytes,
    headline,
    milliseconds,
    shape_of,
    speed_up,
)


def html(record: dict[str, Any]) -> str:
    """The report on a record, see `model.training.compare.figures`."""
    found = figures(record)
    drawn = pictures(record, sections.DENSITY)
    title = headline(record, found)
    body = [
        page.element("p", "S4ConvD: convolution kernels compared in training", "kicker"),
        page.element("h1", f"{title}."),
        page.tiles(_tiles(found)),
        *_what_was_run(record),
        *sections.step(record, found, drawn),
        *sections.speed_ups(found, drawn),
        *sections.bounds(record, drawn),
        *sections.beside_the_study(record, found),
        *sections.agreement(record, found, drawn),
        *_settings(record),
    ]
    return page.document(title, body)


def _tiles(found: Sequence[KernelFigures]) -> Iterator[tuple[str, str]]:
    base, best = found[0], fastest(found)
    if best is not base:
        if best.operator_speedup is not None:
            yield speed_up(best.operator_speedup), f"the convolution, {best.name} over {base.name}"
        yield speed_up(best.step_speedup), f"the training step, {best.name} over {base.name}"
        if base.limit is not None:
            yield speed_up(base.limit), "the most that the step can gain (Amdahl's limit)"
    yield milliseconds(best.ms["step"]), f"a training step with {best.name}"
    yield f"{best.windows_per_s:,.0f}", f"windows a second with {best.name}"


def _what_was_run(record: dict[str, Any]) -> Iterator[str]:
    size, device = shape_of(record), record["device"]
    versions = record["versions"]
    commit, dirty, _ = (record["commit"] or "unknown").partition("-dirty")
    names = ", ".join(kernel["name"] for kernel in record["kernels"])
    where = device_name(record)
    if "multiprocessors" in device:
        where += f", {device['multiprocessors']} multiprocessors"
        where += f", {gibibytes(device['memory_bytes'])}"
        where += f", driver {device['driver'] or 'unknown'}"
    work = (
        f"{size.batch:,} windows of {size.length} readings, {size.channels} channels, filters of "
        f"{size.taps} taps, {record['blocks']} blocks, {record['dtype']}"
    )
    rounds = "1 round" if record["rounds"] == 1 else f"{record['rounds']} rounds, in turns"
    yield page.facts(
        [
            ("Kernels", names),
            ("Device", where),
            ("Work of a step", work),
            ("Length", f"{record['steps']} training steps of each kernel, {rounds}"),
            ("Versions", ", ".join(f"{name} {of}" for name, of in versions.items() if of)),
            ("Commit and date", f"{commit[:7]}{dirty}, {record['date']}"),
        ]
    )
    yield f"<pre>{page.element('code', record['command'])}</pre>"


def _settings(record: dict[str, Any]) -> Iterator[str]:
    yield page.element("h2", "To do it again")
    rows = ([name, _setting(value)] for name, value in sorted(record["settings"].items()))
    yield page.folded("All settings", page.table("", ["option", "value"], rows))
    yield page.element(
        "p",
        "This page was made from compare.json, which holds every number that was measured:",
        "note",
    )
    command = "python -m model.training.compare.report compare.json report.html"
    yield f"<pre>{page.element('code', command)}</pre>"


def _setting(value: Any) -> str:
    if value in (None, "None"):
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def main(argv: Sequence[str] | None = None) -> int:
    """Render a record's file; returns 0, or 2 after one message where that cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m model.training.compare.report",
        description="Make the HTML report of a comparison from its record.",
    )
    parser.add_argument("record", type=Path, metavar="compare.json")
    parser.add_argument("page", type=Path, metavar="report.html")
    args = parser.parse_args(argv)
    try:
        args.page.write_text(_read(args.record), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> str:
    """The report on a file; raises ValueError where it holds no record."""
    text = path.read_text(encoding="utf-8")
    try:
        return html(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{path} is no record of a comparison: {error!r}") from error


if __name__ == "__main__":
    sys.exit(main())
