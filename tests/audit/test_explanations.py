"""What rules say of nodes that are not INT8, against the layers of the engine at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx.compose
import pytest

from qdqtool.auditing import audit
from qdqtool.auditing.verdicts import cases
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import NodeEvidence, violations
from qdqtool.trt.ops import COMPUTE
from tests.audit.graphs import GRAPHS, scale_of_rank_one
from tests.audit.scenes import engine, kernel, model_of

ABOUT_THE_BUILDER = (
    "scale_of_rank_one", "scale_per_channel", "transposed_conv", "matmul_wrong_axis", "cast_between", "turned_axis",
)  # fmt: skip


def twice(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model with two copies of the graph, `a/...` and `b/...`."""
    first, second = (onnx.compose.add_prefix(proto, prefix) for prefix in ("a/", "b/"))
    for part in ("node", "initializer", "input", "output", "value_info"):
        getattr(first.graph, part).extend(getattr(second.graph, part))
    return first


def nodes_of(proto: onnx.ModelProto, folder: Path, int8: Sequence[str]) -> dict[str, NodeEvidence]:
    """Every compute node of an engine in which the nodes that begin with `int8` run INT8, all others FP32."""
    layers = engine(
        *(
            kernel(
                f"{node.name}_myl0_1",
                node.name,
                precision=DType.INT8 if node.name.startswith(tuple(int8)) else DType.FLOAT32,
            )
            for node in proto.graph.node
            if node.op_type in COMPUTE
        )
    )
    return {found.node.name: found for found in cases(model_of(proto, folder), layers, None)}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_engine_contradicts_is_not_said(tmp_path: Path, name: str) -> None:
    proto = twice(GRAPHS[name]())
    alone, beside = nodes_of(proto, tmp_path, ()), nodes_of(proto, tmp_path, ("b/",))
    if name in ABOUT_THE_BUILDER:
        assert any(found.of_builder for node in alone.values() for found in node.explanations)
    for node, evidence in beside.items():
        if node.startswith("b/"):
            assert evidence.explanations == ()
        else:
            left = [found for found in alone[node].explanations if not found.of_builder]
            assert list(evidence.explanations) == left


def test_a_contradicted_explanation_is_not_printed(tmp_path: Path) -> None:
    proto = twice(scale_of_rank_one())
    precisions = {"a/c1": DType.FLOAT16, "b/c1": DType.INT8}
    layers = [kernel(f"{node}_myl0_1", node, precision=precision) for node, precision in precisions.items()]
    reason = {told.node: told.reason for told in audit(model_of(proto, tmp_path), engine(*layers)).verdicts}
    assert "no cause is visible" in reason["a/c1"]
    layers[1] = kernel("b/c1_myl0_1", "b/c1", precision=DType.FLOAT16)
    reason = {told.node: told.reason for told in audit(model_of(proto, tmp_path), engine(*layers)).verdicts}
    assert "shape [1] instead of []" in reason["a/c1"]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_audit_gives_the_reason_that_lint_gives(tmp_path: Path, name: str) -> None:
    """What a rule says of a product is said of its float kernel, by the same words."""
    evidence = nodes_of(GRAPHS[name](), tmp_path, ())
    for _, violation in violations(Flow(model_of(GRAPHS[name](), tmp_path)), Target.parse("rtx", ["86"])):
        for product in violation.products:
            assert violation.reason in {found.reason for found in evidence[product].explanations}
