"""A section as another distribution would bring it: it reads its own artefact and shows it everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from qdqtool.report.section import Block, Section


def _collect(files: Mapping[str, Path]) -> object:
    found = files.get("memory.json")
    return None if found is None else json.loads(found.read_text())


PLUGIN = Section(
    order=65,
    title="Memory",
    shown=lambda report: report.sections.get("extra"),
    page='<h2 id="extra-{{ run.key }}">Memory</h2><p>{{ report.sections["extra"]["peak"] }} MiB</p>',
    rows=lambda report: (
        [("Memory", f"{report.sections['extra']['peak']} MiB")] if "extra" in report.sections else []
    ),
    blocks=lambda _report: [Block(title="Memory by layer", entries=(("conv1 3 MiB", "", None),))],
    reads=("memory.json",),
    collect=_collect,
)
