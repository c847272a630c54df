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

    All of them compute ("all"), an input chooses two ("gather"), or one is taken out by a constant index ("one").
    """

    def make() -> onnx.ModelProto:
        g = Graph()
        shape = {"all": (4, rows, 256), "gather": (2, rows, 256), "one": (rows, 256)}[way]
        x = activation(g, g.node("Relu", g.input(*shape)))
        stack = weight(g)
        if way == "gather":
            g.inputs.append(helper.make_tensor_value_info("chosen", TensorProto.INT64, (2,)))
            stack = g.node("Gather", stack, "chosen")
        if way == "one":
            stack = g.node("Gather", stack, g.constant(np.int64(1)))
        return g.done(g.node("MatMul", x, stack, name="core"))

    return make


STACK = (4, 256, 256)
EXPERT_CASES: dict[str, Case] = {
    f"{asked}, experts {way}, {rows} rows": (experts(front, weight, way, rows), asked, targets)
    for way, rows in (("all", 64), ("gather", 64), ("gather", 1), ("one", 64))
    for asked, front, weight, targets in (
        ("int8", q("int8"), w("int8", STACK, (256,), 2), ALL),
        ("fp8", q("fp8"), w("fp8", STACK, (256,), 2), NEW),
        ("int8-weights", bare, w("int8", STACK, (256,), 2), ALL),
        ("int4-weights", bare, w("int4", STACK, (4, 2, 256), 1), ALL),
    )
} | {
    f"{asked} with one scale, experts gather": (experts(q(asked), w(asked, STACK), "gather"), asked, targets)
    for asked, targets in (("int8", ALL), ("fp8", NEW))
}
