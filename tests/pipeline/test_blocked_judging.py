"""Tables are judged in the layout in which onnxruntime computes convolutions, as they would be in any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.calibration.collect import collect
from qdqtool.calibration.table import make_table
from qdqtool.core.recipe import CalibrationOptions, PlacementOptions, PrepareOptions
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline.ranges import executor as judging
from qdqtool.pipeline.ranges.executor import TrialSession, TriedTable
from qdqtool.pipeline.ranges.reference import Budget, Reference
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import OrtRunner, open_rewritten
from tests import models
from tests.models import Sketch
from tests.pipeline.test_auto import case


def of_convolutions(proto: onnx.ModelProto) -> bool:
    graph = proto.graph
    return len(graph.input) == len(graph.output) == 1 and any(node.op_type == "Conv" for node in graph.node)


CONVOLUTIONAL = [name for name, make in sorted(models.ALL.items()) if of_convolutions(make())]


def odd_channels() -> onnx.ModelProto:
    """Channels that fill no block, no bias, a clipped activation, a sum, and a tensor that has a float reader too."""
    s = Sketch(5)
    x = s.input("x", ["N", 3, 12, 12])
    low, high = s.constant("low", np.float32(0)), s.constant("high", np.float32(6))
    stem = s.node("Clip", [s.conv("stem", x, (3, 24)), low, high], "stem_clip")
    wide = s.node("Clip", [s.conv("wide", stem, (24, 40), kernel=1), low, high], "wide_clip")
    deep = s.node("Clip", [s.conv("deep", wide, (40, 40), group=40, stride=2), low, high], "deep_clip")
    narrow = s.conv("narrow", deep, (40, 24), kernel=1)
    s.nodes[-1].input.pop()
    again = s.conv("again", narrow, (24, 24))
    total = s.node("Add", [narrow, again], "total")
    gate = s.node("HardSigmoid", [total], "gate")
    s.output(s.node("Mul", [total, gate], "y"), ["N", 24, 6, 6])
    return s.model(17)


def squashing() -> onnx.ModelProto:
    """A network with both functions that stand in for Q/DQ pairs elsewhere."""
    s = Sketch(6)
    x = s.conv("first", s.input("x", ["N", 16, 8, 8]), (16, 16))
    x = s.conv("second", s.node("Tanh", [x], "tanh_y"), (16, 16))
    s.output(s.conv("third", s.node("Sigmoid", [x], "sigmoid_y"), (16, 16)), ["N", 16, 8, 8])
    return s.model(17)


def judged(
    proto: onnx.ModelProto, folder: Path, *, prepared: bool = True
) -> tuple[TrialSession, list[TriedTable]]:
    model, placement, samples, histograms = case(folder, proto, tail=8.0)
    if prepared:
        model = prepare(model, PrepareOptions())
        placement = decide(model.view, PlacementOptions())
        histograms = collect(model, placement, samples)
    reference = Reference(model, samples, Budget(), bias=True)
    tables = {
        method: make_table(histograms, placement, model.view, CalibrationOptions(method=method))
        for method in ("max", "percentile", "mse")
    }
    trial = TrialSession(model, placement, tables["max"], reference, Budget())
    assert trial.is_batched
    return trial, [trial.candidate(name, table, reference.samples) for name, table in tables.items()]


@pytest.mark.slow
@pytest.mark.parametrize("make", [*(models.ALL[name] for name in CONVOLUTIONAL), odd_channels])
def test_blocks_of_channels_change_no_judgement(
    make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[OrtRunner | None] = []

    def noted(*words: object, **options: object) -> OrtRunner | None:
        opened.append(open_rewritten(*words, **options))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(judging, "open_rewritten", noted)
    _, blocked = judged(make(), tmp_path)  # type: ignore[operator]
    assert [runner is not None for runner in opened] == [True]
    monkeypatch.setattr(judging, "with_stand_ins", lambda *_: None)
    _, plain = judged(make(), tmp_path)  # type: ignore[operator]
    assert len(opened) == 1
    for one, other in zip(blocked, plain, strict=True):
        assert one.decibel == pytest.approx(other.decibel, abs=0.1)
        assert [entry.node for entry in one.table.shifts] == [entry.node for entry in other.table.shifts]
        for mine, theirs in zip(one.table.shifts, other.table.shifts, strict=True):
            largest = np.abs(theirs.shift).max()
            np.testing.assert_allclose(mine.shift, theirs.shift, atol=0.1 * largest + 1e-6)


def test_a_network_that_leaves_no_function_to_stand_in_is_judged_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "open_rewritten", lambda *_, **__: pytest.fail("optimized with stand-ins"))
    _, found = judged(squashing(), tmp_path)
    assert all(np.isfinite(one.decibel) for one in found)


def test_a_factor_that_is_fused_into_a_convolution_scales_no_shift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = Sketch(7)
    x = s.batchnorm("norm", s.conv("first", s.input("x", ["N", 16, 8, 8]), (16, 16)), 16)
    s.output(s.conv("second", s.relu("relu", x), (16, 16)), ["N", 16, 8, 8])
    _, found = judged(s.model(17), tmp_path, prepared=False)
    monkeypatch.setattr(judging, "with_stand_ins", lambda *_: None)
    _, plain = judged(s.model(17), tmp_path, prepared=False)
    for one, other in zip(found, plain, strict=True):
        assert one.decibel == pytest.approx(other.decibel, abs=0.1)
        assert one.table.shifts == other.table.shifts


def test_what_cannot_be_put_back_is_judged_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.graph.instrumented.blocked._BLOCKED_NAME", "_another_release")
    monkeypatch.setattr("qdqtool.graph.instrumented.blocked._CONVOLUTIONS", {"FusedConv"})
    _, renamed = judged(odd_channels(), tmp_path)
    monkeypatch.undo()
    _, known = judged(odd_channels(), tmp_path)
    for one, other in zip(renamed, known, strict=True):
        assert one.decibel == pytest.approx(other.decibel, abs=0.1)
