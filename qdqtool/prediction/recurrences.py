"""About how many kernels TensorRT for RTX makes of an LSTM or GRU of a few steps.

Up to 15 steps it writes them all out: a kernel or two for each step of one sample, one more for several samples, the two
directions side by side. From 16 on it makes a loop of eight steps, of 40 to 120 kernels with those that count and move on,
which follows from what stands around it: an LSTM of 24 steps is 66 kernels by itself, 43 where its last step alone is
read, and 41 in front of a Gemm of INT8. Of a GRU that resets before its product, and of an RNN, each step is a kernel more where
something multiplies all steps.

Evidence: RTX 1.7.1, FP32, SM86, 270 engines of one recurrence or two: 1 to 200 steps, 1, 4 and 8 samples, one and two directions, 24 to
64 inputs and 32 to 128 values (neither counts), with bias and first states or without.
"""

from __future__ import annotations

from math import ceil

from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import RECURRENT

_LOOP = 16
"""Steps from which on there is a loop."""
_MANY = 9
"""Steps from which on fewer kernels are made of each, in one direction."""
_RANK = 3
"""Steps, samples and values."""
_SAME = {
    ("LSTM", True, False): (2.5, 2),
    ("LSTM", True, True): (3.5, 1),
    ("GRU", True, False): (2.5, 1),
    ("GRU", True, True): (3.5, 0),
}
"""Operator, two directions, several samples: kernels of each step and besides."""
_FEW = {
    ("LSTM", False, False): (1, 2),
    ("LSTM", False, True): (3, 1),
    ("GRU", False, False): (2, 1),
    ("GRU", False, True): (3, 0),
    **_SAME,
}
_MORE = {
    ("LSTM", False, False): (1, 3),
    ("LSTM", False, True): (2, 2),
    ("GRU", False, False): (1, 4),
    ("GRU", False, True): (2, 3),
    **_SAME,
}


def kernels(view: GraphView, node: Node) -> int | None:
    """About how many kernels a recurrence is; 1 for any other node, None where that is not known."""
    if node.op not in RECURRENT:
        return 1
    shape = view.info(node.inputs[0]).shape or ()
    if len(shape) != _RANK or node.integer("layout", 0):
        return None
    steps, samples = shape[:2]
    if not isinstance(steps, int) or steps >= _LOOP:
        return None
    both = node.attribute("direction", "forward") in {"bidirectional", b"bidirectional"}
    form = node.op, both, isinstance(samples, int) and samples > 1
    if form not in _FEW or (node.op == "GRU" and not node.integer("linear_before_reset", 0)):
        return None
    each, besides = (_FEW if steps < _MANY else _MORE)[form]
    return ceil(each * steps) + besides
