"""The pages of `qdqtool explain` that belong to no plug-in: Markdown files, one `## name` heading per page.

A file of this folder is a topic: its `# title`, then pages. A heading with commas names one page several times
(`## float, unknown`). A new heading is a new page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_TITLE = re.compile(r"# (.+)\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The meaning of a word of a log, a code or a verdict.

    Attributes:
        names: how it is called; the first is the heading.
        topic: title of its file.
        body: the page in Markdown, without its heading.
    """

    names: tuple[str, ...]
    topic: str
    body: str

    @property
    def name(self) -> str:
        """The name it is listed under."""
        return self.names[0]

    @property
    def summary(self) -> str:
        """The first sentence, up to a colon that begins a list or an explanation."""
        first = re.split(r"(?<=[.:])\s|\n\n", self.body, maxsplit=1)[0].replace("\n", " ")
        return f"{first[:-1]}." if first.endswith(":") else first

    @property
    def text(self) -> str:
        """The page as a person reads it in a terminal."""
        return f"{', '.join(self.names)}\n{self.body}\n"


@lru_cache(maxsize=1)
def pages() -> Mapping[str, Page]:
    """All pages by name in lower case, in the order of the files' names and headings."""
    by_name: dict[str, Page] = {}
    for file in sorted(files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".md"):
            for page in _pages_of(file.read_text("utf-8")):
                by_name.update({name.lower(): page for name in page.names})
    return MappingProxyType(by_name)


def page_of(name: str) -> Page | None:
    """The page called `name`, whatever the case; None if there is none."""
    return pages().get(" ".join(name.split()).lower())


def _pages_of(text: str) -> list[Page]:
    title = _TITLE.match(text)
    assert title, "a topic begins with its title"
    _, *parts = _HEADING.split(text)
    return [
        Page(names=tuple(heading.split(", ")), topic=title[1], body=body.strip())
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    ]
