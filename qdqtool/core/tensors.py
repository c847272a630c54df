"""Properties of a tensor without its values."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from qdqtool.core.dtypes import DType


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """Name, type and shape of a tensor.

    Attributes:
        name: the tensor's name in the model.
        dtype: element type.
        shape: one entry per dimension, an int or the name of a symbolic dimension ("?" when unnamed);
            None when even the rank is unknown.
    """

    name: str
    dtype: DType = DType.UNKNOWN
    shape: tuple[int | str, ...] | None = None

    @property
    def is_static(self) -> bool:
        """True if every dimension is a number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    @property
    def elements(self) -> int | None:
        """Number of elements; None if a dimension is unknown."""
        if self.shape is None:
            return None
        dims = [dim for dim in self.shape if isinstance(dim, int)]
        return prod(dims) if len(dims) == len(self.shape) else None
