"""A model as `qdqtool.graph` reads it: checked, named, sorted, with shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from qdqtool.graph.view import GraphView


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """An ONNX model in memory, with its path and with notes about how it was made.

    Every step of this package takes a `Model` and makes another; none changes the one it got.

    Attributes:
        proto: the model; only `qdqtool.graph` reads it, and no code changes it.
        path: the file it came from.
        notes: what was changed or noticed on the way, one sentence each.
    """

    proto: onnx.ModelProto
    path: Path
    notes: tuple[str, ...] = ()

    @property
    def metadata(self) -> dict[str, str]:
        """Model properties outside the graph, such as the task and the image size."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @cached_property
    def view(self) -> GraphView:
        """Read-only view of the main graph."""
        return GraphView(self.proto)
