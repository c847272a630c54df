"""Layers joined with the log of their build."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from qdqtool.core.buildlog import LayerTuning, LogNetwork, LogNode, LogRun, MyelinTuning, Tuning
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.events import End, EventKind, LedgerRow, OptimizerEvent
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.engine import layer_text, read
from qdqtool.engine.view import view, with_weights
from qdqtool.io.text import text_of
from qdqtool.trt.histories import histories
from tests.buildlog.logs import BEVFUSION, BEVFUSION_JSON, shared_run
from tests.shared import shared

CONV = "w + Q_w + conv + relu"


def layer(name: str, *nodes: str, kind: str = "CaskConvolution") -> EngineLayer:
    return EngineLayer(name=name, kind=kind, onnx_nodes=nodes, role=Role.COMPUTE, precision=DType.INT8)


def run(**more: Any) -> LogRun:
    base = {
        "number": 1,
        "front_end": "trtexec",
        "version": (8, 6, 1),
        "build": "",
        "argv": (),
        "status": "passed",
    }
    counts = {"first_line": 1, "lines": 9, "blank": 0, "foreign": 0, "unread": 0}
    return LogRun(**{**base, **counts, **more})


def row(node: str, end: End, into: str = "", **more: Any) -> LedgerRow:
    return LedgerRow(node=node, kind="DQ" if node.startswith("DQ") else "Q", end=end, into=into, **more)


def fused(line: int, *nodes: str, into: str = "", kind: EventKind = EventKind.FUSED) -> OptimizerEvent:
    return OptimizerEvent(line=line, kind=kind, pass_name="P", nodes=nodes, into=into)


ENGINE = Engine(
    layers=(layer("Q_in", kind="Reformat"), layer(CONV, "conv", "relu"), layer("add_myl0_3", "add"))
)


def test_an_empty_log_tells_nothing():
    found = histories(ENGINE, run())
    assert all(not (told.qdq or told.events or told.tuning or told.myelin) for told in found.layers)
    assert "has no information about layers" in found.notes[0]


def test_a_log_without_names_of_layers_says_that_it_cannot_be_checked():
    assert "cannot be compared" in histories(ENGINE, run(events=(fused(1, "conv"),))).notes[0]


def test_a_fused_node_is_found_though_the_log_knows_only_a_part_of_the_layer():
    ledger = (
        row("DQ_x", End.INPUT, "conv + relu"),
        row("Q_w", End.WEIGHT, "conv + relu"),
        row("Q_in", End.COPY, "Q_in"),
    )
    assert [told.qdq for told in histories(ENGINE, run(ledger=ledger)).layers] == [
        ("Q_in",),
        ("DQ_x", "Q_w"),
        (),
    ]


def test_a_node_inside_a_generated_kernel_is_found_by_the_kernels_own_name():
    ledger = (row("DQ_x", End.KERNEL, "add_myl0_3"),)
    assert histories(ENGINE, run(ledger=ledger)).layers[2].qdq == ("DQ_x",)


def test_a_merged_node_is_where_its_twin_went():
    ledger = (
        row("Q_a", End.MERGED, "Q_b"),
        row("Q_b", End.MERGED, "Q_c"),
        row("Q_c", End.OUTPUT, "conv + relu"),
    )
    assert histories(ENGINE, run(ledger=ledger)).layers[1].qdq == ("Q_a", "Q_b", "Q_c")


def test_a_split_node_is_where_its_clones_went():
    clones = (
        row("Q_clone_0", End.OUTPUT, "conv", clone_of="Q"),
        row("Q_clone_1", End.COPY, "add", clone_of="Q"),
    )
    found = histories(ENGINE, run(ledger=(row("Q", End.SPLIT, "concat"), *clones)))
    assert [told.qdq for told in found.layers] == [(), ("Q", "Q_clone_0"), ("Q", "Q_clone_1")]


def test_twins_that_point_at_each_other_end_in_no_layer():
    ledger = (row("DQ_a", End.CANCELLED, "Q_b"), row("Q_b", End.CANCELLED, "DQ_a"))
    found = histories(ENGINE, run(ledger=ledger))
    assert found.unplaced == ("DQ_a", "Q_b")


def test_events_belong_to_the_layer_that_is_made_of_their_nodes_and_attempts_to_none():
    events = (
        fused(1, "conv", "relu", into="conv + relu"),
        fused(2, "conv", kind=EventKind.ATTEMPT),
        fused(3, "Q_w", kind=EventKind.REMOVED),
        fused(4, "elsewhere"),
    )
    assert [event.line for event in histories(ENGINE, run(events=events)).layers[1].events] == [1, 3]


def test_tuning_is_found_by_name_and_myelin_tuning_by_stem():
    tuned = LayerTuning(
        layer=CONV, formats=3, candidates=9, seconds=0.5, fastest_ms=0.1, fastest="0x1", runner="r", chosen="0x1",
        chosen_ms=0.1, line=7,
    )  # fmt: skip
    search = MyelinTuning(
        op="add", candidates=2, fastest_ms=0.1, fastest="1", kernel="k", selected="", selected_ms=None, line=9
    )
    found = histories(ENGINE, run(tuning=Tuning(layers=(tuned,), myelin=(search,))))
    assert found.layers[1].tuning == tuned
    assert found.layers[2].myelin == (search,)
    assert found.notes == ()


def test_the_log_of_another_engine_is_noted():
    others = tuple(layer(f"other{number}") for number in range(4))
    assert "another engine: 0 of the 4" in histories(ENGINE, run(engine_layers=others)).notes[0]
    alone = replace(ENGINE, layers=())
    assert histories(alone, run(engine_layers=others)).notes == ()


def info(name: str, *shape: int | str) -> TensorInfo:
    return TensorInfo(name=name, dtype=DType.FLOAT32, shape=shape)


def test_weights_come_from_the_parsers_lines_where_a_layer_states_none():
    node = LogNode(
        name="conv", op="Conv", inputs=(info("x", 1, 8, 4, 4), info("w", 16, 8, 3, 3), info("b", 16)),
        outputs=(info("y", 1, 16, 4, 4),), line=1,
    )  # fmt: skip
    network = LogNetwork(inputs=(info("x", 1, 8, 4, 4),), nodes=(node,))
    found = with_weights(ENGINE, network).layers[1].constants
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in found] == [
        ("weights", (16, 8, 3, 3), DType.INT8),
        ("bias", (16,), DType.FLOAT32),
    ]


def test_a_second_factor_of_run_time_is_no_weight():
    inputs = (info("a", 4, 8), info("b", 8, 4))
    node = LogNode(name="conv", op="MatMul", inputs=inputs, outputs=(info("y", 4, 4),), line=1)
    assert with_weights(ENGINE, LogNetwork(inputs=inputs, nodes=(node,))) == ENGINE


def test_stated_weights_and_open_dimensions_stay_as_they_are():
    stated = replace(ENGINE.layers[1], constants=(EngineTensor(name="weights"),))
    node = LogNode(name="conv", op="Conv", inputs=(info("x", 1), info("w", "n", 8)), outputs=(), line=1)
    network = LogNetwork(nodes=(node,))
    assert with_weights(Engine(layers=(stated,)), network).layers[0] == stated
    assert with_weights(ENGINE, network).layers[1].constants == ()


@pytest.mark.shared
def test_every_q_and_dq_of_bevfusion_ends_in_a_layer_or_met_its_opposite():
    told = shared_run(BEVFUSION)
    seen = view(read(shared(BEVFUSION_JSON)), log=told)
    rows = {found.node: found for found in told.ledger}
    placed = Counter(node for layer in seen.layers if layer.history for node in layer.history.qdq)
    of_the_model = {node for node, found in rows.items() if not found.clone_of}
    assert len(of_the_model) == 292
    assert {node for node in placed if node in of_the_model} | {*seen.unplaced} == of_the_model
    assert {rows[node].end for node in seen.unplaced} == {End.CANCELLED, End.SPLIT}
    assert len(seen.unplaced) == 6
    conv = next(layer for layer in seen.layers if "Conv_22" in layer.onnx_nodes)
    assert conv.history is not None
    assert [rows[node].end for node in conv.history.qdq] == [End.INPUT, End.WEIGHT, End.WEIGHT, End.OUTPUT]
    assert conv.history.tuning is not None
    assert (conv.history.tuning.candidates, conv.history.tuning.seconds) == (103, 0.553955)
    assert "ConvReluFusion" in {event.pass_name for event in conv.history.events}


@pytest.mark.shared
def test_lines_with_their_log_cost_exactly_what_the_inspectors_json_says():
    told = shared_run(BEVFUSION)
    bare = layer_text.read_lines(text_of(shared(BEVFUSION)))
    stated = {
        layer.name: layer for layer in view(read(shared(BEVFUSION_JSON))).layers if layer.role is Role.COMPUTE
    }
    found = {layer.name: layer for layer in view(bare, log=told).layers if layer.name in stated}
    assert len(found) == 63
    assert {name: (layer.macs, layer.bytes, layer.gemm) for name, layer in found.items()} == {
        name: (layer.macs, layer.bytes, layer.gemm) for name, layer in stated.items()
    }
