"""`repair` makes nodes float or INT8 that the caller names, and leaves the others as they are."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.cli.app import run as main
from qdqtool.core.advice import nodes_in, repair_commands
from qdqtool.errors import QdqError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.graph.view import Model
from qdqtool.placement.repair import on_request
from tests import models
from tests.audit.graphs import Quantized
from tests.graph.placing import opened
from tests.graph.repairing import Sketch, apart
from tests.placement.qdq import GRAPHS

FACTORS = (0, 1)


def quantized_factors(model: Model) -> dict[str, tuple[bool, ...]]:
    """Which factors of each product hold quantized values."""
    flow = Flow(model)
    return {node.name: tuple(flow.source(node, i) is not None for i in FACTORS) for node in flow.products()}


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_product_named_float_reads_floats_and_the_others_read_what_they_read(graph, tmp_path):
    model = load(models.save(GRAPHS[graph](), tmp_path))
    before = quantized_factors(model)
    for name, held in tuple(before.items())[:2]:
        try:
            after = quantized_factors(on_request(model, to_float=[name])[0])
        except UsageError as refusal:
            # what is not a whole number of constant scales has no float form
            assert "can be removed" in refusal.what or "no node" in refusal.what  # noqa: PT017
            continue
        assert any(held)
        lost = {other for other, factors in before.items() if after.get(other, factors) != factors}
        moved = {node for node in lost if node != name and shares(model, name, node)}
        assert lost <= {name} | moved
        assert sum(after[name]) < sum(held)


def shares(model: Model, one: str, other: str) -> bool:
    """Whether two products read the values of one pair."""
    flow = Flow(model)
    pairs = [{id(flow.origin(model.view.by_name[node], i)) for i in FACTORS} for node in (one, other)]
    return bool(pairs[0] & pairs[1] - {id(None)})


def test_a_pair_named_float_goes_for_all_of_its_readers(tmp_path):
    model = load(models.save(GRAPHS["chain_ok"](), tmp_path))
    pair = next(pair for pair in find(model) if pair.quantize)
    after, changes = on_request(model, to_float=[pair.quantize])
    assert pair.quantize not in after.view.by_name
    assert [change.subject for change in changes] == [pair.quantize]


def test_weights_named_int8_get_a_scale_per_channel_out_of_their_values(tmp_path):
    path = models.save(GRAPHS["weights_per_tensor"](), tmp_path)
    report = qdqtool.repair(path, tmp_path / "out.onnx", to_int8="c1").report
    weight = next(
        pair for pair in find(load(tmp_path / "out.onnx")) if pair.slots[0].node == "c1" and pair.axis == 0
    )
    assert len(weight.scale) == 16
    assert report.changes[0].subject == "c1"


@pytest.mark.parametrize("option", ["--float", "--int8"])
def test_a_node_that_is_not_there_is_answered_with_the_one_that_is_meant(option, tmp_path, capsys):
    path = models.save(GRAPHS["chain_ok"](), tmp_path)
    assert main(["repair", str(path), "--out", str(tmp_path / "out.onnx"), option, "c11"]) == 2
    assert "did you mean 'c1'?" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(("option", "said"), [("to_float", "no input of"), ("to_int8", "no constant weight")])
def test_a_node_without_anything_to_change_is_an_error(option, said, tmp_path):
    model = load(models.save(GRAPHS["chain_ok"](), tmp_path))
    relu = next(node.name for node in model.view.nodes if node.op == "Relu")
    with pytest.raises(UsageError, match=said):
        on_request(model, **{option: [relu]})


def test_the_command_that_lint_prints_runs_as_it_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    path = models.save(GRAPHS["halves_apart"](), tmp_path / "a b")
    main(["lint", str(path), "--json", "--fail-on", "never"])
    finding = next(
        f for f in json.loads(capsys.readouterr().out)["data"]["findings"] if f["rule"] == "halves"
    )
    (command,) = repair_commands(finding["fix"])
    assert main(shlex.split(command)[1:]) == 0
    capsys.readouterr()
    assert main(["lint", "repaired.onnx", "--select", finding["code"], "--fail-on", "info"]) == 0


def test_findings_of_one_kind_print_one_command_with_all_their_nodes(tmp_path, capsys):
    path = models.save(GRAPHS["one_row"](), tmp_path)
    main(["lint", str(path), "--fail-on", "never"])
    assert f"qdqtool repair {path} --out repaired.onnx --float mm" in " ".join(
        capsys.readouterr().out.split()
    )


def test_stored_weights_keep_their_values_when_they_become_float(tmp_path):
    path = models.save(GRAPHS["matmul_weight"](), tmp_path)
    model = load(path)
    (name,) = [node.name for node in model.view.nodes if node.op == "MatMul"]
    after = on_request(model, to_float=[name])[0]
    fed = models.feeds(model.proto)
    was, now = (models.run(proto, fed, optimize=False) for proto in (model.proto, after.proto))
    for key, value in was.items():
        assert np.abs(now[key] - value).max() <= 0.05 * np.abs(value).max()


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_code_stands_for_the_nodes_that_lint_names(graph, tmp_path):
    path = models.save(GRAPHS[graph](), tmp_path)
    findings = qdqtool.lint(path).findings
    for code in {finding.code for finding in findings}:
        nodes = nodes_in(finding.fix for finding in findings if finding.code == code)
        for option, names in zip(("to_float", "to_int8"), nodes, strict=True):
            if not names:
                with pytest.raises(UsageError, match="names nodes for"):
                    qdqtool.repair(path, tmp_path / "none.onnx", **{option: code})
                continue
            assert repaired(path, option, code) == repaired(path, option, names)


def repaired(path: Path, option: str, names: object) -> tuple[object, ...]:
    """The graph and the changes of a repair, or its error."""
    out = path.with_name("repaired.onnx")
    try:
        changes = qdqtool.repair(path, out, **{option: names}).report.changes
    except QdqError as error:
        return (error.what,)
    return load(out).proto.graph.SerializeToString(deterministic=True), changes


def test_many_nodes_are_named_by_their_code_and_the_target_stays(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = models.save(chain_of_convs(5), tmp_path)
    main(["lint", str(path), "--target", "10", "--fail-on", "never"])
    line = capsys.readouterr().out.splitlines()[-1].split(": ", 1)[1]
    assert shlex.split(line)[-4:] == ["--target", "10", "--int8", "QDQ144"]
    assert main([*shlex.split(line)[1:], "--samples", "none"]) == 0
    assert main(["lint", "repaired.onnx", "--target", "10", "--fail-on", "info"]) == 0


def chain_of_convs(count: int) -> onnx.ModelProto:
    """Convolutions one after the other, each with one scale for its weights."""
    graph, rng = Quantized(), np.random.default_rng(0)
    value = graph.input("x", [1, 8, 8, 8])
    for number in range(count):
        weight = graph.constant(f"w{number}", rng.standard_normal((8, 8, 1, 1)).astype(np.float32))
        value = graph.node(
            "Conv",
            [graph.qdq(f"a{number}", value, 0.05), graph.qdq(f"w{number}_q", weight, 0.01)],
            f"y{number}",
            name=f"c{number}",
        )
    graph.output(value, [1, 8, 8, 8])
    return graph.model()


@pytest.mark.parametrize("named", ["conv2", "x2/Q"])
@pytest.mark.parametrize(("factor", "step"), [(1, 0.005), (20, 6 / 255)], ids=["Relu", "Relu6"])
def test_a_relu_that_a_zero_point_stood_for_stays_without_the_pair(
    named: str, factor: int, step: float, tmp_path: Path
) -> None:
    s = Sketch()
    y = s.convolved(s.pair(s.image(), "x1"), s.filters("w1"), name="conv1")
    y = s.node("Mul", [y, s.constant("factor", np.float32(factor))], "large", name="large")
    y = s.pair(y, "x2", step, 0, np.uint8)  # onnxruntime removes the Relu or Relu6 before such a pair
    s.output(s.convolved(y, s.filters("w2"), name="conv2"))
    proto = s.model()
    model = opened(proto, tmp_path)
    assert apart(proto, on_request(model, to_float=[named])[0]) < 0.1
    assert apart(proto, float_graph(model)) < 0.1
