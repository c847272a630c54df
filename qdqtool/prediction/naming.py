"""Names of predicted layers."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.core.wording import counted

_SPELT_OUT = 32
"""Nodes that a name lists; a name grows with its layer, and every node of the layer repeats it."""


def layer_name(nodes: Sequence[str]) -> str:
    """The nodes of a layer joined by " + ", the middle of long lists left out."""
    if len(nodes) <= _SPELT_OUT:
        return " + ".join(nodes)
    shown = " + ".join(nodes[: _SPELT_OUT - 1])
    return f"{shown} + ... + {nodes[-1]} ({counted(len(nodes), 'node')})"
