"""Changes to a model before placement and after insertion, and changes to the type of its float part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import DType, TensorInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """Description of the prepared model.

    Attributes:
        model: file name of the original.
        digest: SHA-256 of the original.
        inputs: inputs of the model.
        outputs: outputs of the model.
        notes: everything that was changed, each in one sentence.
    """

    model: str
    digest: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Insertion:
    """Notes for users of the Q/DQ model, for example on values that overflow FP16 or on a raised opset."""

    notes: tuple[str, ...]


# --- conversion ------------------------------------------------------------------------------------------------------
# Result of a conversion of a model's float part to a narrower type.


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptNode:
    """A node that still computes in FP32, and the reason."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfRangeTensor:
    """A tensor with measured values that a narrow type cannot represent.

    Attributes:
        tensor: its name.
        kind: "overflow": some value is beyond the largest number; "subnormal": every value is so small that digits
            are lost.
        largest: largest magnitude on the samples, infinite if FP32 was not enough.
    """

    tensor: str
    kind: Literal["overflow", "subnormal"]
    largest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicRangeReport:
    """Magnitudes of a model's tensors, compared with the range of a type.

    Attributes:
        dtype: the new type.
        samples: how many samples were run; 0 if ranges of a calibration were believed instead.
        tensors: how many tensors were watched.
        strayed: tensors that the type cannot represent, largest first.
    """

    dtype: DType
    samples: int
    tensors: int
    strayed: tuple[OutOfRangeTensor, ...]

    @property
    def overflowing(self) -> frozenset[str]:
        """Names of the tensors that would overflow to infinity."""
        return frozenset(stray.tensor for stray in self.strayed if stray.kind == "overflow")

    @property
    def faint(self) -> frozenset[str]:
        """Names of the tensors that would lose precision, because all of their values are subnormal."""
        return frozenset(stray.tensor for stray in self.strayed if stray.kind == "subnormal")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Conversion(Displayable):
    """Description of a model that was converted to a narrower float type.

    Attributes:
        model: file name of the original.
        dtype: the type that replaced FP32.
        narrowed: nodes that make at least one tensor of that type.
        kept: nodes that stayed FP32, in graph order.
        casts: Cast nodes that were added.
        clipped: constants with values beyond the type's largest number, which took that number instead.
        faint: constants entirely below the type's smallest normal number.
        reach: results of the samples; None if none were run.
        notes: other changes, one sentence each.
    """

    model: str
    dtype: DType
    narrowed: int
    kept: tuple[KeptNode, ...]
    casts: int
    clipped: tuple[str, ...]
    faint: tuple[str, ...]
    reach: DynamicRangeReport | None = None
    notes: tuple[str, ...] = ()
