"""The engine inspector's JSON: trtexec --exportLayerInfo and IEngineInspector, TensorRT 8.2 to 11.

    {"Layers": [{"Name": ..., "LayerType": ..., "Inputs": [{"Name", "Location", "Dimensions", "Format/Datatype"}], ...}],
     "Bindings": ["input", "output"]}

From 9 on Myelin regions appear as kgen, gemm and shape_call; 11 writes `I/O Tensors` instead of `Bindings` and splits
`Format/Datatype`. Without detailed profiling verbosity the layers are mere names. 8.6 writes U+001E raw, which strict
JSON forbids. Layers are decoded one by one from a window that moves over the file: a damaged or cut one gives all whole layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor
from qdqtool.engine.fields import MOST_LAYERS, layer
from qdqtool.engine.readers.names import NAMES_ONLY
from qdqtool.engine.window import DAMAGED, Window
from qdqtool.trt.layer_records import opt_shape_of, tensor_of

_LIST = re.compile(r'"(Layers|Bindings|I/O Tensors)"\s{0,64}:\s{0,64}\[')
_WORDS = ('Layers"', 'Bindings"', 'I/O Tensors"')
_LAYER = re.compile(r'\{\s{0,64}"Name"\s{0,64}:\s{0,64}"(?:[^"\\]|\\.){0,4000}"\s{0,64},\s{0,64}"LayerType"')
_TENSOR = re.compile(r'"')
# More is no engine: every binding has a name and a shape that its user sets.
_MOST_BINDINGS = 10_000
_REGIONS = frozenset({"kgen", "gemm", "shape_call", "correlation"})

OptShapes = tuple[tuple[str, tuple[int, ...]], ...]


def read(pieces: Iterable[str]) -> Engine | None:
    """The layers of the last list in a JSON file, or in a log that holds one; None where there is no such list."""
    window = Window(pieces)
    engine: Engine | None = None
    bindings: tuple[EngineTensor, ...] = ()
    optimum: OptShapes = ()
    split = False
    while (found := window.find(_LIST, _WORDS)) is not None:
        if found[1] == "Layers":
            engine = _layers(window)
        elif found[1] == "I/O Tensors" or not split:
            split = found[1] == "I/O Tensors"
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
            layers.append(layer({"Name": value}))
        elif isinstance(value, Mapping):
            layers.append(layer(value))
        else:
            unread += 1
    form = _form(layers) if names < len(layers) or not layers else "names-only"
    notes = [NAMES_ONLY] if names else []
    notes += [f"only the first {MOST_LAYERS:,} layers were read"] if len(layers) == MOST_LAYERS else []
    return Engine(layers=tuple(layers), form=form, unread=unread, notes=tuple(notes))


def _bindings(window: Window) -> tuple[tuple[EngineTensor, ...], OptShapes]:
    found: list[EngineTensor] = []
    optimum: list[tuple[str, tuple[int, ...]]] = []
    for value in window.values(_TENSOR):
        if value is DAMAGED or len(found) == _MOST_BINDINGS:
            break
        fields: Any = {"Name": value} if isinstance(value, str) else value
        if isinstance(fields, Mapping):
            found.append(tensor_of(fields))
            if (shape := opt_shape_of(fields)) is not None:
                optimum.append((found[-1].name, shape))
    return tuple(found), tuple(optimum)


def _with(engine: Engine, bindings: tuple[EngineTensor, ...], *, split: bool) -> Engine:
    form = "inspector-11" if split and engine.form != "names-only" else engine.form
    return replace(engine, bindings=bindings, form=form)


def _form(layers: list[EngineLayer]) -> str:
    if any(found.kind in _REGIONS for found in layers):
        return "inspector-9"
    keys = {key for found in layers for key, _ in found.attributes}
    return "inspector-8.6" if "Metadata" in keys else "inspector-8.2"
