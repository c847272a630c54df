"""Attributes of QuantizeLinear and DequantizeLinear of opsets 21 to 28, with every type that they may quantize to."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import disagreement
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from qdqtool.runtime.runner import open_model
from tests import models

READ = ("INT8", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1", "UINT8")
REFUSED = ("INT16", "UINT16", "UINT4", "INT2", "UINT2", "FLOAT8E5M2", "FLOAT6E2M3", "FLOAT6E3M2")
"""Types that TensorRT for RTX 1.7.1 reads between Q and DQ, and types that its parser refuses."""
CHOICES = ("plain", "output_dtype", "block_size", "precision", "saturate", "exponents")
FORMS = ("weight", "pair", "zero point")


def network(kind: str, form: str, choice: str, opset: int = 28) -> onnx.ModelProto:
    """A product; its weight is stored in the type, or its input has a pair that states the type in this form."""
    element, blocked = getattr(TensorProto, kind), choice == "block_size"
    scale_type = TensorProto.FLOAT8E8M0 if choice == "exponents" else TensorProto.FLOAT
    back = {"output_dtype": TensorProto.FLOAT} if choice in {"output_dtype", "exponents"} else {}
    shape = ([4, 32] if form == "weight" else [1, 4]) if blocked else []
    along = {"axis": 0 if form == "weight" else 1, "block_size": 16} if blocked else {}
    constants = [helper.make_tensor("s", scale_type, shape, [1] * int(np.prod(shape)))]
    if form == "weight":
        constants.append(helper.make_tensor("w", element, [64, 32], [1] * 2048))
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], "dq", **along, **back),
            helper.make_node("MatMul", ["x", "wd"], ["y"], "product"),
        ]
    else:
        constants.append(helper.make_tensor("w", TensorProto.FLOAT, [64, 32], [0.1] * 2048))
        own = {"precision": {"precision": TensorProto.FLOAT16}, "saturate": {"saturate": 0}}.get(choice, {})
        if form == "pair" or choice == "output_dtype":
            own = {**own, "output_dtype": element}
        zero = ["z"] if form == "zero point" else []
        if zero:
            constants.append(helper.make_tensor("z", element, shape, [0] * int(np.prod(shape))))
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", *zero], ["xq"], "q", **along, **own),
            helper.make_node("DequantizeLinear", ["xq", "s", *zero], ["xd"], "dq", **along, **back),
            helper.make_node("MatMul", ["xd", "w"], ["y"], "product"),
        ]
    graph = helper.make_graph(
        nodes,
        "attributes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)


def attributes(model: Model) -> list[tuple[str, bytes]]:
    nodes = (node for node in model.proto.graph.node if node.name in {"q", "dq"})
    return sorted(
        (f"{node.name}.{one.name}", one.SerializeToString()) for node in nodes for one in node.attribute
    )


@pytest.mark.parametrize("kind", [*READ, *REFUSED])
def test_every_attribute_is_read_kept_checked_and_converted(kind: str, tmp_path: Path) -> None:
    for form, choice in product(FORMS, CHOICES):
        if form == "weight" and choice in {"precision", "saturate"}:
            continue  # attributes of QuantizeLinear
        proto = network(kind, form, choice)
        path = models.save(proto, tmp_path)
        if kind.startswith("FLOAT6") and form != "pair":  # no release of NumPy's types reads the values
            with pytest.raises(InputFileError, match=f"type {kind}, which neither"):
                load(path)
            continue
        model = load(path)
        assert attributes(model) == attributes(Model(proto=proto, path=path)), (form, choice)
        codes = {finding.code for finding in lint(model).findings}
        assert ("QDQ187" in codes) == (choice in {"precision", "saturate"}), (form, choice)
        assert ("QDQ105" in codes) == (kind in REFUSED), (form, choice)
        assert ("QDQ103" in codes) == (choice == "exponents"), (form, choice)
        half, _ = convert(model, InsertOptions(types="fp16", keep_io=False))
        assert disagreement(half.proto) is None, (form, choice)
        assert half.proto.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16, (form, choice)


@pytest.mark.parametrize("choice", ["precision", "saturate"])
def test_repair_removes_what_tensorrt_does_not_read(choice: str, tmp_path: Path) -> None:
    model = load(models.save(network("FLOAT8E4M3FN", "zero point", choice), tmp_path))
    mended, _ = repair(model)
    assert "QDQ187" not in {finding.code for finding in lint(mended).findings}
    assert choice not in {one.name for node in mended.proto.graph.node for one in node.attribute}


@pytest.mark.parametrize("kind", ["INT8", "UINT8", "INT16"])
def test_repair_keeps_values_of_the_type_that_a_quantizer_states(kind: str, tmp_path: Path) -> None:
    model = load(models.save(network(kind, "pair", "output_dtype"), tmp_path))
    feeds = {"x": np.linspace(-9 if kind != "UINT8" else 0, 9, 64, dtype=np.float32)[None]}
    before, after = (models.run(each.proto, feeds)["y"] for each in (model, repair(model)[0]))
    np.testing.assert_allclose(after, before, atol=0.1 * 64 if kind == "UINT8" else 1e-4)


def test_a_precision_that_is_the_default_is_no_finding(tmp_path: Path) -> None:
    proto = network("INT8", "zero point", "precision")
    proto.graph.node[0].attribute[0].i = TensorProto.FLOAT
    assert "QDQ187" not in {finding.code for finding in lint(load(models.save(proto, tmp_path))).findings}


def stated(form: str, zero: int, scale: type[np.floating]) -> onnx.ModelProto:
    """Two products of a DequantizeLinear whose scale has this type, and which states that its result is FP32."""
    integers = np.array([[10, 200], [130, 90]], np.uint8)
    constants = {"s": np.array(0.5, scale), "z": np.array(zero, np.uint8), "w": np.eye(2, dtype=np.float32)}
    quantize, source, weight = [], "stored", "w"
    if form == "pair":
        constants["s32"] = np.array(0.5, np.float32)
        quantize, source = [helper.make_node("QuantizeLinear", ["x", "s32", "z"], ["xq"], "q")], "xq"
    else:
        constants |= {"stored": integers}
        del constants["w"]
        weight = "x"
    nodes = [
        *quantize,
        helper.make_node("DequantizeLinear", [source, "s", "z"], ["d"], "dq", output_dtype=TensorProto.FLOAT),
        helper.make_node("MatMul", ["d", weight], ["y"], "product"),
        helper.make_node("MatMul", ["d", weight], ["kept"], "kept"),
    ]
    graph = helper.make_graph(
        nodes,
        "stated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in ("y", "kept")],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


@pytest.mark.parametrize("scale", [np.float32, np.float16])
@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize("form", ["weight", "pair"])
def test_the_stated_type_of_a_result_is_kept(
    form: str, zero: int, scale: type[np.floating], tmp_path: Path
) -> None:
    proto = stated(form, zero, scale)
    model = load(models.save(proto, tmp_path))
    feeds = {"x": np.array([[1.5, 0.5], [2.0, 3.0]], np.float32)}
    exact = models.run(proto, feeds)
    mixed, _ = convert(model, InsertOptions(types="fp16", keep_io=True, keep_nodes=("kept",)))
    half, _ = convert(model, InsertOptions(types="fp16", keep_io=True))
    for made in (float_graph(model), mixed, half):
        onnx.checker.check_model(made.proto, full_check=True)
        for name, value in models.run(made.proto, feeds).items():
            np.testing.assert_allclose(value, exact[name], rtol=1e-3)


def test_an_edit_finds_the_floats_of_a_weight_whose_zero_point_is_left_out(tmp_path: Path) -> None:
    proto = network("INT8", "weight", "plain")
    proto.graph.node[0].input.append("")
    model = load(models.save(proto, tmp_path))
    after = requantize(model, [SlotEdit(slot=Slot(node="product", index=1))])
    assert [node.op for node in after.view.nodes] == ["MatMul"]
    feeds = {"x": np.full((1, 64), 0.5, np.float32)}
    np.testing.assert_array_equal(models.run(after.proto, feeds)["y"], models.run(model.proto, feeds)["y"])


@pytest.mark.parametrize("opset", [23, 27, 28])
def test_a_model_of_the_newest_opset_is_computed(opset: int, tmp_path: Path) -> None:
    proto = network("INT8", "zero point", "plain", opset)
    model = load(models.save(proto, tmp_path))
    assert model.proto.opset_import[0].version == min(opset, 27)
    made = open_model(model, description="newest").run({"x": np.full((1, 64), 3.2, np.float32)})
    np.testing.assert_allclose(made["y"], np.full((1, 32), 0.1 * 3 * 64), rtol=1e-5)


@pytest.mark.parametrize("change", ["types", "text"])
def test_the_opset_stays_if_a_node_needs_it(change: str, tmp_path: Path) -> None:
    if change == "types":
        proto = network("FLOAT6E2M3", "pair", "plain")
    else:  # SpaceToDepth of opset 28 has a mode
        proto = network("INT8", "weight", "plain")
        node = helper.make_node("SpaceToDepth", ["image"], ["deep"], "deep", blocksize=2)
        proto.graph.node.append(node)
        proto.graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 4, 4]))
        proto.graph.output.append(helper.make_tensor_value_info("deep", TensorProto.FLOAT, [1, 4, 2, 2]))
    assert load(models.save(proto, tmp_path)).proto.opset_import[0].version == 28
