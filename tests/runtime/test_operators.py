"""Operators of plug-ins: computed by a stand-in or a function of the model, or left alone with what depends on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from qdqtool.core.placement import Slot
from qdqtool.core.recipe import Recipe
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.quantization import QuantizationJob
from qdqtool.runtime.operators import NONE, use, use_operators
from qdqtool.runtime.runner import open_model
from tests import models

DOMAIN, OP = "trt.plugins", "Bent_TRT"
STAND_IN = "import numpy as np\n\ndef bent(x, *, slope=1.0):\n    return np.tanh(slope * x)\n"


@pytest.fixture(autouse=True)
def _nothing_in_use() -> Any:
    yield
    use(NONE)


def network(*, function: bool = False, plugin: bool = True) -> onnx.ModelProto:
    """Conv, an operator of a plug-in with an attribute, Conv, and a second branch without it."""
    s = models.Sketch()
    x = s.conv("first", s.input("x", [2, 3, 8, 8]), (3, 8))
    if plugin:
        bent = s.node(OP, [x], "bent", name="plug", domain=DOMAIN, slope=0.5)
    else:
        bent = s.node("Tanh", [s.node("Mul", [x, s.constant("half", np.float32(0.5))], "half_x")], "bent")
    s.output(s.conv("second", bent, (8, 4)))
    s.output(s.conv("beside", x, (8, 4)))
    proto = s.model(opset=17, domains=[DOMAIN])
    if function:
        body = [
            helper.make_node("Constant", [], ["half"], value_float=0.5),
            helper.make_node("Mul", ["a", "half"], ["b"]),
            helper.make_node("Tanh", ["b"], ["c"]),
        ]
        made = helper.make_function(
            DOMAIN, OP, ["a"], ["c"], body, [helper.make_opsetid("", 17)], attributes=["slope"]
        )
        proto.functions.append(made)
    return proto


def quantized(
    proto: onnx.ModelProto, folder: Path, **runtime: Any
) -> tuple[onnx.ModelProto, QuantizationJob]:
    recipe = Recipe.model_validate({"runtime": runtime, "calibrate": {"method": "max"}})
    job = QuantizationJob(models.save(proto, folder), recipe, "random:4")
    return job.inserted(job.table(lambda *_: None)).proto, job


def stand_ins(folder: Path) -> dict[str, str]:
    (folder / "standin.py").write_text(STAND_IN)
    return {f"{DOMAIN}::{OP}": f"{folder / 'standin.py'}:bent"}


def plugins(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in proto.graph.node if node.op_type == OP]


def test_a_stand_in_computes_what_the_operator_would(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"runtime": {"stand_ins": stand_ins(tmp_path)}})
    use_operators(recipe)
    found = open_model(load(models.save(network(), tmp_path)), description="in pieces")
    feeds = models.feeds(network(plugin=False))
    wanted = models.run(network(plugin=False), feeds)
    made = found.run(feeds)
    assert made.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-5, atol=1e-6)


def test_with_a_stand_in_every_convolution_is_quantized_and_the_node_stays(tmp_path: Path) -> None:
    proto, job = quantized(network(), tmp_path, stand_ins=stand_ins(tmp_path))
    assert {entry.slot for entry in job.placement.quantized} >= {
        Slot(node=name, index=index) for name in ("first", "second", "beside") for index in (0, 1)
    }
    (node,) = plugins(proto)
    assert (node.name, node.domain, [entry.name for entry in node.attribute]) == ("plug", DOMAIN, ["slope"])


def test_ranges_with_a_stand_in_are_those_of_the_same_network_without_the_plug_in(tmp_path: Path) -> None:
    scales = []
    for plugin in (True, False):
        folder = tmp_path / str(plugin)
        folder.mkdir()
        made, _ = quantized(network(plugin=plugin), folder, stand_ins=stand_ins(folder))
        constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
        scales.append({name: value for name, value in constants.items() if name.endswith("_scale")})
    assert scales[0].keys() == scales[1].keys()
    for name, value in scales[0].items():
        np.testing.assert_allclose(value, scales[1][name], rtol=1e-5)


def test_without_any_the_rest_is_calibrated_and_the_report_says_what_was_not_seen(tmp_path: Path) -> None:
    proto, job = quantized(network(), tmp_path)
    nodes = {entry.slot.node for entry in job.placement.quantized}
    assert nodes == {"first", "beside"}
    (note,) = (note for note in job.placement.notes if note.startswith("float, because no sample"))
    assert "'second'" in note
    assert "--custom-ops" in note
    assert len(plugins(proto)) == 1


def test_a_function_of_the_model_computes_the_operator_and_stays(tmp_path: Path) -> None:
    proto, job = quantized(network(function=True), tmp_path)
    assert {entry.slot.node for entry in job.placement.quantized} == {"first", "second", "beside"}
    assert len(plugins(proto)) == 1
    assert [(entry.domain, entry.name) for entry in proto.functions] == [(DOMAIN, OP)]
    feeds = models.feeds(network(plugin=False))
    wanted = models.run(network(plugin=False), feeds)
    for name, value in models.run(proto, feeds).items():
        assert np.abs(value - wanted[name]).max() < 0.1 * np.abs(wanted[name]).max()


def test_other_functions_are_inlined(tmp_path: Path) -> None:
    proto = network(function=True)
    for place in (*plugins(proto), *proto.functions):
        place.domain = "pkg.exporter"
        setattr(place, "op_type" if isinstance(place, onnx.NodeProto) else "name", "bent")
    proto.opset_import[1].domain = "pkg.exporter"
    model = load(models.save(proto, tmp_path))
    assert not model.proto.functions
    assert "Tanh" in {node.op for node in model.view.nodes}


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ({"custom_ops": ["missing.so"]}, "library missing.so does not exist"),
        ({"stand_ins": {"Bent": "numpy:tanh"}}, "does not name an operator"),
        ({"stand_ins": {"my::Bent": "numpy:no_such"}}, "no function"),
    ],
)
def test_what_is_not_there_is_named(runtime: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        use_operators(Recipe.model_validate({"runtime": runtime}))


def test_a_stand_in_that_fails_is_named_with_its_node(tmp_path: Path) -> None:
    (tmp_path / "standin.py").write_text("def bent(x, **_):\n    raise ValueError('no')\n")
    runtime = {"stand_ins": {f"{DOMAIN}::{OP}": f"{tmp_path / 'standin.py'}:bent"}}
    use_operators(Recipe.model_validate({"runtime": runtime}))
    runner = open_model(load(models.save(network(), tmp_path)), description="in pieces")
    with pytest.raises(
        Exception, match=r"stand-in of trt.plugins::Bent_TRT fails on node 'plug': ValueError: no"
    ):
        runner.run(models.feeds(network(plugin=False)))
