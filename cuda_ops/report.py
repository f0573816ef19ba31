"""A record of the bench as a table: for the terminal, and in Markdown for the README."""

import textwrap
from collections.abc import Iterator
from typing import Any

from cuda_ops.ceilings import CEILING, SUSPICIOUS, TENSORS
from cuda_ops.contenders import PATHS, Size

LABELS = {
    "forward": "forward",
    "input_grad": "input gradient",
    "weight_grad": "weight gradient",
    "both": "both gradients",
}
WIDTH = 80


def text(record: dict[str, Any]) -> str:
    """The record as text of 80 columns."""
    parts = [textwrap.fill(_measured_on(record), WIDTH)]
    for run in record["runs"]:
        parts += [f"{_shape(run)}, ms of {run['rounds']} rounds", "\n".join(_lines(run))]
        if warning := _suspicious(run):
            parts.append(textwrap.fill(warning, WIDTH))
        if comparison := _comparison(run):
            parts.append(textwrap.fill(comparison, WIDTH))
    return "\n\n".join(parts)


def _lines(run: dict[str, Any]) -> Iterator[str]:
    yield f"{'':30}{'median':>9}{'p10':>9}{'p90':>9}{'GB/s':>7}{'ceiling':>8}{'error':>8}"
    for row in run["ceilings"]:
        name = f"{row['name']} ({row['kind']}, {row['tensors']} tensors)"
        yield f"{name:30}{_spread(row)}{row['gb_s']:7.0f}"
    for row in run["rows"]:
        yield ""
        for path, label in LABELS.items():
            figure = row["paths"][path]
            share = f"{_percent(figure)} %" + ("!" if figure["suspicious"] else " ")
            name = row["name"] if path == "forward" else ""
            error = max(figure["errors"].values())
            yield (
                f"{name:14} {label:15}{_spread(figure)}{figure['gb_s']:7.0f}{share:>8}{error:8.1e}"
            )
        yield f"{'':14} {'total':15}{_ms(row['total_ms']):>9}"


def markdown(record: dict[str, Any]) -> str:
    """The record in Markdown: a table for each shape, and what was measured on what."""
    parts = []
    for run in record["runs"]:
        parts.append("\n".join(_markdown_lines(run)))
        sentences = [_ceilings(run), _suspicious(run), _comparison(run)]
        parts.append("\n".join(sentence for sentence in sentences if sentence))
    return "\n\n".join([*parts, f"Measured on {_measured_on(record)}."])


def _markdown_lines(run: dict[str, Any]) -> Iterator[str]:
    titles = [_shape(run), *list(LABELS.values())[:3], "total", "of the ceiling, %"]
    titles += ["speed-up over naive", "largest relative error"]
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    paths = list(PATHS)[:3]
    naive = next((row["total_ms"] for row in run["rows"] if row["name"] == "naive"), None)
    for row in run["rows"]:
        figures = [row["paths"][path] for path in paths]
        name = row["name"] if row["kind"] == "kernel" else f"PyTorch: {row['name']}"
        error = max(max(figure["errors"].values()) for figure in row["paths"].values())
        cells = [name, *(_short(figure["ms"]) for figure in figures), _short(row["total_ms"])]
        cells += [" / ".join(_percent(figure) for figure in figures)]
        cells += [f"{naive / row['total_ms']:.3g}" if naive else "-", f"{error:.1e}"]
        yield f"| {' | '.join(cells)} |"
    least = _least_ms(run)
    total = least["forward"] + least["both"]
    yield f"| *ceiling* | {' | '.join(_short(least[p]) for p in paths)} | {_short(total)} | | | |"


def _best_passes(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Kind of pass -> the fastest of that kind."""
    return {row["kind"]: row for row in sorted(run["ceilings"], key=lambda row: row["gb_s"])}


def _least_ms(run: dict[str, Any]) -> dict[str, float]:
    """Path -> milliseconds at the rate of its ceiling."""
    best = _best_passes(run)
    return {
        path: best[kind]["ms"] * TENSORS[path] / best[kind]["tensors"]
        for path, kind in CEILING.items()
    }


def _ceilings(run: dict[str, Any]) -> str:
    best = _best_passes(run)
    return (
        "Medians in ms; the total is the forward path and both gradients. The ceiling is the time "
        "of the bytes that a path has to move, at the rate of a pass that does nothing else: a "
        f"copy ({best['copy']['gb_s']:,.0f} GB/s) for the forward path and the input gradient, "
        f"{best['read']['name']} ({best['read']['gb_s']:,.0f} GB/s) for the weight gradient, and "
        f"{best['add']['name']} ({best['add']['gb_s']:,.0f} GB/s) for both gradients in one pass; "
        "the kernels make two."
    )


def _comparison(run: dict[str, Any]) -> str:
    """How many times as long the others take as the fastest kernel, forward and backward."""
    ranked = sorted(run["rows"], key=lambda row: row["total_ms"])
    kernels = [row for row in ranked if row["kind"] == "kernel"]
    pytorch = [row for row in ranked if row["kind"] == "pytorch" and "TF32" not in row["name"]]
    if not kernels or len(ranked) < 2:
        return ""
    best = kernels[0]
    times = []
    for row in run["rows"]:
        if row is not best:
            note = f" (PyTorch's fastest in {run['dtype']})" if row in pytorch[:1] else ""
            times.append(f"{row['name']} {row['total_ms'] / best['total_ms']:.3g}{note}")
    return f"Total over that of {best['name']}: {', '.join(times)}."


def _suspicious(run: dict[str, Any]) -> str:
    """Names what is faster than it can be."""
    found = [
        f"{row['name']}, {LABELS[path]}"
        for row in run["rows"]
        for path, figure in row["paths"].items()
        if figure["suspicious"]
    ]
    if not found:
        return ""
    return f"! more than {SUSPICIOUS:.0%} of the ceiling, which is suspicious: {'; '.join(found)}."


def _measured_on(record: dict[str, Any]) -> str:
    device, versions = record["device"], record["versions"]
    commit, dirty, _ = (record["commit"] or "unknown").partition("-dirty")
    return (
        f"{device['name']} ({device['multiprocessors']} multiprocessors, driver "
        f"{device['driver'] or 'unknown'}), torch {versions['torch']}, CUDA {versions['cuda']}, "
        f"nvcc {versions['nvcc'] or 'unknown'}, commit {commit[:7]}{dirty}, {record['date']}"
    )


def _shape(run: dict[str, Any]) -> str:
    return f"{Size(**run['shape'])}, {run['dtype']}"


def _spread(row: dict[str, Any]) -> str:
    return "".join(f"{_ms(row[name]):>9}" for name in ("ms", "p10", "p90"))


def _ms(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 100 else f"{value:.1f}"


def _short(ms: float) -> str:
    return f"{ms:.3g}" if ms < 1000 else f"{ms:,.0f}"


def _percent(figure: dict[str, Any]) -> str:
    share = 100 * figure["of_ceiling"]
    return f"{share:.0f}" if share >= 1 else f"{share:.1f}"
