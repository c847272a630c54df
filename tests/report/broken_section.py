"""A section that fails wherever it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qdqtool.report.section import Section


def _fail(_what: object) -> object:
    raise RuntimeError("no such thing")


def _collect(files: Mapping[str, Path]) -> object:
    return _fail(files)


PLUGIN = Section(
    order=5, title="Broken", page="{{ nothing.there }}", rows=_fail, blocks=_fail, collect=_collect
)
