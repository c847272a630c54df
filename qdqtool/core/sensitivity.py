"""How much each quantized node costs in accuracy, and which ones to keep float."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.comparison import TaskAccuracy
from qdqtool.core.showing import Shown


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSensitivity:
    """What quantizing one node does to the model's outputs.

    Attributes:
        node: its name; for a group, the names of its nodes lie in `members`.
        op: operator type; "group" for a group.
        members: nodes that are switched together.
        share: its part of the noise that all nodes make one by one (0 to 1), as far as measured.
        alone_db: SQNR of the outputs when nothing else is quantized; None where it makes no noise.
        without_db: SQNR when everything but this node is quantized; None where not measured.
        gain_db: what keeping it float brings: `without_db` minus the SQNR of the whole; None where not measured.
        task: accuracy when everything but this node is quantized, against the float model; None without labels.
        samples: samples behind these figures: few for an estimate, all for an exact run.
        exact: whether all samples were used.
    """

    node: str
    op: str
    members: tuple[str, ...]
    share: float
    alone_db: float | None
    without_db: float | None
    gain_db: float | None
    task: TaskAccuracy | None
    samples: int
    exact: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatSet:
    """The result of keeping some nodes float.

    Attributes:
        kept: names of the nodes kept float, most sensitive first.
        sqnr_db: SQNR of the outputs; None where there is no noise left.
        task: accuracy against the float model; None without labels.
        int8_nodes: compute nodes that stay quantized.
        total_nodes: compute nodes of the model.
    """

    kept: tuple[str, ...]
    sqnr_db: float | None
    task: TaskAccuracy | None
    int8_nodes: int
    total_nodes: int


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Sensitivity(Shown):
    """All of it.

    Attributes:
        model: file name of the Q/DQ model.
        samples: samples of the exact runs.
        meaningful: False when the samples were random.
        whole: with every node quantized.
        nodes: most sensitive first.
        curve: keeping the most sensitive nodes float, one more at a time as far as they were measured.
        advice: the smallest set that meets the limit; None where no limit was set or nothing meets it.
        notes: what a reader must know.
    """

    model: str
    samples: int
    meaningful: bool
    whole: FloatSet
    nodes: tuple[NodeSensitivity, ...]
    curve: tuple[FloatSet, ...]
    advice: FloatSet | None = None
    notes: tuple[str, ...] = ()
