"""Commands agree about networks that nobody thought of: lint, repair, prediction and audit say one thing about each node."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import qdqtool
from qdqtool.auditing.context import stage
from qdqtool.auditing.full_audit import examine
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.core.tensors import FLOAT
from qdqtool.engine import read
from qdqtool.errors import BuildError, QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.graph.view import Model
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from qdqtool.prediction.predict import predict
from tests.generated.disturb import disturbed
from tests.generated.networks import network

FEW, MANY = 24, 130
TARGETS = tuple(Target.parse(word) for word in ("rtx", "8.6", "10.3", "11"))


def foreign(seed: int, folder: Path) -> Model | None:
    """A generated network with Q/DQ as other tools write them; None if nothing in it is quantized."""
    one, path = network(seed), folder / f"{seed}.onnx"
    onnx.save(one.proto, path)
    try:
        qdqtool.quantize(path, "random:2", folder / "q.onnx")
    except QdqError:
        return None
    onnx.save(disturbed(onnx.load(folder / "q.onnx"), seed), folder / "foreign.onnx")
    return load(folder / "foreign.onnx")


def errors(model: Model, target: Target) -> list[str]:
    found = lint(model, target).findings
    return [f"{one.code} {one.node}: {one.reason}" for one in found if one.severity is Severity.ERROR]


def check(seeds: range, folder: Path) -> int:
    """Look at the networks of these seeds; how many have Q/DQ."""
    count = 0
    for seed in seeds:
        model = foreign(seed, folder)
        if model is None:
            continue
        count += 1
        for target in TARGETS:
            repaired, _ = repair(model, target)
            assert errors(repaired, target) == [], (seed, target.name)
            again, changes = repair(repaired, target)
            assert [change.repair for change in changes] == [], (seed, target.name, again.view.name)
    return count


def test_after_a_repair_lint_has_no_error_and_another_repair_nothing_to_do(tmp_path: Path) -> None:
    assert check(range(FEW), tmp_path) > FEW // 2


@pytest.mark.slow
def test_after_a_repair_of_many_lint_has_no_error(tmp_path: Path) -> None:
    assert check(range(FEW, MANY), tmp_path) > MANY // 2


@pytest.mark.rtx
@pytest.mark.parametrize(
    "seed", [seed if seed < 3 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(24)]
)
def test_prediction_lint_and_audit_say_one_thing_of_a_node(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    given = foreign(seed, tmp_path)
    if given is None:
        pytest.skip("nothing in it is quantized")
    model, _ = repair(given, Target())
    path = tmp_path / "repaired.onnx"
    save(model, path)
    try:
        qdqtool.build(path, tmp_path / "built")
    except BuildError as error:
        save(float_graph(model), tmp_path / "float.onnx")
        with pytest.raises(BuildError):  # the network is at fault, and not its Q/DQ
            qdqtool.build(tmp_path / "float.onnx", tmp_path / "float")
        pytest.skip(f"the builder refuses the float network too: {error}")
    context = stage(read(tmp_path / "built" / "layers.txt"), load(path))
    foreseen = {node.node: node for node in predict(load(path), Target()).nodes}
    fixes: dict[str, set[str]] = {}
    for found in lint(load(path), Target()).findings:
        fixes.setdefault(found.node, set()).add(found.fix)
    for told in examine(context).verdicts:
        if told.realised in {"unknown", ""} or told.node not in foreseen:
            continue
        assert foreseen[told.node].realised in {told.realised, "unknown"}, told
        if told.realised == FLOAT and told.asked != FLOAT and told.node in fixes:
            assert any(fix in told.fix or told.fix in fix for fix in fixes[told.node]), (
                told,
                fixes[told.node],
            )
