"""Weights in the 2:4 pattern of sparse tensor cores.

    w  0  x  0  y  z  0  0        of every four neighbors along the summed dimension, two are zero

GPUs from Ampere (SM80) on can skip the zeros: TensorRT looks for the pattern in the weights if the build has
`--sparsity=enable`, and takes a sparse kernel where that is faster. Rounding to INT8 keeps zeros, and so does every way of
rounding and equalizing of this tool except `weights.equalize=rotate`, which leaves such networks alone.

Evidence: NVIDIA's documentation of structured sparsity, and `--sparsity` of trtexec. No engine was timed here: that takes
a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.commands import Command
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.sparse import ENABLED, sparse_nodes, sparsity_words
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report the compute nodes with such weights once."""
    found = sparse_nodes(flow.view)
    if found:
        yield Violation(
            node=found[0],
            reason=sparsity_words(found),
            effect="without that option, kernels multiply the zeros too",
            fix=f"{Command('build', ('MODEL', f'--flags={ENABLED}'))} builds with it; then time both engines",
        )


PLUGIN = Rule(code="QDQ221", severity=Severity.INFO, check=check)
