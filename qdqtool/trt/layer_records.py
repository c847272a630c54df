"""One layer of an engine, from its record in any text or JSON form.

    Layer(CaskConvolution): A + B, Tactic: 7144526460361122478, x[Half(1,256,180,180)] -> y[Half(1,9,180,180)]
    Layer(Reformat): q, Tactic: 0x00000000000003ea, x (Float[1,3,640,960]) -> y (Int8[1,3:4,640,960])
    Name: A + B, LayerType: CaskConvolution, Inputs: [ { Name: x, Location: Device, Dimensions: [1,3], Format/Datatype:
        Row major linear FP32 }], Outputs: [ ... ], ParameterType: Convolution, ..., TacticName: ..., Metadata: ...

Every form is first brought into the shape of the inspector's JSON: `Name`, `LayerType`, lists of tensors in `Inputs`,
`Constants` and `Outputs`, and further keys as text; `layer_of` takes it from there. Names may hold commas, brackets,
arrows and line breaks, so records and fields are found by their anchors, never by splitting at commas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import Any

from qdqtool.core.engine import Certainty, EngineLayer, EngineTensor
from qdqtool.trt.names import onnx_nodes, probable_nodes
from qdqtool.trt.tactics import tactic_id
from qdqtool.trt.tensor_formats import dtype_of

Fields = dict[str, Any]

# The first existing key decides: a format may name another type than an unknown type field.
_TYPE_KEYS = ("Datatype", "DataType", "Format/Datatype", "Format")
_FORMAT_KEYS = ("Format", "Format/Datatype")
_OWN_FIELDS = frozenset({"Name", "LayerType", "Inputs", "Constants", "Outputs", "TacticName", "StreamId"})
_LISTS = ("Inputs", "Constants", "Outputs")
_FIELD = re.compile(r", (?=[A-Z][A-Za-z0-9]*(?:/[A-Z][a-z]+)?: )")
_LIST_END = re.compile(r"\}\](?=, [A-Z]|\s*$)")
_TENSOR = re.compile(r"(.+?)(?:\[(\w+)\(([-\d,: ]*)\)\]| ?\((\w+)\[([-\d,: ]*)\]\))(?=, | ->|$)")
_OPT_SHAPE = re.compile(r"OptShape: (\[[-\d,: ]*\])")
_MEMORABLE = 600
"""Largest length in characters of descriptions whose parsed fields are cached."""
_EXTENT = re.compile(r"\s*(-?\d{1,18})(?::\d{1,6})?\s*")
"""Pattern of one extent; `64:32` means that 64 channels are packed in vectors of 32."""


def layer_of(fields: Mapping[str, Any]) -> EngineLayer:
    """Return an engine layer made from the fields of its record. Missing or unexpected fields stay empty.

    Its role and precision are not judged here.
    """
    stated = onnx_nodes(_text(fields.get("Metadata")))
    nodes = stated or probable_nodes(_text(fields.get("Name")))
    return EngineLayer(
        name=_text(fields.get("Name")),
        kind=_text(fields.get("LayerType")),
        inputs=_tensors(fields.get("Inputs")),
        constants=_tensors(fields.get("Constants")),
        outputs=_tensors(fields.get("Outputs")),
        tactic=_text(fields.get("TacticName")),
        onnx_nodes=nodes,
        certainty=Certainty.STATED if stated else Certainty.INFERRED if nodes else Certainty.UNKNOWN,
        stream=_integer(fields.get("StreamId")),
        attributes=tuple(sorted(_attributes(fields))),
    )


def tensor_of(fields: Mapping[str, Any]) -> EngineTensor:
    """Return an engine tensor made from the fields of its record."""
    return EngineTensor(
        name=_text(fields.get("Name")),
        shape=_shape(fields.get("Dimensions")),
        dtype=dtype_of(next(iter(_present(fields, _TYPE_KEYS)), "")),
        format=next(iter(_present(fields, _FORMAT_KEYS)), "") or _first_profile(fields).get("Format", ""),
        location=_text(fields.get("Location")),
    )


def opt_shape_of(fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the shape of an engine input at the optimum of its first profile; None if it is not stated."""
    profiles = fields.get("ProfileInfo")
    if isinstance(profiles, str):
        match = _OPT_SHAPE.search(profiles)
        return _shape(_dims(match[1])) if match else None
    first = profiles[0] if isinstance(profiles, list) and profiles else None
    shape = first.get("OptShape") if isinstance(first, Mapping) else None
    return _shape(_dims(shape) if isinstance(shape, str) else shape)


def record_fields(name: str, text: str) -> Fields | None:
    """Return the fields of the layer record `Name: ..., LayerType: ...`; None if it ends with the layer type.

    Args:
        name: of the layer.
        text: the text after `LayerType: `.
    """
    kind, comma, text = text.partition(", ")
    if not comma:
        return None
    fields: Fields = {"Name": name, "LayerType": kind}
    for key in _LISTS:
        if text.startswith(f"{key}: ["):
            inside, text = _list(text.removeprefix(f"{key}: ["))
            fields[key] = [_tensor_fields(piece) for piece in inside.split("{ Name: ")[1:]]
    front, _, metadata = text.partition("Metadata: ")
    return {**fields, **simple_fields(front), "Metadata": metadata}


def line_fields(kind: str, name: str, tactic: str, tensors: str) -> Fields | None:
    """Return the fields of the layer line `Layer(kind): name, Tactic: tactic, tensors`; None if its tensors cannot be parsed."""
    inputs: list[Fields] = []
    outputs: list[Fields] = []
    text, side = tensors.strip(), inputs
    while text:
        if text.startswith("->"):
            text, side = text.removeprefix("->").strip(), outputs
            continue
        match = _TENSOR.match(text)
        if match is None:
            return None
        words, dims = (match[2], match[3]) if match[2] else (match[4], match[5])
        side.append(
            {"Name": match[1].strip(), "Dimensions": _extents(dims), "Format/Datatype": f"{words}[{dims}]"}
        )
        text = text[match.end() :].removeprefix(", ").strip()
    return {"Name": name, "LayerType": kind, "Inputs": inputs, "Outputs": outputs, "TacticValue": tactic}


def simple_fields(text: str) -> Fields:
    """Parse `key: value` texts joined by commas. A value may contain commas in brackets."""
    return dict(_known_fields(text)) if len(text) <= _MEMORABLE else _fields_of(text)


@lru_cache(maxsize=4096)
def _known_fields(text: str) -> Fields:
    # The layers and tensors of all engines in a log are described with the same few words.
    return _fields_of(text)


def _fields_of(text: str) -> Fields:
    fields: Fields = {}
    for part in _FIELD.split(text):
        key, colon, value = part.partition(": ")
        if colon:
            fields[key] = _dims(value) if key == "Dimensions" else value.strip().removesuffix(",")
    return fields


def _list(text: str) -> tuple[str, str]:
    """Split `text`, which begins inside a list, after the end of the list."""
    if text.startswith("]"):
        return "", text[1:].removeprefix(", ")
    end = _LIST_END.search(text)
    return (text[: end.start()], text[end.end() :].removeprefix(", ")) if end else (text, "")


def _tensor_fields(piece: str) -> Fields:
    """Return the fields of the tensor record `name, Dimensions: [...], Datatype: ..., Format: ... }, `."""
    cut = min(
        (at for at in (piece.find(", Location: "), piece.find(", Dimensions: ")) if at >= 0),
        default=len(piece),
    )
    fields = simple_fields(piece[cut:].removeprefix(", ").rstrip(", ").removesuffix("}").rstrip())
    return {**fields, "Name": piece[:cut]}


def _dims(value: str) -> list[int] | str:
    """Return the dimensions in a record; other text, such as `N/A due to dynamic shapes`, is returned unchanged."""
    inside = value.strip("[] ")
    extents = [_EXTENT.fullmatch(dim) for dim in inside.split(",")] if inside else []
    return [int(extent[1]) for extent in extents if extent] if all(extents) else value


def _extents(dims: str) -> list[int] | str:
    """Return dimensions as a list, with -1 for negative (dynamic) ones; other text is returned unchanged."""
    extents = _dims(dims)
    return extents if isinstance(extents, str) else [max(extent, -1) for extent in extents]


def _first_profile(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a TensorRT 11 binding for the first optimization profile."""
    profiles = fields.get("ProfileInfo")
    first = profiles[0] if isinstance(profiles, list) and profiles else None
    return {key: _text(value) for key, value in first.items()} if isinstance(first, Mapping) else {}


def _attributes(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a layer record for which `EngineLayer` has no attribute."""
    for key, value in fields.items():
        if key not in _OWN_FIELDS:
            text = value if type(value) is str else _text(value)
            yield intern(key), intern((tactic_id(text) or text) if key == "TacticValue" else text)


def _tensors(value: Any) -> tuple[EngineTensor, ...]:
    entries = value if isinstance(value, list) else []
    return tuple(tensor_of(entry) for entry in entries if isinstance(entry, Mapping))


def _present(fields: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [_text(fields[key]) for key in keys if key in fields]


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the dimensions in a record; None if the text is not a list of integers."""
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
