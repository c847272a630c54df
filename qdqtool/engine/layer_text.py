"""Layer information as text: the forms in which builders, logs and Polygraphy list the layers of an engine.

Records with another form are counted as unread; no error is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor
from qdqtool.engine.costs import stated_constants
from qdqtool.engine.roles import judge_layer
from qdqtool.trt.layer_records import (
    layer_of,
    line_fields,
    opt_shape_of,
    record_fields,
    simple_fields,
    tensor_of,
)
from qdqtool.trt.tactics import tactic_id

MOST_LAYERS = 20_000
"""Most layers that are read; real engines have far fewer."""


def layer_from(fields: Mapping[str, Any]) -> EngineLayer:
    """Turn the fields of one layer, in any form, into a layer with role and precision.

    Missing and invalid fields are left empty; no error is raised.
    """
    stated = layer_of(fields)
    return judge_layer(replace(stated, constants=stated.constants or stated_constants(fields)))


# --- dump ------------------------------------------------------------------------------------------------------------
# The detailed `Layers:` text of trtexec 8.4+ and of TensorRT for RTX, alone or inside a whole build log.
#
# One record per line, for instance (shortened)
#
#     Name: c1_myl0_1, LayerType: correlation, Inputs: [ { Name: x, Dimensions: [1,8,8,8], Strides: [512,1,64,8],
#     StrideOrder: [3,0,2,1], Datatype: Int8, Format: (NHWC) Channel major format }], Constants: [...],
#     Outputs: [...], TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: [ONNX Layer: c1]
#
# Older releases write `Format/Datatype: Half` for the last two fields and list no constants. Names may contain commas,
# brackets and line breaks, so records and fields are found by their fixed words, never by splitting at commas.


DUMP = "layers-dump"
_RECORD = re.compile(r"^(?:\[[^\]\n]*\] )*(?=Name: )", re.MULTILINE)
_AFTER = re.compile(r"\n(?=\[[^\]\n]*\] |I/O Tensors:|Bindings:|Engine Metadata:)")
_DUMP_HEADING = re.compile(r"^(?:\[[^\]\n]*\] )*Layers:\n", re.MULTILINE)
_BINDINGS_HEADING = re.compile(r"^(?:I/O Tensors|Bindings):$", re.MULTILINE)
_NAMES = re.compile(r"^Bindings:\n((?:[^\[\n][^\n]*\n)+)", re.MULTILINE)
_BINDING = re.compile(r"^ +(Name: .*, IOMode: .*)$", re.MULTILINE)


def is_dump(text: str) -> bool:
    """Return True if `text` contains at least one `Name: ..., LayerType: ...` record of a layer dump."""
    return re.search(r"^(?:\[[^\]\n]*\] )*Name: .*, LayerType: ", text, re.MULTILINE) is not None


def read_dump(text: str) -> Engine:
    """Read the layers of the last `Layers:` message in `text`."""
    last = text[max((heading.start() for heading in _DUMP_HEADING.finditer(text)), default=0) :]
    records = list(islice(_records(last[: _end(last)]), MOST_LAYERS))
    fields = [entry for entry in map(_dump_fields, records) if entry is not None]
    return Engine(
        layers=tuple(layer_from(entry) for entry in fields),
        bindings=_bindings(last),
        opt_shapes=_opt_shapes(last),
        form=DUMP,
        unread=len(records) - len(fields),
    )


def _end(text: str) -> int:
    """Return the end of the list of layers in a text; bindings and single layers may follow the list."""
    heading = _BINDINGS_HEADING.search(text)
    return heading.start() if heading else len(text)


def _bindings(text: str) -> tuple[EngineTensor, ...]:
    named = _NAMES.search(text)
    if named:
        return tuple(EngineTensor(name=name) for name in named[1].splitlines())
    return tuple(tensor_of(simple_fields(match[1])) for match in _BINDING.finditer(text))


def _opt_shapes(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the shapes of dynamic inputs at the optimum of the first profile."""
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for match in _BINDING.finditer(text):
        front, _, profiles = match[1].partition("ProfileInfo: ")
        shape = opt_shape_of({"ProfileInfo": profiles})
        if shape is not None:
            shapes.append((simple_fields(front)["Name"], shape))
    return tuple(shapes)


def _records(text: str) -> Iterator[str]:
    """Yield the records of a layer dump as text. Names with line breaks stay in one record."""
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
    """Return where the record of a layer ends: before other text, or before blank lines at the end."""
    after, blank = _AFTER.search(piece), piece.find("\n", len(piece.rstrip()))
    ends = [*((after.start(),) if after else ()), *((blank,) if blank >= 0 else ())]
    return min(ends, default=None)


def _dump_fields(record: str) -> dict[str, Any] | None:
    """Return the fields of one record of a layer dump; None if its fixed words are missing."""
    name, anchor, text = record.removeprefix("Name: ").partition(", LayerType: ")
    return record_fields(name, text) if anchor else None


# --- lines -----------------------------------------------------------------------------------------------------------
# The `Engine Layer Information:` text of verbose builds, one `Layer(...)` line per layer.
#
#     Layer(CaskConvolution): conv1 + relu1, Tactic: 7144526460361122478, x[Half(1,3,224,224)] -> y[Half(1,64,112,112)]
#     Layer(CaskConvolution): conv1 + relu1, Tactic: 0xf64396b97c889179, x (Int8[1,3:4,224,224]) -> y (Half[1,64,112,112])
#
# TensorRT 8.0 to 8.4 print the first spelling, later releases the second. `3:4` means three channels padded to a
# multiple of four; a negative dimension is dynamic. Constants have no inputs. Names may contain commas, brackets and
# arrows, so tensors are found by the type and shape after them.


_START = re.compile(r"\bLayer\(([^()\n]*)\): ")
_CHOICE = re.compile(r", Tactic: (-?(?:0x[0-9a-fA-F]{1,16}|\d{1,20})), ")
_TACTIC = re.compile(r"Tactic Name: (\S+) Tactic: (-?(?:0x[0-9a-fA-F]{1,16}|\d{1,20}))\b")
_LAYERS_HEADING = re.compile(r"Engine Layer Information:")


def is_lines(text: str) -> bool:
    """Return whether `text` holds at least one `Layer(...)` line."""
    return next(_lines(text), None) is not None


def read_lines(text: str) -> Engine:
    """Read the layers after the last heading in `text`, or all layers if there is no heading."""
    at = max((match.end() for match in _LAYERS_HEADING.finditer(text)), default=0)
    if next(_lines(text, at), None) is None:
        at = 0
    tactics = {tactic_id(match[2]): match[1] for match in _TACTIC.finditer(text)}
    records = [_line_fields(line, tactics) for line in islice(_lines(text, at), MOST_LAYERS)]
    return Engine(
        layers=tuple(layer_from(fields) for fields in records if fields is not None),
        form="layer-lines",
        unread=sum(fields is None for fields in records),
    )


class _LayerLine(NamedTuple):
    kind: str
    name: str
    tactic: str
    tensors: str


def _lines(text: str, at: int = 0) -> Iterator[_LayerLine]:
    """Yield the `Layer(...)` lines after `at`. The last tactic of a line counts: names may hold others."""
    while (start := _START.search(text, at)) is not None:
        at = text.find("\n", start.end())
        at = len(text) if at < 0 else at
        *_, choice = None, *_CHOICE.finditer(text, start.end(), at)
        if choice is not None:
            yield _LayerLine(start[1], text[start.end() : choice.start()], choice[1], text[choice.end() : at])


def _line_fields(line: _LayerLine, tactics: Mapping[str | None, str]) -> dict[str, Any] | None:
    """Return the fields of one line with the name of its kernel, or None if its tensors cannot be parsed."""
    fields = line_fields(*line)
    return fields and {**fields, "TacticName": tactics.get(tactic_id(line.tactic), "")}


# --- replay ----------------------------------------------------------------------------------------------------------
# A tactic replay file as `polygraphy inspect tactics` prints it: names, tactics and types, but no shapes.
#
# Layer: conv1 + relu1
# Algorithm: (Implementation: 2147483657, Tactic: -480840) | Inputs: (TensorInfo(DataType.FLOAT, (784, 28, 1), -1, 1),) | Outputs: (...)


# Only blanks: `\s` also matches line ends, so that each of 100,000 empty lines would start a search through all lines
# after it.
_ENTRY = re.compile(
    r"^(?:\[\w\] )?[ \t]*Layer: (.*)\n[ \t]*Algorithm: \(Implementation: (-?\d{1,20}), Tactic: (-?\d{1,20})\)"
    r" \| Inputs: (.*?) \| Outputs: (.*)$",
    re.MULTILINE,
)
_TYPE = re.compile(r"DataType\.(\w+)")


def is_replay(text: str) -> bool:
    """Return whether `text` holds at least one entry of a tactic replay file."""
    return _ENTRY.search(text) is not None


def read_replay(text: str) -> Engine:
    """Return the layers of a tactic replay file. Its strides do not show the shapes."""
    layers = []
    for entry in islice(_ENTRY.finditer(text), MOST_LAYERS):
        name, implementation, tactic, inputs, outputs = entry.groups()
        fields = {"Name": name, "TacticValue": tactic, "Implementation": implementation}
        sides = {"Inputs": inputs, "Outputs": outputs}
        tensors = {
            side: [{"Name": "", "Format/Datatype": word} for word in _TYPE.findall(words)]
            for side, words in sides.items()
        }
        layers.append(layer_from({**fields, **tensors}))
    return Engine(layers=tuple(layers), form="tactic-replay")


# --- names -----------------------------------------------------------------------------------------------------------
# Text that lists only the names of layers, as builds print it without detailed profiling verbosity.
#
# Layers:
# conv1 + relu1
# pool1
#
# Bindings:
# input


NAMES_ONLY = "the layer information holds names only; types, shapes and formats need a build with --profilingVerbosity=detailed"
_LAYERS = re.compile(r"^(?:\[[^\]\n]*\] )*Layers:\n((?:[^\[\n][^\n]*\n)+)", re.MULTILINE)


def is_names(text: str) -> bool:
    """Return True if `text` holds a list of layer names."""
    return _LAYERS.search(text + "\n") is not None


def read_names(text: str) -> Engine:
    """Return the names of the last list in `text` as layers without tensors."""
    *_, heading = _LAYERS.finditer(text + "\n")
    names = [name for name in heading[1].splitlines() if name.strip()][:MOST_LAYERS]
    bindings = _NAMES.search(text + "\n", heading.end())
    return Engine(
        layers=tuple(layer_from({"Name": name}) for name in names),
        bindings=tuple(EngineTensor(name=name) for name in (bindings[1].splitlines() if bindings else ())),
        form="names-only",
        notes=(NAMES_ONLY,),
    )
