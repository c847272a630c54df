"""One layer of an engine, from a line of its dump.

    Layer(CaskConvolution): A + B, Tactic: 7144526460361122478, x[Half(1,256,180,180)] -> y[Half(1,9,180,180)]
    Layer(Reformat): q, Tactic: 0x00000000000003ea, x (Float[1,3,640,960]) -> y (Int8[1,3:4,640,960])
    Name: A + B, LayerType: CaskConvolution, Inputs: [ { Name: x, Location: Device, Dimensions: [1,3], Format/Datatype:
        Row major linear FP32 }], Outputs: [ ... ], ParameterType: Convolution, ..., TacticName: ..., Metadata: ...

Records are taken apart at fixed words; names may hold commas, brackets and arrows.
"""

from __future__ import annotations

import re

from qdqtool.buildlog.sentence import tactic_id
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Certainty, EngineLayer, EngineTensor

_TENSOR = re.compile(
    r"(?P<name>[^\x00]+?)"
    r"(?:\[(?P<old>\w{1,20})\((?P<olddims>[^()]{0,300})\)\]| \((?P<new>\w{1,20})\[(?P<newdims>[^\[\]]{0,300})\]\))"
    r"(?:, |\Z)"
)
_ATTRIBUTE = re.compile(r", (?=[A-Z][\w/]{0,60}: )")
_METADATA = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]*?)\](?=\[ONNX Layer: |[\x1e\x1f]|\Z)")
_LONGEST = 1 << 18
"""Characters of one record that are taken apart; real ones stay far below."""


def layer_of_line(kind: str, name: str, rest: str) -> EngineLayer:
    """A layer of `Engine Layer Information:`; `rest` begins with its tactic id."""
    tactic, _, io = rest[:_LONGEST].partition(", ")
    inputs, _, outputs = io.rpartition(" -> ") if " -> " in io else ("", "", io.removeprefix("-> "))
    return EngineLayer(
        name=name,
        kind=kind,
        inputs=_tensors(inputs),
        outputs=_tensors(outputs),
        certainty=Certainty.INFERRED,
        attributes=(("TacticValue", _tactic(tactic)),),
    )


def layer_of_name(name: str) -> EngineLayer:
    """A layer of which only the name is printed (default profiling verbosity)."""
    return EngineLayer(name=name, kind="")


def layer_of_record(name: str, rest: str) -> EngineLayer:
    """A layer of `Layers:`; `rest` begins with its type."""
    rest = rest[:_LONGEST]
    kind, _, after = rest.partition(", ")
    groups: dict[str, tuple[EngineTensor, ...]] = {}
    end = 0
    for title in ("Inputs", "Constants", "Outputs"):
        begin = after.find(f"{title}: [", end)
        if begin < 0:
            continue
        begin += len(title) + 3
        close = after.find("}]", begin) if after.startswith(" {", begin) else begin
        end = len(after) if close < 0 else close
        groups[title] = _objects(after[begin:end])
    attributes = _attributes(after[end:])
    metadata = attributes.pop("Metadata", "")
    stream = attributes.pop("StreamId", "")
    nodes = nodes_of(metadata)
    if "TacticValue" in attributes:
        attributes["TacticValue"] = _tactic(attributes["TacticValue"])
    return EngineLayer(
        name=name,
        kind=kind,
        inputs=groups.get("Inputs", ()),
        constants=groups.get("Constants", ()),
        outputs=groups.get("Outputs", ()),
        tactic=attributes.pop("TacticName", ""),
        onnx_nodes=nodes,
        certainty=Certainty.STATED if nodes else Certainty.INFERRED,
        stream=int(stream) if stream.isascii() and stream.isdigit() and len(stream) < 10 else None,
        attributes=tuple(sorted(attributes.items())),
    )


def nodes_of(metadata: str) -> tuple[str, ...]:
    """ONNX nodes of `[ONNX Layer: a][ONNX Layer: b]`, each once; control characters may stand between."""
    return tuple(dict.fromkeys(_METADATA.findall(metadata)))


def dtype_of(words: str) -> DType:
    """The element type in a format's prose (`Thirty-two wide channel vectorized row major Int8 format`)."""
    for word in reversed(words.split()):
        dtype = DType.parse(word)
        if dtype is not DType.UNKNOWN:
            return dtype
    return DType.UNKNOWN


def _tensors(text: str) -> tuple[EngineTensor, ...]:
    found = []
    for match in _TENSOR.finditer(text):
        word = match["old"] or match["new"]
        dims = match["olddims"] if match["old"] else match["newdims"]
        found.append(
            EngineTensor(
                name=match["name"], shape=_shape(dims), dtype=DType.parse(word), format=f"{word}({dims})"
            )
        )
    return tuple(found)


def _objects(text: str) -> tuple[EngineTensor, ...]:
    return tuple(_object(piece) for piece in text.split("{ ")[1:])


def _object(piece: str) -> EngineTensor:
    piece = piece.rstrip(" },")
    name, _, rest = piece.removeprefix("Name: ").partition(", Dimensions: [")
    name, _, location = name.partition(", Location: ")
    dims, _, fields = rest.partition("]")
    named = _attributes(fields)
    joined = named.get("Format/Datatype", "")
    plain = named.get("Datatype", "") or named.get("DataType", "")
    return EngineTensor(
        name=name,
        shape=_shape(dims),
        dtype=DType.parse(plain) if plain else dtype_of(joined),
        format=named.get("Format", joined),
        location=location,
    )


def _attributes(text: str) -> dict[str, str]:
    pieces = _ATTRIBUTE.split(text)[1:]
    return {key: value.strip() for key, _, value in (piece.partition(": ") for piece in pieces)}


def _shape(dims: str) -> tuple[int, ...] | None:
    """Extents; a vectorized extent `64:32` is its first number. None where one is not a number."""
    shape: list[int] = []
    for dim in dims.split(","):
        number = dim.strip().partition(":")[0]
        if not number:
            continue
        if not number.removeprefix("-").isdecimal() or len(number) > 18:
            return None
        shape.append(int(number))
    return tuple(shape)


def _tactic(text: str) -> str:
    known = tactic_id(text)
    return known if isinstance(known, str) else text
