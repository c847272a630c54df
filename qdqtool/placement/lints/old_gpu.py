"""INT8 convolutions for SM75 with TensorRT for RTX.

They are built as Half, without a word.

Evidence: RTX 1.7.1: every INT8 Conv of ResNet-18 is Half for SM75 and Int8 for SM80 to SM121.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.placement.flow import Flow, is_int8
from qdqtool.placement.lintrule import Asked, LintRule, Wrong


def find(flow: Flow, asked: Asked) -> Iterator[Wrong]:
    """Quantized convolutions, when SM75 was named."""
    if "75" not in asked.sm:
        return
    for node in flow.products():
        if node.op == "Conv" and all(is_int8(flow.origin(node, index)) for index in (0, 1)):
            yield Wrong(
                node=node.name,
                reason="SM75 has no INT8 convolution in TensorRT for RTX",
                effect="it runs in Half or Float",
                fix="build for SM80 or newer, or leave convolutions float",
            )


PLUGIN = LintRule(code="QDQ135", severity=Severity.WARNING, find=find, targets=frozenset({"rtx"}))
