"""Kernels and bytes of engines made by hand, and how their weights are held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.auditing.verdicts import cases, compare_with_engine
from qdqtool.core.engine import Role, stored_weight
from qdqtool.core.tensors import DType
from qdqtool.engine.costs import counts
from tests.audit.scenes import engine, kernel, model_of, tensor
from tests.placement.qdq import Quantized


def test_a_tensor_that_a_kernel_lists_twice_is_read_once():
    layer = kernel("conv", "conv")
    twice = replace(layer, inputs=layer.inputs * 2)
    assert counts(engine(twice)).activation_bytes_dumped == counts(engine(layer)).activation_bytes_dumped


@pytest.mark.parametrize("returned", [True, False])
def test_a_result_that_leaves_the_engine_is_written_whatever_reads_it(returned: bool) -> None:
    conv = kernel("conv", "conv")
    relu = replace(kernel("relu", "relu", role=Role.OTHER), inputs=conv.outputs, pointwise=True)
    built = replace(engine(conv, relu), bindings=conv.outputs if returned else ())
    found = counts(built)
    saved = 0 if returned else 2 * 4 * 8 * 16 * 16
    assert found.activation_bytes_dumped is not None
    assert found.activation_bytes_fused == found.activation_bytes_dumped - saved


def test_bytes_of_a_tensor_of_unknown_shape_are_unknown() -> None:
    layer = kernel("conv", "conv")
    unknown = replace(layer, outputs=(tensor("y", shape=None),))
    assert counts(engine(unknown)).activation_bytes_dumped is None


def test_a_list_of_scales_is_no_stored_weight() -> None:
    layer = kernel("mm", "mm")
    scales, weight = tensor("s", DType.FLOAT8, (1, 64, 1)), tensor("w", DType.FLOAT8, (8, 4))
    assert stored_weight([replace(layer, constants=(scales,))]) is None
    assert stored_weight([replace(layer, constants=(scales, weight))]) == weight


def test_a_weight_that_is_made_float_first_is_written_and_read(tmp_path: Path) -> None:
    s = Quantized()
    model = model_of(
        s.done(s.node("MatMul", [s.matrix(), s.weights("m", 32, 48, axis=1)], "y", name="m")), tmp_path
    )
    product = kernel("gemm", "m", precision=DType.FLOAT16)
    weight = tensor("dequantized", DType.FLOAT16, (32, 48))
    maker = replace(
        kernel("maker", role=Role.OTHER),
        inputs=(),
        constants=(tensor("w", shape=(32, 48)),),
        outputs=(weight,),
    )
    built = engine(maker, replace(product, inputs=(*product.inputs, weight)))
    (case,) = cases(model, built, None)
    found = compare_with_engine(case, DType.FLOAT16)
    assert (found.request, found.layer) == ("int8-weights", "maker")
    assert found.bytes_lost == 2 * (2 * 32 * 48)
