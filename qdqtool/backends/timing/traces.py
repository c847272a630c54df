"""trtexec's own files of times and profiles: read, and written so that other tools take them for trtexec's.

Times (--exportTimes): a list of objects with startComputeMs, endComputeMs, computeMs, latencyMs and more. Profile
(--exportProfile): a list that starts with {"count": n}, then name, timeMs, averageMs, medianMs and percentage per
layer; 8.2 has no medianMs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.errors import InputFileError
from qdqtool.io.json_files import read_json


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTime:
    """Time of one engine layer in milliseconds, average and median over the runs."""

    name: str
    average: float
    median: float


def compute_times(path: Path) -> tuple[float, ...]:
    """GPU compute time of each inference in a file of times, in milliseconds.

    Raises:
        InputFileError: not such a file.
    """
    rows = _rows(path)
    times = [row.get("computeMs") for row in rows]
    if not times or not all(isinstance(time, (int, float)) and time >= 0 for time in times):
        raise InputFileError("holds no compute times", fix="export it with --exportTimes", where=str(path))
    return tuple(float(time) for time in times if isinstance(time, (int, float)))


def layer_times(path: Path) -> tuple[LayerTime, ...]:
    """Times of the layers in a profile.

    Raises:
        InputFileError: not such a file.
    """
    layers = []
    for row in _rows(path):
        name, average = row.get("name"), row.get("averageMs")
        if isinstance(name, str) and isinstance(average, (int, float)):
            middle = row.get("medianMs", average)
            layers.append(LayerTime(name=name, average=float(average), median=float(middle)))
    if not layers:
        raise InputFileError("holds no layer times", fix="export it with --exportProfile", where=str(path))
    return tuple(layers)


def spell_times(times: Sequence[float]) -> str:
    """These compute times as trtexec writes them; transfers are zero, starts are laid end to end."""
    rows, start = [], 0.0
    for time in times:
        end = start + time
        rows.append(
            {
                "startEnqMs": start,
                "endEnqMs": start,
                "startH2dMs": start,
                "endH2dMs": start,
                "startComputeMs": start,
                "endComputeMs": end,
                "startD2hMs": end,
                "endD2hMs": end,
                "h2dMs": 0,
                "computeMs": time,
                "d2hMs": 0,
                "latencyMs": time,
            }
        )
        start = end
    return _spell(rows)


def _spell(rows: list[dict[str, Any]]) -> str:
    return "[\n  " + "\n, ".join(json.dumps(row) for row in rows) + "\n]\n"


def _rows(path: Path) -> list[dict[str, Any]]:
    content = read_json(path)
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise InputFileError("is not a list of records", fix="export it with trtexec", where=str(path))
    return content
