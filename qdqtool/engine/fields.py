"""Turns the fields of one layer, in any form, into an `EngineLayer` with role and precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qdqtool.core.engine import EngineLayer
from qdqtool.engine.precision import judged
from qdqtool.engine.weights import stated_constants
from qdqtool.trt.layer_records import layer_of

MOST_LAYERS = 20_000
"""Most layers that are read; real engines have far fewer."""


def layer(fields: Mapping[str, Any]) -> EngineLayer:
    """Return the layer with these fields. Missing and invalid fields are left empty; nothing raises."""
    stated = layer_of(fields)
    return judged(replace(stated, constants=stated.constants or stated_constants(fields)))
