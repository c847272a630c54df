"""Verdicts on compute nodes where nothing but the log of the build is at hand.

The log shows which Q/DQ pairs were fused into which node, and what the node's kernel reads and writes. It does not show the
model, so that what a cause would need of it stays unknown: the fix names the command that looks at the model too.
"""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.core.buildlog import LogRun
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Certainty, Engine, EngineLayer
from qdqtool.core.events import ComputeNode
from qdqtool.core.findings import NodeVerdict, Verdict
from qdqtool.core.quant_format import FLOAT, INT8, NAMES

_WEIGHTS = "-weights"
_VERDICTS = {
    DType.INT8: Verdict.INT8,
    DType.FLOAT8: Verdict.FP8,
    DType.FLOAT4: Verdict.FP4,
    DType.FLOAT16: Verdict.FP16,
    DType.BFLOAT16: Verdict.BF16,
    DType.FLOAT32: Verdict.FP32,
}


def verdicts_of_log(run: LogRun, engine: Engine) -> tuple[NodeVerdict, ...]:
    """What became of every compute node that the log shows, in the order of the log.

    Where `engine` has the layer of a node, the layer's own precision counts; else what the log says of its Q/DQ.
    """
    layers = {layer.name: layer for layer in engine.layers}
    return tuple(_verdict(node, layers, has_qdq=bool(run.ledger)) for node in run.compute)


def _verdict(node: ComputeNode, layers: Mapping[str, EngineLayer], *, has_qdq: bool) -> NodeVerdict:
    layer = layers.get(node.layer)
    known = layer is not None and layer.precision is not DType.UNKNOWN
    precision = layer.precision if layer is not None and known else node.reads
    verdict = _VERDICTS.get(precision, Verdict.UNKNOWN)
    asked = (node.asked or INT8.name) if has_qdq else FLOAT
    realised = "unknown" if verdict is Verdict.UNKNOWN else _format(precision)
    held = {NAMES.get(tensor.dtype) for tensor in layer.constants} if layer is not None else set()
    if realised == FLOAT and asked.removesuffix(_WEIGHTS) in held:
        realised = asked
    is_done = realised not in {FLOAT, "unknown"}
    return NodeVerdict(
        node=node.node,
        op=node.op,
        verdict=verdict,
        precision=precision,
        requested=asked != FLOAT,
        layers=(node.layer,) if layer is not None else (),
        reason="" if is_done else node.reason,
        fix="" if is_done else _fix(asked),
        certainty=Certainty.STATED if known else Certainty.INFERRED,
        asked=asked,
        realised=realised,
    )


def _format(precision: DType) -> str:
    return NAMES[precision] if precision.is_quantized else FLOAT


def _fix(asked: str) -> str:
    if asked == FLOAT:
        return "quantize it: `qdqtool run MODEL` puts Q/DQ where they fuse"
    return "`qdqtool audit MODEL --layers LOG` looks at the model too, and names the cause"
