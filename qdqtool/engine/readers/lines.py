"""The `Engine Layer Information:` text of verbose builds, one `Layer(...)` line per layer.

    Layer(CaskConvolution): conv1 + relu1, Tactic: 7144526460361122478, x[Half(1,3,224,224)] -> y[Half(1,64,112,112)]
    Layer(CaskConvolution): conv1 + relu1, Tactic: 0xf64396b97c889179, x (Int8[1,3:4,224,224]) -> y (Half[1,64,112,112])

The first spelling is that of TensorRT 8.0 to 8.4, the second that of later releases; `3:4` means three channels padded
to a multiple of four, a negative dimension is a dynamic one. Constants have no inputs. Names may hold commas, brackets
and arrows, so tensors are found by the type and shape behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from qdqtool.core.engine import Engine
from qdqtool.engine.fields import MOST_LAYERS, layer
from qdqtool.trt.layer_records import line_fields
from qdqtool.trt.tactics import tactic_id

_START = re.compile(r"\bLayer\(([^()\n]*)\): ")
_CHOICE = re.compile(r", Tactic: (-?(?:0x[0-9a-fA-F]{1,16}|\d{1,20})), ")
_TACTIC = re.compile(r"Tactic Name: (\S+) Tactic: (-?(?:0x[0-9a-fA-F]{1,16}|\d{1,20}))\b")
_HEADING = re.compile(r"Engine Layer Information:")


def recognizes(text: str) -> bool:
    """Return whether `text` holds at least one `Layer(...)` line."""
    return next(_lines(text), None) is not None


def read(text: str) -> Engine:
    """Read the layers after the last heading in `text`, or all layers if there is no heading."""
    at = max((match.end() for match in _HEADING.finditer(text)), default=0)
    if next(_lines(text, at), None) is None:
        at = 0
    tactics = _tactics(text)
    found = [_fields(line, tactics) for line in islice(_lines(text, at), MOST_LAYERS)]
    return Engine(
        layers=tuple(layer(fields) for fields in found if fields is not None),
        form="layer-lines",
        unread=sum(fields is None for fields in found),
    )


class _LayerLine(NamedTuple):
    kind: str
    name: str
    tactic: str
    tensors: str


def _lines(text: str, at: int = 0) -> Iterator[_LayerLine]:
    """Yield the layer lines after `at`, each searched once. A name may hold anything; the last tactic belongs to the layer."""
    while (start := _START.search(text, at)) is not None:
        at = text.find("\n", start.end())
        at = len(text) if at < 0 else at
        *_, choice = None, *_CHOICE.finditer(text, start.end(), at)
        if choice is not None:
            yield _LayerLine(start[1], text[start.end() : choice.start()], choice[1], text[choice.end() : at])


def _tactics(text: str) -> dict[str | None, str]:
    """Return kernel names by tactic id, from the tuning part of the log."""
    return {tactic_id(found[2]): found[1] for found in _TACTIC.finditer(text)}


def _fields(line: _LayerLine, tactics: Mapping[str | None, str]) -> dict[str, Any] | None:
    """Return the fields of one line with the name of its kernel, or None if its tensors cannot be parsed."""
    fields = line_fields(*line)
    return fields and {**fields, "TacticName": tactics.get(tactic_id(line.tactic), "")}
