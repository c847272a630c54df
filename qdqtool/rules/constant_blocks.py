"""Constant block scales of NVFP4 in the kernel of a sum.

    LayerNorm ─ Q (FP4, constant scales of blocks) ─ DQ ─ MatMul          the build fails, and names no node
    LayerNorm ─ TRT_FP4DynamicQuantize ─ DQ ─ MatMul                      FP4

Constant scales cost fewer kernels than computed ones (2 instead of 5 for a product), but the kernel that normalizes a row,
or sums it in another way, cannot quantize it to FP4. Insertion computes the scales there, whatever `insert.blocks` says.

Evidence: RTX 1.7.1 for SM120, 90 builds: `CHECK(values.size() && values.size() % 2 == 0)` or `CHECK(is_constant())` in front
of each kind of sum along the last axes, and builds where another kernel stands between; listed in `graph/row_sums.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.lower import computed_blocks
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.constant_blocks import in_sums as match
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Such pairs."""
    for pair, total in match(flow):
        assert pair.quantize is not None
        yield Violation(
            node=pair.quantize,
            reason=f"it has constant block scales, and quantizes in the kernel of {total}, which sums along the blocks",
            effect="the build fails, naming no node",
            fix="compute the scales in every inference: insert.blocks=computed, the default; `qdqtool repair` does",
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Compute the scales of their blocks."""
    flow = context.flow
    for pair, total in match(flow):
        quantize = context.nodes[pair.quantize or ""]
        scale = flow.view.producer(quantize.input[1])
        behind = [context.nodes[use.node.name] for use in flow.view.uses(quantize.output[0])]
        assert scale is not None
        written = flow.view.by_name[quantize.name]
        axis, block = written.attribute("axis", 1), written.attribute("block_size")
        result = computed_blocks(context.edit, pair.tensor, pair.tensor, scale.inputs[1], axis, block)
        for dequantize in behind:
            context.redirect(dequantize.output[0], result)
        context.edit.remove((quantize, *behind))
        yield Change(
            subject=quantize.name,
            what="the scales of its blocks are computed in every inference",
            reason=f"with constant ones the kernel of {total} would quantize to FP4 as well, which is not built",
        )


PLUGIN = Rule(
    code="QDQ196",
    severity=Severity.ERROR,
    targets=frozenset({"rtx"}),
    formats=frozenset({"nvfp4"}),
    check=check,
    fix=fix,
)
