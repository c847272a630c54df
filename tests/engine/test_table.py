"""Tables, pictures and models made of layers."""

from __future__ import annotations

import csv
import io
import re

import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.explore import EngineView, Profile, ProfileRow
from qdqtool.engine import read_text
from qdqtool.engine.layer_table import cells, dot, node_facts, select, table_of
from qdqtool.engine.view import view
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.picture import annotate, picture
from qdqtool.io.tables import csv_of
from qdqtool.trt.names import normalize_name, parts, stem
from tests import models
from tests.engine.records import CONV, EPILOGUE, QUANTIZE, dump

ENGINE = read_text(dump(QUANTIZE, CONV, EPILOGUE, bindings=("x",)), where="test")
NAMES = [layer.name for layer in ENGINE.layers]


def seen(*times: float) -> EngineView:
    rows = tuple(ProfileRow(name=name, average_ms=ms) for name, ms in zip(NAMES, times, strict=False))
    return view(ENGINE, profile=Profile(rows=rows) if rows else None)


def test_without_conditions_all_layers_come_in_launch_order():
    assert [layer.name for layer in select(seen())] == NAMES


@pytest.mark.parametrize(
    ("where", "count"),
    [
        (("role=compute",), 1),
        (("precision=INT8",), 3),
        (("name=*Relu*", "precision=int8"), 1),
        (("kind=no",), 0),
    ],
    ids=["role", "case", "two", "none"],
)
def test_conditions_are_globs_on_columns(where: tuple[str, ...], count: int):
    assert len(select(seen(), where=where)) == count


@pytest.mark.parametrize("column", ["name", "inputs", "outputs", "onnx_nodes"])
def test_a_cell_is_a_condition_for_its_own_layer(column: str):
    for layer, (cell,) in zip(seen().layers, cells(seen().layers, (column,)), strict=True):
        assert layer in select(seen(), where=(f"{column}={cell}",))


def test_numbers_sort_from_large_to_small_and_unknown_ones_last():
    assert [layer.ms for layer in select(seen(0.5, 2.0), sort="ms")] == [2.0, 0.5, None]
    assert [layer.name for layer in select(seen(), sort="name")] == sorted(NAMES)


@pytest.mark.parametrize("bad", [{"where": ("precision",)}, {"where": ("colour=red",)}, {"sort": "colour"}])
def test_unknown_columns_and_conditions_are_refused_with_a_fix(bad: dict):
    with pytest.raises(UsageError) as caught:
        select(seen(), **bad)
    assert caught.value.fix


def test_the_csv_can_be_read_back():
    rows = list(csv.DictReader(io.StringIO(csv_of(table_of(select(seen(0.5, 2.0)))))))
    assert [row["name"] for row in rows] == NAMES
    assert rows[1]["ms"] == "2"
    assert rows[1]["onnx_nodes"] == "c1 | c1/DQ"


def test_columns_can_be_chosen():
    assert cells(select(seen(), limit=1), ("kind", "precision")) == [["kgen", "int8"]]


@pytest.mark.parametrize("command", ["layers", "graph"])
@pytest.mark.parametrize("ending", [".md", ".txt", "", ".CSVX"])
def test_files_of_an_unknown_ending_are_refused(
    tmp_path, capsys: pytest.CaptureFixture[str], command: str, ending: str
):
    """`engine layers -o x.md` wrote CSV."""
    (tmp_path / "e.json").write_text(dump(QUANTIZE, CONV, EPILOGUE, bindings=("x",)))
    out = tmp_path / f"x{ending}"
    assert run(["engine", command, str(tmp_path / "e.json"), "-o", str(out)]) == 2
    assert not out.exists()
    assert "fix: " in capsys.readouterr().err


@pytest.mark.parametrize("count", [4001, 20_001])
def test_no_picture_claims_a_number_of_layers_that_was_not_counted(
    tmp_path, capsys: pytest.CaptureFixture[str], count: int
):
    """Of 50 000 layers the error said "a picture of 20000 layers": so many are read."""
    (tmp_path / "e.json").write_text(dump(*(CONV,) * count, bindings=("x",)))
    assert run(["engine", "graph", str(tmp_path / "e.json"), "-o", str(tmp_path / "x.svg")]) == 2
    said = " ".join(capsys.readouterr().err.rpartition("error:")[2].split())
    assert "more layers than a picture shows (4,000)" in said
    assert not re.search(r"20,?00", said)


def test_dot_names_every_kernel_and_joins_them():
    text = dot(seen(), {"int8": "#009e73"})
    assert text.startswith("digraph engine {")
    assert text.count(" [label=") == 3 + 2 + 1
    assert "n0 -> n1" in text
    assert "n1 -> n2" in text
    assert "io0 -> n0" in text


def test_dot_escapes_what_a_layer_is_called():
    odd = CONV.replace("c1_myl0_1", 'a"]; x -> y; \\ <script>', 1)
    text = dot(view(read_text(dump(odd), where="test")), {})
    assert 'a\\"]; x -> y; \\\\ <script>' in text


def test_dot_joins_through_layers_without_a_kernel():
    noop = EPILOGUE.replace("kgen", "NoOp").replace("__myl_MulAddReluMulMinMaxRounCast_myl0_2", "pass")
    after = (
        EPILOGUE.replace("Name: y_q,", "Name: z,")
        .replace("Name: y,", "Name: y_q,")
        .replace("_myl0_2", "_myl0_3")
    )
    text = dot(view(read_text(dump(CONV, noop, after), where="test")), {})
    assert "n0 -> n2" in text


def test_an_annotated_model_carries_facts_and_computes_the_same(tmp_path):
    model = load(models.save(models.conv_chain(), tmp_path))
    noted = annotate(model, {"conv1": {"engine.precision": "int8", "engine.ms": "0.5"}})
    assert model.view.by_name["conv1"].op == "Conv"
    save(noted, tmp_path / "noted.onnx")
    written = onnx.load(tmp_path / "noted.onnx")
    onnx.checker.check_model(written)
    node = next(node for node in written.graph.node if node.name == "conv1")
    assert {prop.key: prop.value for prop in node.metadata_props} == {
        "engine.ms": "0.5",
        "engine.precision": "int8",
    }
    assert not any(node.metadata_props for node in model.proto.graph.node)


def test_facts_of_a_node_come_from_the_layers_that_hold_it():
    facts = node_facts(ENGINE, seen(0.5, 2.0, 1.0), frozenset({"c1", "relu", "elsewhere"}))
    assert set(facts) == {"c1", "relu"}
    assert facts["c1"]["engine.precision"] == "int8"
    assert facts["c1"]["engine.ms"] == "2"
    assert facts["relu"]["engine.layer"] == NAMES[2]


def test_an_engine_becomes_a_model_to_look_at(tmp_path):
    made = picture(seen(0.5, 2.0))
    save(made, tmp_path / "engine.onnx")
    graph = onnx.load(tmp_path / "engine.onnx").graph
    assert [node.op_type for node in graph.node] == ["kgen", "correlation", "kgen"]
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["y_q"]
    attributes = {attribute.name for attribute in graph.node[1].attribute}
    assert {"precision", "ms", "bytes", "macs", "onnx_nodes"} <= attributes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a + b", ("a", "b")),
        ("a || b", ("a", "b")),
        ("PWN(PWN(a), b) + c", ("a", "b", "c")),
        ("c1_myl0_3", ("c1",)),
        ("a [profile 2]", ("a",)),
        ("f(x) + (Unnamed Layer* 1) [Shuffle]", ("f(x)", "(Unnamed Layer* 1) [Shuffle]")),
        (")(", (")(",)),
        ("", ()),
    ],
)
def test_layer_names_are_taken_apart(name: str, expected: tuple[str, ...]):
    assert parts(name) == expected


def test_normalizing_twice_changes_nothing():
    for name in ("PWN(PWN(a), b)", "x  y [profile 1]", "PWN(", "((", "a_myl0_1"):
        assert normalize_name(normalize_name(name)) == normalize_name(name)
        assert stem(stem(name)) == stem(name)
