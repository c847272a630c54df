"""Nodes whose names end in `_protected` stay float.

    before                                after
    x ─ QDQ ─ Conv `gain_protected`       x ─ Conv `gain_protected`

The networks of the house name nodes so that a controller behind them depends on. TensorRT would run them in INT8 like all
others. Targets: all. Evidence: an agreement, not a measurement.
"""

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import RequestOrVeto, Slot, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView
from qdqtool.matching.rule import Rule, Violation

ENDING = "_protected"


def place(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """No Q/DQ on any input of such a node, whatever other rules ask for."""
    del options
    for node in view.nodes:
        if node.name.endswith(ENDING):
            for index in range(len(node.inputs)):
                slot = Slot(node=node.name, index=index)
                yield SlotStatement(slot=slot, stance=RequestOrVeto.VETO, reason=f"its name ends in {ENDING}")


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Such nodes with Q/DQ in a model of somebody else."""
    del target
    for pair in flow.pairs:
        for slot in pair.slots:
            if slot.node.endswith(ENDING):
                yield Violation(
                    node=slot.node,
                    reason="it is protected, and has Q/DQ on an input",
                    effect="it runs INT8",
                    fix="leave it out: place.exclude, or the quantizer of the framework",
                )


PLUGIN = Rule(code="HOUSE100", severity=Severity.WARNING, place=place, check=check)
