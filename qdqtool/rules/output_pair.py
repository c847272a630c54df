"""Q/DQ right before a model output.

    Conv ─ Relu ─ Q ─ DQ ─ y      y is rounded for nothing
    Conv ─ Relu ─ y

The last value is rounded and given back as float: accuracy is lost where nothing follows that could use INT8.

Evidence: RTX 1.7.1 quantizes and dequantizes inside the last kernel (q_on_output).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs whose result only leaves the model."""
    for pair in flow.pairs:
        if pair.returned and not pair.slots and pair.dequantize and pair.quantize:
            yield Violation(
                node=pair.quantize,
                reason="the pair stands right before a model output",
                effect="the output is rounded to INT8 and returned as float",
                fix=f"{repairing(to_float=[pair.quantize])} takes the pair off; or return the INT8 values themselves",
            )


PLUGIN = Rule(code="QDQ142", severity=Severity.INFO, check=check)
