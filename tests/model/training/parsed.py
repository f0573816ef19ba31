"""A report's page, read back."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img"}


class Parsed(HTMLParser):
    """Text, tables and attributes of a page; complains where tags do not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(page)
        self.close()
        assert not self.opened

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.opened.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.opened:
            self.words.append(data)
            if {"td", "th"} & set(self.opened):
                self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def table(self, *titles: str) -> dict[str, list[str]]:
        """Of the one table that has these titles, first cell -> the others; later rows win."""
        (found,) = (table for table in self.tables if set(titles) <= set(table[0]))
        return {name: cells for name, *cells in found}

    def values(self, tag: str, name: str) -> list[str]:
        return [of[name] or "" for each, of in self.tags if each == tag and name in of]
