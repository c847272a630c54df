"""Whether a run is worth it: published times of other networks decide, as `advise` does, unless something was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.core.kinds import ENGINE
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.recipe import Recipe
from qdqtool.core.report import Worth
from qdqtool.engine.roofline import find_device
from qdqtool.engine.worth import advise
from qdqtool.graph.view import Model
from qdqtool.pipeline import costs
from qdqtool.report.assemble import assemble
from qdqtool.report.judgement import Case, worth
from tests.graph.placing import opened
from tests.models import Sketch
from tests.report.material import ENGINE as RECORDED
from tests.report.material import FULL


def network(folder: Path, channels: int, size: int) -> Model:
    made = Sketch()
    value = made.input("x", (1, channels, size, size))
    for number in range(4):
        value = made.conv(f"conv{number}", value, (channels, channels))
    made.output(value)
    return opened(made.model(), folder)


def verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compared: Worth, model: Model, int8: bool
) -> Worth:
    monkeypatch.setattr(costs, "_build_and_compare", lambda *_: compared)
    monkeypatch.setattr(costs, "_is_int8", lambda _: int8)
    layers = tmp_path / "layers.json"
    ENGINE.write(layers, RECORDED)
    request = BuildRequest(model=tmp_path / "m.onnx", folder=tmp_path)
    return costs.against_fp16(model, Recipe(), None, request, layers)


UNKNOWN = Worth(source="unknown", note="not built")
ESTIMATED = Worth(source="estimated", device="NVIDIA A10", ms=1.0, fp16_ms=1.3, low=0.98, high=1.7)
CASES = {
    "no second engine": (UNKNOWN, True),
    "an estimate inside": (ESTIMATED, True),
    "an estimate outside": (replace(ESTIMATED, fp16_ms=0.5), True),
    "measured": (replace(ESTIMATED, source="measured"), True),
    "not INT8": (ESTIMATED, False),
}


@pytest.mark.parametrize(("compared", "int8"), CASES.values(), ids=CASES)
def test_published_times_decide_unless_measured(
    compared: Worth, int8: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = network(tmp_path, 256, 96)
    found = verdict(monkeypatch, tmp_path, compared, model, int8)
    option = advise(model.view, find_device("A10"), "m").int8
    assert option.low is not None
    assert option.high is not None
    assert "INT8 is faster" in found.advice
    if compared.source == "measured" or not int8:
        assert (found.low, found.high) == (compared.low, compared.high)
    elif compared.fp16_ms == 0.5:
        assert found.low == 0.5
        assert found.high == pytest.approx(1 / option.low)
    else:
        assert (found.low, found.high) == pytest.approx((1 / option.high, 1 / option.low))


def test_launches_leave_the_estimate_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = verdict(monkeypatch, tmp_path, ESTIMATED, network(tmp_path, 3, 8), True)
    assert "cannot say" in found.advice
    assert (found.low, found.high) == (ESTIMATED.low, ESTIMATED.high)


def test_launches_decide_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = replace(ESTIMATED, low=0.6, high=0.8, note="most of the time is kernel launches")
    found = verdict(monkeypatch, tmp_path, slow, network(tmp_path, 3, 8), True)
    assert found.note
    case = Case(summary=assemble(FULL).summary, worth=found)
    reply = worth(case)
    assert reply.state == "unknown"
    assert "0.60 to 0.80 times as fast" in reply.evidence
    assert worth(replace(case, worth=replace(found, note=""))).state == "no"
