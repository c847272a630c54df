"""From the fields of one layer, as any form names them, to an `EngineLayer`.

Every form is first brought into the shape of the inspector's JSON: `Name`, `LayerType`, lists of tensors in `Inputs`,
`Constants` and `Outputs`, and further keys as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from sys import intern
from typing import Any

from qdqtool.core.engine import Certainty, EngineLayer, EngineTensor
from qdqtool.core.formats import dtype_of
from qdqtool.core.layer_names import probable_nodes
from qdqtool.engine.metadata import onnx_nodes
from qdqtool.engine.precision import judged
from qdqtool.engine.weights import stated_constants

# The first key that is there decides: a format may name another type than a type field nobody knows.
_TYPE_KEYS = ("Datatype", "DataType", "Format/Datatype", "Format")
_FORMAT_KEYS = ("Format", "Format/Datatype")
MOST_LAYERS = 20_000
"""Layers after which reading stops; no engine comes near."""
_OWN_FIELDS = frozenset({"Name", "LayerType", "Inputs", "Constants", "Outputs", "TacticName", "StreamId"})


def layer(fields: Mapping[str, Any]) -> EngineLayer:
    """The layer with these fields; missing and odd ones are left empty, nothing raises."""
    stated = onnx_nodes(_text(fields.get("Metadata")))
    nodes = stated or probable_nodes(_text(fields.get("Name")))
    return judged(
        EngineLayer(
            name=_text(fields.get("Name")),
            kind=_text(fields.get("LayerType")),
            inputs=_tensors(fields.get("Inputs")),
            constants=_tensors(fields.get("Constants")) or stated_constants(fields),
            outputs=_tensors(fields.get("Outputs")),
            tactic=_text(fields.get("TacticName")),
            onnx_nodes=nodes,
            certainty=Certainty.STATED if stated else Certainty.INFERRED if nodes else Certainty.UNKNOWN,
            stream=_integer(fields.get("StreamId")),
            attributes=tuple(sorted(_attributes(fields))),
        )
    )


def tensor(fields: Mapping[str, Any]) -> EngineTensor:
    """The tensor with these fields."""
    return EngineTensor(
        name=_text(fields.get("Name")),
        shape=_shape(fields.get("Dimensions")),
        dtype=dtype_of(next(iter(_present(fields, _TYPE_KEYS)), "")),
        format=next(iter(_present(fields, _FORMAT_KEYS)), "") or _first_profile(fields).get("Format", ""),
        location=_text(fields.get("Location")),
    )


def _first_profile(fields: Mapping[str, Any]) -> dict[str, str]:
    """What a binding of TensorRT 11 says of the first optimization profile."""
    profiles = fields.get("ProfileInfo")
    first = profiles[0] if isinstance(profiles, list) and profiles else None
    return {key: _text(value) for key, value in first.items()} if isinstance(first, Mapping) else {}


def _attributes(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that have no place of their own; equal texts are held once."""
    return ((intern(key), intern(_text(fields[key]))) for key in fields if key not in _OWN_FIELDS)


def _tensors(value: Any) -> tuple[EngineTensor, ...]:
    entries = value if isinstance(value, list) else []
    return tuple(tensor(entry) for entry in entries if isinstance(entry, Mapping))


def _present(fields: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [_text(fields[key]) for key in keys if key in fields]


def _shape(value: Any) -> tuple[int, ...] | None:
    """Dimensions; None for `N/A due to dynamic shapes` and anything else that is not a list of integers."""
    if not isinstance(value, list) or not all(type(dim) is int for dim in value):
        return None
    return tuple(value)


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
        else None
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value, sort_keys=True)
