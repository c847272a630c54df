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
from qdqtool.engine.fields import MOST_LAYERS, layer
from qdqtool.trt.layer_records import opt_shape_of, record_fields, simple_fields, tensor_of

FORM = "layers-dump"
_RECORD = re.compile(r"^(?:\[[^\]\n]*\] )*(?=Name: )", re.MULTILINE)
_AFTER = re.compile(r"\n(?=\[[^\]\n]*\] |I/O Tensors:|Bindings:|Engine Metadata:)")
_HEADING = re.compile(r"^(?:I/O Tensors|Bindings):$", re.MULTILINE)
_NAMES = re.compile(r"^Bindings:\n((?:[^\[\n][^\n]*\n)+)", re.MULTILINE)
_BINDING = re.compile(r"^ +(Name: .*, IOMode: .*)$", re.MULTILINE)


def recognizes(text: str) -> bool:
    """Return whether `text` holds at least one record of this form."""
    return re.search(r"^(?:\[[^\]\n]*\] )*Name: .*, LayerType: ", text, re.MULTILINE) is not None


def read(text: str) -> Engine:
    """Read the layers of the last `Layers:` message in `text`."""
    last = text[max(text.rfind("\nLayers:\n"), 0) :]
    records = list(islice(_records(last[: _end(last)]), MOST_LAYERS))
    fields = [found for found in map(_fields, records) if found is not None]
    return Engine(
        layers=tuple(layer(found) for found in fields),
        bindings=_bindings(last),
        opt_shapes=_opt_shapes(last),
        form=FORM,
        unread=len(records) - len(fields),
    )


def _end(text: str) -> int:
    """Return the end of the list of layers. An inspector's text continues with bindings, then with single layers again."""
    heading = _HEADING.search(text)
    return heading.start() if heading else len(text)


def _bindings(text: str) -> tuple[EngineTensor, ...]:
    named = _NAMES.search(text)
    if named:
        return tuple(EngineTensor(name=name) for name in named[1].splitlines())
    return tuple(tensor_of(simple_fields(match[1])) for match in _BINDING.finditer(text))


def _opt_shapes(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the shapes of dynamic inputs at the optimum of the first profile."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for match in _BINDING.finditer(text):
        front, _, profiles = match[1].partition("ProfileInfo: ")
        shape = opt_shape_of({"ProfileInfo": profiles})
        if shape is not None:
            found.append((simple_fields(front)["Name"], shape))
    return tuple(found)


def _records(text: str) -> Iterator[str]:
    """Yield raw records; a record with a line break in its name is joined again."""
    starts = [match.end() for match in _RECORD.finditer(text)]
    pending = ""
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[start:end]
        stop = _stop(piece)
        pending += piece[:stop]
        if stop is not None or ", LayerType: " in pending:
            yield pending.rstrip("\n")
            pending = ""
    if pending:
        yield pending.rstrip("\n")


def _stop(piece: str) -> int | None:
    """Return the end of a record in its piece: before text that is not part of it, or before blank lines at the end."""
    after, blank = _AFTER.search(piece), piece.find("\n", len(piece.rstrip()))
    ends = [*((after.start(),) if after else ()), *((blank,) if blank >= 0 else ())]
    return min(ends, default=None)


def _fields(record: str) -> dict[str, Any] | None:
    """Return the fields of one record, or None if its anchors are missing."""
    name, found, rest = record.removeprefix("Name: ").partition(", LayerType: ")
    return record_fields(name, rest) if found else None
