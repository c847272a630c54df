"""Findings about weights: computed again in every inference, or stored so that kernels use them badly.

# runtime_weights
A kernel computes an unchanged result from constants in every inference.

The kernel has no run-time input. Usually it reads INT8 weights, converts them to floats and writes them, in every
inference. This happens if a weight has Q/DQ but its operation runs in float, so the Q/DQ on the weight has a cost
without a gain. A weight with two successive pairs is rounded a second time in every inference. If several samples
multiply a stack of matrices, the stack is repeated for each sample. Sometimes the kernel multiplies or gathers
constants that were not folded. Constants that `prepare` does not fold, and the constant first state of a recurrence,
are for information only. With weight-only quantization, MatMul nodes need no such kernel, but convolutions do.

# weights_before_kernel
A weight that was to be dequantized inside its kernel is dequantized before it.

Only the weight is stored in low bits, so that a memory-bound MatMul reads fewer bytes. Here a separate kernel
converts the whole weight to floats in every inference, and the MatMul reads the floats: more bytes move than without
quantization, although the engine file is small and the log does not mention it. Or the builder converts the weight to
float at build time and stores floats in the engine, which saves no memory (INT8 in blocks of three merged MatMul
nodes with one row).

    W (INT4) ── dequantize ── W (Half) ── gemm         written and read again
    W (INT4) ── gemm                                   dequantized inside

Evidence: builds with TensorRT for RTX 1.7.1: INT4 in a single block or per channel, INT8 in blocks, odd numbers of
columns, weights with two products, convolutions, INT8 per channel with one row, FP4 weights alone.

# sparse_weights
Weights have the 2:4 pattern of sparse tensor cores, and the engine has kernels for dense weights.

GPUs from Ampere on can skip two of four zeros. TensorRT looks for the pattern only if the build has `--sparsity=enable`; names
of its sparse kernels contain `sparse` or `sp_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from qdqtool.auditing.context import AuditContext, Check, RawFinding
from qdqtool.core.advice import BY_BUILDER, excluding, setting
from qdqtool.core.claims import Assertion, of_fix
from qdqtool.core.engine import EngineLayer, Role, stored_weight
from qdqtool.core.findings import NodeVerdict, Severity
from qdqtool.core.tensors import FLOAT, DType
from qdqtool.core.wording import REPAIR, Command, Setting
from qdqtool.graph.sparse import ENABLED, sparse_nodes, sparsity_words
from qdqtool.matching.refused import BEFORE
from qdqtool.trt.ops import CONVOLUTIONS

# --- runtime weights ---------------------------------------------------------------------------------------------------


_FOLD = f"fold constants before the build: {REPAIR} does it"
_FOLDED = (
    f"{BY_BUILDER} from constants, such as the first state of a recurrence; an export that stores "
    "the result may remove this kernel. `prepare` already folded all constants that it can fold"
)
_QUANTIZE = f"{Command('repair', ('--samples', 'DATA'))} quantizes the activation of the operation that uses this weight"
_REPEATED = "nothing to do: every sample multiplies the whole stack of matrices"
_TWICE = f"keep only one of the successive Q/DQ pairs on this weight ({REPAIR} removes the other)"


def find_runtime_weights(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each kernel whose inputs are all constants."""
    weights_alone = any(case.weights_alone for case in context.cases)
    for layer in context.kernels:
        if layer.inputs or not layer.constants or not layer.outputs:
            continue
        sizes = [tensor.bytes for tensor in (*layer.constants, *layer.outputs)]
        folds = layer.role is Role.COMPUTE or "Sum" in layer.name or not _holds_stored_weight(layer)
        origin = ", ".join(layer.onnx_nodes[:3]) or layer.constants[0].name
        all_readers = _readers(context, layer)
        readers = [verdict for verdict in all_readers if not verdict.precision.is_quantized]
        fix = (
            context.way_out((layer.name,)) or (_FOLD if context.placement is None else _FOLDED)
            if folds
            else _leave(all_readers)
            if weights_alone and all_readers
            else _fix(context, layer, all_readers)
        )
        yield RawFinding(
            subject=layer.name,
            reason=f"{_does(layer, folds=folds)} in every inference ({origin}){'' if folds else _because(readers)}",
            fix=fix,
            bytes=sum(size for size in sizes if size is not None) if None not in sizes else None,
            evidence=(context.at_layer(layer.name),),
            claims=(of_fix(Assertion.FROM_CONSTANTS),) if fix == _FOLDED else (),
        )


def _leave(readers: list[NodeVerdict]) -> str:
    """Return the setting that keeps the readers of a weight float: convolutions by type, other nodes by name.

    Convolutions never dequantize their weights inside their own kernel.
    """
    if {reader.op for reader in readers} <= CONVOLUTIONS:
        ops = sorted({reader.op for reader in readers})
        return f"{setting('place.exclude_ops', ops)} keeps these nodes float: only MatMul and Gemm nodes dequantize their weights inside their kernel"
    return f"{excluding(sorted({reader.node for reader in readers}))} leaves them float"


def _does(layer: EngineLayer, *, folds: bool) -> str:
    if folds:
        return "multiplies constants" if layer.role is Role.COMPUTE else "computes from constants"
    if _is_repeated(layer):
        return "repeats a low-bit weight for every sample"
    return "rounds a weight a second time" if _again(layer) else "dequantizes a weight"


def _is_repeated(layer: EngineLayer) -> bool:
    """Return True if a kernel only copies a constant and keeps its type."""
    return "Repl" in layer.name and {tensor.dtype for tensor in layer.outputs} == {
        tensor.dtype for tensor in layer.constants
    }


def _holds_stored_weight(layer: EngineLayer) -> bool:
    return "Roun" in layer.name or stored_weight((layer,)) is not None


def _again(layer: EngineLayer) -> bool:
    """Return True if a kernel reads INT8 constants and rounds them to INT8 a second time."""
    types = [{tensor.dtype for tensor in side} for side in (layer.constants, layer.outputs)]
    return "Roun" in layer.name and all(DType.INT8 in side for side in types)


def _readers(context: AuditContext, layer: EngineLayer) -> list[NodeVerdict]:
    """Return the verdicts on the nodes that read the weight of a kernel."""
    held = set(layer.onnx_nodes)
    return [
        verdict
        for case, verdict in zip(context.cases, context.verdicts, strict=True)
        if any(
            operand.pair and {operand.pair.quantize, operand.pair.dequantize} & held
            for operand in case.operands
        )
    ]


def _because(readers: list[NodeVerdict]) -> str:
    return f": {readers[0].node} computes in float" if readers else ""


def _fix(context: AuditContext, layer: EngineLayer, readers: list[NodeVerdict]) -> str:
    """Return the fix that removes a kernel for weights: the fix of the node that reads the weight."""
    if _is_repeated(layer):
        return _REPEATED
    slow = [reader for reader in readers if not reader.precision.is_quantized]
    if not slow and _again(layer):
        return _TWICE
    fixes = [reader.fix for reader in slow[:3]] or [
        context.lint_fixes.get(reader.node, "") for reader in readers[:3]
    ]
    return "; ".join(dict.fromkeys(filter(None, fixes))) or _QUANTIZE


def find_weights_before_kernel(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each node with low-bit weights and float activations, if the engine stores the weight as floats."""
    for verdict in context.verdicts:
        before = verdict.realised.endswith(BEFORE)
        if verdict.asked.endswith("-weights") and (before or verdict.realised == FLOAT):
            held = f"the model stores {verdict.asked}, but the engine stores the weight as floats: {verdict.reason}"
            yield RawFinding(
                subject=verdict.node,
                reason=verdict.reason if before else held,
                fix=verdict.fix,
                bytes=verdict.bytes_lost,
                evidence=(
                    context.at_node(verdict.node),
                    *(context.at_layer(name) for name in verdict.layers),
                ),
            )


_SPARSE: Final = re.compile(r"sparse|(?<![a-z])sp_", re.IGNORECASE)


def find_sparse_weights(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for the whole engine if kernels with sparse weights do not use sparse tensor cores."""
    nodes = () if context.view is None else sparse_nodes(context.view)
    layers = [layer for layer in context.kernels if not set(nodes).isdisjoint(layer.onnx_nodes)]
    dense = [layer for layer in layers if not _SPARSE.search(layer.tactic or "")]
    if not dense:
        return
    yield RawFinding(
        subject=dense[0].name,
        reason=sparsity_words(nodes),
        fix=f"{Setting('build.flags', ENABLED)}, then time both engines",
        layers=tuple(layer.name for layer in dense),
        evidence=(context.at_layer(dense[0].name),),
    )


PLUGIN = {
    "runtime_weights": Check(
        code="QDQ205", severity=Severity.WARNING, find=find_runtime_weights, says=Assertion.FROM_CONSTANTS
    ),
    "weights_before_kernel": Check(
        code="QDQ218", severity=Severity.WARNING, find=find_weights_before_kernel, says=Assertion.IS_FLOAT
    ),
    "sparse_weights": Check(code="QDQ221", severity=Severity.INFO, find=find_sparse_weights),
}
