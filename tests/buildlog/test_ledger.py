"""The ledger: every end that a Q or DQ can come to, with the words and lines that say so."""

from __future__ import annotations

import pytest

from qdqtool.core.buildlog import LogRun
from qdqtool.core.events import End
from tests.buildlog import small
from tests.buildlog.logs import run_of

Q, DQ = "QuantizeLinear", "DequantizeLinear"


def node(name: str, op: str, takes: str, gives: str) -> str:
    """The parser's block of one node; tensors are separated by spaces."""
    inputs, outputs = (
        "".join(f"[{tensor} -> (1, 8)[FLOAT]], " for tensor in text.split()) for text in (takes, gives)
    )
    return f"Parsing node: {name} [{op}]\n{name} [{op}] inputs: {inputs}\n{name} [{op}] outputs: {outputs}\n"


GRAPH = (
    "Adding network input: x with dtype: float32, dimensions: (1, 8)\n"
    + node("q_x", Q, "x s z", "xq")
    + node("dq_x", DQ, "xq s z", "xd")
    + node("q_w", Q, "w s z", "wq")
    + node("dq_w", DQ, "wq s z", "wd")
    + node("conv", "Conv", "xd wd", "y")
    + node("q_y", Q, "y s z", "yq")
    + node("dq_y", DQ, "yq s z", "yd")
    + node("pool", "MaxPool", "yd", "p")
    + node("q_p", Q, "p s z", "pq")
    + node("dq_p", DQ, "pq s z", "pd")
    + node("cat", "Concat", "pd yd", "c")
    + node("q_c", Q, "c s z", "cq")
    + node("dq_c", DQ, "cq s z", "out")
)

ENDS = {
    "folded with its constant": (
        "Running: ConstantFolding on w\nRunning: ConstFolding on q_w\nRemoving q_w\n",
        "q_w",
        (End.FOLDED, "q_w"),
        "constant-folded of q_w (ConstFolding)",
    ),
    "input of a node": (
        "QuantizeDoubleInputNodes: fusing (dq_x and dq_w) into conv\n",
        "dq_x",
        (End.INPUT, "conv"),
        "fused-input of conv (QuantizeDoubleInputNodes)",
    ),
    "weight of a node": (
        "QuantizeDoubleInputNodes: fusing (dq_x and dq_w) into conv\n",
        "dq_w",
        (End.WEIGHT, "conv"),
        "fused-weight of conv (QuantizeDoubleInputNodes)",
    ),
    "weight by way of its constant": (
        "ConstWeightsQuantizeFusion: Fusing w with q_w\nConstWeightsFusion: Fusing w + q_w with conv\n",
        "q_w",
        (End.WEIGHT, "conv"),
        "the weight became part of conv",
    ),
    "output of a node": (
        "QuantizeDoubleInputNodes: fusing q_y into conv\n",
        "q_y",
        (End.OUTPUT, "conv"),
        "fused-output of conv (QuantizeDoubleInputNodes)",
    ),
    "moved through a node": (
        "Running: VanillaSwapWithFollowingQ on pool\nSwapping pool with q_p\n",
        "q_p",
        (End.MOVED, "pool"),
        "moved through pool",
    ),
    "merged into its duplicate": (
        "Running: HorizontalMergeQNodes on q_y\nEliminating q_p which duplicates (Q) q_y\nRemoving q_p\n",
        "q_p",
        (End.MERGED, "q_y"),
        "merged into its duplicate q_y",
    ),
    "split over a Concat": (
        "Running: SplitQAcrossPrecedingFanIn on cat\n",
        "q_c",
        (End.SPLIT, "cat"),
        "split over cat",
    ),
    "left as a kernel": (
        "Running: QDQToCopy on q_x\nSwap the layer type of q_x from QUANTIZE to kQDQ\n",
        "q_x",
        (End.COPY, "q_x"),
        "remains as a separate kernel",
    ),
    "unknown": ("Running: ConvReluFusion on conv\n", "dq_c", (End.UNKNOWN, ""), ""),
}


@pytest.mark.parametrize(("events", "name", "end", "why"), ENDS.values(), ids=ENDS)
def test_every_end_is_told_with_its_reason_and_line(events, name, end, why):
    run = run_of(small.library(GRAPH + events))
    row = next(row for row in run.ledger if row.node == name)
    assert (row.end, row.into) == end
    if why:
        step = next(step for step in row.steps if step.what == why)
        assert step.line in row.lines
        assert step.line > GRAPH.count("\n")


def test_without_the_parsers_lines_the_second_of_two_fused_dq_is_the_weight():
    run = run_of(small.library("QuantizeDoubleInputNodes: fusing (dq_x and dq_w) into conv\n"))
    assert {row.node: row.end for row in run.ledger} == {"dq_x": End.INPUT, "dq_w": End.WEIGHT}


def test_a_swap_behind_a_settled_end_is_a_step_and_no_other_end():
    run = run_of(small.library(GRAPH + INTO_CONV + "Swapping pool with q_y\n"))
    row = next(row for row in run.ledger if row.node == "q_y")
    assert (row.end, row.into) == (End.OUTPUT, "conv")
    assert row.steps[-1].what == "moved through pool"


def test_a_split_q_leaves_a_clone_above_every_input():
    run = run_of(small.library(GRAPH + "Running: SplitQAcrossPrecedingFanIn on cat\n"))
    clones = [(row.node, row.clone_of) for row in run.ledger if row.clone_of]
    assert clones == [("q_c_clone_0", "q_c"), ("q_c_clone_1", "q_c")]
    assert run.ledger_summary is not None
    assert (run.ledger_summary.q, run.ledger_summary.dq, run.ledger_summary.clones) == (5, 5, 2)


INTO_CONV = (
    "QuantizeDoubleInputNodes: fusing q_y into conv\n"
    "QuantizeDoubleInputNodes: fusing (dq_x and dq_w) into conv\n"
)
LAYERS = {
    "agrees": ("x[Int8(1,8)] -> y[Int8(1,8)]", ""),
    "reads float": (
        "x[Float(1,8)] -> y[Int8(1,8)]",
        "the Q/DQ lines show INT8 inputs, but its layer reads FP32",
    ),
    "writes float": (
        "x[Int8(1,8)] -> y[Half(1,8)]",
        "the Q/DQ lines show INT8 outputs, but its layer writes FP16",
    ),
}


def _built(tensors: str) -> LogRun:
    return run_of(
        small.library(GRAPH + INTO_CONV + "Engine Layer Information:")
        + f"Layer(CaskConvolution): w + q_w + conv, Tactic: 0x05, {tensors}\n"
    )


@pytest.mark.parametrize(("tensors", "contradiction"), LAYERS.values(), ids=LAYERS)
def test_an_engine_layer_that_disagrees_with_the_ledger_is_shown(tensors, contradiction):
    (conv,) = _built(tensors).compute
    assert (conv.precision, conv.layer) == ("int8", "w + q_w + conv")
    assert conv.contradiction == contradiction


def test_a_q_whose_end_is_open_is_looked_for_in_the_engine():
    run = run_of(
        small.library(GRAPH + "Engine Layer Information:")
        + "Layer(Reformat): q_x, Tactic: 0x03ea, x[Float(1,8)] -> xq[Int8(1,8)]\n"
    )
    row = next(row for row in run.ledger if row.node == "q_x")
    assert (row.end, row.into) == (End.COPY, "q_x")
    assert row.lines == (run.lines,)


def test_a_dequantizer_whose_inputs_the_log_has_lost_is_no_error():
    cut = node("dq_x", DQ, "", "xd") + node("dq_w", DQ, "wq s z", "wd") + node("conv", "Conv", "xd wd", "y")
    (conv,) = run_of(small.library(cut)).compute
    assert (conv.precision, conv.asked) == ("unknown", "int8")
