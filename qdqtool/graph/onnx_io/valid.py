"""Checks that the types and shapes of a whole model agree, without its heavy weights."""

from __future__ import annotations

import logging

import onnx

from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.skeleton import skeleton

_log = logging.getLogger(__name__)


def disagreement(proto: onnx.ModelProto) -> str | None:
    """Return onnx's message about the first node whose types or shapes do not fit its operator; None if all nodes fit.

    If inference takes more memory or time than a model of its size may take, nothing is known, and the result is None.
    """
    try:
        run_pass("judge", skeleton(proto)[0])
    except PassRefused as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0] if lines else "shape inference refuses it"
    except PassExceeded as error:
        _log.warning("types and shapes were not checked: shape inference %s", error)
    return None


def without_weights(proto: onnx.ModelProto) -> bytes:
    """Return the model with its heavy weights as inputs, for readers of types and shapes only."""
    return bytes(skeleton(proto)[0].SerializeToString())
