"""Everything that goes wrong between torch and a Q/DQ model, each trap by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from qdqtool.backends.torch_qat import export as exporting  # noqa: E402
from qdqtool.backends.torch_qat.flat import run  # noqa: E402
from qdqtool.core.placement import SlotKind  # noqa: E402
from qdqtool.core.tensors import INT8, DType  # noqa: E402
from qdqtool.errors import UsageError  # noqa: E402
from qdqtool.graph.onnx_io import save as saving  # noqa: E402
from qdqtool.graph.onnx_io.load import load  # noqa: E402
from qdqtool.graph.preparation.prepare import prepare  # noqa: E402
from qdqtool.graph.qdq.encode import encode  # noqa: E402
from qdqtool.graph.qdq.find import find  # noqa: E402
from qdqtool.graph.qdq.insert import refuse_quantized  # noqa: E402
from tests.qat.material import NodeEvidence, make, network_of, written  # noqa: E402
from tests.qat.test_places import onnx_output, student_of  # noqa: E402

BOTH = pytest.mark.parametrize("exporter", ["legacy", "dynamo"])


def exported(tmp_path: Path, model: str, *changes: str) -> tuple[NodeEvidence, Path]:
    case = make(tmp_path, model, "qat.opset=18", *changes)
    return case, written(case, student_of(case).table(case.table), tmp_path)


@pytest.mark.parametrize("opset", [17, 18, 19, 20])
@BOTH
def test_the_file_has_the_opset_that_was_asked_for(tmp_path: Path, exporter: str, opset: int) -> None:
    if exporter == "dynamo" and opset == 17:
        pytest.skip("the dynamo exporter begins with opset 18 and converts down")
    network = network_of("wide", f"qat.exporter={exporter}", f"qat.opset={opset}")
    network.export(tmp_path / "model.onnx")
    versions = {entry.domain: entry.version for entry in onnx.load(tmp_path / "model.onnx").opset_import}
    assert versions[""] == opset


@BOTH
def test_every_wanted_pair_is_in_the_file_and_none_was_folded_away(tmp_path: Path, exporter: str) -> None:
    case, path = exported(tmp_path, "residual", f"qat.exporter={exporter}")
    model = load(path)
    pairs = [pair for pair in find(model) if pair.quantize and pair.dequantize]
    assert len(pairs) == len(case.placement.quantized)
    # Folding constants is what eats the pair of a weight; ours leaves it.
    assert len(find(prepare(model, case.recipe.prepare))) == len(pairs)


@BOTH
def test_weights_have_one_scale_per_output_channel_and_activations_one(tmp_path: Path, exporter: str) -> None:
    case, path = exported(tmp_path, "mixed", f"qat.exporter={exporter}")
    model = load(path)
    axes = {"Conv": 0, "ConvTranspose": 1}
    for pair in find(model):
        if pair.kind is SlotKind.ACTIVATION:
            assert pair.scale_shape == ()
            continue
        node = model.view.by_name[pair.slots[0].node]
        wanted = axes.get(node.op, 0 if node.attribute("transB", 0) else 1)
        assert pair.axis == wanted
        assert pair.scale_shape == (model.view.constant_shape(pair.tensor)[wanted],)
    assert len(case.placement.quantized) > 6


@BOTH
def test_zero_points_are_int8_zeros(tmp_path: Path, exporter: str) -> None:
    _, path = exported(tmp_path, "depthwise", f"qat.exporter={exporter}")
    graph = onnx.load(path).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    points = [constants[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"]
    assert points
    assert all(point.dtype == np.int8 and not point.any() for point in points)


@BOTH
def test_scales_become_fp16_with_an_opset_that_allows_it(tmp_path: Path, exporter: str) -> None:
    changes = ("insert.types=fp16", "insert.keep_io=false", f"qat.exporter={exporter}")
    _, path = exported(tmp_path, "residual", *changes)
    model = onnx.load(path)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    linear = [node for node in model.graph.node if node.op_type.endswith("uantizeLinear")]
    assert {types[node.input[1]] for node in linear} == {onnx.TensorProto.FLOAT16}
    assert next(entry.version for entry in model.opset_import if not entry.domain) >= 19


@BOTH
def test_nothing_stands_between_a_layer_and_its_batchnorm_and_activation(
    tmp_path: Path, exporter: str
) -> None:
    _, path = exported(tmp_path, "residual", f"qat.exporter={exporter}")
    view = load(path).view
    assert "BatchNormalization" not in {node.op for node in view.nodes}
    for node in view.nodes:
        if node.op == "Conv":
            assert {use.node.op for use in view.uses(node.outputs[0])} <= {"Relu", "Add"}


@BOTH
def test_a_residual_add_has_a_pair_on_its_shortcut_only(tmp_path: Path, exporter: str) -> None:
    """And none where a convolution is the shortcut, whose result the other one takes up as it is."""
    _, path = exported(tmp_path, "residual", f"qat.exporter={exporter}")
    view = load(path).view
    makers = [
        sorted(view.producer(name).op for name in node.inputs) for node in view.nodes if node.op == "Add"
    ]
    assert makers == [["Conv", "DequantizeLinear"], ["Conv", "Conv"]]


@BOTH
def test_any_number_of_samples_can_be_run(tmp_path: Path, exporter: str) -> None:
    case, path = exported(tmp_path, "residual", f"qat.exporter={exporter}")
    (inputs,), _ = case.network.test.first()
    whole = onnx_output(path, inputs[:7].numpy())
    single = np.concatenate([onnx_output(path, inputs[row : row + 1].numpy()) for row in range(7)])
    assert np.allclose(whole, single, atol=1e-5)


def test_rounding_is_that_of_torchs_own_fake_quantization() -> None:
    values = torch.cat([torch.linspace(-14, 14, 1001), torch.tensor([0.05, 0.15, 0.25, -0.05, -0.15])])
    known = torch.fake_quantize_per_tensor_affine(values, 0.1, 0, -128, 127)
    ours = encode(values.numpy(), np.asarray(0.1, np.float32), INT8, None).astype(np.float32) * np.float32(
        0.1
    )
    assert np.array_equal(ours, known.numpy())


def test_a_network_with_fake_quantization_of_its_own_is_refused_after_its_export(tmp_path: Path) -> None:
    network = network_of("quantized")
    network.export(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=r"already has quantized operators: .*QuantizeLinear"):
        refuse_quantized(load(tmp_path / "model.onnx"))


@BOTH
def test_weights_beyond_one_file_lie_in_one_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: str
) -> None:
    network = network_of("wide", f"qat.exporter={exporter}", "qat.opset=18")
    network.export(tmp_path / "small.onnx")
    for module in (exporting, saving):
        monkeypatch.setattr(module, "SINGLE_FILE_LIMIT", 4096)
    network.export(tmp_path / "big" / "model.onnx")
    files = sorted(path.name for path in (tmp_path / "big").iterdir())
    assert len(files) == 2
    assert files[1].endswith(".data")
    proto = onnx.load(tmp_path / "big" / "model.onnx", load_external_data=False)
    outside = [t for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert [int(np.prod(tensor.dims)) for tensor in outside] == [16 * 64]  # small ones stay in the model
    (inputs,), _ = network.test.first()
    found = onnx_output(tmp_path / "big" / "model.onnx", inputs.numpy())
    assert np.array_equal(found, onnx_output(tmp_path / "small.onnx", inputs.numpy()))
    with torch.no_grad():
        assert np.allclose(found, run(network.flat, (inputs,)).numpy(), atol=1e-5)


def test_stored_weights_are_integers_behind_one_node(tmp_path: Path) -> None:
    case, path = exported(tmp_path, "depthwise", "insert.weights=int8")
    model = load(path)
    stored = [pair for pair in find(model) if pair.quantize is None]
    assert len(stored) == sum(d.kind is SlotKind.WEIGHT for d in case.placement.quantized)
    assert {pair.dtype for pair in stored} == {DType.INT8}
