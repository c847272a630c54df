"""One layer of an engine, from a line of its dump.

    Layer(CaskConvolution): A + B, Tactic: 7144526460361122478, x[Half(1,256,180,180)] -> y[Half(1,9,180,180)]
    Layer(Reformat): q, Tactic: 0x00000000000003ea, x (Float[1,3,640,960]) -> y (Int8[1,3:4,640,960])
    Name: A + B, LayerType: CaskConvolution, Inputs: [ { Name: x, Location: Device, Dimensions: [1,3], Format/Datatype:
        Row major linear FP32 }], Outputs: [ ... ], ParameterType: Convolution, ..., TacticName: ..., Metadata: ...

Records are taken apart at fixed words, because names may hold commas, brackets and arrows; and only when asked, because
most questions to a log need a few words of each.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

from qdqtool.buildlog.sentence import tactic_id
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Certainty, EngineLayer, EngineTensor

_TYPED = re.compile(
    r"(?:\[(?P<old>\w{1,20})\((?P<olddims>[^()]{0,300})\)\]| \((?P<new>\w{1,20})\[(?P<newdims>[^\[\]]{0,300})\]\))"
    r"(?:, |\Z)"
)
"""Type and extents behind the name of a tensor, and what separates it from the next."""
_ATTRIBUTE = re.compile(r", (?=[A-Z][\w/]{0,60}: )")
_METADATA = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]{0,1000}?)\](?=\[ONNX Layer: |[\x1e\x1f]|\Z)")
_JOINED = "Format/Datatype: "
"""The field of releases up to 10 that holds memory format and element type in prose."""
_LONGEST = 1 << 18
"""Characters of one record that are taken apart; real ones stay far below."""

Tensors = tuple[EngineTensor, ...]
Region = tuple[int, str, tuple[str, ...]]
"""A Myelin region: the line that tells of it, its name, the ONNX nodes it holds."""


class Layer:
    """A layer in any form; its parts are found when asked for.

    Attributes:
        line: number of its line in the log.
        name: as printed.
        kind: LayerType; "" where only names are printed.
        rest: the remaining text.
    """

    def __init__(self, line: int, name: str, kind: str, rest: str) -> None:
        self.line = line
        self.name = name
        self.kind = kind
        self.rest = rest

    @property
    def inputs(self) -> Tensors:
        """Run-time inputs."""
        return self._groups.get("Inputs", ())

    @property
    def constants(self) -> Tensors:
        """Weights and other constants where the dump lists them apart."""
        return self._groups.get("Constants", ())

    @property
    def outputs(self) -> Tensors:
        """Results."""
        return self._groups.get("Outputs", ())

    @property
    def onnx_nodes(self) -> tuple[str, ...]:
        """ONNX nodes it says it contains."""
        return ()

    def types(self, title: str) -> list[DType]:
        """Element types of its "Inputs", "Constants" or "Outputs"."""
        return [tensor.dtype for tensor in self._groups.get(title, ())]

    def value(self) -> EngineLayer:
        """The layer taken apart completely."""
        return EngineLayer(name=self.name, kind=self.kind)

    @cached_property
    def _groups(self) -> dict[str, Tensors]:
        return {}


class LineLayer(Layer):
    """A layer of `Engine Layer Information:`; `rest` begins with its tactic id."""

    def value(self) -> EngineLayer:
        return EngineLayer(
            name=self.name,
            kind=self.kind,
            inputs=self.inputs,
            outputs=self.outputs,
            certainty=Certainty.INFERRED,
            attributes=(("TacticValue", _tactic(self.rest.partition(", ")[0])),),
        )

    @cached_property
    def _groups(self) -> dict[str, Tensors]:
        io = self.rest.partition(", ")[2]
        inputs, _, outputs = io.rpartition(" -> ") if " -> " in io else ("", "", io.removeprefix("-> "))
        return {"Inputs": _tensors(inputs), "Outputs": _tensors(outputs)}


class RecordLayer(Layer):
    """A layer of `Layers:`; `rest` begins behind its type."""

    @property
    def onnx_nodes(self) -> tuple[str, ...]:
        return nodes_of(self.rest.rpartition("Metadata: ")[2]) if "Metadata: [ONNX" in self.rest else ()

    def value(self) -> EngineLayer:
        attributes = _attributes(self.rest[self._split[1] :])
        nodes = nodes_of(attributes.pop("Metadata", ""))
        stream = attributes.pop("StreamId", "")
        if "TacticValue" in attributes:
            attributes["TacticValue"] = _tactic(attributes["TacticValue"])
        return EngineLayer(
            name=self.name,
            kind=self.kind,
            inputs=self.inputs,
            constants=self.constants,
            outputs=self.outputs,
            tactic=attributes.pop("TacticName", ""),
            onnx_nodes=nodes,
            certainty=Certainty.STATED if nodes else Certainty.INFERRED,
            stream=int(stream) if stream.isascii() and stream.isdigit() and len(stream) < 10 else None,
            attributes=tuple(sorted(attributes.items())),
        )

    def types(self, title: str) -> list[DType]:
        text = self._split[0].get(title, "")
        if not text:
            return []
        if _JOINED not in text:
            return super().types(title)
        return [dtype_of(piece.partition("}")[0].rstrip()) for piece in text.split(_JOINED)[1:]]

    @cached_property
    def _split(self) -> tuple[dict[str, str], int]:
        """The text of each group of tensors, and where the groups end."""
        texts: dict[str, str] = {}
        end = 0
        for title in ("Inputs", "Constants", "Outputs"):
            begin = self.rest.find(f"{title}: [", end)
            if begin < 0:
                continue
            begin += len(title) + 3
            close = self.rest.find("}]", begin) if self.rest.startswith(" {", begin) else begin
            end = len(self.rest) if close < 0 else close
            texts[title] = self.rest[begin:end]
        return texts, end

    @cached_property
    def _groups(self) -> dict[str, Tensors]:
        return {
            title: tuple(_object(piece) for piece in text.split("{ ")[1:])
            for title, text in self._split[0].items()
        }


def layer_of_line(line: int, kind: str, name: str, rest: str) -> Layer:
    """A layer of `Engine Layer Information:`; `rest` begins with its tactic id."""
    return LineLayer(line, name, kind, rest[:_LONGEST])


def layer_of_record(line: int, name: str, rest: str) -> Layer:
    """A layer of `Layers:`; `rest` begins with its type."""
    kind, _, after = rest[:_LONGEST].partition(", ")
    return RecordLayer(line, name, kind, after)


def layer_of_name(line: int, name: str) -> Layer:
    """A layer of which only the name is printed (default profiling verbosity)."""
    return Layer(line, name, "", "")


def nodes_of(metadata: str) -> tuple[str, ...]:
    """ONNX nodes of `[ONNX Layer: a][ONNX Layer: b]`, each once; control characters may stand between."""
    return tuple(dict.fromkeys(_METADATA.findall(metadata[:_LONGEST])))


@lru_cache(maxsize=1024)
def dtype_of(words: str) -> DType:
    """The element type in a format's prose (`Thirty-two wide channel vectorized row major Int8 format`)."""
    for word in reversed(words.split()):
        dtype = DType.parse(word)
        if dtype is not DType.UNKNOWN:
            return dtype
    return DType.UNKNOWN


def _tensors(text: str) -> Tensors:
    found = []
    begin = 0
    for match in _TYPED.finditer(text):
        word = match["old"] or match["new"]
        dims = match["olddims"] if match["old"] else match["newdims"]
        name = text[begin : match.start()]
        begin = match.end()
        found.append(
            EngineTensor(name=name, shape=_shape(dims), dtype=dtype_of(word), format=f"{word}({dims})")
        )
    return tuple(found)


def _object(piece: str) -> EngineTensor:
    piece = piece.rstrip(" },")
    name, _, rest = piece.removeprefix("Name: ").partition(", Dimensions: [")
    name, _, location = name.partition(", Location: ")
    dims, _, fields = rest.partition("]")
    if fields.startswith(f", {_JOINED}"):
        joined = fields.removeprefix(f", {_JOINED}")
        return EngineTensor(
            name=name, shape=_shape(dims), dtype=dtype_of(joined), format=joined, location=location
        )
    named = _attributes(fields)
    plain = named.get("Datatype", "") or named.get("DataType", "")
    return EngineTensor(
        name=name,
        shape=_shape(dims),
        dtype=dtype_of(plain),
        format=named.get("Format", ""),
        location=location,
    )


def _attributes(text: str) -> dict[str, str]:
    pieces = _ATTRIBUTE.split(text)[1:]
    return {key: value.strip() for key, _, value in (piece.partition(": ") for piece in pieces)}


@lru_cache(maxsize=1024)
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
