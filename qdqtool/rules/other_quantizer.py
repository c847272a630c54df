"""Quantizers of another tool, in operators that TensorRT does not import.

    x ─ qonnx.custom_op.general.Quant ─ Conv        refused
    x ─ QuantizeLinear ─ DequantizeLinear ─ Conv    INT8

QONNX (Brevitas, QKeras), AMD Quark, OpenVINO and the fake quantization of training toolkits write operators of their own. A
model with them is no float model: it must not be calibrated. The fix writes Q and DQ where these compute the same: a Quant of
8 signed bits that rounds to nearest, with zero point 0; a Quant of fewer bits on a weight; an Extended Q or DQ of 8-bit
integers. Of others start from an export with Q/DQ.

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE. Forms: QONNX's documentation of Quant, Quark's of its custom
operators.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.other_tools import convert
from qdqtool.graph.qdq.other_tools import other_quantizers as match
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for found in match(flow.view):
        node, tool = found.node, f" of {found.tool}" if found.tool else " of another tool"
        domain = f", domain {node.domain}" if node.domain else ""
        yield Violation(
            node=node.name,
            reason=f"{node.op}{domain} is a quantizer{tool}",
            effect="TensorRT does not import it",
            fix="write it as Q/DQ, which compute the same; `qdqtool repair` does"
            if found.exact
            else found.way,
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Write those with an exact form as Q/DQ."""
    for found in convert(context.edit, context.view, match(context.view)):
        yield Change(
            subject=found.node.name,
            what=f"{found.node.op} of {found.tool or 'another tool'} became Q/DQ",
            reason=f"TensorRT does not import {found.node.op}",
            error=0.0,
        )


PLUGIN = Rule(
    code="QDQ193",
    severity=Severity.ERROR,
    stops=True,
    stage=Stage.WRITE_OUT,
    check=check,
    fix=fix,
)
