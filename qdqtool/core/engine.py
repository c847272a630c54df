"""The layers of an engine, as its layer information describes them, and the connections between its kernels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final, Protocol, TypeVar

from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import NAMES, DType


class Certainty(str, Enum):
    """How a fact about an engine is known: stated in the layer information, inferred, or unknown."""

    STATED = "stated"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


class Role(str, Enum):
    """The purpose of an engine layer, such as computing or converting.

    COMPUTE contains a convolution, a matrix product or an attention. QDQ only quantizes, dequantizes, casts or
    reformats. NONE launches no kernel (signal, wait, shape_call, NoOp, Constant). OTHER is every other layer.
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
        shape: dimensions, -1 for dynamic ones; None if the dump does not contain them.
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
        constants: weights and other constants, if the dump lists them separately.
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
        tensor_cores: whether its kernel runs on tensor cores; None if the name of the kernel does not show it.
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
        notes: remarks for a reader of the layers, one sentence each.
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
        """The layers that launch a kernel, for the first optimization profile."""
        return tuple(layer for layer in self.layers if layer.role is not Role.NONE and layer.profile == 0)


VECTOR_PRODUCT: Final = "MulSum"
"""Part of the name of a generated kernel that multiplies a matrix with one row: `...CastMulCastReshMulSum`."""


def is_computing(layer: EngineLayer) -> bool:
    """Return True for a COMPUTE layer, or for a generated kernel that multiplies one row with a stored weight."""
    if layer.role is Role.COMPUTE:
        return True
    return VECTOR_PRODUCT in layer.name and stored_weight((layer,)) is not None


def count_formats(layers: Iterable[EngineLayer]) -> dict[str, int]:
    """Count the layers of each low-bit format, the most frequent format first. Float layers are not counted.

    A layer counts with a format such as "int8" or "nvfp4" if it multiplies in the format. It counts as "int4-weights"
    if float arithmetic reads stored low-bit weights.
    """
    counts = Counter(word for layer in layers if (word := _find_computed_format(layer)))
    return dict(counts.most_common())


def _find_computed_format(layer: EngineLayer) -> str:
    """Return the format in which a layer computes; "" for float and for unknown types."""
    if layer.precision.is_quantized:
        return NAMES.get(layer.precision, str(layer.precision))
    held = stored_weight((layer,)) if layer.precision.is_float else None
    return "" if held is None else f"{NAMES[held.dtype]}-weights"


def stored_weight(layers: Iterable[EngineLayer]) -> EngineTensor | None:
    """Return the largest low-bit constant of the layers, FP4 first; None if there is none."""
    return largest_weight(
        constant
        for layer in layers
        for constant in layer.constants
        if constant.dtype in NAMES and sum(size != 1 for size in constant.shape or ()) > 1
    )


def largest_weight(constants: Iterable[EngineTensor]) -> EngineTensor | None:
    """Return the largest FP4 constant of a layer, else its largest constant."""
    weights = tuple(constants)
    narrow = tuple(constant for constant in weights if constant.dtype is DType.FLOAT4)
    return max(narrow or weights, key=lambda constant: prod(constant.shape or ()), default=None)


# --- wiring ----------------------------------------------------------------------------------------------------------
# Connections between the kernels of an engine: the writers and the readers of each tensor.


_Step = Callable[[EngineLayer], tuple[EngineLayer, ...]]
_SOFTMAX = re.compile(r"softmax|Exp.*Sum.*(?:Div|Mul)|MaxrSubExpSum", re.IGNORECASE)


class Wiring:
    """Finds the kernels before and after a kernel by tensor name, for the first optimization profile.

    Layers that launch nothing (NoOp and the like) are skipped.
    """

    def __init__(self, engine: Engine) -> None:
        self._written: dict[str, list[tuple[int, EngineLayer]]] = defaultdict(list)
        self._read: dict[str, list[tuple[int, EngineLayer]]] = defaultdict(list)
        self._place: dict[int, int] = {}
        for place, layer in enumerate(engine.layers):
            if layer.profile == 0:
                self._place[id(layer)] = place
                for tensor in layer.outputs:
                    self._written[tensor.name].append((place, layer))
                for tensor in layer.inputs:
                    self._read[tensor.name].append((place, layer))

    def writers(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the kernels that write the inputs of `layer`."""
        return self._reach(layer, forward=False)

    def readers(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the kernels that read the outputs of `layer`."""
        return self._reach(layer, forward=True)

    def in_parts(self, tensor: EngineTensor) -> bool:
        """Return True if several kernels write parts of `tensor`, such as a concatenation in place."""
        return len(self._written.get(tensor.name, [])) > 1

    def compute_before(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the nearest compute kernels upstream of `layer` on every path, by name.

        A path from one softmax to another is not followed: the two share a mask, not an attention.
        """
        return _first_computing(layer, self.writers)

    def compute_after(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the nearest compute kernels downstream of `layer` on every path, by name, as `compute_before` does."""
        return _first_computing(layer, self.readers)

    def round_trip_of(self, layer: EngineLayer) -> EngineLayer | None:
        """Return the low-bit compute kernel whose float result `layer` only quantizes again; None if there is no such kernel."""
        if layer.role is not Role.QDQ or not quantizes(layer):
            return None
        writers = self.writers(layer)
        back = len(writers) == 1 and writers[0].role is Role.COMPUTE and writers[0].precision.is_quantized
        return writers[0] if back else None

    def _reach(self, layer: EngineLayer, *, forward: bool) -> tuple[EngineLayer, ...]:
        reached: dict[str, EngineLayer] = {}
        visited: set[str] = set()
        start = self._place.get(id(layer), -1)
        waiting = [tensor.name for tensor in (layer.outputs if forward else layer.inputs)]
        while waiting:
            name = waiting.pop(0)
            if name in visited:
                continue
            visited.add(name)
            for neighbour in self._others(name, start, forward=forward):
                if neighbour.role is Role.NONE:
                    waiting += [
                        tensor.name for tensor in (neighbour.outputs if forward else neighbour.inputs)
                    ]
                elif neighbour is not layer:
                    reached[neighbour.name] = neighbour
        return tuple(reached.values())

    def _others(self, name: str, start: int, *, forward: bool) -> list[EngineLayer]:
        """Return the readers of a tensor after position `start` in the engine, or its writers up to `start`.

        If there are none, return all its readers or writers.

        Several kernels may write parts of one tensor in place, and an early part may be read before a late part is
        written.
        """
        placed = (self._read if forward else self._written).get(name, [])
        in_order = [layer for place, layer in placed if (place > start) is forward]
        return in_order or [layer for _, layer in placed]


def quantizes(layer: EngineLayer) -> bool:
    """Return True if a layer reads float and writes a quantized type."""
    return not _is_quantized(layer.inputs) and _is_quantized(layer.outputs)


def dequantizes(layer: EngineLayer) -> bool:
    """Return True if a layer reads a quantized type and writes float."""
    return _is_quantized(layer.inputs) and not _is_quantized(layer.outputs)


def rounds(layer: EngineLayer) -> bool:
    """Return True if a layer is a fake-quantize: it reads and writes float, and rounds to a low-bit grid inside."""
    return "Roun" in layer.name and not _is_quantized(layer.inputs) and not _is_quantized(layer.outputs)


def _is_quantized(tensors: tuple[EngineTensor, ...]) -> bool:
    return any(tensor.dtype.is_quantized for tensor in tensors)


def computes_softmax(layer: EngineLayer) -> bool:
    """Return True if the name or kind of a kernel shows a softmax, and the kernel is not a matrix product."""
    return layer.role is not Role.COMPUTE and bool(_SOFTMAX.search(f"{layer.kind} {layer.name}"))


def _first_computing(start: EngineLayer, step: _Step) -> tuple[EngineLayer, ...]:
    def onward(layer: EngineLayer) -> tuple[EngineLayer, ...]:
        return () if computes_softmax(start) and computes_softmax(layer) else step(layer)

    ends = first_ends(step(start), onward, lambda layer: layer.role is Role.COMPUTE, {start.name})
    return tuple(sorted(ends, key=lambda layer: layer.name))


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def first_ends(
    starts: Iterable[_N],
    step: Callable[[_N], Iterable[_N]],
    is_end: Callable[[_N], bool],
    barred: Iterable[str] = (),
) -> list[_N]:
    """Follow all paths from `starts`, and return the first item on each path for which `is_end` is true.

    Paths stop at names in `barred`.
    """
    ends, visited, waiting = [], set(barred), list(starts)
    while waiting:
        item = waiting.pop()
        if item.name in visited:
            continue
        visited.add(item.name)
        if is_end(item):
            ends.append(item)
        else:
            waiting.extend(step(item))
    return ends
