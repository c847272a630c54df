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

_INT8 = frozenset({"int8", "int8-in"})
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
    precision = layer.precision if layer is not None and known else _told(node)
    verdict = _VERDICTS.get(precision, Verdict.UNKNOWN)
    realised = "unknown" if verdict is Verdict.UNKNOWN else _format(precision)
    asked = _asked(node, realised) if has_qdq else "float"
    is_done = realised not in {"float", "unknown"}
    return NodeVerdict(
        node=node.node,
        op=node.op,
        verdict=verdict,
        precision=precision,
        requested=asked != "float",
        layers=(node.layer,) if layer is not None else (),
        reason="" if is_done else node.reason,
        fix="" if is_done else _fix(asked),
        certainty=Certainty.STATED if known else Certainty.INFERRED,
        asked=asked,
        realised=realised,
    )


def _told(node: ComputeNode) -> DType:
    return DType.INT8 if node.precision in _INT8 else DType.UNKNOWN


def _format(precision: DType) -> str:
    return precision.value if precision in {DType.INT8, DType.FLOAT8, DType.FLOAT4} else "float"


def _asked(node: ComputeNode, realised: str) -> str:
    """The format of the Q/DQ pairs in front of the node; "float" where the log shows that there are none."""
    if node.precision == "float":
        return "float"
    return realised if realised not in {"float", "unknown"} else "int8"


def _fix(asked: str) -> str:
    if asked == "float":
        return "quantize it: `qdqtool run MODEL` puts Q/DQ where they fuse"
    return "`qdqtool audit MODEL --layers LOG` looks at the model too, and names the cause"
