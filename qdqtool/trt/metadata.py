"""ONNX node names in the Metadata field of a layer.

Items look like `[ONNX Layer: name]` and are joined by U+001E or U+001F, or by nothing in some releases. TensorRT for
RTX marks what became of a node behind the bracket: `[ONNX Layer: name]__gemm_from_conv1x1`.
"""

from __future__ import annotations

import re

_START = "[ONNX Layer: "
_JOINT = re.compile(r"[\x1e\x1f]|(?<=\])(?=\[ONNX Layer: )")


def onnx_nodes(metadata: str) -> tuple[str, ...]:
    """The node names that `metadata` states, each once, in its order; names may hold brackets and commas."""
    items = (item.strip() for item in _JOINT.split(metadata))
    names = (item[len(_START) : item.rfind("]")] for item in items if item.startswith(_START) and "]" in item)
    return tuple(dict.fromkeys(name for name in names if name))
