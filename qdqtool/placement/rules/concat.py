"""The branches of a Concat that feeds INT8 layers share one scale with its result.

    before                        after
    a ─┬─ Conv                    a ─┬─ QDQ(s) ─ Conv
       └─ Concat ─ Conv              └─ Concat ─ QDQ(s) ─ Conv
    b ────┘                       b ────┘

One Q behind the Concat is enough: the builder pushes it into every branch. With one scale, a branch that another
INT8 layer reads too is quantized once; with two scales it is written twice.

Evidence: RTX 1.7.1: a pyramid with a shared map writes 0.315 MB with the tie and 0.373 MB without (the producer
writes a float copy); Q behind the Concat only is built without requantizing (concat_q_after_only), different scales
in front of it and none behind make the next layer float (concat_diff_noafter). Classic logs: the pass
SplitQAcrossPrecedingFanIn; NVIDIA/TensorRT issue 2597.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Tie
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView


def PLUGIN(view: GraphView, options: PlacementOptions) -> Iterator[Tie]:  # noqa: N802 -- the plug
    """One tie per Concat: its result first, then its run-time inputs."""
    if "Concat" not in options.ops:
        return
    for node in view.nodes:
        if node.op == "Concat":
            branches = (tensor for tensor in node.inputs if tensor and not view.is_constant(tensor))
            yield Tie(
                tensors=(node.outputs[0], *branches),
                rule="concat",
                reason=f"branches of {node.name}, which is INT8 when they share one scale",
            )
