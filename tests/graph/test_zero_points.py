"""Zero points become constants that TensorRT takes: the network computes the same, with as few nodes as there can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.calibration.samples import open_samples
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.recipe import CompareOptions, InsertOptions, PrepareOptions
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.insert import insert, insert_for_engine
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.qdq.unquantize import float_graph, unquantize, with_zero_points
from qdqtool.graph.qdq.zero_points import Written, with_constants
from qdqtool.graph.view import Model
from qdqtool.pipeline.comparing import noise_inside
from tests import models
from tests.generated.draft import run
from tests.generated.zero_points import unrounded
from tests.graph.placing import decision, opened, placement_for, table_for

NOISE = np.random.default_rng(0)
PADDED = {"pads": [1, 1, 1, 1]}


class Net:
    """A network in a line; `at` is the newest tensor."""

    def __init__(self, *shape: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shape, self.at = shape, "x"

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.constants)}"
        value = NOISE.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]) or 1)
        self.constants.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: object) -> Net:
        out = f"t{len(self.nodes)}"
        given = [self.at, *inputs] if op != "Add" or inputs else [self.at, self.at]
        self.nodes.append(
            helper.make_node(op, given, [out], name=f"{op.lower()}{len(self.nodes)}", **attributes)
        )
        self.at = out
        return self

    def conv(self, given: int, made: int, size: int, **attributes: object) -> Net:
        groups = attributes.get("group", 1)
        assert isinstance(groups, int)
        return self.add(
            "Conv", self.weight(made, given // groups, size, size), self.weight(made), **attributes
        )

    def model(self) -> onnx.ModelProto:
        outputs = [helper.make_tensor_value_info(self.at, TensorProto.FLOAT, None)]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
        model.ir_version = 9
        return onnx.shape_inference.infer_shapes(model)


def _residual() -> Net:
    net = Net(1, 4, 8, 8).conv(4, 4, 3, **PADDED).add("Relu")
    kept = net.at
    return net.conv(4, 4, 3, **PADDED).add("Add", kept).add("Relu").conv(4, 4, 1)


def _joined() -> Net:
    net = Net(1, 4, 8, 8).conv(4, 4, 1).add("Relu")
    kept = net.at
    return net.conv(4, 4, 1).add("Relu").add("Concat", kept, axis=1).conv(8, 4, 1)


def _computed_bias() -> Net:
    """The second bias is no constant, so what the channels lack is added after the convolution."""
    net = Net(1, 4, 8, 8).conv(4, 6, 1).add("Relu")
    kept, net.at = net.at, "x"
    bias = net.add("GlobalAveragePool").add("Squeeze").at
    net.at = kept
    return net.add("Conv", net.weight(4, 6, 1, 1), bias)


def _perceptron(activation: str) -> Net:
    net = Net(1, 5, 8)
    net.add("MatMul", net.weight(8, 12)).add("Add", net.weight(12)).add(activation)
    return net.add("MatMul", net.weight(12, 6)).add("Add", net.weight(6))


NETWORKS = {
    "1x1": lambda: Net(1, 4, 8, 8).conv(4, 6, 1).add("Relu").conv(6, 4, 1),
    "padded": lambda: Net(1, 4, 8, 8).conv(4, 6, 3, **PADDED).add("Relu").conv(6, 4, 3, **PADDED),
    "depthwise": lambda: (
        Net(1, 4, 8, 8).conv(4, 6, 1).add("Relu").conv(6, 6, 3, group=6, strides=[2, 2], **PADDED)
    ),
    "grouped": lambda: Net(1, 4, 8, 8).conv(4, 6, 1).add("Relu").conv(6, 4, 3, group=2, pads=[0, 1, 1, 0]),
    "SAME": lambda: (
        Net(1, 4, 8, 9).conv(4, 6, 1).add("Relu").conv(6, 4, 3, strides=[2, 2], auto_pad="SAME_LOWER")
    ),
    "dilated": lambda: (
        Net(1, 4, 9, 9).conv(4, 6, 1).add("Relu").conv(6, 4, 3, dilations=[2, 2], pads=[2] * 4)
    ),
    "residual": _residual,
    "joined": _joined,
    "computed bias": _computed_bias,
    "pooled": lambda: (
        Net(1, 4, 8, 8).conv(4, 6, 1).add("Relu").add("MaxPool", kernel_shape=[3, 3], **PADDED).conv(6, 4, 1)
    ),
    "averaged with its border": lambda: (
        Net(1, 4, 8, 8)
        .conv(4, 6, 1)
        .add("Relu")
        .add("AveragePool", kernel_shape=[3, 3], auto_pad="SAME_UPPER", count_include_pad=1)
        .conv(6, 4, 1)
    ),
    "two readers": lambda: (
        Net(1, 4, 8, 8).conv(4, 6, 1).add("Relu").conv(6, 6, 1).add("Add", "t1").add("Sigmoid")
    ),
    "Gemm": lambda: (
        (net := Net(3, 8))
        .add("Gemm", net.weight(12, 8), net.weight(12), transB=1)
        .add("Relu")
        .add("Gemm", net.weight(12, 4), alpha=0.5)
    ),
    "Relu": lambda: _perceptron("Relu"),
    "Gelu": lambda: _perceptron("Gelu"),
    "transposed": lambda: (
        (net := Net(1, 4, 5, 5))
        .conv(4, 6, 1)
        .add("Relu")
        .add("ConvTranspose", net.weight(6, 3, 3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    ),
    "grouped transposed": lambda: (
        (net := Net(1, 4, 5, 5))
        .conv(4, 6, 1)
        .add("Relu")
        .add("ConvTranspose", net.weight(6, 2, 2, 2), group=3, strides=[2, 2])
    ),
}


def _pairs(net: Net, folder: Path, zero: int = -128) -> Model:
    """The Q/DQ model with a zero point on all activations, and so on what an Add or a Concat reads."""
    model = prepare(opened(net.model(), folder), PrepareOptions())
    placement = placement_for(model)
    joins = [
        decision(node.name, index, tensor)
        for node in model.view.nodes
        if node.op in {"Concat", "MaxPool", "AveragePool"}
        or (node.op == "Add" and not any(map(model.view.is_constant, node.inputs)))
        for index, tensor in enumerate(node.inputs)
    ]
    placement = Placement(decisions=(*placement.decisions, *joins), ties=())
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    table = table_for(model, placement, feeds)
    ranges = tuple(
        entry
        if entry.axis is not None or model.view.is_constant(entry.tensor)
        else replace(entry, zero_point=zero, amax=(1.5 if zero == -128 else 2.5,))
        for entry in table.ranges
    )
    return insert(model, placement, CalibrationTable(ranges=ranges), InsertOptions())


def _constants(net: Net, folder: Path, zero: int = -128) -> tuple[Model, Model, dict[str, Written]]:
    before = _pairs(net, folder, zero)
    after, written = with_constants(before)
    return before, after, {entry.tensor: entry for entry in written}


@pytest.mark.parametrize("zero", [-128, -100, 60])
@pytest.mark.parametrize("name", NETWORKS)
def test_constants_compute_what_zero_points_do(name: str, zero: int, tmp_path: Path) -> None:
    net = NETWORKS[name]()
    before, after, written = _constants(net, tmp_path, zero)
    assert written
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    wanted, found = (run(whole(unrounded(one).proto), feeds)[net.at] for one in (before, after))
    assert np.abs(wanted).max() > 0.01
    np.testing.assert_allclose(found, wanted, atol=1e-5 * max(1.0, np.abs(wanted).max()))
    # with rounding too, but for numbers on the edge between two integers
    wanted, found = (run(whole(one.proto), feeds)[net.at] for one in (before, after))
    assert np.median(np.abs(found - wanted)) < 1e-5


@pytest.mark.parametrize("zero", [-128, -100, 60])
@pytest.mark.parametrize("name", NETWORKS)
def test_constants_are_read_back_as_the_zero_points_that_they_were(
    name: str, zero: int, tmp_path: Path
) -> None:
    net = NETWORKS[name]()
    before, after, _ = _constants(net, tmp_path, zero)
    again = with_zero_points(after)
    if (
        "transposed" not in name and "computed" not in name
    ):  # the constant that is added stays, with one that cancels it
        kept = [sorted(node.op for node in model.view.nodes) for model in (before, again)]
        assert kept[0] == kept[1]
    wanted, found = (
        sorted(
            (pair.tensor, pair.zero_point, pair.scale, pair.slots) for pair in find(model) if pair.quantize
        )
        for model in (before, again)
    )
    assert wanted == found
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    wanted, found = (run(whole(float_graph(one).proto), feeds)[net.at] for one in (before, again))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("zero", [-128, 60])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_constant_is_no_noise_inside_the_network(name: str, zero: int, tmp_path: Path) -> None:
    """Tensors that held a constant were said to have -13 dB in networks that lose nothing."""
    net = NETWORKS[name]()
    before, after, _ = _constants(net, tmp_path, zero)
    np.savez(tmp_path / "samples.npz", x=NOISE.standard_normal(net.shape).astype(np.float32))
    plain = prepare(opened(net.model(), tmp_path), PrepareOptions())
    levels = [
        {
            entry.output: measure.value
            for entry in noise_inside(
                (plain, model),
                open_samples(str(tmp_path / "samples.npz"), plain.view.inputs),
                CompareOptions(),
            )
            for measure in entry.measures
            if measure.metric == "sqnr_db"
        }
        for model in (before, after)
    ]
    for tensor in levels[0].keys() & levels[1].keys():
        first, second = levels[0][tensor], levels[1][tensor]
        assert (first is None and second is None) or second == pytest.approx(first, abs=1.0)


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[]", '{"x": 1}', '{"q": [400]}', '{"q": [1, 2]}', '{"q": [0, "a", null]}', "[" * 9999],
)
def test_a_record_that_fits_nothing_changes_nothing(text: str, tmp_path: Path) -> None:
    _, after, _ = _constants(NETWORKS["padded"](), tmp_path)
    name = next(node.name for node in after.view.nodes if node.op == "QuantizeLinear")
    after.proto.metadata_props[0].value = text.replace("q", name)
    before = after.proto.SerializeToString(deterministic=True)
    assert [node.op for node in with_zero_points(after).view.nodes] == [node.op for node in after.view.nodes]
    assert after.proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", ["1x1", "padded", "depthwise", "grouped", "SAME", "dilated", "Gemm", "Relu"])
def test_saturation_replaces_a_relu_and_nothing_is_between_product_and_q(name: str, tmp_path: Path) -> None:
    _, after, written = _constants(NETWORKS[name](), tmp_path)
    between = [entry for tensor, entry in written.items() if tensor != "x"]
    assert all(entry.saturates and not entry.nodes and not entry.is_lost for entry in between)
    assert "Relu" not in {node.op for node in after.view.nodes}
    assert sum(node.op in {"Sub", "Add"} for node in after.view.nodes) == 1 + (name == "Relu") * 2


@pytest.mark.parametrize("name", NETWORKS)
def test_a_node_that_becomes_float_reads_what_it_read(name: str, tmp_path: Path) -> None:
    net = NETWORKS[name]()
    before, after, _ = _constants(net, tmp_path)
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    for pair in find(before):
        if not pair.quantize or pair.kind is SlotKind.WEIGHT:
            continue
        edits = [SlotEdit(slot=slot) for slot in pair.slots]
        for change in (
            lambda model, pair=pair: unquantize(model, [pair.dequantize or ""]),
            lambda model, edits=edits: requantize(model, edits),
        ):
            wanted, found = (
                run(whole(unrounded(change(one)).proto), feeds)[net.at] for one in (before, after)
            )
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_a_relu_whose_range_is_no_saturation_stays(tmp_path: Path) -> None:
    _, after, written = _constants(NETWORKS["1x1"](), tmp_path, -100)
    assert not any(entry.saturates for entry in written.values())
    assert "Relu" in {node.op for node in after.view.nodes}


def test_a_border_is_what_zero_has_become(tmp_path: Path) -> None:
    _, after, _ = _constants(NETWORKS["padded"](), tmp_path)
    pads = [node for node in after.view.nodes if node.op == "Pad"]
    assert len(pads) == 2
    for pad in pads:
        quantize = after.view.uses(pad.outputs[0])[0].node
        step, value = (float(after.view.constant(name)) for name in (quantize.inputs[1], pad.inputs[2]))
        assert value == pytest.approx(-128 * step)


@pytest.mark.parametrize(("mode", "auto_pad"), [("constant", "SAME_UPPER"), ("reflect", "NOTSET")])
def test_a_pad_that_a_convolution_cannot_do_stays(mode: str, auto_pad: str, tmp_path: Path) -> None:
    net = Net(1, 4, 8, 8).conv(4, 6, 1).add("Relu")
    net.constants += [
        numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "border"),
        numpy_helper.from_array(np.zeros((), np.float32), "nought"),
    ]
    net.add("Pad", "border", "nought", mode=mode).conv(6, 4, 3, auto_pad=auto_pad)
    proto = whole(_pairs(net, tmp_path).proto)
    del proto.graph.value_info[:]
    for index in (2, 3):  # of unknown size, so the border of auto_pad is unknown too
        proto.graph.input[0].type.tensor_type.shape.dim[index].dim_param = f"size_{index}"
    before = opened(proto, tmp_path)
    again = with_zero_points(with_constants(before)[0])
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    wanted, found = (run(whole(unrounded(one).proto), feeds)[net.at] for one in (before, again))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_an_add_of_quantized_branches_needs_one_node_for_both(tmp_path: Path) -> None:
    _, _, written = _constants(NETWORKS["residual"](), tmp_path)
    assert sum(entry.nodes for tensor, entry in written.items() if tensor != "x") == 1


def test_values_that_move_take_their_constant_along(tmp_path: Path) -> None:
    for name in ("pooled", "joined"):
        _, _, written = _constants(NETWORKS[name](), tmp_path)
        assert not any(entry.nodes for tensor, entry in written.items() if tensor != "x"), name


def test_a_product_of_two_activations_reads_true_values_and_is_reported(tmp_path: Path) -> None:
    net = Net(1, 5, 5).add("Relu").add("MatMul", "t0").add("Relu")
    before, after, written = _constants(net, tmp_path)
    assert all(entry.is_lost for entry in written.values())
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    wanted, found = (run(whole(unrounded(one).proto), feeds)[net.at] for one in (before, after))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_an_output_of_the_model_keeps_its_values_and_its_name(tmp_path: Path) -> None:
    net = Net(1, 4, 8, 8).conv(4, 4, 1).add("Relu")
    kept = net.at
    proto = net.conv(4, 4, 1).model()
    proto.graph.output.append(helper.make_tensor_value_info(kept, TensorProto.FLOAT, [1, 4, 8, 8]))
    model = prepare(opened(proto, tmp_path), PrepareOptions())
    placement = placement_for(model)
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    table = table_for(model, placement, feeds)
    ranges = tuple(replace(one, zero_point=-128) if one.axis is None else one for one in table.ranges)
    after = insert_for_engine(model, placement, CalibrationTable(ranges=ranges), InsertOptions())
    assert "Relu" in {node.op for node in after.view.nodes}
    assert (run(whole(after.proto), feeds)[kept] >= 0).all()


def test_fp16_borders_become_the_integer_of_zero(tmp_path: Path) -> None:
    net = NETWORKS["padded"]()
    model = prepare(opened(net.model(), tmp_path), PrepareOptions())
    placement = placement_for(model)
    feeds = {"x": NOISE.standard_normal(net.shape).astype(np.float32)}
    table = table_for(model, placement, feeds)
    ranges = tuple(replace(one, zero_point=-128) if one.axis is None else one for one in table.ranges)
    shifted = CalibrationTable(ranges=ranges)
    wide, half = (
        run(whole(insert_for_engine(model, placement, shifted, InsertOptions(types=types)).proto), feeds)[
            net.at
        ]
        for types in ("fp32", "fp16")
    )
    assert np.abs(wide - half).max() < 0.05 * np.abs(wide).max()


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("code", [np.int8(-100), np.uint8(128), np.uint8(3)])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"pads": [1, 0, 0, 1]}, {"auto_pad": "SAME_LOWER"}, {"output_padding": [1, 1]}]
    + [{"output_shape": [size, size], "auto_pad": mode} for size in (9, 11) for mode in ("NOTSET", "VALID")],
)
def test_a_transposed_convolution_computes_the_same(
    attributes: dict[str, object], code: np.int8 | np.uint8, group: int, tmp_path: Path
) -> None:
    s = models.Sketch()
    steps, zero = s.constant("steps", np.float32(0.05)), s.constant("zero", code)
    x = s.node("QuantizeLinear", [s.input("x", [1, 4, 5, 5]), steps, zero], "q", name="q")
    x = s.node("DequantizeLinear", [x, steps, zero], "dq", name="dq")
    operands = [x, s.weight("w", 4, 3, 3, 3), s.weight("b", 3 * group)]
    s.output(
        s.node("ConvTranspose", operands, "y", name="up", strides=[2, 2], group=group, **attributes),
        [1, 3 * group, "h", "w"],
    )
    proto = onnx.shape_inference.infer_shapes(s.model())
    result, _ = with_constants(opened(proto, tmp_path))
    onnx.checker.check_model(result.proto, full_check=True)
    feeds = models.feeds(proto)
    assert np.allclose(models.run(result.proto, feeds)["y"], models.run(proto, feeds)["y"], atol=1e-4)


def test_pairs_with_zero_points_of_zero_stay_as_they_are(tmp_path: Path) -> None:
    before = _pairs(NETWORKS["residual"](), tmp_path, 0)
    after, written = with_constants(before)
    assert after is before
    assert written == ()
