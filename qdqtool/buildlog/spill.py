"""The JSON of a log of any size: runs are written as they come, so that only one is in memory at a time."""

from __future__ import annotations

import json
import shutil
import tempfile
from typing import Any, TextIO

from pydantic import TypeAdapter

from qdqtool._version import __version__
from qdqtool.core.buildlog import LogRun
from qdqtool.core.kinds import LOG
from qdqtool.io.json_files import json_text
from qdqtool.io.text import TextSource

_RUN = TypeAdapter(LogRun)


def write_json(source: TextSource, runs: Any, out: TextIO) -> int:
    """Write the artefact of a log, byte for byte as `LOG.dump` would; returns how many runs it has.

    Args:
        source: the log being read; its notes are complete when the runs are.
        runs: its runs, in order, as they are read.
        out: where the JSON goes.
    """
    count = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as waiting:
        for run in runs:
            waiting.write(",\n" if count else "\n")
            waiting.write(_indented(_RUN.dump_python(run, mode="json", by_alias=True), 3))
            count += 1
        waiting.seek(0)
        notes = json_text(source.notes)
        out.write('{\n "data": {\n  "notes": ' + notes.replace("\n", "\n  ") + ',\n  "runs": [')
        shutil.copyfileobj(waiting, out)
        out.write("\n  ]\n },\n")
    version = json.dumps(__version__)
    out.write(
        f' "kind": "{LOG.kind}",\n "provenance": {{\n  "qdqtool": {version}\n }},\n "schema": {LOG.schema}\n}}\n'
    )
    return count


def _indented(value: object, depth: int) -> str:
    margin = " " * depth
    return margin + json_text(value).replace("\n", f"\n{margin}")
