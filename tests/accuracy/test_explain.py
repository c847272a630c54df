"""Rounding, fusion or a bug: the verdict on candidates whose cause is known because we made them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.accuracy.explain import Emulations, emulations, explain
from qdqtool.core.comparison import MismatchCause
from qdqtool.core.protocols import Runner, Sample
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import UsageError
from qdqtool.graph.emulation.integer_form import integer_form
from qdqtool.graph.instrumented.probe import jitter_scales
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.runtime.runner import open_runner
from tests import models
from tests.accuracy.stand_ins import Given
from tests.graph.placing import opened, placement_for, table_for


def runner(model: Model, description: str = "candidate") -> Runner:
    return open_runner(serialize(model), description=description)


class NodeEvidence:
    """A Q/DQ model with samples."""

    def __init__(self, folder: Path, types: str) -> None:
        proto = models.residual_cnn()
        model = opened(proto, folder)
        placement = placement_for(model)
        table = table_for(model, placement, models.feeds(proto))
        self.model = insert(model, placement, table, InsertOptions(types=types))
        self.samples = Given([Sample(name=f"s{seed}", feeds=models.feeds(proto, seed)) for seed in range(6)])

    def verdict(self, candidate: Runner) -> MismatchCause:
        (found,) = explain(candidate, emulations(self.model, runner), self.samples)
        return found.cause


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> NodeEvidence:
    return NodeEvidence(tmp_path_factory.mktemp(request.param), request.param)


def test_the_model_itself_is_the_same(case: NodeEvidence) -> None:
    assert case.verdict(runner(case.model)) is MismatchCause.SAME


def test_integer_arithmetic_is_rounding(case: NodeEvidence) -> None:
    exact = runner(integer_form(case.model, (), reciprocal=True).model)
    assert case.verdict(exact) in {MismatchCause.ROUNDING, MismatchCause.SAME}


def test_fused_kernels_explain_a_model_in_bf16(tmp_path: Path) -> None:
    case = NodeEvidence(tmp_path, "bf16")
    assert emulations(case.model, runner).fused
    assert case.verdict(runner(integer_form(case.model).model)) is not MismatchCause.UNEXPLAINED


def with_constant(model: Model, change: Callable[[np.ndarray], np.ndarray], which: str) -> Model:
    """The model with one constant changed, as a wrong calibration table or a bug would."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name == which:
            value = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(change(value).astype(value.dtype), which))
    return Model(proto=proto, path=model.path)


def test_a_wrong_scale_is_not_explained(case: NodeEvidence) -> None:
    node = next(
        node for node in case.model.view.nodes
        if node.op == "QuantizeLinear" and not case.model.view.is_constant(node.inputs[0])
    )  # fmt: skip
    broken = with_constant(case.model, lambda scale: scale * 1.5, node.inputs[1])
    assert case.verdict(runner(broken)) is MismatchCause.UNEXPLAINED


def test_another_order_of_operations_is_rounding(case: NodeEvidence) -> None:
    other = jitter_scales(case.model, 99, 3e-7)
    if other is None:
        pytest.skip("the scales of this model are not FP32")
    assert case.verdict(runner(other)) in {MismatchCause.ROUNDING, MismatchCause.SAME}


def test_biases_in_the_wrong_channels_are_not_explained(case: NodeEvidence) -> None:
    conv = next(node for node in case.model.view.nodes if node.op == "Conv" and len(node.inputs) > 2)
    broken = with_constant(case.model, lambda bias: np.roll(bias, 1), conv.inputs[2])
    assert case.verdict(runner(broken)) is MismatchCause.UNEXPLAINED


def test_jitter_moves_the_scales_of_activations_by_a_hair_and_nothing_else(tmp_path: Path) -> None:
    case = NodeEvidence(tmp_path, "fp32")
    other = jitter_scales(case.model, 1, 1e-6)
    assert other is not None
    constants = (
        {t.name: onnx.numpy_helper.to_array(t) for t in m.proto.graph.initializer}
        for m in (case.model, other)
    )
    before, after = constants
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    readers = [
        n
        for n in case.model.view.nodes
        if n.op == "QuantizeLinear" and not case.model.view.is_constant(n.inputs[0])
    ]
    assert moved
    assert moved <= {node.inputs[1] for node in readers}
    for name in moved:
        np.testing.assert_allclose(after[name], before[name], rtol=1.1e-6)
    assert jitter_scales(opened(models.conv_chain(), tmp_path), 1, 1e-6) is None


def test_a_model_without_qdq_cannot_be_emulated(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Q/DQ nodes"):
        emulations(opened(models.conv_chain(), tmp_path), runner)


class Fixed:
    """A runner with one output that is always the same."""

    inputs = ()
    outputs = ("y",)
    description = "fixed"
    at_once = 1

    def __init__(self, *values: float) -> None:
        self._values = np.array(values)

    def run(self, feeds: object) -> dict[str, np.ndarray]:
        return {"y": self._values}


FAMILIES = Emulations(
    graph={"graph": Fixed(100.0, 0.0), "integer": Fixed(101.0, 0.0)},
    fused={"fused": Fixed(100.0, 10.0), "fused too": Fixed(100.0, 11.0)},
)


def test_rare_flips_count_only_where_nothing_else_crossed_a_border() -> None:
    quiet = {"graph": Fixed(100.0, 0.0), "integer": Fixed(100.0, 1e-4)}
    rare = {"approximations": Fixed(101.0, 0.0)}
    samples = Given([Sample(name="s", feeds={})])
    candidate = Fixed(100.0, 0.9)
    (found,) = explain(candidate, Emulations(graph=quiet, fused={}), samples)
    assert found.cause is MismatchCause.UNEXPLAINED
    (found,) = explain(candidate, Emulations(graph=quiet, fused={}, rare=rare), samples)
    assert found.cause is MismatchCause.ROUNDING
    loud = {"graph": Fixed(100.0, 0.0), "integer": Fixed(100.0, 0.1)}
    (found,) = explain(candidate, Emulations(graph=loud, fused={}, rare=rare), samples)
    assert found.cause is MismatchCause.UNEXPLAINED


@pytest.mark.parametrize(
    ("candidate", "cause", "nearest"),
    [
        (Fixed(100.0, 0.0), MismatchCause.SAME, "graph"),
        (Fixed(102.2, 0.0), MismatchCause.ROUNDING, "integer"),
        (Fixed(102.4, 0.0), MismatchCause.UNEXPLAINED, "integer"),
        (Fixed(100.0, 9.0), MismatchCause.FUSION, "fused"),
        (Fixed(100.0, 5.0), MismatchCause.UNEXPLAINED, "graph"),
    ],
    ids=["equal", "as near as the integers", "a little further", "near the fused kernels", "between the two"],
)
def test_the_nearest_family_within_its_own_spread_explains(
    candidate: Fixed, cause: MismatchCause, nearest: str
) -> None:
    (found,) = explain(candidate, FAMILIES, Given([Sample(name="s", feeds={})]))
    assert (found.cause, found.nearest) == (cause, nearest)
    assert found.rounding_db == pytest.approx(10 * np.log10(102.3**2 / 1), abs=0.3)
