"""The HTML of a report: its style and its building blocks, which escape all that they are given."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO

import torch
from PIL.Image import Dither, Quantize
from torchvision.transforms.functional import to_pil_image

NONE = "-"  # in a table, of what there is none

STYLE = """
:root { color-scheme: light dark; --ink: #1c262b; --muted: #5b6a73; --line: #dce2e6;
  --page: #ffffff; --raised: #f5f7f8; --accent: #c85a00; --blend: multiply; --invert: none; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaed; --muted: #9aa9b2; --line: #313b41;
  --page: #12171a; --raised: #1b2226; --accent: #ffa24d; --blend: screen;
  --invert: invert(1) hue-rotate(180deg); } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: clamp(1.55rem, 4.2vw, 2.35rem); line-height: 1.22; letter-spacing: -0.015em;
  font-weight: 680; margin: 0.4rem 0 0; max-width: 25em; text-wrap: balance; }
h2 { font-size: 1.35rem; line-height: 1.3; letter-spacing: -0.01em; margin: 3.5rem 0 0.75rem;
  padding-top: 1.25rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 2rem 0 0.5rem; }
p { margin: 0.6rem 0; max-width: 44rem; }
a { color: var(--accent); }
.kicker { margin: 0; color: var(--accent); font-weight: 600; font-size: 0.9rem; }
.note, figcaption, .facts dt, .caption, .tile span { color: var(--muted); }
.note, .caption { font-size: 0.9rem; }
.caption { margin: 1.5rem 0 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 0.75rem;
  margin: 1.75rem 0; }
.tile { background: var(--raised); border-radius: 0.6rem; padding: 0.8rem 1rem; }
.tile b { display: block; font-size: 1.65rem; line-height: 1.25; letter-spacing: -0.02em;
  font-weight: 650; }
.tile span { display: block; font-size: 0.85rem; line-height: 1.35; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.3rem 1.5rem; margin: 1rem 0;
  font-size: 0.93rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.25rem 0 1.75rem; display: grid; gap: 0.5rem 2.25rem; align-items: center;
  grid-template-columns: minmax(0, 35rem) minmax(0, 1fr); }
figure img { display: block; width: 100%; height: auto; filter: var(--invert);
  mix-blend-mode: var(--blend); }
figcaption { font-size: 0.93rem; }
.scroll { overflow-x: auto; margin: 0.25rem 0 1rem; }
table { border-collapse: collapse; font-size: 0.88rem; line-height: 1.4; min-width: 100%;
  font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
th, td { padding: 0.42rem 0.7rem; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 600; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
  background: var(--page); }
td:last-child, thead th:last-child { padding-right: 0; }
th.group { color: var(--muted); font-weight: 500; padding-top: 1.2rem; white-space: normal; }
th.group span { position: sticky; left: 0; display: inline-block;
  max-width: calc(100vw - 2rem); }
.verdicts { display: grid; grid-template-columns: 13.5rem 1fr; gap: 0 1.5rem; margin: 0.25rem 0 0;
  font-size: 0.93rem; }
.verdicts dt, .verdicts dd { margin: 0; padding: 0.4rem 0; border-bottom: 1px solid var(--line); }
.verdicts dt { display: flex; justify-content: space-between; gap: 0.75rem; }
.verdicts dt span { color: var(--muted); white-space: nowrap; }
pre { background: var(--raised); border-radius: 0.6rem; padding: 0.8rem 1rem; margin: 0.75rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
code, pre { font: 0.87rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
details { margin: 1rem 0; border: 1px solid var(--line); border-radius: 0.6rem;
  padding: 0 1rem; }
summary { cursor: pointer; padding: 0.65rem 0; font-weight: 600; }
@media (max-width: 46rem) {
  main { padding: 1.5rem 1rem 3rem; }
  figure { grid-template-columns: 1fr; margin: 1rem -0.75rem 1.5rem; }
  figcaption { padding: 0 0.75rem; }
  .facts, .verdicts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin-bottom: 0.6rem; }
  .verdicts dt { border: 0; padding-bottom: 0; }
}
@media print { body { font-size: 12px; } figure, table { break-inside: avoid; } }
"""


def document(title: str, body: Iterable[str]) -> str:
    """A whole page; the parts of its body are HTML."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body><main>",
            *body,
            "</main></body>",
            "</html>\n",
        ]
    )


def element(tag: str, text: str, kind: str = "") -> str:
    """An element of nothing but text."""
    opened = f'<{tag} class="{kind}">' if kind else f"<{tag}>"
    return f"{opened}{escape(text)}</{tag}>"


def paper(number: str) -> str:
    """A link to a paper."""
    return f'<a href="https://arxiv.org/abs/{number}">arXiv {number}</a>'


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first cell of a row names it; a row of one cell heads those below it."""
    # The caption stays where it is while the table is scrolled.
    parts = [element("p", caption, "caption")] if caption else []
    parts.append('<div class="scroll"><table><thead><tr>')
    parts += [f'<th scope="col">{escape(title)}</th>' for title in titles]
    parts.append("</tr></thead><tbody>")
    for name, *cells in rows:
        if cells:
            data = "".join(element("td", cell) for cell in cells)
            parts.append(f'<tr><th scope="row">{escape(name)}</th>{data}</tr>')
        else:
            head = f'<th class="group" scope="rowgroup" colspan="{len(titles)}">'
            parts.append(f"<tr>{head}{element('span', name)}</th></tr>")
    return "".join([*parts, "</tbody></table></div>"])


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for, line by line."""
    lines = "".join(element("dt", name) + element("dd", text) for name, text in pairs)
    return f'<dl class="facts">{lines}</dl>'


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """The numbers to remember, and what they are of."""
    lines = (f'<div class="tile">{element("b", n)}{element("span", of)}</div>' for n, of in pairs)
    return f'<div class="tiles">{"".join(lines)}</div>'


def folded(summary: str, content: str) -> str:
    """HTML that is shown when it is asked for."""
    return f"<details>{element('summary', summary)}{content}</details>"


def figure(image: torch.Tensor, density: int, shows: str, caption: str) -> str:
    """A uint8 RGB image (3, H, W), what it shows for those who do not see it, and how to read it.

    Args:
        density: pixels of the image for each of the page's, each way.
    """
    _, height, width = image.shape
    buffer = BytesIO()
    # 255 colours are enough for a chart's, and a palette makes the file two fifths as large.
    palette = to_pil_image(image).quantize(255, Quantize.MAXCOVERAGE, dither=Dither.NONE)
    palette.save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f'width="{width // density}" height="{height // density}"'
    return (
        f'<figure><img {size} alt="{escape(shows)}" src="data:image/png;base64,{data}">'
        f"{element('figcaption', caption)}</figure>"
    )
