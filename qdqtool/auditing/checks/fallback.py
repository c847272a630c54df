"""A node that was to run INT8, or in another format of few bits, does not.

Placement (or, without one, the Q/DQ nodes of the model) requested it on every input of this node, but its kernel in the
engine computes in float, or no kernel was found. The Q/DQ before it then has a cost without a gain: values are rounded
to eight bits and converted back to float before they are multiplied. The reason comes from the Q/DQ graph around the
node.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.findings import Severity, Verdict
from qdqtool.core.tensors import DType


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per requested node that does not run in the requested format."""
    for verdict in context.verdicts:
        if not verdict.requested or verdict.precision.is_quantized or verdict.asked == verdict.realised:
            continue
        asked = "INT8" if verdict.asked == "float" else verdict.asked.upper()
        harmless = verdict.verdict is Verdict.ABSORBED
        yield Draft(
            subject=verdict.node,
            reason=f"{verdict.op} should run {asked} but is {_words(verdict.verdict, verdict.precision)}: {verdict.reason}",
            fix=verdict.fix,
            severity=Severity.INFO if harmless else None,
            evidence=(context.at_node(verdict.node), *(context.at_layer(name) for name in verdict.layers)),
        )


def _words(kind: Verdict, precision: DType) -> str:
    return (
        str(kind.value)
        if precision is DType.UNKNOWN or kind.value == precision.value
        else f"{kind.value} ({precision})"
    )


PLUGIN = Check(code="QDQ201", severity=Severity.WARNING, find=find, says=Says.IS_FLOAT)
