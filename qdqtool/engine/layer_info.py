"""Reads layer information from a file in any form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from qdqtool.core.commands import Command
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor
from qdqtool.core.kinds import ENGINE
from qdqtool.core.tensors import DType
from qdqtool.engine import inspector
from qdqtool.engine.layer_text import (
    is_dump,
    is_lines,
    is_names,
    is_replay,
    read_dump,
    read_lines,
    read_names,
    read_replay,
)
from qdqtool.engine.roles import settled
from qdqtool.errors import InputFileError
from qdqtool.io.files import require_file
from qdqtool.io.text import LARGEST, TextSource, too_large
from qdqtool.trt.names import profile_of

# --- any form --------------------------------------------------------------------------------------------------------

_ARTEFACT = re.compile(r'"kind": *"engine"')
_EDGE = 4096
"""Characters at either end of a file in which an artefact states its kind."""
_PLAN = "ftrt"
"""First characters of a serialized engine."""
_PLANS = frozenset({".plan", ".engine", ".trt"})
_READERS: tuple[tuple[Callable[[str], bool], Callable[[str], Engine]], ...] = (
    (is_dump, read_dump),
    (is_lines, read_lines),
    (is_replay, read_replay),
    (is_names, read_names),
)
"""Text forms (how one is recognized and read), the most detailed first, because a log may hold several. The inspector's JSON is tried before all of them."""


def read(path: Path) -> Engine:
    """Return the layers that the file at `path` describes.

    Raises:
        InputFileError: unreadable, or in no known form of layer information.
    """
    require_file(path)
    head = next(TextSource(path).pieces(), "")
    if head.startswith("{") and (_ARTEFACT.search(head, 0, _EDGE) or _ARTEFACT.search(_tail(path))):
        return ENGINE.read(path)
    if head.startswith(_PLAN) or path.suffix in _PLANS:
        raise InputFileError(
            "is an engine, not its layer information",
            fix="export its layer information with trtexec: --loadEngine=FILE --profilingVerbosity=detailed --exportLayerInfo=layers.json",
            where=str(path),
        )
    engine = inspector.read(TextSource(path).pieces())
    return _finished(engine or _text(lean(TextSource(path).pieces(), path), where=str(path)))


def _tail(path: Path) -> str:
    """Return the last characters of a file: an artefact states its kind after its data."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _EDGE))
        return stream.read().decode("utf-8", "replace")


def read_text(text: str, *, where: str) -> Engine:
    """Return the layers that `text` describes; `where` names it in messages.

    Raises:
        InputFileError: `text` is in no known form of layer information.
    """
    return _finished(inspector.read([text]) or _text(text, where=where))


def _text(text: str, *, where: str) -> Engine:
    found = next((read for recognizes, read in _READERS if recognizes(text)), None)
    if found is None:
        raise InputFileError(
            "holds no layer information",
            fix="pass the file of --exportLayerInfo, or a log of a build with detailed profiling verbosity; a profile alone: "
            f"{Command('engine', ('top', 'FILE'))}",
            where=where,
        )
    return found(text)


def _finished(engine: Engine) -> Engine:
    """Complete the engine with facts that need all its layers together."""
    return replace(
        engine,
        layers=with_profiles(settled(engine.layers)),
        bindings=_described(engine),
        unknown_formats=unknown_formats(engine),
    )


def _described(engine: Engine) -> tuple[EngineTensor, ...]:
    """Return the bindings, with type and shape from the layers if the dump gives only their names."""
    known = {
        tensor.name: tensor
        for layer in engine.layers
        for tensor in (*layer.inputs, *layer.outputs)
        if tensor.shape
    }
    return tuple(
        binding if binding.shape is not None else known.get(binding.name, binding)
        for binding in engine.bindings
    )


# --- optimization profiles -------------------------------------------------------------------------------------------
# Which optimization profile a layer was built for.
#
# Engines with several profiles list every layer once per profile, those of the second one with ` [profile 1]` in their
# name or in the names of their tensors. Generated kernels in between may have no mark at all: they belong to the profile
# of the layers around them.


def with_profiles(layers: tuple[EngineLayer, ...]) -> tuple[EngineLayer, ...]:
    """Return `layers` with the number of their profile."""
    current = 0
    found: list[EngineLayer] = []
    for layer in layers:
        names = (layer.name, *(tensor.name for tensor in (*layer.inputs, *layer.outputs)))
        marks = (profile_of(name) for name in names)
        current = max([current, *(mark for mark in marks if mark is not None)])
        found.append(layer if current == 0 else replace(layer, profile=current))
    return tuple(found)


# --- unknown words ---------------------------------------------------------------------------------------------------
# Type and format words that nobody recognises, counted.


def unknown_formats(engine: Engine) -> tuple[tuple[str, int], ...]:
    """Return the printed formats of all tensors of unknown type, with their counts, in alphabetical order."""
    counts = Counter(
        tensor.format
        for layer in engine.layers
        for tensor in (*layer.inputs, *layer.constants, *layer.outputs)
        if tensor.dtype is DType.UNKNOWN
    )
    return tuple(sorted(counts.items()))


# --- large logs ------------------------------------------------------------------------------------------------------
# Log text with the lines that say nothing of layers left out, so that a large log fits into memory.

_FULL = 1 << 26
"""Characters up to which a text is kept unchanged."""
_STEP = 1 << 22
"""Characters that are filtered at once."""
_SILENT = re.compile(
    r"^\[(?![^\n]*(?:Layer\(|Layers:|LayerType|Layer Information|Layer: |Algorithm: |Tactic Name: |Bindings:))"
    r"[^\n]*\n",
    re.MULTILINE,
)


def lean(pieces: Iterable[str], path: Path) -> str:
    """Join the text of all pieces. Long texts lose the logger's lines that have nothing to do with layers.

    Raises:
        InputFileError: what is left is larger than 256 MiB.
    """
    kept: list[str] = []
    fresh: list[str] = []
    held, unread = 0, 0
    for piece in pieces:
        fresh.append(piece)
        unread += len(piece)
        if held + unread > _FULL and unread > _STEP:
            whole, end, cut = "".join(fresh).rpartition("\n")
            kept.append(_SILENT.sub("", f"{whole}{end}"))
            held += len(kept[-1])
            fresh, unread = [cut], len(cut)
        if held + unread > LARGEST:
            raise too_large(path)
    return "".join([*kept, *fresh])
