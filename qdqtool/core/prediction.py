"""What a builder will make of a Q/DQ graph, said before any build."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.dtypes import DType
from qdqtool.core.events import LedgerRow
from qdqtool.core.showing import Shown


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedNode:
    """A node of the model in the engine to come.

    Attributes:
        node: its name.
        op: its ONNX operator.
        precision: type of its arithmetic; for a node that computes nothing, of the values it hands on.
        layer: name of the predicted layer that holds it; "" where it leaves no trace.
        compute: whether it multiplies: a convolution, a matrix product, a recurrence, an attention.
        reason: why, in words.
        realised: what is computed in, in the words of an audit: "fp8", "int4-weights" where the kernel itself dequantizes
            a stored weight, "float"; "" for a node that computes nothing.
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
    """Nodes that will run as one engine layer, in graph order, Q/DQ of weights and results included.

    Attributes:
        name: its name.
        nodes: the nodes.
        kernels: as how many kernels it runs; the steps of a recurrence are several.
        beside: what it does for a product that another layer computes: scales its result, makes its weights float, pads
            what it reads; "" where it computes its nodes itself.
    """

    name: str
    nodes: tuple[str, ...]
    kernels: int = 1
    beside: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionDoubt:
    """Something that the rules do not foresee.

    Attributes:
        reason: what, and why, in a sentence.
        nodes: the nodes whose kernels may be others than predicted, those in bodies of control flow included.
        countless: whether not even about how many kernels they are is known.
    """

    reason: str
    nodes: tuple[str, ...]
    countless: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Prediction(Shown):
    """A prediction for one profile: estimated from rules, never measured.

    Attributes:
        profile: "classic" (TensorRT 8.x and 10.x) or "rtx" (TensorRT for RTX).
        nodes: every node but constants, Q and DQ, in graph order.
        layers: in graph order.
        ledger: the fate of every Q and DQ, as a build log tells it; steps have line 0.
        notes: what the reader of the model noticed, and the reasons of all doubts.
        doubts: where the prediction may not hold.
        kernels: how many kernels the engine will have, None where that is not known.
        exact: whether that number is foreseen kernel by kernel; else it is about right.
    """

    profile: str
    nodes: tuple[PredictedNode, ...]
    layers: tuple[PredictedLayer, ...]
    ledger: tuple[LedgerRow, ...]
    notes: tuple[str, ...] = ()
    doubts: tuple[PredictionDoubt, ...] = ()
    kernels: int | None = None
    exact: bool = False
