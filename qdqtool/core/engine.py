"""The layers of an engine, as its layer information describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final

from qdqtool.core.dtypes import DType
from qdqtool.core.quant_format import NAMES
from qdqtool.core.showing import Displayable


class Certainty(str, Enum):
    """The source of a fact about an engine."""

    STATED = "stated"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


class Role(str, Enum):
    """The purpose of a layer.

    COMPUTE holds a convolution, a matrix product or an attention; QDQ only quantizes, dequantizes, casts or
    reformats; NONE launches nothing (signal, wait, shape_call, NoOp, Constant); OTHER is everything else.
    """

    COMPUTE = "compute"
    QDQ = "qdq"
    OTHER = "other"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTensor:
    """An input, constant or output tensor of an engine layer.

    Attributes:
        name: as dumped.
        shape: dimensions, -1 for dynamic ones; None if the dump does not say.
        dtype: element type; UNKNOWN if the words are not understood.
        format: the memory format in the dump's own words ("" if unstated).
        location: Device, Host or "".
    """

    name: str
    shape: tuple[int, ...] | None = None
    dtype: DType = DType.UNKNOWN
    format: str = ""
    location: str = ""

    @property
    def bytes(self) -> int | None:
        """Bytes without vector padding; None if shape or type is unknown."""
        if self.shape is None or self.dtype.bits is None or any(dim < 0 for dim in self.shape):
            return None
        return (prod(self.shape) * self.dtype.bits + 7) // 8


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLayer:
    """One layer (kernel launch) of an engine.

    Attributes:
        name: as dumped, control characters kept.
        kind: LayerType in the dump's own words.
        inputs: run-time inputs.
        constants: weights and other constants where the dump lists them apart.
        outputs: results.
        tactic: kernel name, or "".
        onnx_nodes: names of the ONNX nodes that it lists.
        certainty: whether `onnx_nodes` was stated in metadata or inferred from the name.
        stream: stream id, or None.
        attributes: the remaining fields of the dump as text, sorted by key.
        role: purpose of the layer, derived from its kind, name and tensors.
        precision: type of the arithmetic of a COMPUTE layer, type of the output of the others.
        precision_certainty: how `precision` is known.
        pointwise: whether it works element by element, so the compute kernel before it could include it.
        tensor_cores: whether its kernel runs on tensor cores; None if its name does not tell.
        profile: number of the optimization profile it was built for.
    """

    name: str
    kind: str
    inputs: tuple[EngineTensor, ...] = ()
    constants: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    tactic: str = ""
    onnx_nodes: tuple[str, ...] = ()
    certainty: Certainty = Certainty.UNKNOWN
    stream: int | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    role: Role = Role.OTHER
    precision: DType = DType.UNKNOWN
    precision_certainty: Certainty = Certainty.UNKNOWN
    pointwise: bool = False
    tensor_cores: bool | None = None
    profile: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Engine(Displayable):
    """An engine: all layers in launch order.

    Attributes:
        layers: in the order of the dump.
        bindings: the engine's own inputs and outputs.
        form: which layer-information form was read ("rtx-dump", "inspector-8.6", ...).
        unread: how many records of the dump were not understood.
        unknown_formats: unknown type or format words, with their counts.
        notes: what a reader of the layers should know, one sentence each.
        opt_shapes: dynamic inputs by name at the optimum of the first optimization profile, if it is stated.
    """

    layers: tuple[EngineLayer, ...]
    bindings: tuple[EngineTensor, ...] = ()
    form: str = ""
    unread: int = 0
    unknown_formats: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    opt_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def kernels(self) -> tuple[EngineLayer, ...]:
        """The layers that launch something, for the first optimization profile."""
        return tuple(layer for layer in self.layers if layer.role is not Role.NONE and layer.profile == 0)


VECTOR_PRODUCT: Final = "MulSum"
"""Part of the name of a generated kernel that multiplies a matrix with one row: `...CastMulCastReshMulSum`."""


def is_computing(layer: EngineLayer) -> bool:
    """Return True for a COMPUTE layer, or for a generated kernel that multiplies one row with a stored weight."""
    if layer.role is Role.COMPUTE:
        return True
    return VECTOR_PRODUCT in layer.name and stored_weight((layer,)) is not None


def computed_in(layers: Iterable[EngineLayer]) -> dict[str, int]:
    """Count the layers per format, without float layers, the most frequent format first.

    A format ("int8", "nvfp4") where the layer multiplies in it; one of weights alone ("int4-weights") where float arithmetic
    reads weights that are stored in few bits.
    """
    found = Counter(word for layer in layers if (word := _computed(layer)))
    return dict(found.most_common())


def _computed(layer: EngineLayer) -> str:
    """Return the format that one layer computes in; "" for float and for unknown types."""
    if layer.precision.is_quantized:
        return NAMES.get(layer.precision, str(layer.precision))
    held = stored_weight((layer,)) if layer.precision.is_float else None
    return "" if held is None else f"{NAMES[held.dtype]}-weights"


def stored_weight(layers: Iterable[EngineLayer]) -> EngineTensor | None:
    """Return the largest low-bit constant that is not a list of scales; None if there is none."""
    found = [
        constant
        for layer in layers
        for constant in layer.constants
        if constant.dtype in NAMES and sum(size != 1 for size in constant.shape or ()) > 1
    ]
    # Block scales of a small FP4 weight are padded, and may then be larger than the weight.
    found = [constant for constant in found if constant.dtype is DType.FLOAT4] or found
    return max(found, key=lambda constant: prod(constant.shape or ()), default=None)
