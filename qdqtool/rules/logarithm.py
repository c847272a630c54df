"""Features that a logarithm is taken of stay float.

    recording ─ MatMul (Fourier) ─ squares ─ Sqrt ─ MatMul (mel) ─ Log ─ Conv      no Q/DQ in front of the Log
                                                                       └─ QDQ       INT8 from here on

After a logarithm, small values count as much as large ones, and most values of a spectrogram are small: they are less
than one INT8 step, and less than the rounding error of the Fourier or mel table. A front end is everything that a
network computes from its inputs up to a Log without any activation in between; a Log after layers with activations is
not part of one. FP16 and BF16 lose the same values: `insert.types` and `convert` keep the front end FP32, and QDQ212
does not count it.

Evidence: arithmetic, and public networks: one for pitch, which takes logarithms of three spectrograms of one recording,
loses its result in INT8 with every calibrator, and keeps it with a float front end. Set `place.skip_rules: [logarithm]`
to quantize it anyway.
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
            f"{log.name!r} takes the logarithm of its result: small values, which are less than a quantization step, count as much as large ones there",
            f"{skipping('logarithm', options)} quantizes it anyway",
            of_reason(Says.LOSES_ACCURACY),
        )


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report front ends with quantized compute nodes."""
    for log, products in match(flow.plain):
        quantized = sorted(node.name for node in products if flow.origin(node, 0) or flow.origin(node, 1))
        if quantized:
            yield Violation(
                node=quantized[0],
                reason=f"{log.name!r} takes the logarithm of what "
                + counted(len(quantized), "quantized product computes", "quantized products compute"),
                effect="small values, which count as much as large ones there, are less than a quantization step and are lost",
                fix=f"remove the pairs before them, or start from the float model: {Command('quantize')} keeps them float",
            )


PLUGIN = Rule(code="QDQ197", severity=Severity.WARNING, place=place, check=check)
