"""What a check is: a function from the scene to drafts of findings, with a code and a severity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from qdqtool.audit.case import Case
from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.findings import Evidence, NodeVerdict, Severity
from qdqtool.core.placement import Placement
from qdqtool.graph.view import GraphView


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A finding before it gets the code and name of its check; `severity` overrides the check's own."""

    subject: str
    reason: str
    fix: str
    severity: Severity | None = None
    bytes: int | None = None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scene:
    """All there is to look at.

    Attributes:
        view: the Q/DQ model.
        engine: the layers of the engine.
        placement: the decisions, or None.
        cases: every compute node with its evidence, in graph order.
        verdicts: what became of each, in the same order.
    """

    view: GraphView
    engine: Engine
    placement: Placement | None
    cases: tuple[Case, ...]
    verdicts: tuple[NodeVerdict, ...]

    @cached_property
    def kernels(self) -> tuple[EngineLayer, ...]:
        """Layers that launch something."""
        return self.engine.kernels

    @cached_property
    def positions(self) -> dict[str, int]:
        """Index of each layer by its name (of the first, where names repeat)."""
        return {layer.name: index for index, layer in reversed(list(enumerate(self.engine.layers)))}

    def at_layer(self, name: str) -> Evidence:
        """The place of a layer in the run folder's layers.json."""
        return Evidence(file="layers.json", place=f"/data/layers/{self.positions[name]}")

    def at_node(self, name: str) -> Evidence:
        """The place of a node in the Q/DQ model."""
        return Evidence(file="model.qdq.onnx", place=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A plug-in of the shelf.

    Attributes:
        code: stable identifier, "QDQ201".
        severity: how much its findings matter unless a draft says otherwise.
        find: the drafts of its findings, in a stable order.
    """

    code: str
    severity: Severity
    find: Callable[[Scene], Iterable[Draft]]
