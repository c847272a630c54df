"""Why a node does not run the format it was asked for, in the words of that format."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.auditing.full_audit import audit
from qdqtool.core.placement import Slot
from qdqtool.core.tensors import FP8, INT8, DType
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.qdq.lower import Quantization, QuantizedGraph, lower
from qdqtool.graph.view import Model
from tests import models
from tests.audit.scenes import engine, kernel
from tests.graph.placing import opened


@pytest.mark.parametrize("format_", [INT8, FP8], ids=str)
@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_pair_is_asked_for_in_the_format_that_the_other_input_has(index, format_, tmp_path):
    model = opened(models.ALL["attention"](), tmp_path)
    model = Model(proto=raise_opset(model.proto, format_.opset, model.path)[0], path=model.path)
    product = next(
        node
        for node in model.view.nodes
        if node.op == "MatMul" and not any(map(model.view.is_constant, node.inputs))
    )
    scale = np.asarray(0.05, np.float32)
    one = {Slot(node=product.name, index=index): Quantization(format=format_, scale=scale)}
    quantized = lower(QuantizedGraph(model=model, assignment=one))
    found = audit(quantized, engine(kernel("k", product.name, precision=DType.FLOAT16)))
    (told,) = [verdict for verdict in found.verdicts if verdict.node == product.name]
    said = told.reason + told.fix
    assert "put Q/DQ on" in said
    assert format_ == INT8 or "INT8" not in said


def test_the_weight_of_an_fp8_convolution_is_missed_in_the_words_of_fp8(tmp_path):
    model = opened(models.ALL["conv_chain"](), tmp_path)
    model = Model(proto=raise_opset(model.proto, FP8.opset, model.path)[0], path=model.path)
    conv = next(node for node in model.view.nodes if node.op == "Conv")
    scale = np.asarray(0.05, np.float32)
    one = {Slot(node=conv.name, index=0): Quantization(format=FP8, scale=scale)}
    quantized = lower(QuantizedGraph(model=model, assignment=one))
    found = audit(quantized, engine(kernel("k", conv.name, precision=DType.FLOAT16)))
    (told,) = [verdict for verdict in found.verdicts if verdict.node == conv.name]
    assert "FP8 needs both" in told.fix
    assert "INT8" not in told.reason + told.fix
