"""Who feeds whom in an engine, and the drawing of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.findings import Severity
from qdqtool.core.tensors import DType
from qdqtool.report.drawing import BoxMark, LayerGraph, draw, label, lay_out, network
from qdqtool.report.rows import layer_rows
from qdqtool.report.svg import Element
from tests.report.material import chain, layer, tensor


def net(*layers: EngineLayer) -> LayerGraph:
    return network(layer_rows(Engine(layers=layers), None))


def wires(found: LayerGraph) -> list[tuple[int, int, str]]:
    return [(wire.source, wire.target, wire.tensor.name) for wire in found.wires]


def test_no_layers_are_no_drawing() -> None:
    assert net().layers == ()


def test_a_chain_runs_from_the_engines_input_to_its_output() -> None:
    found = net(layer("a", (tensor("x"),), (tensor("y"),)), layer("b", (tensor("y"),), (tensor("z"),)))
    assert [port.name for port in found.ports] == ["x", "z"]
    assert wires(found) == [(0, 1, "y"), (1, 3, "z"), (2, 0, "x")]


def test_layers_that_write_parts_of_one_tensor_all_feed_its_reader() -> None:
    found = net(
        layer("a", (), (tensor("concat"),)),
        layer("b", (), (tensor("concat"),)),
        layer("c", (tensor("concat"),), ()),
    )
    assert wires(found) == [(0, 2, "concat"), (1, 2, "concat")]


def test_a_tensor_written_only_later_still_finds_its_reader() -> None:
    found = net(
        layer("a", (tensor("state"),), (tensor("y"),)), layer("b", (tensor("y"),), (tensor("state"),))
    )
    assert (1, 0, "state") in wires(found)


def test_a_layer_does_not_feed_itself() -> None:
    found = net(layer("a", (tensor("x"),), (tensor("x"),)))
    assert wires(found) == [(1, 0, "x")]


def test_layers_that_launch_nothing_are_left_out_and_numbers_stay() -> None:
    silent = replace(layer("wait", (), ()), role=Role.NONE)
    found = net(silent, layer("a", (tensor("x"),), ()))
    assert found.numbers == (1,)
    assert [row.name for row in found.layers] == ["a"]


def silent(name: str, reads: tuple[EngineTensor, ...], writes: tuple[EngineTensor, ...]) -> EngineLayer:
    return replace(layer(name, reads, writes), kind="NoOp", role=Role.NONE)


def test_a_layer_that_launches_nothing_does_not_cut_the_drawing() -> None:
    found = net(
        layer("a", (tensor("x"),), (tensor("y"),)),
        silent("reshape", (tensor("y"),), (tensor("z"),)),
        silent("squeeze", (tensor("z"),), (tensor("w"),)),
        layer("b", (tensor("w"),), (tensor("v"),)),
        silent("flatten", (tensor("v"),), (tensor("out"),)),
    )
    assert [port.name for port in found.ports] == ["x", "out"]
    assert wires(found) == [(0, 1, "w"), (1, 3, "out"), (2, 0, "x")]


def test_an_input_that_is_only_renamed_is_drawn_as_the_input_and_a_constant_is_not() -> None:
    found = net(
        silent("reshape", (tensor("image"),), (tensor("x"),)),
        silent("constant", (), (tensor("scale"),)),
        layer("a", (tensor("x"), tensor("scale")), ()),
    )
    assert [port.name for port in found.ports] == ["image"]


def test_silent_layers_in_a_circle_or_in_place_end() -> None:
    found = net(
        silent("there", (tensor("p"),), (tensor("q"),)),
        silent("back", (tensor("q"),), (tensor("p"),)),
        silent("in place", (tensor("y"),), (tensor("y"),)),
        layer("a", (tensor("q"),), (tensor("y"),)),
        layer("b", (tensor("y"),), ()),
    )
    assert wires(found) == [(0, 1, "y")]


def texts(drawing: Element) -> list[str]:
    return [text.text or "" for text in drawing.iter("text")]


def test_every_tensor_tells_its_type_and_format_once_beside_its_line() -> None:
    coded = replace(tensor("y"), format="Thirty-two wide channel vectorized row major Int8 format")
    found = net(layer("a", (), (coded,)), layer("b", (coded,), ()), layer("c", (coded,), ()))
    assert texts(draw(found)).count("int8 CHW32") == 1


@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_format_beside_a_line_covers_another(count: int) -> None:
    tensors = tuple(tensor(f"y{number}") for number in range(count))
    readers = [layer(f"r{number}", (made,), (tensor(f"z{number}"),)) for number, made in enumerate(tensors)]
    every = [text for text in draw(net(layer("a", (), tensors), *readers)).iter("text")]
    formats = [text for text in every if "format" in (text.get("class") or "")]
    spans = []
    for text in formats:
        width, left = 6 * len(text.text or ""), float(text.get("x") or 0)
        start = left - width if "end" in (text.get("class") or "") else left
        spans.append((float(text.get("y") or 0), start, start + width))
    assert len(spans) >= count
    for number, (height, start, end) in enumerate(spans):
        assert not any(y == height and start < right and left < end for y, left, right in spans[number + 1 :])


def test_a_generated_kernel_says_which_operations_it_is_made_of() -> None:
    made = replace(layer("__myl_MulMinMaxRounCast_myl0_3", (), ()), kind="kgen")
    assert "kgen MulMinMaxRounCast" in texts(draw(net(made)))


def test_findings_are_badges_and_roles_are_shapes() -> None:
    converts = replace(layer("q", (), ()), role=Role.QDQ)
    drawing = draw(net(layer("a", (), ()), converts), {1: BoxMark(count=3, severity=Severity.WARNING)})
    boxes = [box for box in drawing.iter("g") if box.get("data-layer")]
    assert [(box.get("class") or "").split()[1] for box in boxes] == ["computes", "converts"]
    assert [badge.get("class") for badge in drawing.iter("g") if "badge" in (badge.get("class") or "")] == [
        "badge warning"
    ]
    assert "3" in texts(drawing)


def test_dozens_of_loose_tensors_are_not_drawn_as_ports() -> None:
    many = tuple(tensor(f"x{i}") for i in range(60))
    assert net(layer("a", many, ())).ports == ()


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((), "layer"),
        (("conv",), "conv"),
        (("x_QuantizeLinear", "conv", "relu"), "conv +2"),
        (("x_QuantizeLinear",), "x_QuantizeLinear"),
    ],
    ids=["no nodes", "one", "conversion first", "conversion only"],
)
def test_a_box_is_called_like_its_main_node(nodes: tuple[str, ...], expected: str) -> None:
    rows = layer_rows(Engine(layers=(replace(layer("layer", (), ()), onnx_nodes=nodes),)), None)
    assert label(rows[0]) == expected


def test_every_layer_is_drawn_once_with_its_number_and_precision() -> None:
    drawing = draw(network(layer_rows(chain(20), None)))
    boxes = [box for box in drawing.iter("g") if box.get("data-layer")]
    assert [int(box.get("data-layer") or -1) for box in boxes] == list(range(20))
    assert boxes[2].get("class") == f"node computes p-{DType.FLOAT32.value}"


@given(
    count=st.integers(0, 12),
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_any_graph_can_be_laid_out_without_overlap_and_twice_the_same(
    count: int, edges: list[tuple[int, int]]
) -> None:
    inside = [(a, b) for a, b in edges if a < count and b < count]
    layout = lay_out([(100, 40)] * count, inside)
    assert layout == lay_out([(100, 40)] * count, inside)
    assert len(layout.paths) == len(inside)
    for number, (x, y) in enumerate(layout.centres):
        assert all(
            abs(x - other[0]) >= 100 or abs(y - other[1]) >= 40 for other in layout.centres[number + 1 :]
        )
