"""FP16 values are quantized by rounding with every onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from qdqtool.backends import ort
from qdqtool.graph.typed.rounding import EXAMPLE, STEPS, example_model, rounding
from tests import models


def test_a_rewritten_model_rounds_whatever_the_kernel_does() -> None:
    widened = rounding(example_model())
    assert widened is not None
    (found,) = ort.open_runner(widened, description="rounding").run({"x": EXAMPLE}).values()
    assert found.tolist() == [STEPS]


def test_a_runner_rounds_where_the_installed_kernel_cuts_off() -> None:
    (found,) = ort.open_runner(example_model(), description="example").run({"x": EXAMPLE}).values()
    assert found.tolist() == [STEPS]


def test_a_rewritten_model_gives_the_steps_that_numpy_gives() -> None:
    values = np.random.default_rng(0).normal(size=4096).astype(np.float16)
    scale = np.float16(0.0371)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], name="q")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [4096])],
            [helper.make_tensor_value_info("y", TensorProto.INT8, [4096])],
            [numpy_helper.from_array(np.asarray(scale), "s"), numpy_helper.from_array(np.int8([0])[0], "z")],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
        ir_version=9,
    )
    widened = rounding(model.SerializeToString())
    assert widened is not None
    (found,) = ort.open_runner(widened, description="rounding").run({"x": values}).values()
    exact = np.clip(np.rint(values.astype(np.float32) / np.float32(scale)), -128, 127)
    np.testing.assert_array_equal(found, exact.astype(np.int8))


def test_a_model_without_fp16_stays_as_it_is(tmp_path: Path) -> None:
    assert rounding(models.save(models.conv_chain(), tmp_path)) is None
    assert rounding(b"no model") is None
