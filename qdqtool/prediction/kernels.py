"""Why a Q or DQ costs a kernel of its own."""

from __future__ import annotations

from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.prediction.demand import Demands
from qdqtool.trt.ops import QDQ


def why_quantized_apart(flow: Flow, demands: Demands, tensor: str) -> str:
    """Why the Q that came to rest behind `tensor` is taken by no layer."""
    maker = flow.view.producer(tensor)
    if maker is None:
        return f"{tensor} is an input of the model and arrives as float"
    if flow.view.is_output(tensor):
        return f"{tensor} is an output of the model too"
    others = [node.name for node in flow.readers(tensor) if node.op not in QDQ]
    wanted = demands.of(tensor)
    if wanted.float and others:
        return f"{others[0]} reads {tensor} as float"
    if len(wanted.scales) > 1:
        return f"{tensor} is wanted with {counted(len(wanted.scales), 'scale')}"
    return f"{maker.op} {maker.name} in front of it computes in float"


def why_dequantized_apart(flow: Flow, tensor: str) -> str:
    """Why the DQ that makes `tensor` is taken by no layer."""
    readers = flow.readers(tensor)
    if not readers:
        return f"{tensor} is an output of the model"
    return f"{readers[0].op} {readers[0].name} reads it as float"
