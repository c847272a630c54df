"""Products with the stacked weights of experts, for benchmarks/formats.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from format_cases import ALL, NEW, Case, Graph, Make, bare, q, w


def experts(
    activation: Callable[[Graph, str], str], weight: Callable[[Graph], str], way: str, rows: int = 64
) -> Make:
    """A product with the stacked weights of four experts.

    All of them compute ("all"), or one is taken out by a constant index ("one"). Experts that an input chooses are left out:
    they run in float with a scale per channel, and neither `lint` nor `predict` says so yet.
    """

    def make() -> onnx.ModelProto:
        g = Graph()
        shape = {"all": (4, rows, 256), "one": (rows, 256)}[way]
        x = activation(g, g.node("Relu", g.input(*shape)))
        stack = weight(g)
        if way == "one":
            stack = g.node("Gather", stack, g.constant(np.int64(1)))
        return g.done(g.node("MatMul", x, stack, name="core"))

    return make


STACK = (4, 256, 256)
EXPERT_CASES: dict[str, Case] = {
    f"{asked}, experts {way}, {rows} rows": (experts(front, weight, way, rows), asked, targets)
    for way, rows in (("all", 64), ("one", 64))
    for asked, front, weight, targets in (
        ("int8", q("int8"), w("int8", STACK, (256,), 2), ALL),
        ("fp8", q("fp8"), w("fp8", STACK, (256,), 2), NEW),
        ("int8-weights", bare, w("int8", STACK, (256,), 2), ALL),
        ("int4-weights", bare, w("int4", STACK, (4, 2, 256), 1), ALL),
    )
}
