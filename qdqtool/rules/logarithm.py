"""Features that a logarithm is taken of stay float.

    recording ─ MatMul (Fourier) ─ squares ─ Sqrt ─ MatMul (mel) ─ Log ─ Conv      no Q/DQ in front of the Log
                                                                       └─ QDQ       INT8 from here on

A logarithm makes as much of quiet values as of loud ones, and most of a spectrogram is quiet: one step of INT8, and the
rounding of the table that multiplies, is as large as all of it. What a network computes from its inputs alone up to a Log,
without any activation on the way, is such a front end; a Log behind layers with activations is none. FP16 and BF16 lose the same
values: `insert.types` and `convert` keep the front end FP32, and QDQ212 does not count it.

Evidence: arithmetic, and public networks: one for pitch, which takes logarithms of three spectrograms of one recording, loses
what it says in INT8 by every calibrator, and keeps it with its front end float. Set `place.skip_rules: [logarithm]` to quantize
it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.claims import Says, of_reason
from qdqtool.core.commands import Command
from qdqtool.core.findings import Severity
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.sensitive import front_ends
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import skipping, veto
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import PRODUCTS


def match(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every Log with a front end, and the compute nodes of that front end."""
    for log, nodes in front_ends(view):
        products = tuple(node for node in nodes if node.op in PRODUCTS)
        if products:
            yield log, products


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto the compute nodes of every front end."""
    found = {node.name: (node, log) for log, products in match(view) for node in products}
    for node, log in found.values():
        yield from veto(
            node,
            f"{log.name!r} takes a logarithm of what it computes, in which quiet values count as much as loud ones: "
            "they are smaller than a step",
            f"{skipping('logarithm', options)} quantizes it all the same",
            of_reason(Says.LOSES_ACCURACY),
        )


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report front ends with quantized compute nodes."""
    for log, products in match(flow.plain):
        quantized = sorted(node.name for node in products if flow.origin(node, 0) or flow.origin(node, 1))
        if quantized:
            yield Violation(
                node=quantized[0],
                reason=f"{log.name!r} takes a logarithm of what "
                + counted(len(quantized), "quantized product computes", "quantized products compute"),
                effect="quiet values, which count as much as loud ones there, are smaller than a step and lost",
                fix=f"take the pairs off in front of them; made from the float model, {Command('quantize')} keeps them float",
            )


PLUGIN = Rule(code="QDQ197", severity=Severity.WARNING, place=place, check=check)
