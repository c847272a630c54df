"""The engine inspector's JSON: trtexec --exportLayerInfo and IEngineInspector, TensorRT 8.2 to 11.

    {"Layers": [{"Name": ..., "LayerType": ..., "Inputs": [{"Name", "Location", "Dimensions", "Format/Datatype"}], ...}],
     "Bindings": ["input", "output"]}

From 9 on Myelin regions appear as kgen, gemm and shape_call; 11 writes `I/O Tensors` instead of `Bindings` and splits
`Format/Datatype`. Without detailed profiling verbosity the layers are mere names. 8.6 writes U+001E raw, which strict
JSON forbids. Layers are decoded one by one: a damaged or cut file gives all whole layers, and memory stays bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor
from qdqtool.engine.fields import layer, tensor
from qdqtool.engine.readers.names import NAMES_ONLY

_LAYERS = re.compile(r'"Layers"\s*:\s*\[')
_BINDINGS = re.compile(r'"Bindings"\s*:\s*(?=\[)')
_TENSORS = re.compile(r'"I/O Tensors"\s*:\s*(?=\[)')
_NEXT = re.compile(r'\{\s*"Name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"LayerType"')
_GAP = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(strict=False)
_DAMAGED = object()
MOST_LAYERS = 100_000
"""Layers after which reading stops; no engine comes near."""
_MOST_DAMAGE = 1000
"""Damaged stretches after which the rest of a file is given up."""
_REGIONS = frozenset({"kgen", "gemm", "shape_call", "correlation"})


def recognizes(text: str) -> bool:
    """Whether `text` holds a list of layers."""
    return _LAYERS.search(text) is not None


def read(text: str) -> Engine:
    """The layers of the last list in `text`, a JSON file or a log that holds one."""
    *_, begin = _LAYERS.finditer(text)
    layers: list[EngineLayer] = []
    unread, names = 0, 0
    for value in islice(_elements(text, begin.end()), MOST_LAYERS):
        names += isinstance(value, str)
        if isinstance(value, str):
            layers.append(layer({"Name": value}))
        elif isinstance(value, Mapping):
            layers.append(layer(value))
        else:
            unread += 1
    form = _form(layers, text) if names < len(layers) else "names-only"
    notes = [NAMES_ONLY] if names else []
    notes += [f"only the first {MOST_LAYERS:,} layers were read"] if len(layers) == MOST_LAYERS else []
    return Engine(
        layers=tuple(layers), bindings=_bindings(text), form=form, unread=unread, notes=tuple(notes)
    )


def _elements(text: str, at: int) -> Iterator[Any]:
    """The values of the list that begins at `at`; `_DAMAGED` for each stretch that is not JSON."""
    damage = 0
    while damage < _MOST_DAMAGE:
        gap = _GAP.match(text, at)
        at = gap.end() if gap else at
        if at >= len(text):
            yield _DAMAGED
            return
        if text[at] == "]":
            return
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            damage += 1
            yield _DAMAGED
            following = _NEXT.search(text, at + 1)
            if following is None:
                return
            at = following.start()
        else:
            yield value


def _bindings(text: str) -> tuple[EngineTensor, ...]:
    found = _TENSORS.search(text) or _BINDINGS.search(text)
    if found is None:
        return ()
    try:
        values, _ = _DECODER.raw_decode(text, found.end())
    except (ValueError, RecursionError):
        return ()
    named = ({"Name": value} if isinstance(value, str) else value for value in values)
    return tuple(tensor(value) for value in named if isinstance(value, Mapping))


def _form(layers: list[EngineLayer], text: str) -> str:
    if _TENSORS.search(text):
        return "inspector-11"
    if any(found.kind in _REGIONS for found in layers):
        return "inspector-9"
    keys = {key for found in layers for key, _ in found.attributes}
    return "inspector-8.6" if "Metadata" in keys else "inspector-8.2"
