"""A part of the model without Q/DQ stays FP32, because no FP16 is in the model.

    x ─ Q ─ DQ ─ Conv ─ Q ─ DQ ─ Conv ─ Conv ─ Conv           INT8, INT8, FP32, FP32
    x ─ Q ─ DQ ─ Conv ─ Q ─ DQ ─ Conv ─ Conv ─ Conv (FP16)    INT8, INT8, FP16, FP16

A strongly typed network computes in the types that are written. Quantized models are often exported in FP32, so that what
training left float is slower than in the FP16 engine that it is compared with: the most frequent reason why "INT8 is slower
than FP16". The audit says it of an engine (QDQ212).

Evidence: RTX 1.7.1 runs all such nodes in Float; ultralytics issue 26159 (5 of 11 convolutions with Q/DQ). TensorRT up to 10
chooses FP16 itself where --fp16 is given.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.operands import Product, products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import CONVOLUTIONS

_SHARE, _FEWEST = 4, 4
"""So many in FP32, and one compute node of four, are a part; fewer are first and last layers, kept float on purpose."""
_HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})


def match(flow: Flow, target: Target) -> tuple[list[Product], list[Product]]:
    """All products of weights, and those without any Q/DQ in FP32 where no other float type is in the model."""
    weighted = (
        product for product in products(flow, target) if sum(one.fixed for one in product.factors) == 1
    )
    found = [product for product in weighted if not _is_gate(flow, product)]
    bare = [product for product in found if not any(one.quantized for one in product.factors)]
    tensors = {
        flow.view.info(name).dtype for node in flow.view.nodes for name in (*node.inputs, *node.outputs)
    }
    computes = any(
        product.arithmetic for product in found
    )  # weights alone in few bits are multiplied as floats
    return found, bare if computes and not tensors & _HALVES else []


def _is_gate(flow: Flow, product: Product) -> bool:
    """Whether a convolution makes one value per channel, as those of squeeze and excite do: it takes almost no time."""
    shape = flow.view.info(product.node.outputs[0]).shape or ()
    return product.node.op in CONVOLUTIONS and len(shape) > 2 and set(shape[2:]) == {1}


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """One finding for the model, where the part is large."""
    found, bare = match(flow, target)
    if len(bare) < max(_FEWEST, len(found) / _SHARE):
        return
    classic = (
        "; without strong typing pass --fp16 to the build instead" if target.family in {"8", "10"} else ""
    )
    yield Violation(
        node=bare[0].node.name,
        reason=f"{len(bare)} of {counted(len(found), 'compute node')} with weights have no Q/DQ and are FP32, and no FP16 is in the model",
        effect="they run in FP32, slower than in an FP16 engine",
        fix=f"give the float part FP16: `qdqtool convert --types fp16` does{classic}",
    )


PLUGIN = Rule(code="QDQ155", severity=Severity.WARNING, check=check)
