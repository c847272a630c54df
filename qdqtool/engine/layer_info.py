"""Layer information: read from a file in any form, and from the JSON of the engine inspector."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor
from qdqtool.core.kinds import ENGINE
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command
from qdqtool.engine.layer_text import (
    MOST_LAYERS,
    NAMES_ONLY,
    is_dump,
    is_lines,
    is_names,
    is_replay,
    layer_from,
    read_dump,
    read_lines,
    read_names,
    read_replay,
)
from qdqtool.engine.roles import settle_roles
from qdqtool.errors import InputFileError
from qdqtool.io.files import require_file
from qdqtool.io.text import LARGEST, TextSource, no_text, too_large
from qdqtool.trt.layer_records import opt_shape_of, tensor_of
from qdqtool.trt.names import profile_of

# --- any form --------------------------------------------------------------------------------------------------------

_ARTEFACT = re.compile(r'"kind": *"engine"')
_EDGE = 4096
"""Characters at either end of a file in which an artefact states its kind."""
_PLANS = ("ftrt", "ptrt", "vtrt")
"""First characters of a serialized engine."""
PLAN_SUFFIXES = frozenset({".plan", ".engine", ".trt"})
"""Suffixes of engine files."""
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
    is_plan = head.startswith(_PLANS)
    if is_plan or path.suffix.lower() in PLAN_SUFFIXES:
        raise InputFileError(
            "the file is an engine, not its layer information"
            if is_plan
            else "the file has the name of an engine, and holds no layer information",
            fix="export the layer information of the engine with trtexec: --loadEngine=FILE --profilingVerbosity=detailed --exportLayerInfo=layers.json",
            where=str(path),
        )
    engine = read_json(TextSource(path).pieces())
    return _complete_engine(engine or _text(lean(TextSource(path).pieces(), path), where=str(path)))


def _tail(path: Path) -> str:
    """Return the end of a file as text: an artefact of qdqtool states its kind after its data."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _EDGE))
        return stream.read().decode("utf-8", "replace")


def read_text(text: str, *, where: str) -> Engine:
    """Parse layer information of an engine from `text`; `where` names the source in messages.

    Raises:
        InputFileError: `text` is in no known form of layer information.
    """
    return _complete_engine(read_json([text]) or _text(text, where=where))


def _text(text: str, *, where: str) -> Engine:
    reader = next((read for recognizes, read in _READERS if recognizes(text)), None)
    if not text.strip():
        raise no_text(where)
    if reader is None:
        raise InputFileError(
            "the file holds no layer information",
            fix="pass the file of --exportLayerInfo, or a log of a build with detailed profiling verbosity; a profile alone: "
            f"{Command('engine', ('top', 'FILE'))}",
            where=where,
        )
    return reader(text)


def _complete_engine(engine: Engine) -> Engine:
    """Return the engine with the facts that need all of its layers, such as roles and bindings."""
    return replace(
        engine,
        layers=with_profiles(settle_roles(engine.layers)),
        bindings=_describe_bindings(engine),
        unknown_formats=unknown_formats(engine),
    )


def _describe_bindings(engine: Engine) -> tuple[EngineTensor, ...]:
    """Return the bindings of an engine; a binding without a shape becomes the layers' tensor of its name."""
    described = {
        tensor.name: tensor
        for layer in engine.layers
        for tensor in (*layer.inputs, *layer.outputs)
        if tensor.shape
    }
    return tuple(
        binding if binding.shape is not None else described.get(binding.name, binding)
        for binding in engine.bindings
    )


# --- optimization profiles -------------------------------------------------------------------------------------------
# Finds the optimization profile of a layer.
#
# Engines with several profiles list every layer once per profile. Layers of the second profile have ` [profile 1]` in
# their name or in the names of their tensors. Generated kernels between them may have no mark; they belong to the
# profile of the layers around them.


def with_profiles(layers: tuple[EngineLayer, ...]) -> tuple[EngineLayer, ...]:
    """Return the layers with the number of their optimization profile."""
    current = 0
    numbered: list[EngineLayer] = []
    for layer in layers:
        names = (layer.name, *(tensor.name for tensor in (*layer.inputs, *layer.outputs)))
        marks = (profile_of(name) for name in names)
        current = max([current, *(mark for mark in marks if mark is not None)])
        numbered.append(layer if current == 0 else replace(layer, profile=current))
    return tuple(numbered)


# --- unknown words ---------------------------------------------------------------------------------------------------
# Unknown words for types and formats, with their counts.


def unknown_formats(engine: Engine) -> tuple[tuple[str, int], ...]:
    """Return the printed formats of all tensors of unknown type, with counts, in alphabetical order."""
    counts = Counter(
        tensor.format
        for layer in engine.layers
        for tensor in (*layer.inputs, *layer.constants, *layer.outputs)
        if tensor.dtype is DType.UNKNOWN
    )
    return tuple(sorted(counts.items()))


# --- large logs ------------------------------------------------------------------------------------------------------
# Log text without the lines that do not describe layers, so that a large log fits into memory.

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
    """Join the pieces of one text. If the text is long, remove log lines that are not about layers.

    Raises:
        InputFileError: the text without these lines is larger than 256 MiB.
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


# --- inspector --------------------------------------------------------------------------------------------------------
# The engine inspector's JSON: trtexec --exportLayerInfo and IEngineInspector, TensorRT 8.2 to 11.
#
#     {"Layers": [{"Name": ..., "LayerType": ..., "Inputs": [{"Name", "Location", "Dimensions", "Format/Datatype"}], ...}],
#      "Bindings": ["input", "output"]}
#
# From 9 on Myelin regions appear as kgen, gemm and shape_call; 11 writes `I/O Tensors` instead of `Bindings` and
# splits `Format/Datatype`. Without detailed profiling verbosity, layers are only names. 8.6 writes U+001E raw, which
# strict JSON forbids. Layers are decoded one by one from a window that moves over the file, so a damaged or incomplete
# file still gives all its complete layers.


# --- layers ----------------------------------------------------------------------------------------------------------

_LIST = re.compile(r'"(Layers|Bindings|I/O Tensors)"\s{0,64}:\s{0,64}\[')
_WORDS = ('Layers"', 'Bindings"', 'I/O Tensors"')
_LAYER = re.compile(r'\{\s{0,64}"Name"\s{0,64}:\s{0,64}"(?:[^"\\]|\\.){0,4000}"\s{0,64},\s{0,64}"LayerType"')
_TENSOR = re.compile(r'"')
# A file with more is not layer information: a user sets the shape of each binding by name.
_MOST_BINDINGS = 10_000
_REGIONS = frozenset({"kgen", "gemm", "shape_call", "correlation"})

OptShapes = tuple[tuple[str, tuple[int, ...]], ...]


def read_json(pieces: Iterable[str]) -> Engine | None:
    """Read the layers of the last list in a JSON file, or in a log that contains such a list; None if there is no list."""
    window = Window(pieces)
    engine: Engine | None = None
    bindings: tuple[EngineTensor, ...] = ()
    optimum: OptShapes = ()
    split = False
    while (heading := window.find(_LIST, _WORDS)) is not None:
        if heading[1] == "Layers":
            engine = _layers(window)
        elif heading[1] == "I/O Tensors" or not split:
            split = heading[1] == "I/O Tensors"
            bindings, optimum = _bindings(window)
    return engine and _with(replace(engine, opt_shapes=optimum), bindings, split=split)


def _layers(window: Window) -> Engine:
    layers: list[EngineLayer] = []
    unread, names = 0, 0
    for value in window.values(_LAYER):
        if len(layers) == MOST_LAYERS:
            break
        names += isinstance(value, str)
        if isinstance(value, str):
            layers.append(layer_from({"Name": value}))
        elif isinstance(value, Mapping):
            layers.append(layer_from(value))
        else:
            unread += 1
    form = _form(layers) if names < len(layers) or not layers else "names-only"
    notes = [NAMES_ONLY] if names else []
    notes += [f"only the first {MOST_LAYERS:,} layers were read"] if len(layers) == MOST_LAYERS else []
    return Engine(layers=tuple(layers), form=form, unread=unread, notes=tuple(notes))


def _bindings(window: Window) -> tuple[tuple[EngineTensor, ...], OptShapes]:
    bindings: list[EngineTensor] = []
    optimum: list[tuple[str, tuple[int, ...]]] = []
    for value in window.values(_TENSOR):
        if value is DAMAGED or len(bindings) == _MOST_BINDINGS:
            break
        fields: Any = {"Name": value} if isinstance(value, str) else value
        if isinstance(fields, Mapping):
            bindings.append(tensor_of(fields))
            if (shape := opt_shape_of(fields)) is not None:
                optimum.append((bindings[-1].name, shape))
    return tuple(bindings), tuple(optimum)


def _with(engine: Engine, bindings: tuple[EngineTensor, ...], *, split: bool) -> Engine:
    form = "inspector-11" if split and engine.form != "names-only" else engine.form
    return replace(engine, bindings=bindings, form=form)


def _form(layers: list[EngineLayer]) -> str:
    if any(layer.kind in _REGIONS for layer in layers):
        return "inspector-9"
    keys = {key for layer in layers for key, _ in layer.attributes}
    return "inspector-8.6" if "Metadata" in keys else "inspector-8.2"


# --- JSON of any size ------------------------------------------------------------------------------------------------
# JSON that is read piece by piece and then discarded, so that a file of any size needs little memory.

DAMAGED = object()
"""Marker for text that is not valid JSON."""
_CUT = object()
_WORD = 12
"""Characters that are enough to recognise an escape or a literal."""
LARGEST_VALUE = 1 << 24
"""Largest number of characters of one value; a longer value counts as damage."""
_MOST_DAMAGE = 1000
"""Number of damaged stretches after which the rest of a list is skipped."""
_REACH = 8192
"""Characters that a pattern may span."""
_GAP = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(strict=False)


class Window:
    """The part of a large text around the reading position.

    Attributes:
        text: the text in memory.
        at: position of the reader in the text.
        ended: whether the text in memory is the last part.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self.text = ""
        self.at = 0
        self.ended = False

    def find(self, pattern: re.Pattern[str], words: tuple[str, ...] = ()) -> re.Match[str] | None:
        """Find the next match of `pattern` (at most 8192 characters). Move the position after the match, or to the end.

        If `words` are given, every match contains one of them; a search for words first is much faster.
        """
        while (match := self._match(pattern, words)) is None:
            self.at = max(self.at, len(self.text) - _REACH)
            if not self._more():
                self.at = len(self.text)
                return None
        self.at = match.end()
        return match

    def values(self, following: re.Pattern[str]) -> Iterator[Any]:
        """Yield the values of the JSON list around the position; `DAMAGED` for each part that is not JSON.

        After damage, reading continues at the next match of `following`. The end of a list that is cut counts as
        damage.
        """
        for _ in range(_MOST_DAMAGE):
            while self._skip() and self.text[self.at] != "]":
                value = self._value()
                if value is DAMAGED:
                    break
                yield value
            else:
                if self.at < len(self.text):
                    self.at += 1
                    return
            yield DAMAGED
            self.at += 1
            match = self.find(following)
            if match is None:
                return
            self.at = match.start()

    def _match(self, pattern: re.Pattern[str], words: tuple[str, ...]) -> re.Match[str] | None:
        if words and all(self.text.find(word, self.at) < 0 for word in words):
            return None
        return pattern.search(self.text, self.at)

    def _skip(self) -> bool:
        """Skip spaces and commas in the text; return True if any text is left."""
        while True:
            gap = _GAP.match(self.text, self.at)
            self.at = gap.end() if gap else self.at
            if self.at < len(self.text):
                return True
            if not self._more():
                return False

    def _value(self) -> Any:
        while (value := self._decode_value()) is _CUT:
            if len(self.text) - self.at > LARGEST_VALUE or not self._more():
                return DAMAGED
        return value

    def _decode_value(self) -> Any:
        """Decode the value at the position. Return `DAMAGED`, or `_CUT` if more text may complete the value."""
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated") or error.pos > len(self.text) - _WORD
            return _CUT if cut else DAMAGED
        except (ValueError, RecursionError):
            return DAMAGED
        return value

    def _more(self) -> bool:
        """Read more text, drop the text before the position, and return whether there was more."""
        held = [self.text[self.at :]]
        least = len(held[0])
        taken = 0
        while not self.ended and taken <= least:
            piece = next(self._pieces, None)
            self.ended = piece is None
            held.append(piece or "")
            taken += len(piece or "")
        self.text = "".join(held)
        self.at = 0
        return taken > 0
