"""From the fields of one layer, as any form names them, to an `EngineLayer` whose role and precision are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qdqtool.core.engine import EngineLayer
from qdqtool.engine.precision import judged
from qdqtool.engine.weights import stated_constants
from qdqtool.trt.layer_records import layer_of

MOST_LAYERS = 20_000
"""Layers after which reading stops; no engine comes near."""


def layer(fields: Mapping[str, Any]) -> EngineLayer:
    """The layer with these fields; missing and odd ones are left empty, nothing raises."""
    stated = layer_of(fields)
    return judged(replace(stated, constants=stated.constants or stated_constants(fields)))
