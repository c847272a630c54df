"""Q/DQ with INT8 values on a bias.

    bias ─ Q ─ DQ ─ Conv        255 steps for what is added to 32-bit sums
    bias ──────── Conv          exact, in the same kernels

The bias is added behind the INT8 product, in float, so rounding it gains nothing. (INT32 biases are QDQ105.)

Evidence: RTX 1.7.1 multiplies the bias back to float inside the epilogue, in as many kernels (bias_int8). Classic
releases want the bias as constant weights, and some refuse one behind DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow, is_int8
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products with an INT8 third input."""
    for node in flow.products():
        if len(node.inputs) > 2 and is_int8(flow.origins.get(node.inputs[2])):
            yield Violation(
                node=node.name,
                reason="its bias has Q/DQ",
                effect="the bias is rounded to 255 steps and added in float"
                if target.is_rtx
                else "the bias is rounded to 255 steps, and parsers that want constant biases refuse it",
                fix="store the bias as a float constant without Q/DQ",
            )


PLUGIN = Rule(code="QDQ148", severity=Severity.WARNING, check=check)
