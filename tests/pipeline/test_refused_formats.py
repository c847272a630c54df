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
from qdqtool.core.target import Target
from qdqtool.errors import BuildError
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint
from qdqtool.prediction.predict import predict
from tests import models
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
