"""INT8 for a GPU without INT8 tensor cores, or without INT8 convolutions in TensorRT for RTX.

    x ─ Q ─ DQ ─ Conv ─ Relu ─ Q ─ DQ        SM86: one INT8 kernel. SM61: no fused one. SM75 with RTX: Half

TensorRT for RTX builds convolutions for SM75 as Half, without a word. Classic releases have no tensor cores to use
below SM75 (SM72, Xavier, excepted): fused INT8 layers are missing there, and INT8 is seldom faster than FP16.

Evidence: RTX 1.7.1: every INT8 Conv of ResNet-18 is Half for SM75 and Int8 for SM80 to SM121. NVIDIA/TensorRT issue
3127 (Pascal).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.claims import HAS_NO_KERNEL
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import compute_nodes, veto
from qdqtool.matching.rule import Rule, Violation

# SM75, Turing; of the older ones Xavier alone (SM72) has INT8 tensor cores.
_TURING = 75
_XAVIER = "72"
_HALF = "TensorRT for RTX has no INT8 convolution for SM75: it runs in Half"
_NEWER = "`qdqtool run FLOAT_MODEL --sm 86` builds for newer GPUs only"


def match(view: GraphView, target: Target) -> Iterator[Node]:
    """Products that one of the GPUs has no INT8 kernel for."""
    if old_gpus(target):
        yield from compute_nodes(view, *(("Conv",) if target.is_rtx else ()))


def old_gpus(target: Target) -> str:
    """The GPUs that are too old; "" without one."""
    old = (
        sm
        for sm in target.sm
        if (int(sm) <= _TURING if target.is_rtx else int(sm) < _TURING and sm != _XAVIER)
    )
    return ", ".join(f"SM{sm}" for sm in sorted(old, key=int))


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto convolutions that TensorRT for RTX would run in Half."""
    if options.builder.is_rtx and options.activations == "int8":
        for node in match(view, options.builder):
            yield from veto(node, _HALF, _NEWER, HAS_NO_KERNEL)


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Quantized products, when a GPU was named that has no kernels for them."""
    old = old_gpus(target)
    for node in match(flow.view, target):
        if not all(is_int8(flow.origin(node, index)) for index in (0, 1)):
            continue
        yield Violation(
            node=node.name,
            reason=_HALF if target.is_rtx else f"{old} has no INT8 tensor cores",
            effect="its Q/DQ only costs"
            if target.is_rtx
            else "it does not fuse with what is around it, and may find no implementation",
            fix=f"{_NEWER}, or leave convolutions float"
            if target.is_rtx
            else "`qdqtool run FLOAT_MODEL --sm 75` builds for newer GPUs only, or leave the model float",
            products=(node.name,) if target.is_rtx else (),
            computed=DType.FLOAT16 if target.is_rtx else None,
            no_kernel=target.is_rtx,
        )


PLUGIN = Rule(
    code="QDQ135",
    formats=frozenset({"int8"}),
    severity=Severity.WARNING,
    place=place,
    check=check,
)
