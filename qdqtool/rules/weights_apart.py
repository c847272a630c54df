"""Weights in few bits that another kernel makes float before the product reads them.

    w (INT4, one block) ─ DQ ─ MatMul        kernel: INT4 -> Half [K, N], written; kernel: Half product
    w (INT4, blocks of 64) ─ DQ ─ MatMul     one kernel that reads INT4

Weight-only quantization saves memory traffic where the product itself dequantizes. Where it does not, the weight is
written as floats and read again in every inference, more traffic than float weights cost; the engine file is small all
the same, and the log has no line on it. It is so for convolutions, FP4 weights, weights that several nodes read through
Q/DQ, INT4 weights with equal scales of less than 512 bytes (they are merged), odd numbers of columns, INT4 without at least two blocks, INT8 and FP8 in blocks, scales per channel with a
single row or where the product makes queries, keys and values, and products that read the result of an attention. A single row times a weight of up to 131072 values is a kernel of its own, which reads all of these.

Evidence: RTX 1.7.1 for SM80 to SM121, about 200 layer dumps: a kernel without inputs whose constants are the stored
weight and whose output is Half [K, N], in front of a float product. Classic TensorRT is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import INT8
from qdqtool.core.target import Target
from qdqtool.graph.beside_attention import is_split, reads_attention
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.operands import Factor, Product, products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.silent_float import BEFORE, LoneWeight, columns_of, dequantized_apart, rows_of, twins
from qdqtool.trt.ops import CONVOLUTIONS


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products of float activations and weights that they do not dequantize themselves."""
    others = twins(flow.view)
    for product in products(flow, target):
        stored, node = product.weights_alone, product.node
        if stored is None or _is_told_elsewhere(product, stored) or node.name not in flow.plain.by_name:
            continue
        found = next(dequantized_apart(_described(flow, product, stored, others)), None)
        if found is not None:
            yield Violation(
                node=node.name,
                reason=found[0],
                effect=f"its {stored.format} weights are written as floats in front of the kernel and read again in every inference",
                fix=f"{found[1]}; {repairing(to_float=[node.name])} leaves it float",
                products=(node.name,),
                realised=f"{product.asked}{BEFORE}",
            )


def _is_told_elsewhere(product: Product, stored: Factor) -> bool:
    """Whether it is half of an INT8 convolution (QDQ120)."""
    return stored.format == INT8.name and product.node.op in CONVOLUTIONS


def _described(flow: Flow, product: Product, stored: Factor, others: Mapping[str, int]) -> LoneWeight:
    node = flow.plain.by_name[product.node.name]
    tensor = node.inputs[stored.index]
    shape = flow.plain.info(tensor).shape or ()
    scale = None if stored.quantization is None else stored.quantization.scale
    written = () if stored.pair is None or stored.pair.scale_shape is None else stored.pair.scale_shape
    return LoneWeight(
        op=node.op,
        format=stored.format,
        columns=columns_of(node, shape),
        size=prod(size for size in shape if isinstance(size, int)),
        scales=written if scale is None else scale.shape,
        rows=rows_of(flow.plain, node),
        readers=sum(
            Slot(node=use.node.name, index=use.index) in flow.lifted.assignment
            for use in flow.plain.uses(tensor)
        ),
        twins=0 if stored.pair is None else others.get(stored.pair.dequantize or "", 0),
        split=is_split(flow.plain, node),
        attention=reads_attention(flow.plain, node),
    )


PLUGIN = Rule(code="QDQ184", severity=Severity.WARNING, targets=frozenset({"rtx"}), check=check)
