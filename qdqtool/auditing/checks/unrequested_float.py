"""A node runs in float because nothing asked for its quantization.

This is not a fault of the builder: placement refused this node, or the model lacks Q/DQ on some of its inputs. The
reason repeats the reason of placement, so the list of float nodes in the engine is complete. Nodes with weight-only
quantization (`place.activations: float`) run as requested and are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.findings import Severity, Verdict
from qdqtool.core.quant_format import FLOAT
from qdqtool.matching.silent_float import BEFORE


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per float node that was not requested."""
    for case, verdict in zip(context.cases, context.verdicts, strict=True):
        if verdict.requested or verdict.precision.is_quantized or verdict.verdict is Verdict.ABSORBED:
            continue
        defeated = verdict.realised == FLOAT or verdict.realised.endswith(BEFORE)  # told by another check
        if case.weights_alone or (verdict.asked.endswith("-weights") and (verdict.is_as_asked or defeated)):
            continue
        yield Draft(
            subject=verdict.node,
            reason=f"{verdict.op} runs {verdict.precision} and the model does not quantize it: {verdict.reason}",
            fix=verdict.fix,
            evidence=(context.at_node(verdict.node), *(context.at_layer(name) for name in verdict.layers)),
        )


PLUGIN = Check(code="QDQ202", severity=Severity.INFO, find=find, says=Says.IS_FLOAT)
