"""A prediction that was completed by a build says what the engine is; without a build, kernels are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

import qdqtool
from qdqtool.cli.app import run
from qdqtool.core.events import End
from qdqtool.core.target import Target
from qdqtool.errors import BuildError, MissingPackage
from qdqtool.pipeline import building
from qdqtool.pipeline.building import predict_built
from tests import models
from tests.placement.building import build
from tests.placement.qdq import GRAPHS


@pytest.mark.rtx
@pytest.mark.parametrize("name", ["chain_ok", "weight_bare", "one_scale_for_two", "global_pool"])
def test_kernels_layers_and_precisions_are_those_of_the_engine(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    made, engine = predict_built(models.save(GRAPHS[name](), tmp_path), Target()), build(GRAPHS[name]())
    assert made.exact
    assert made.kernels == len(made.layers) == len(engine.kernels)
    assert {layer.nodes for layer in made.layers} == {kernel.onnx_nodes for kernel in engine.kernels}
    built = dict(engine.precision)
    for node in made.nodes:
        if node.compute:
            assert (str(node.precision) if not node.precision.is_float else "float") == built[node.node]
    here = {node.name for node in GRAPHS[name]().graph.node if node.op_type.endswith("Linear")}
    assert {row.node for row in made.ledger} == here


@pytest.mark.rtx
def test_twins_of_one_scale_are_merged(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    made = predict_built(models.save(GRAPHS["one_scale_for_two"](), tmp_path), Target())
    ends = {row.node: (row.end, row.into) for row in made.ledger if row.kind == "Q" and "_x" in row.node}
    merged = [into for end, into in ends.values() if end is End.MERGED]
    assert merged
    assert ends.keys() >= set(merged)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            MissingPackage("TensorRT for RTX is not installed", fix="pip install 'qdqtool[rtx]'"),
            "pip install",
        ),
        (BuildError("the parser refuses node 'c1'", fix="change it"), ""),
    ],
)
def test_without_an_engine_the_number_is_unknown_and_the_prediction_says_why(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(building, "build_engine", refuse)
    made = predict_built(models.save(GRAPHS["chain_ok"](), tmp_path), Target())
    assert (made.kernels, made.layers, made.exact) == (None, (), False)
    assert words in "".join(made.notes)
    assert (made.refused, made.fix) == (("", "") if words else ("the parser refuses node 'c1'", "change it"))
    assert {node.realised for node in made.nodes if node.compute} == {"int8"}


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_predict_of_a_refused_model_ends_with_the_code_of_a_refused_build(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise BuildError("the parser refuses node 'c1'", fix="change it")

    monkeypatch.setattr(building, "build_engine", refuse)
    path = models.save(GRAPHS["chain_ok"](), tmp_path)
    assert run(["predict", str(path), *words]) == BuildError.exit_code
    said = capfd.readouterr()
    assert "the parser refuses node 'c1'" in said.err
    assert said.out, "the prediction of the rules is printed all the same"


def test_the_call_builds_nothing_if_it_must_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "examine_engine", lambda *_, **__: pytest.fail("a build was asked for"))
    path = models.save(GRAPHS["chain_ok"](), tmp_path)
    assert qdqtool.predict(path, build=False).kernels is None
    assert qdqtool.predict(path, target="10").kernels == 3
