"""Other valid roundings of a Q/DQ model: slightly changed scales, so that other values cross a rounding border.

No two implementations agree in the last bits of a float, and where a value lies next to a rounding border these bits
decide. Which values do is chance, so a few models with scales that differ in their last bits, each in its own way,
show what any other order of operations, fused multiply-add or approximation may come to.
"""

from __future__ import annotations

import numpy as np

from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import QUANTIZE


def jittered(model: Model, seed: int, reach: float) -> Model | None:
    """Return the model with every FP32 scale of an activation changed by at most the relative amount `reach`, drawn by `seed`.

    None if there is no such scale.
    """
    edit = Edit(model)
    draw = np.random.default_rng(seed)
    moved = False
    scales = {
        node.input[1] for node in edit.nodes if node.op_type == QUANTIZE and edit.value(node.input[0]) is None
    }
    for name in sorted(scales):
        value = edit.value(name)
        if value is not None and value.dtype == np.float32:
            edit.put(name, (value * (1 + draw.uniform(-reach, reach))).astype(np.float32))
            moved = True
    return edit.finish() if moved else None
