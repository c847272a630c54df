"""What calibration changes in a model's constants: weights rounded otherwise than to the nearest, and scaled channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qdqtool.core.quant_format import QuantFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RoundedWeight:
    """A constant in its format.

    Attributes:
        codes: the stored values, in the shape of the constant and the NumPy type of the format.
        scale: float32: (), (channels,), or one per block, as `Quantization` has it.
        format: how values are stored.
        axis: channel axis, or the axis that blocks divide; None for one scale.
        block: values along `axis` that share a scale; None without blocks.
        global_scale: second level of formats with two levels, else None.
    """

    codes: NDArray[Any]
    scale: NDArray[Any]
    format: QuantFormat
    axis: int | None = None
    block: int | None = None
    global_scale: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledInput:
    """A tensor that some nodes read multiplied by one factor per channel.

    Attributes:
        tensor: what they read.
        nodes: names of the nodes, which read it as input 0.
        factors: one per channel.
        axis: where the channels are: the last, or 1 of pictures, where all of its readers are among `nodes`: the scaled tensor
            has its name then.
    """

    tensor: str
    nodes: tuple[str, ...]
    factors: tuple[float, ...]
    axis: int = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightChanges:
    """Changes of constants, by name; the nodes stay, so that a placement of the model stays valid.

    Attributes:
        values: new float values; together they compute what the old ones did.
        rounded: weights in their format.
        scaled: inputs that are multiplied, where no constant could take the factor.
    """

    values: Mapping[str, NDArray[Any]] = field(default_factory=lambda: MappingProxyType({}))
    rounded: Mapping[str, RoundedWeight] = field(default_factory=lambda: MappingProxyType({}))
    scaled: tuple[ScaledInput, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.rounded or self.scaled)

    def rounding(self, rounded: Mapping[str, RoundedWeight]) -> WeightChanges:
        """The same with these weights rounded."""
        return replace(self, rounded={**self.rounded, **rounded})
