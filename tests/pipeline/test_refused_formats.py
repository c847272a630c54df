"""A format that a GPU does not have, and what a builder has no kernel for, is refused with node, rule, target and way out."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.backends import BUILDERS
from qdqtool.cli.app import run as cli
from qdqtool.core.findings import Severity
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.recipe import PrepareOptions
from qdqtool.core.target import Target
from qdqtool.errors import BuildError, InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import GraphView
from qdqtool.matching.refused import match_refused
from qdqtool.placement.lint import lint
from qdqtool.prediction.predict import predict
from qdqtool.trt.ops import PACKED_WEIGHTS, computes_integers, is_other_quantizer
from tests import models
from tests.graph.node_cases import cases
from tests.graph.test_endings import Ending, above_a_threshold, network, suppressed
from tests.placement.qdq import GRAPHS, Quantized

FORMATS = [
    ("int4_weights", "75", "w/DQ", "QDQ109", "SM80"),
    ("fp8_weights", "75", "x/Q", "QDQ111", "SM89"),
    ("fp8_weights", "86", "x/Q", "QDQ111", "SM89"),
    ("fp4_weights", "86", "w/DQ", "QDQ117", "SM120"),
    ("fp4_weights", "89", "w/DQ", "QDQ117", "SM120"),
]


@pytest.mark.parametrize(("name", "sm", "node", "code", "way"), FORMATS)
def test_a_prediction_doubts_what_the_gpu_cannot_run(
    name: str, sm: str, node: str, code: str, way: str, tmp_path: Path
) -> None:
    model = load(models.save(GRAPHS[name](), tmp_path))
    told = [
        doubt for doubt in predict(model, Target.parse("rtx", (sm,))).doubts if "the build" in doubt.reason
    ]
    assert len(told) == 1
    assert f"SM{sm} has no" in told[0].reason
    assert f"from {way} on" in told[0].reason
    newer = predict(model, Target.parse("rtx", (way.removeprefix("SM"),)))
    assert not [doubt for doubt in newer.doubts if "has no" in doubt.reason]


@pytest.mark.parametrize(
    ("step", "effect"), [(np.inf, "accepts such scales without a message"), (0.0, "refuses the model")]
)
def test_scales_that_no_quantization_can_use_are_errors(step: float, effect: str, tmp_path: Path) -> None:
    s = Quantized()
    (told,) = lint(load(models.save(s.done(s.qconv("c1", s.image(), step=step)), tmp_path))).findings
    assert (told.code, told.node, told.severity) == ("QDQ103", "c1_x/Q", Severity.ERROR)
    assert effect in told.effect


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize(("name", "sm", "node", "code", "way"), FORMATS)
def test_a_build_that_is_refused_names_node_rule_target_and_way_out(
    name: str, sm: str, node: str, code: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(GRAPHS[name](), tmp_path)
    assert cli(["build", str(path), "--sm", sm, "--out", str(tmp_path / "out")]) == 4
    said = capsys.readouterr().err
    for word in (node, code, f"sm{sm}", way):
        assert word in said


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
def test_an_odd_number_of_four_bit_values_is_refused_in_words_that_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(GRAPHS["int4_odd_number"](), tmp_path)
    assert cli(["build", str(path), "--out", str(tmp_path / "out")]) == 4
    said = capsys.readouterr().err
    for word in ("an odd number of 4-bit values", "QDQ109 at 'w/DQ'", "store it as INT8"):
        assert word in said


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize(
    ("end", "op", "rank"), [(suppressed, "NonMaxSuppression", 2), (above_a_threshold, "NonZero", 1)]
)
def test_a_model_that_chooses_inside_is_refused_with_the_command_that_ends_it_before(
    end: Ending, op: str, rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = network(end)
    for place in range(rank):
        proto.graph.output[0].type.tensor_type.shape.dim.add().dim_param = f"n{place}"
    path = models.save(proto, tmp_path)
    samples = tmp_path / "x.npz"
    np.savez(samples, x=np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32))
    common = ["--samples", str(samples)]
    assert cli(["run", str(path), *common, "--out", str(tmp_path / "whole")]) == 4
    said = capsys.readouterr().err
    assert f"TensorRT for RTX has no kernel for {op}" in said
    assert "--builder trtexec" in said
    assert not (tmp_path / "whole" / "histograms.npz").exists()
    found = re.search(r'`python -c "(.*?)"`; or build', said)
    assert found is not None
    assert str(path) in found[1]
    command = found[1].replace("cut.onnx", str(tmp_path / "cut.onnx"))
    subprocess.run([sys.executable, "-c", command], check=True, timeout=100)
    assert cli(["run", str(tmp_path / "cut.onnx"), *common, "--out", str(tmp_path / "cut")]) == 0


def formed(op: str, **attributes: object) -> onnx.ModelProto:
    """One node with these attributes before a convolution."""
    s = models.Sketch()
    shape = (2, 4, 8, 8)
    x = s.input("x", shape)
    more = {
        "BatchNormalization": ["mean"] * 4,
        "Resize": ["", "", "sizes"],
        "ScatterElements": ["indices", "x"],
        "ScatterND": ["places", "x"],
    }.get(op, [])
    s.constant("mean", np.ones(4, np.float32))
    s.constant("sizes", np.array([2, 4, 4, 4]))
    s.constant("indices", np.zeros(shape, np.int64))
    s.constant("places", np.zeros((2, 1), np.int64))
    s.output(s.conv("last", s.node(op, [x, *more], "y", name="formed", **attributes), (4, 4)))
    return s.model(opset=20)


@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
def test_the_parser_agrees_with_the_table_on_every_operator() -> None:
    """Every operator of the newest opset, of ONNX's other domains, and of com.microsoft."""
    import tensorrt_rtx as trt
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    more = [schema for schema in get_all_operator_schema() if schema.domain == "com.microsoft"]
    kinds = sorted({(schema.domain, schema.name) for schema in (*onnx.defs.get_all_schemas(), *more)})
    assert len(kinds) > 350
    nodes = [
        onnx.helper.make_node(op, ["x"], [f"y{place}"], f"{domain}:{op}", domain=domain)
        for place, (domain, op) in enumerate(kinds)
    ]
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT32, [1])
    view = GraphView(onnx.helper.make_model(onnx.helper.make_graph(nodes, "all", [value], [])))
    refused = {node.name for node, _ in match_refused(view, Target())}
    others = {
        node.name
        for node in view.nodes
        if computes_integers(node.op) or node.op in PACKED_WEIGHTS or is_other_quantizer(node.op, node.domain)
    }
    unsupported = {node.name for node in view.nodes if not parser.supports_operator(node.op)}
    assert unsupported - others <= refused
    assert refused - unsupported == IMPORTED_IN_VAIN


IMPORTED_IN_VAIN = {
    *(":CausalConvWithState", ":LinearAttention", ":NonMaxSuppression", ":NonZero", ":RoiAlign"),
    *(f"com.microsoft:{op}" for op in ("Attention", "CausalConvWithState", "GroupQueryAttention")),
    "com.microsoft:LinearAttention",
}
"""Operators with an importer that lacks its plug-in or a kernel, or that reads another domain's operator of this name."""


@pytest.mark.parametrize("heads", [4, "4*batch"])
def test_heads_that_the_batch_became_a_part_of_are_named(heads: int | str, tmp_path: Path) -> None:
    """As torch.export writes it for a dynamic batch and an example with a batch of 1."""
    floats = onnx.TensorProto.FLOAT
    shapes = {"q": [1, heads, 8, 16], "k": [1, 4, 8, 16], "v": [1, 4, 8, 16]}
    values = [onnx.helper.make_tensor_value_info(name, floats, shape) for name, shape in shapes.items()]
    result = onnx.helper.make_tensor_value_info("y", floats, None)
    node = onnx.helper.make_node("Attention", list(shapes), ["y"], "attention")
    graph = onnx.helper.make_graph([node], "g", values, [result])
    path = models.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)]), tmp_path
    )
    fixes = [finding.fix for finding in lint(load(path), Target()).findings]
    assert [fix for fix in fixes if "fixed batch" in fix] == fixes
    assert bool(fixes) is (heads != 4)


def cast_chain(kind: int, form: str) -> onnx.ModelProto:
    """A Cast to the type and back; an input of this type before a Cast; or one whose axes move before the Cast."""
    floats = onnx.TensorProto.FLOAT
    nodes = [onnx.helper.make_node("Cast", ["x" if form == "input" else "t"], ["y"], "last", to=floats)]
    if form == "between":
        nodes.insert(0, onnx.helper.make_node("Cast", ["x"], ["t"], "first", to=kind))
    elif form == "moved":
        nodes.insert(0, onnx.helper.make_node("Transpose", ["x"], ["t"], "first", perm=[1, 0]))
    x = onnx.helper.make_tensor_value_info("x", floats if form == "between" else kind, [4, 4])
    y = onnx.helper.make_tensor_value_info("y", floats, [4, 4])
    graph = onnx.helper.make_graph(nodes, "g", [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 28)], ir_version=13)


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize("form", ["between", "input", "moved"])
def test_lint_names_the_types_that_the_builder_refuses_and_no_others(form: str, tmp_path: Path) -> None:
    """The builder gets the opset that its parser knows; the nodes are the same."""
    import tensorrt_rtx as trt

    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM120, 0)
    wrong = []
    for name, kind in onnx.TensorProto.DataType.items():
        if name == "UNDEFINED" or (name, form) == ("FLOAT", "between"):
            continue
        proto = cast_chain(kind, form)
        model = load(models.save(proto, tmp_path))
        refused = [reason for _, reason in match_refused(model.view, Target())]
        proto.opset_import[0].version = 24
        network = builder.create_network()
        imported = trt.OnnxParser(network, trt.Logger(trt.Logger.INTERNAL_ERROR)).parse(
            proto.SerializeToString()
        )
        built = imported and builder.build_serialized_network(network, config) is not None
        if built == bool(refused) or any("UNKNOWN" in reason for reason in refused):
            wrong.append((name, built, refused))
    assert wrong == []


def test_an_image_whose_axes_move_before_its_cast_is_cast_first(tmp_path: Path) -> None:
    model = load(models.save(cast_chain(onnx.TensorProto.UINT8, "moved"), tmp_path))
    assert [finding.fix for finding in lint(model, Target()).findings] == [
        "`qdqtool run` casts 'x' before Transpose"
    ]
    ready = prepare(model, PrepareOptions())
    assert not list(match_refused(ready.view, Target()))
    image = np.arange(240, 256, dtype=np.uint8).reshape(4, 4)
    made = models.run(ready.proto, {"x": image})["y"]
    np.testing.assert_array_equal(made, image.T.astype(np.float32))


SILENT = {"Attention", "Dropout", "Loop", "If", "Optional", "Sequence"}
"""Attentions of sizes without a kernel, and forms that depend on values."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
def test_lint_refuses_no_model_of_onnx_that_the_builder_builds(tmp_path: Path) -> None:
    """Small parameters, such as axes, are constants, as exporters write them."""
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    alarms, silent = [], []
    for case in cases():
        model = onnx.ModelProto.FromString(case.model.SerializeToString())
        for value in list(model.graph.input)[1:]:
            if case.feeds[value.name].ndim <= 1:
                model.graph.initializer.append(
                    onnx.numpy_helper.from_array(case.feeds[value.name], value.name)
                )
                model.graph.input.remove(value)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        network = builder.create_network()
        imported = trt.OnnxParser(network, logger).parse(path.read_bytes())
        try:
            loaded = load(path)
        except InputFileError:
            continue
        ops = {node.op for node in loaded.view.nodes}
        refused = list(match_refused(loaded.view, Target())) or [
            finding
            for finding in lint(loaded, Target.parse("rtx", ["86"])).findings
            if finding.severity is Severity.ERROR
        ]
        if imported and refused and builder.build_serialized_network(network, config) is not None:
            alarms.append(case.name)
        if not imported and not refused and not ops & SILENT:
            silent.append(case.name)
    assert alarms == []
    assert len(silent) < 60, (len(silent), silent)


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "form"),
    [
        ("LayerNormalization", ["x", "scale"], ["y", "mean"], {"axis": 3}, "more than one output"),
        ("Mod", ["x", "x"], ["y"], {}, "floats and fmod=0"),
        ("Mod", ["x", "x"], ["y"], {"fmod": 1}, ""),
    ],
)
def test_lint_and_the_parser_agree_on_outputs_and_types(
    op: str, inputs: list[str], outputs: list[str], attributes: dict[str, object], form: str, tmp_path: Path
) -> None:
    values = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 4, 4])]
    scale = onnx.helper.make_tensor("scale", onnx.TensorProto.FLOAT, [4], [1.0] * 4)
    named = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    node = onnx.helper.make_node(op, inputs, outputs, "formed", **attributes)
    for used in (named, named[:1]):
        graph = onnx.helper.make_graph([node], "g", values, used, [scale])
        path = tmp_path / "formed.onnx"
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]), path)
        model = load(path)
        findings = lint(model, Target.parse("rtx", ["86"])).findings
        assert [finding.code for finding in findings] == ["QDQ160"] * bool(form)
        assert all(f"{op} with {form}" in finding.reason for finding in findings)
        request = BuildRequest(model=path, folder=tmp_path, targets=("sm86",))
        with pytest.raises(BuildError) if form else nullcontext():
            BUILDERS.load("rtx").check_model(request)
        ready = prepare(model, PrepareOptions())
        is_unread = len(named) > 1 and used == named[:1]
        assert bool(list(match_refused(ready.view, Target()))) is (bool(form) and not is_unread)


REFUSED_FORMS = [
    ("AveragePool", {"kernel_shape": [2, 2]}, {"dilations": [2, 2]}, {"dilations": [1, 1]}),
    ("LpPool", {"kernel_shape": [2, 2]}, {"p": 3}, {"p": 1}),
    ("Resize", {"mode": "linear"}, {"antialias": 1}, {"antialias": 0}),
    ("ScatterElements", {"axis": 1}, {"reduction": "add"}, {"reduction": "none"}),
    ("ScatterND", {}, {"reduction": "add"}, {"reduction": "none"}),
]


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize(
    ("op", "common", "refused", "accepted"), REFUSED_FORMS, ids=[form[0] for form in REFUSED_FORMS]
)
def test_lint_names_the_attributes_that_the_parser_refuses_and_no_others(
    op: str,
    common: dict[str, object],
    refused: dict[str, object],
    accepted: dict[str, object],
    tmp_path: Path,
) -> None:
    for attributes, is_refused in ((refused, True), (accepted, False)):
        path = models.save(formed(op, **common, **attributes), tmp_path)
        findings = [
            finding
            for finding in lint(load(path), Target.parse("rtx", ["86"])).findings
            if finding.code == "QDQ160"
        ]
        assert bool(findings) is is_refused
        assert all(f"replace {op} with {next(iter(refused))}=" in finding.fix for finding in findings)
        request = BuildRequest(model=path, folder=tmp_path, targets=("sm86",))
        with pytest.raises(BuildError) if is_refused else nullcontext():
            BUILDERS.load("rtx").check_model(request)


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
def test_what_only_the_parser_refuses_is_said_before_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s = models.Sketch()
    y = s.node(
        "Foreign", [s.conv("c1", s.input("x", [1, 4, 8, 8]), (4, 4))], "y", name="mine", domain="my.own"
    )
    s.output(s.conv("c2", y, (4, 4)), [1, 4, 8, 8])
    proto = s.model()
    proto.opset_import.append(onnx.helper.make_opsetid("my.own", 1))
    path = models.save(proto, tmp_path)
    assert cli(["run", str(path), "--samples", "random:1", "--out", str(tmp_path / "out")]) == 4
    said = capsys.readouterr().err
    assert "'mine' (Foreign)" in said
    assert not (tmp_path / "out" / "histograms.npz").exists()
