"""Prediction of an engine from a Q/DQ graph: from rules, or from an actual build if one ran."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.events import LedgerRow
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import DType


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedNode:
    """A node of the model in the predicted engine.

    Attributes:
        node: its name.
        op: its ONNX operator.
        precision: type of its arithmetic; for a node without arithmetic, type of its output.
        layer: name of the layer that contains it; "" if there is none or the layers are unknown.
        compute: whether it multiplies: a convolution, a matrix product, a recurrence, an attention.
        reason: why, in words.
        realised: format of the arithmetic, in the words of an audit: "fp8", "float", or "int4-weights" if the kernel
            itself dequantizes a stored weight; "" for a node without arithmetic.
    """

    node: str
    op: str
    precision: DType
    layer: str
    compute: bool
    reason: str
    realised: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedLayer:
    """Nodes that run as one engine layer, in graph order, including Q/DQ of weights and results."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionCaveat:
    """A part of the model for which the prediction may not hold.

    Attributes:
        reason: why the prediction may be wrong there, in a sentence.
        nodes: the nodes in question, those in bodies of control flow included.
    """

    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Prediction(Displayable):
    """The predicted engine of one builder for a model.

    Attributes:
        profile: "classic" (TensorRT 8.x and 10.x) or "rtx" (TensorRT for RTX).
        nodes: every node except constants, Q and DQ, in graph order.
        layers: in graph order for classic TensorRT, in launch order if `exact`; () if unknown.
        ledger: how every Q and DQ ended, as in a build log; steps have line 0; () if unknown.
        notes: remarks of the model's reader, the reasons in `doubts`, and the reason if no engine could be built.
        doubts: reasons why parts of the prediction may be wrong.
        kernels: number of kernels (layers of classic TensorRT); None if it is not known.
        exact: whether kernels, layers and precisions are those of an engine that was built.
        refused: the builder's reason for a refusal; "" if it did not refuse, or if no engine was built.
        fix: what to do about it.
    """

    profile: str
    nodes: tuple[PredictedNode, ...]
    layers: tuple[PredictedLayer, ...]
    ledger: tuple[LedgerRow, ...]
    notes: tuple[str, ...] = ()
    doubts: tuple[PredictionCaveat, ...] = ()
    kernels: int | None = None
    exact: bool = False
    refused: str = ""
    fix: str = ""
