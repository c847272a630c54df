"""Weights have the 2:4 pattern of sparse tensor cores, and the engine has kernels for dense weights.

GPUs from Ampere on can skip two of four zeros. TensorRT looks for the pattern only if the build has `--sparsity=enable`; names
of its sparse kernels contain `sparse` or `sp_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.commands import Setting
from qdqtool.core.findings import Severity
from qdqtool.graph.sparse import ENABLED, sparse_nodes, sparsity_words

_SPARSE: Final = re.compile(r"sparse|(?<![a-z])sp_", re.IGNORECASE)


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft for the whole engine."""
    nodes = () if context.view is None else sparse_nodes(context.view)
    layers = [layer for layer in context.kernels if not set(nodes).isdisjoint(layer.onnx_nodes)]
    dense = [layer for layer in layers if not _SPARSE.search(layer.tactic or "")]
    if not dense:
        return
    yield Draft(
        subject=dense[0].name,
        reason=sparsity_words(nodes),
        fix=f"{Setting('build.flags', ENABLED)}, then time both engines",
        layers=tuple(layer.name for layer in dense),
        evidence=(context.at_layer(dense[0].name),),
    )


PLUGIN = Check(code="QDQ221", severity=Severity.INFO, find=find)
