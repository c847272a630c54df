"""Reads layer information from a file, whichever form it has."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from qdqtool.core.engine import Engine, EngineTensor
from qdqtool.core.kinds import ENGINE
from qdqtool.engine.optimization_profiles import with_profiles
from qdqtool.engine.readers import LayerReader, dump, inspector, lines, names, replay
from qdqtool.engine.readers.lean import lean
from qdqtool.engine.roles import settled
from qdqtool.engine.unknowns import unknown_formats
from qdqtool.errors import InputFileError
from qdqtool.io.files import require_file
from qdqtool.io.text import TextSource

_ARTEFACT = re.compile(r'"kind": *"engine"')
_EDGE = 4096
"""Characters at either end of a file in which an artefact says what it is."""
_PLAN = "ftrt"
"""How a serialized engine begins."""
_PLANS = frozenset({".plan", ".engine", ".trt"})
_READERS: tuple[LayerReader, ...] = (dump, lines, replay, names)
"""Forms of text, the most detailed first: a log may hold several. The inspector's JSON goes before all of them."""


def read(path: Path) -> Engine:
    """The layers that the file at `path` describes.

    Raises:
        InputFileError: unreadable, or in no known form of layer information.
    """
    require_file(path)
    head = next(TextSource(path).pieces(), "")
    if head.startswith("{") and (_ARTEFACT.search(head, 0, _EDGE) or _ARTEFACT.search(_tail(path))):
        return ENGINE.read(path)
    if head.startswith(_PLAN) or path.suffix in _PLANS:
        raise InputFileError(
            "is an engine, not a description of one",
            fix="let trtexec describe it: --loadEngine=FILE --profilingVerbosity=detailed --exportLayerInfo=layers.json",
            where=str(path),
        )
    engine = inspector.read(TextSource(path).pieces())
    return _finished(engine or _text(lean(TextSource(path).pieces(), path), where=str(path)))


def _tail(path: Path) -> str:
    """The last characters of a file: an artefact says its kind after its data."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _EDGE))
        return stream.read().decode("utf-8", "replace")


def read_text(text: str, *, where: str) -> Engine:
    """The layers that `text` describes; `where` names it in messages.

    Raises:
        InputFileError: `text` is in no known form of layer information.
    """
    return _finished(inspector.read([text]) or _text(text, where=where))


def _text(text: str, *, where: str) -> Engine:
    reader = next((reader for reader in _READERS if reader.recognizes(text)), None)
    if reader is None:
        raise InputFileError(
            "holds no layer information",
            fix="pass the file of --exportLayerInfo, or a log of a build with detailed profiling verbosity; a profile alone: "
            "`qdqtool engine top FILE`",
            where=where,
        )
    return reader.read(text)


def _finished(engine: Engine) -> Engine:
    """The engine with what only all its layers together tell."""
    return replace(
        engine,
        layers=with_profiles(settled(engine.layers)),
        bindings=_described(engine),
        unknown_formats=unknown_formats(engine),
    )


def _described(engine: Engine) -> tuple[EngineTensor, ...]:
    """The bindings, with type and shape from the layers where the dump gives their names only."""
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
