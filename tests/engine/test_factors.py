"""What a kernel multiplies is found among its tensors, in whatever order they are listed."""

from __future__ import annotations

import pytest

from qdqtool.core.engine import EngineLayer, EngineTensor
from qdqtool.core.tensors import DType
from qdqtool.engine.roles import judge_layer


def tensor(dtype: DType, *shape: int) -> EngineTensor:
    return EngineTensor(name="t", shape=shape, dtype=dtype)


@pytest.mark.parametrize("half", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("residual_first", [True, False])
def test_a_float_residual_is_no_factor_of_a_product_in_half_floats(half: DType, residual_first: bool) -> None:
    residual, activation = tensor(DType.FLOAT32, 1, 65, 64), tensor(half, 1, 65, 64)
    layer = EngineLayer(
        name="__myl_FcAddCastAdd_myl0_1",
        kind="runtime_fusion",
        inputs=(residual, activation) if residual_first else (activation, residual),
        constants=(tensor(half, 1, 1, 64), tensor(half, 1, 64, 64)),
        outputs=(tensor(DType.FLOAT32, 1, 65, 64),),
        onnx_nodes=("mm",),
    )
    assert judge_layer(layer).precision is half


def test_without_an_input_of_the_type_of_the_weights_the_first_one_counts() -> None:
    layer = EngineLayer(
        name="__myl_CastFcAdd_myl0_1",
        kind="runtime_fusion",
        inputs=(tensor(DType.FLOAT32, 1, 65, 64), tensor(DType.FLOAT32, 1, 65, 32)),
        constants=(tensor(DType.FLOAT16, 1, 64, 32),),
        outputs=(tensor(DType.FLOAT32, 1, 65, 32),),
        onnx_nodes=("mm",),
    )
    assert judge_layer(layer).precision is DType.FLOAT32
