"""The pages of `qdqtool explain`: documentation of plug-ins, and Markdown files with one `## name` heading per page.

A Markdown file of this folder is a topic: its `# title`, then pages. A heading with commas names one page several times
(`## float, unknown`). A new heading is a new page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from operator import itemgetter
from types import MappingProxyType

from qdqtool.core.tensors import FORMATS
from qdqtool.errors import UsageError
from qdqtool.plugins import Registry

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_TITLE = re.compile(r"# (.+)\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page of `qdqtool explain` on a word of a log, a code or a verdict.

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
        """The name by which `qdqtool explain` lists the page."""
        return self.names[0]

    @property
    def summary(self) -> str:
        """The first sentence of the page, up to a colon."""
        first = re.split(r"(?<=[.:])\s|\n\n", self.body, maxsplit=1)[0].replace("\n", " ")
        return f"{first[:-1]}." if first.endswith(":") else first

    @property
    def text(self) -> str:
        """The text of the page for a terminal."""
        return f"{', '.join(self.names)}\n{self.body}\n"


@lru_cache(maxsize=1)
def pages() -> Mapping[str, Page]:
    """Return all pages by name in lower case, in the order of the files' names and headings."""
    by_name: dict[str, Page] = {}
    for file in sorted(files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".md"):
            for page in _pages_of(file.read_text("utf-8")):
                by_name.update({name.lower(): page for name in page.names})
    return MappingProxyType(by_name)


def page_of(name: str) -> Page | None:
    """Return the page called `name`, in upper or lower case; None if there is none."""
    return pages().get(" ".join(name.split()).lower())


def _pages_of(text: str) -> list[Page]:
    title = _TITLE.match(text)
    assert title, "a topic begins with its title"
    _, *parts = _HEADING.split(text)
    return [
        Page(names=tuple(heading.split(", ")), topic=title[1], body=body.strip())
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    ]


# --- lookup ----------------------------------------------------------------------------------------------------------
# Finds the page for a word: one of this package, or the documentation of the plug-in of that name or code.

REGISTRIES = (
    "calibrators.methods",
    "qdqtool.rules",
    "qdqtool.auditing.checks",
    "qdqtool.datachecks.checks",
    "qdqtool.accuracy.metrics",
    "qdqtool.backends.builders",
    "qdqtool.buildlog.patterns",
    "qdqtool.report.sections",
    "qdqtool.cli.commands",
)
"""Packages of plug-ins in the order in which a name is looked up."""
_CODED = ("qdqtool.rules", "qdqtool.auditing.checks", "qdqtool.datachecks.checks")
"""Registries whose plug-ins have a code."""
_CODE = re.compile(r"[A-Z]{3}[0-9]{3}")


def explanation(word: str) -> str | None:
    """Return the page of a pass, verdict, code or plug-in, in upper or lower case; None if there is none."""
    page = page_of(word)
    if page is not None:
        return page.text
    coded = coded_plugins().get(word.upper())
    if coded is not None:
        registry, name = coded
        return f"{word.upper()} {name}{_scope(registry.load(name))}\n\n{registry.manual(name)}\n"
    named = [
        (name != word, registry.manual(name))
        for registry in _registries()
        for name in _names(registry)
        if name.lower() == word.lower()
    ]
    # A name in exactly this case comes first.
    return min(named, key=itemgetter(0))[1] if named else None


def _scope(plugin: object) -> str:
    """Return which commands use a rule, and for which builders and formats; "" for other plug-ins."""
    parts = {"place": "place", "check": "lint", "fix": "repair"}
    commands = [command for part, command in parts.items() if getattr(plugin, part, None) is not None]
    targets, named = getattr(plugin, "targets", None), getattr(plugin, "formats", ())
    if not commands or targets is None:
        return ""
    builders = [f"TensorRT {family}" for family in ("8", "10", "11") if family in targets]
    builders += ["TensorRT for RTX"] if "rtx" in targets else []
    formats = [name for name in FORMATS if name in named]
    of_formats = ", ".join(formats) if len(formats) < len(FORMATS) else "every format"
    return f"\nAsked by {', '.join(commands)}; for {', '.join(builders)}; for {of_formats}."


def is_code(word: str) -> bool:
    """Return True if a word has the form of a finding's code: three letters and three digits."""
    return _CODE.fullmatch(word.upper()) is not None


@lru_cache(maxsize=1)
def coded_plugins() -> dict[str, tuple[Registry, str]]:
    """Return the plug-in of each finding code, in the order of codes.

    Raises:
        UsageError: plug-ins of two registries have the same code.
    """
    plugins: dict[str, tuple[Registry, str]] = {}
    for registry in map(_registry, _CODED):
        for code, name in registry.coded().items():
            if code in plugins:
                first_registry, first = plugins[code]
                raise UsageError(
                    f"the {registry.kind} {name!r} ({registry.place(name)}) has the code {code}, like the "
                    f"{first_registry.kind} {first!r} ({first_registry.place(first)})",
                    fix=f"give the {registry.kind} another code",
                )
            plugins[code] = registry, name
    return dict(sorted(plugins.items()))


def known_words() -> list[str]:
    """Return every word that has a page."""
    named = [name for page in pages().values() for name in page.names]
    return [*named, *coded_plugins(), *(name for registry in _registries() for name in _names(registry))]


@lru_cache(maxsize=len(REGISTRIES))
def _registry(package: str) -> Registry:
    if package == "calibrators.methods":
        from qdqtool.core.calibration import CALIBRATORS

        return CALIBRATORS
    return Registry(package=package)


def _registries() -> list[Registry]:
    return [_registry(package) for package in REGISTRIES]


def _names(registry: Registry) -> tuple[str, ...]:
    try:
        return registry.names()
    except ModuleNotFoundError:
        return ()
