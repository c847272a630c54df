"""A convolution that reads one value of few channels has no INT8 kernel: prediction, lint, audit and engine say the same."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import qdqtool
from qdqtool.auditing import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.protocols import BuildRequest, InputProfile
from qdqtool.engine import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.matching.products import MOST_FOLDED
from tests import models

pytestmark = [pytest.mark.rtx, pytest.mark.slow]
EVERYTHING = ["place.skip_rules=[squeeze_excite, gemv]", "place.first_layer=int8", "place.last_layer=int8"]


def gate(channels: int, batch: int) -> onnx.ModelProto:
    """A squeeze-and-excite gate of so many squeezed channels."""
    s = models.Sketch()
    x = s.input("x", [batch, 16, 16, 16])
    x = s.relu("r0", s.node("Conv", [x, s.weight("w0", 32, 16, 3, 3)], "c0", name="stem", pads=[1] * 4))
    squeezed = s.node("GlobalAveragePool", [x], "pooled", name="pool")
    squeezed = s.node("Conv", [squeezed, s.weight("w1", channels, 32, 1, 1)], "c1", name="down")
    excited = s.node("Conv", [s.relu("r1", squeezed), s.weight("w2", 32, channels, 1, 1)], "c2", name="up")
    y = s.node("Mul", [x, s.node("Sigmoid", [excited], "s", name="sigmoid")], "m", name="scale")
    s.output(s.node("Conv", [y, s.weight("w3", 16, 32, 1, 1)], "y", name="last"), [batch, 16, 16, 16])
    return s.model()


@pytest.mark.parametrize(
    ("channels", "batch", "runs_int8"), [(1, 1, False), (4, 1, False), (5, 1, True), (4, 2, True)]
)
def test_what_is_foreseen_of_a_gate_is_what_is_built(channels: int, batch: int, runs_int8: bool) -> None:
    quantized = qdqtool.quantize(
        gate(channels, batch), samples="random:2", recipe="conv-int8", settings=EVERYTHING
    )
    foreseen = {node["node"]: node["precision"] for node in qdqtool.predict(quantized).to_dict()["nodes"]}
    found = {(finding["code"], finding["node"]) for finding in qdqtool.lint(quantized).to_dict()["findings"]}
    audit = qdqtool.audit(quantized, qdqtool.build(quantized)).to_dict()
    made = {row["node"]: row for row in audit["verdicts"]}
    assert (foreseen["up"] == "int8") is (made["up"]["precision"] == "int8") is runs_int8
    assert foreseen["down"] == made["down"]["precision"] == "int8"
    if not runs_int8:
        assert ("QDQ147", "up") in found
        reason = f"one position and at most {MOST_FOLDED} channels"
        told = made["up"]["precision"] == "unknown" or reason in str(made["up"])
        assert told, "where the kernel is known to be float, the audit says why"


@pytest.mark.parametrize("channels", [4, 5])
@pytest.mark.parametrize("most", [1, 2, 8])
def test_a_gate_of_a_free_batch_is_float_for_one_sample_alone_and_its_doubt_says_so(
    channels: int, most: int, tmp_path: Path
) -> None:
    proto = gate(channels, 1)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    quantized = qdqtool.quantize(proto, samples="random:2", recipe="conv-int8", settings=EVERYTHING)
    foreseen = qdqtool.predict(quantized).to_dict()
    least, largest = (1, 16, 16, 16), (most, 16, 16, 16)
    profile = InputProfile(name="x", low=least, opt=least, high=largest)
    path = quantized.save(tmp_path / "model.onnx")
    RTX.build(BuildRequest(model=path, folder=tmp_path, targets=("sm86",), profiles=(profile,)))
    told = {verdict.node: verdict for verdict in audit(load(path), read(tmp_path / "layers.txt")).verdicts}
    doubted = any("up" in doubt["nodes"] and "one sample" in doubt["reason"] for doubt in foreseen["doubts"])
    precision = {node["node"]: node["precision"] for node in foreseen["nodes"]}["up"]
    assert (precision == "int8") is (channels > 4)
    assert doubted is (channels <= 4)
    assert (told["up"].precision.value == "int8") is (channels > 4 or most > 1)
    found = {finding["node"]: finding for finding in qdqtool.lint(quantized).to_dict()["findings"]}
    assert ("up" in found and "for one sample" in found["up"]["effect"]) is (channels <= 4)
