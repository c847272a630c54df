"""Products with the stacked weights of experts, for benchmarks/formats.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from format_cases import ALL, NEW, Case, Graph, Make, bare, q, w
from onnx import TensorProto, helper


def experts(
    activation: Callable[[Graph, str], str], weight: Callable[[Graph], str], way: str, rows: int = 64
) -> Make:
    """A product with the stacked weights of four experts.

    All of them compute ("all"), two are picked, or one is taken out by a constant index ("one"). An input picks them with one
    of three operators ("gather", "nd", "elements") or between two halves ("where"), a computed place does ("slice"), or a
    constant ("list"). An input may also replace one of the four with one of two operators ("scatter-nd", "scatter-elements"), or make some of
    them zero ("masked").
    """

    def make() -> onnx.ModelProto:
        g = Graph()
        shape = {"one": (rows, 256)}.get(way, (2 if way in PICKED else 4, rows, 256))
        x = activation(g, g.node("Relu", g.input(*shape)))
        stack = weight(g)
        if way != "all":
            stack = pick(g, stack, way, x)
        return g.done(g.node("MatMul", x, stack, name="core"))

    return make


def pick(g: Graph, stack: str, way: str, x: str) -> str:
    """One or two matrices of a stack of four; `x` decides where a slice begins."""
    if way == "slice":
        row = g.node(
            "Slice",
            g.node("ReduceMean", x, g.constant(np.int64([1])), keepdims=0),
            *map(g.constant, np.int64([[0], [1], [0]])),
        )
        start = g.node("Mod", g.node("ArgMax", row, axis=1, keepdims=0), g.constant(np.int64([3])))
        return g.node(
            "Slice", stack, start, g.node("Add", start, g.constant(np.int64([2]))), g.constant(np.int64([0]))
        )
    if way == "masked":
        g.inputs.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, (4, 1, 1)))
        return g.node("Where", "chosen", stack, g.constant(np.float16(0)))
    if way in SCATTERED:
        op, dims = SCATTERED[way]
        for name, kind, shape in (
            ("chosen", TensorProto.INT64, dims),
            ("update", TensorProto.FLOAT16, (1, 256, 256)),
        ):
            g.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return g.node(op, stack, "chosen", "update")
    if way == "one":
        return g.node("Gather", stack, g.constant(np.int64(1)))
    if way == "list":
        return g.node("Gather", stack, g.constant(np.int64([2, 0])))
    kind, shape = {
        "gather": (TensorProto.INT64, (2,)),
        "nd": (TensorProto.INT64, (2, 1)),
        "elements": (TensorProto.INT64, (2, 256, 256)),
        "where": (TensorProto.BOOL, (2, 1, 1)),
    }[way]
    g.inputs.append(helper.make_tensor_value_info("chosen", kind, shape))
    if way == "where":
        ends = [g.constant(np.int64([end])) for end in (0, 2, 4)]
        halves = [g.node("Slice", stack, *ends[half : half + 2], ends[0]) for half in (0, 1)]
        return g.node("Where", "chosen", *halves)
    return g.node({"gather": "Gather", "nd": "GatherND", "elements": "GatherElements"}[way], stack, "chosen")


STACK = (4, 256, 256)
SCATTERED = {"scatter-nd": ("ScatterND", (1, 1)), "scatter-elements": ("ScatterElements", (1, 256, 256))}
PICKED = ("gather", "nd", "elements", "where", "slice", "list")
EXPERT_CASES: dict[str, Case] = {
    f"{asked}, experts {way}, {rows} rows": (experts(front, weight, way, rows), asked, targets)
    for way, rows in (
        ("all", 64),
        *((way, 64) for way in (*PICKED, *SCATTERED, "masked")),
        ("gather", 1),
        ("one", 64),
    )
    for asked, front, weight, targets in (
        ("int8", q("int8"), w("int8", STACK, (256,), 2), ALL),
        ("fp8", q("fp8"), w("fp8", STACK, (256,), 2), NEW),
        ("int8-weights", bare, w("int8", STACK, (256,), 2), ALL),
        ("int4-weights", bare, w("int4", STACK, (4, 2, 256), 1), ALL),
    )
} | {
    f"{asked} with one scale, experts {way}": (experts(q(asked), w(asked, STACK), way), asked, targets)
    for asked, ways, targets in (("int8", (*PICKED, "scatter-nd", "masked"), ALL), ("fp8", PICKED[:1], NEW))
    for way in ways
}
