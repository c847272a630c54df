"""Which optimization profile a layer was built for.

Engines with several profiles list every layer once per profile, those of the second one with ` [profile 1]` in their
name or in the names of their tensors. Generated kernels in between may have no mark at all: they belong to the profile
of the layers around them.
"""

from __future__ import annotations

from dataclasses import replace

from qdqtool.core.engine import EngineLayer
from qdqtool.trt.names import profile_of


def with_profiles(layers: tuple[EngineLayer, ...]) -> tuple[EngineLayer, ...]:
    """`layers` with the number of their profile."""
    current = 0
    found: list[EngineLayer] = []
    for layer in layers:
        names = (layer.name, *(tensor.name for tensor in (*layer.inputs, *layer.outputs)))
        marks = (profile_of(name) for name in names)
        current = max([current, *(mark for mark in marks if mark is not None)])
        found.append(layer if current == 0 else replace(layer, profile=current))
    return tuple(found)
