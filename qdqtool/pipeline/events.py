"""Writes optimizer events as JSON lines, one event per line, for tools that read streams."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from qdqtool.core.buildlog import BuildLog
from qdqtool.core.events import OptimizerEvent
from qdqtool.io.files import replacing
from qdqtool.io.json_files import json_text

_EVENT = TypeAdapter(OptimizerEvent)


def write_events(log: BuildLog, path: Path) -> None:
    """Write every event of every run of `log` to `path`, all or nothing; `run` counts from 1."""
    with replacing(path) as draft, draft.open("w", encoding="utf-8", newline="\n") as stream:
        for run in log.runs:
            for event in run.events:
                line = {"run": run.number, **_EVENT.dump_python(event, mode="json")}
                stream.write(json_text(line, indent=None) + "\n")
