"""Writes facts about nodes into the model, so that viewers such as Netron show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from qdqtool.graph.model import Model

_LOWEST_IR = 10
"""First IR version whose nodes have metadata."""


def annotate(model: Model, facts: Mapping[str, Mapping[str, str]]) -> Model:
    """Return a copy of `model` whose nodes carry `facts` (by node name) as metadata and as documentation.

    Metadata is what recent viewers show; the documentation string repeats it for older ones. Nothing that computes is
    changed.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.ir_version = max(proto.ir_version, _LOWEST_IR)
    for node in proto.graph.node:
        known = facts.get(node.name, {})
        for key in sorted(known):
            node.metadata_props.add(key=key, value=known[key])
        if known:
            node.doc_string = "\n".join(f"{key}: {known[key]}" for key in sorted(known))
    return replace(model, proto=proto)
