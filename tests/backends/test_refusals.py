"""What a parser says against a model becomes a reason that is true, with its node and a way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from qdqtool.backends.building.failures import Mistake, crash, last_parsed, refusal
from qdqtool.cli.app import run
from qdqtool.core.protocols import BuildRequest
from qdqtool.io.child import Ended
from tests import models


def said(code: str, op: str, text: str) -> tuple[str, str]:
    error = refusal([Mistake(code=code, node="n1", op=op, text=text)], [], where="m.onnx", log="build.log")
    return error.what, error.fix or ""


@pytest.mark.parametrize(
    ("op", "text", "words", "way"),
    [
        ("Det", "false", "cannot import this operator", "replace the operator"),
        ("Unique", "false", "cannot import this operator", "depends on the data"),
        ("Det", 'creator && "Plugin not found, is the name correct?"', "no plug-in of this name", "load"),
        (
            "Resize",
            'rank == 4 && "Only four dimensions are read"',
            "Only four dimensions are read",
            "replace",
        ),
        ("Resize", "Assertion failed: (a < b): the axis lies outside", "the axis lies outside", "replace"),
    ],
)
def test_an_operator_that_the_parser_refuses_is_named_with_the_reason(
    op: str, text: str, words: str, way: str
) -> None:
    what, fix = said("UNSUPPORTED_NODE", op, text)
    assert words in what
    assert "n1" in what
    assert f"({op})" in what
    assert way in fix
    assert "placement" not in fix, "no Q/DQ stands before it"


def test_a_builder_that_ends_without_an_answer_is_explained_by_its_last_error(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    request = BuildRequest(model=tmp_path / "m.onnx", folder=tmp_path)
    log.write_text(
        "[V] Timing Runner: a (Myelin)\n[E] Error Code 1: Cuda Runtime (no kernel image is available)\n"
    )
    error = crash(Ended(code=1, timed_out=False, seconds=0.0), request, log)
    assert "was compiled for other GPUs (compute capabilities)" in error.what
    log.write_text("[V] Timing Runner: a (Myelin)\n")
    assert "Timing Runner" in crash(Ended(code=1, timed_out=False, seconds=0.0), request, log).what


def test_a_loop_without_trip_count_is_told_to_have_none() -> None:
    text = "Assertion failed: false: TensorRT cannot infer the shape of scan output s since no trip limit was set. Better do."
    what, fix = said("UNSUPPORTED_NODE", "Loop", text)
    assert "has no trip count" in what
    assert "with a trip count" in fix


def test_the_node_that_was_read_last_stands_in_the_log() -> None:
    log = "[V] Parsing node: a [Conv]\n[V] Parsing node: name [of] it [Slice]\n[V] Registering layer: x\n"
    assert last_parsed(log) == ("name [of] it", "Slice")
    assert last_parsed("nothing") == ("", "")


def test_a_complaint_that_names_no_node_gets_the_one_that_was_read_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    capsys.readouterr()
    assert run(["build", str(models.save(growing(), tmp_path)), "--out", str(tmp_path / "b")]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "at node part (Slice)" in said
    assert "Axis must be in the range" in said


def growing() -> onnx.ModelProto:
    """A Loop whose state starts without dimensions and ends with two, as PaddlePaddle writes lists."""
    sketch = models.Sketch()
    x = sketch.input("x", [1, 4])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["state", "x"], ["next"], name="grow"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", onnx.TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", onnx.TensorProto.FLOAT, None),
        ],
    )
    start = sketch.constant("start", np.float32(0))
    count, go = sketch.constant("count", np.int64(2)), sketch.constant("go_in", np.bool_(1))
    state = sketch.node("Loop", [count, go, start], "state_out", name="loop", body=body)
    ends = [sketch.constant(name, np.array([value])) for name, value in (("b", 0), ("e", 2), ("a", 1))]
    part = sketch.node("Slice", [state, *ends], "part_out", name="part")
    sketch.output(sketch.node("Add", [part, x], "y", name="sum"), None)
    return sketch.model()


def test_a_type_that_is_not_read_is_not_blamed_on_a_missing_file() -> None:
    broken = Mistake(code="INVALID_GRAPH", node="", op="", text="Failed to import initializer: x_z")
    words = "Found unsupported datatype (5) when importing initializer: x_z"
    typed = refusal([broken], [words], where="m.onnx", log="build.log")
    assert "INT16" in typed.what
    assert "qdqtool lint" in (typed.fix or "")
    assert "missing" in refusal([broken], [], where="m.onnx", log="build.log").what
