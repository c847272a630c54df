"""The recipe weights-only-int8: INT8 weights, float arithmetic, and an audit that knows it was asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.app import run as command
from qdqtool.core.kinds import AUDIT, BUILD, PLACEMENT, REPORT
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline import recipes
from qdqtool.placement.decide import decide
from tests import models

RECIPE = recipes.load("weights-only-int8")
SIZE = 512
needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs tensorrt-rtx: pip install 'qdqtool[rtx]'"
)


def placed(proto: onnx.ModelProto, folder: Path, *changes: str) -> Placement:
    recipe = recipes.load("weights-only-int8", changes)
    return decide(prepare(load(models.save(proto, folder)), recipe.prepare).view, recipe.place)


@pytest.mark.parametrize(
    "make",
    [models.attention, models.gemms, models.matmuls, models.residual_cnn, models.concat_cnn],
    ids=lambda make: make.__name__,
)
@pytest.mark.parametrize("ops", ["[Gemm,MatMul]", "[Conv,Gemm,MatMul,Add,Concat,MaxPool,AveragePool]"])
def test_no_activation_is_quantized_whatever_the_recipe_allows(make, ops: str, tmp_path: Path) -> None:
    found = placed(make(), tmp_path, f"place.ops={ops}")
    assert {decision.kind for decision in found.quantized} <= {SlotKind.WEIGHT}
    assert found.ties == ()


def test_every_weight_of_a_product_is_quantized_and_no_convolution(tmp_path: Path) -> None:
    found = placed(models.gemms(), tmp_path)
    weights = {str(d.slot) for d in found.decisions if d.kind is SlotKind.WEIGHT}
    assert {str(decision.slot) for decision in found.quantized} == weights
    assert not placed(models.conv_chain(), tmp_path).quantized


def test_users_wishes_still_count(tmp_path: Path) -> None:
    (first, *_) = placed(models.gemms(), tmp_path).quantized
    left = placed(models.gemms(), tmp_path, f"place.exclude=[{first.slot.node}]").quantized
    assert first.slot not in {decision.slot for decision in left}


def test_the_placement_says_that_float_arithmetic_is_meant(tmp_path: Path) -> None:
    assert any("as place.activations requests" in note for note in placed(models.gemms(), tmp_path).notes)


def products(path: Path, count: int = 3) -> Path:
    """A few large matrix products on few rows."""
    rng = np.random.default_rng(1)
    nodes, constants, here = [], [], "x"
    for number in range(count):
        weight = rng.normal(size=(SIZE, SIZE)).astype(np.float32) / SIZE**0.5
        constants.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(
            helper.make_node("MatMul", [here, f"w{number}"], [f"m{number}"], name=f"product{number}")
        )
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"r{number}"], name=f"relu{number}"))
        here = f"r{number}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, SIZE]) for name in ("x", here)]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    model = products(folder / "products.onnx")
    words = ["--recipe", "weights-only-int8", "--set", "compare.task=none", "--samples", "random:2"]
    assert command(["run", str(model), *words, "--out", str(folder / "out")]) == 0
    return folder / "out"


@needs_rtx
@pytest.mark.rtx
class TestOnABuild:
    def test_file_and_engine_hold_a_quarter_of_the_weights(self, out: Path) -> None:
        floats = 4 * 3 * SIZE * SIZE
        assert (out / "model.qdq.onnx").stat().st_size < 0.3 * floats
        assert BUILD.read(out / "build.json").engine_bytes < 0.3 * floats

    def test_only_weights_have_a_dequantize_node_and_nothing_a_quantize_node(self, out: Path) -> None:
        nodes = onnx.load(out / "model.qdq.onnx").graph.node
        assert [node.op_type for node in nodes].count("DequantizeLinear") == 3
        assert "QuantizeLinear" not in {node.op_type for node in nodes}

    def test_nothing_is_called_a_fallback(self, out: Path) -> None:
        found = AUDIT.read(out / "findings.json")
        assert {finding.code for finding in found.findings} <= {"QDQ203"}
        assert all("float as requested" in verdict.reason for verdict in found.verdicts)

    def test_the_report_says_so(self, out: Path) -> None:
        report = REPORT.read(out / "report.json")
        assert report.summary.nodes_requested == 0
        assert (
            "3 nodes have low-bit weights and float arithmetic, as place.activations requests" in report.notes
        )
        assert all(
            decision.kind is SlotKind.WEIGHT for decision in PLACEMENT.read(out / "placement.json").quantized
        )

    @pytest.mark.parametrize("recipe", ["weights-only-int8", "llm-int4-weights"])
    def test_a_network_without_such_weights_is_not_called_quantized(
        self, recipe: str, tmp_path: Path
    ) -> None:
        model = models.save(models.conv_chain(), tmp_path)
        np.save(
            tmp_path / "x.npy", np.random.default_rng(0).standard_normal((16, 8, 8, 8)).astype(np.float32)
        )
        words = ["--recipe", recipe, "--samples", f"{tmp_path / 'x.npy'}[:8]", "--set", "compare.task=none"]
        words += ["--eval-samples", f"{tmp_path / 'x.npy'}[8:]", "--out", str(tmp_path / "out")]
        assert command(["run", str(model), *words]) == 0
        report = REPORT.read(tmp_path / "out" / "report.json")
        assert report.summary.verdict.asked.state == "no"
        assert report.summary.verdict.answer != "good"
        assert any(note.startswith("no weights are quantized") for note in report.notes)

    def test_a_convolution_pays_with_a_kernel_and_is_told_to_stay_out(self, tmp_path: Path) -> None:
        model = models.save(models.conv_chain(), tmp_path)
        words = ["--recipe", "weights-only-int8", "--set", "compare.task=none", "--samples", "random:2"]
        words += ["--set", "place.ops=[Conv,Gemm,MatMul]", "--out", str(tmp_path / "out")]
        assert command(["run", str(model), *words]) == 0
        costs = [f for f in AUDIT.read(tmp_path / "out" / "findings.json").findings if f.code == "QDQ205"]
        assert costs
        assert all("place.exclude_ops=[Conv]" in finding.fix for finding in costs)
