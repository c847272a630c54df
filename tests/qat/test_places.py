"""Quantizers sit where the placement wants them, and what torch computes is what the Q/DQ model computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from qdqtool.backends.torch_qat.fake_quant import ENGINES  # noqa: E402
from qdqtool.backends.torch_qat.flat import run  # noqa: E402
from qdqtool.backends.torch_qat.quantized_model import QuantizedWeight, make_student  # noqa: E402
from qdqtool.backends.torch_qat.sites import locate  # noqa: E402
from qdqtool.core.placement import SharedScale, SlotKind  # noqa: E402
from qdqtool.errors import UsageError  # noqa: E402
from tests.qat.material import NodeEvidence, make, network_of, written  # noqa: E402


def student_of(node_evidence: NodeEvidence):
    sites = locate(node_evidence.placement, node_evidence.model.view, node_evidence.network.flat)
    engine = ENGINES.load("own")
    return make_student(
        node_evidence.network.flat,
        sites.placed,
        node_evidence.placement,
        node_evidence.table,
        engine,
        learn=True,
    )


def onnx_output(path: Path, inputs: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: inputs})
    return found


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize("model", ["mixed", "attention"])
def test_every_slot_of_the_placement_has_a_quantizer(tmp_path: Path, model: str, exporter: str) -> None:
    case = make(
        tmp_path, model, f"qat.exporter={exporter}", f"qat.opset={18 if exporter == 'dynamo' else 17}"
    )
    sites = locate(case.placement, case.model.view, case.network.flat)
    assert sites.lost == ()
    assert {site.slot for site in sites.placed} == {decision.slot for decision in case.placement.quantized}
    assert len(sites.placed) >= 6


@pytest.mark.parametrize(
    "changes",
    [
        ["qat.opset=17"],
        ["qat.opset=18"],
        ["qat.opset=19"],
        ["qat.opset=20"],
        ["qat.exporter=dynamo", "qat.opset=18"],
        ["qat.exporter=dynamo", "qat.opset=20"],
        ["qat.batchnorm=fold"],
        ["place.per_channel=false"],
        ["insert.weights=int8"],
    ],
    ids=" ".join,
)
def test_torch_and_the_qdq_model_compute_the_same(tmp_path: Path, changes: list[str]) -> None:
    case = make(tmp_path, "mixed", *changes)
    student = student_of(case)
    (inputs,), _ = case.network.test.first()
    with torch.no_grad():
        expected = run(student.network.eval(), (inputs,)).numpy()
        plain = run(case.network.flat, (inputs,)).numpy()
    found = onnx_output(written(case, student.table(case.table), tmp_path), inputs.numpy())
    assert np.abs(expected - plain).max() > 1e-3  # it is quantized
    # A value at the middle between two steps may round either way; one step is all that may differ.
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected - plain).max()


def test_linear_layers_on_sequences_compute_the_same(tmp_path: Path) -> None:
    case = make(tmp_path, "attention")
    student = student_of(case)
    (inputs,), _ = case.network.test.first()
    with torch.no_grad():
        expected = run(student.network.eval(), (inputs,)).numpy()
    found = onnx_output(written(case, student.table(case.table), tmp_path), inputs.numpy())
    assert np.abs(found - expected).max() < 1e-2 * np.abs(expected).max()


def test_fp16_scales_and_a_free_batch_dimension_survive(tmp_path: Path) -> None:
    case = make(tmp_path, "mixed", "insert.types=fp16")
    path = written(case, student_of(case).table(case.table), tmp_path)
    (inputs,), _ = case.network.test.first()
    assert [len(onnx_output(path, inputs[:count].numpy())) for count in (1, 3)] == [1, 3]


def test_tied_branches_share_one_quantizer(tmp_path: Path) -> None:
    case = make(tmp_path, "mixed")
    slots = case.placement.quantized
    first, second = sorted({slot.tensor for slot in slots if slot.kind is SlotKind.ACTIVATION})[:2]
    tie = SharedScale(tensors=(first, second), rule="test", reason="they meet in one place")
    tied = student_of(replace(case, placement=replace(case.placement, ties=(tie,))))
    assert tied.tensors[first] == tied.tensors[second]
    assert student_of(case).tensors[first] != student_of(case).tensors[second]


def test_tied_weights_share_one_quantizer_and_stay_two_weights(tmp_path: Path) -> None:
    case = make(tmp_path, "mixed")
    left, right = (f"{name}.weight" for name in ("left", "right"))
    assert {left, right} <= {slot.tensor for slot in case.placement.quantized}
    tie = SharedScale(tensors=(left, right), rule="test", reason="they meet in one place")
    tied = student_of(replace(case, placement=replace(case.placement, ties=(tie,))))
    assert tied.tensors[left] == tied.tensors[right]
    layers = [module for module in tied.network.modules() if isinstance(module, QuantizedWeight)]
    weights = {id(module.layer.weight) for module in layers}
    assert len(weights) == len(layers)
    assert weights == {
        id(module.layer.weight)
        for module in student_of(case).network.modules()
        if isinstance(module, QuantizedWeight)
    }


def test_a_weight_used_twice_is_told_and_not_trained(tmp_path: Path) -> None:
    case = make(tmp_path, "shared")
    sites = locate(case.placement, case.model.view, case.network.flat)
    assert {site.step for site in sites.placed if not site.source} == {"head"}
    assert all("weight" in reason for _, reason in sites.lost)
    assert sites.lost


def test_quantizers_leave_the_float_network_as_it_was(tmp_path: Path) -> None:
    case = make(tmp_path, "mixed")
    (inputs,), _ = case.network.test.first()
    with torch.no_grad():
        before = run(case.network.flat, (inputs,))
        student_of(case)
        after = run(case.network.flat, (inputs,))
    assert torch.equal(before, after)


def test_a_network_whose_path_depends_on_data_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="Untraceable cannot be traced"):
        network_of("untraceable")


def test_a_function_that_returns_no_network_is_refused() -> None:
    with pytest.raises(UsageError, match="returns str"):
        network_of("no_module")
