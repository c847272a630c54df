"""The detailed `Layers:` text of trtexec 8.4+ and of TensorRT for RTX, alone or inside a whole build log.

One record per line, for instance (shortened)

    Name: c1_myl0_1, LayerType: correlation, Inputs: [ { Name: x, Dimensions: [1,8,8,8], Strides: [512,1,64,8],
    StrideOrder: [3,0,2,1], Datatype: Int8, Format: (NHWC) Channel major format }], Constants: [...],
    Outputs: [...], TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: [ONNX Layer: c1]

Older releases write `Format/Datatype: Half` for the last two fields and list no constants. Names may hold commas,
brackets and line breaks, so records and fields are found by their anchors, never by splitting at commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from qdqtool.core.engine import Engine, EngineTensor
from qdqtool.engine.fields import MOST_LAYERS, layer, tensor

FORM = "layers-dump"
_RECORD = re.compile(r"^(?:\[[^\]\n]*\] )*(?=Name: )", re.MULTILINE)
_AFTER = re.compile(r"\n(?=\[[^\]\n]*\] |\s*$|I/O Tensors:|Bindings:|Engine Metadata:)")
_LISTS = ("Inputs", "Constants", "Outputs")
_HEADING = re.compile(r"^(?:I/O Tensors|Bindings):$", re.MULTILINE)
_NAMES = re.compile(r"^Bindings:\n((?:[^\[\n][^\n]*\n)+)", re.MULTILINE)
_BINDING = re.compile(r"^ +(Name: .*, IOMode: .*)$", re.MULTILINE)


def recognizes(text: str) -> bool:
    """Whether `text` holds at least one record of this form."""
    return re.search(r"^(?:\[[^\]\n]*\] )*Name: .*, LayerType: ", text, re.MULTILINE) is not None


def read(text: str) -> Engine:
    """The layers of the last `Layers:` message in `text`."""
    last = text[max(text.rfind("\nLayers:\n"), 0) :]
    records = list(islice(_records(last[: _end(last)]), MOST_LAYERS))
    fields = [found for found in map(_fields, records) if found is not None]
    return Engine(
        layers=tuple(layer(found) for found in fields),
        bindings=_bindings(last),
        form=FORM,
        unread=len(records) - len(fields),
    )


def _end(text: str) -> int:
    """Where the list of layers ends: an inspector's text goes on with bindings, then with single layers again."""
    heading = _HEADING.search(text)
    return heading.start() if heading else len(text)


def _bindings(text: str) -> tuple[EngineTensor, ...]:
    named = _NAMES.search(text)
    if named:
        return tuple(EngineTensor(name=name) for name in named[1].splitlines())
    return tuple(tensor(_simple_fields(match[1])) for match in _BINDING.finditer(text))


def _records(text: str) -> Iterator[str]:
    """Raw records; one whose name holds a line break is put together again."""
    starts = [match.end() for match in _RECORD.finditer(text)]
    pending = ""
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[start:end]
        stop = _AFTER.search(piece)
        pending += piece[: stop.start()] if stop else piece
        if stop or ", LayerType: " in pending:
            yield pending.rstrip("\n")
            pending = ""
    if pending:
        yield pending.rstrip("\n")


def _fields(record: str) -> dict[str, Any] | None:
    """The fields of one record in the inspector's shape, or None where its anchors are missing."""
    name, found, rest = record.removeprefix("Name: ").partition(", LayerType: ")
    kind, comma, rest = rest.partition(", ")
    if not found or not comma:
        return None
    fields: dict[str, Any] = {"Name": name, "LayerType": kind}
    for key in _LISTS:
        if rest.startswith(f"{key}: ["):
            inside, rest = _list(rest.removeprefix(f"{key}: ["))
            fields[key] = [_tensor_fields(piece) for piece in inside.split("{ Name: ")[1:]]
    front, _, metadata = rest.partition("Metadata: ")
    return {**fields, **_simple_fields(front), "Metadata": metadata}


def _list(text: str) -> tuple[str, str]:
    """What is inside the list that `text` starts in, and what follows it."""
    if text.startswith("]"):
        return "", text[1:].removeprefix(", ")
    inside, _, rest = text.partition("}]")
    return inside, rest.removeprefix(", ")


def _tensor_fields(piece: str) -> dict[str, Any]:
    """The fields of `name, Dimensions: [...], Datatype: ..., Format: ... }, `."""
    cut = min(
        (at for at in (piece.find(", Location: "), piece.find(", Dimensions: ")) if at >= 0),
        default=len(piece),
    )
    fields = _simple_fields(piece[cut:].removeprefix(", ").rstrip(", ").removesuffix("}").rstrip())
    return {**fields, "Name": piece[:cut]}


def _simple_fields(text: str) -> dict[str, Any]:
    """`key: value` pairs joined by commas, where a value may itself hold commas in brackets."""
    fields: dict[str, Any] = {}
    for part in re.split(r", (?=[A-Z][A-Za-z0-9]*(?:/[A-Z][a-z]+)?: )", text):
        key, found, value = part.partition(": ")
        if found:
            fields[key] = _dims(value) if key == "Dimensions" else value.strip().removesuffix(",")
    return fields


def _dims(value: str) -> list[int] | str:
    numbers = value.strip("[] ").split(",") if value.strip("[] ") else []
    return [int(n) for n in numbers] if all(re.fullmatch(r"-?\d{1,18}", n) for n in numbers) else value
