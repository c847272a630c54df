"""Raw samples and their sources, before they are fitted to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSample:
    """One sample as stored in its source.

    Attributes:
        name: where it came from, for messages ("cat.jpg", "x.npz[17]").
        arrays: by model input name.
        label: class index, or None.
        is_image: whether the arrays are decoded images, which are always preprocessed.
        is_ready: whether the arrays are made for the model's inputs, and never preprocessed.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]]
    label: int | None = None
    is_image: bool = False
    is_ready: bool = False


class RawSource(Protocol):
    """Source of samples of one kind, in an order that never changes."""

    @property
    def description(self) -> str:
        """Description of the samples."""

    @property
    def meaningful(self) -> bool:
        """False for random data."""

    def digest(self) -> str:
        """Return a digest that changes whenever the samples change."""

    def __len__(self) -> int: ...

    def read(self, numbers: range) -> Iterator[RawSample]:
        """Yield the samples with these ascending numbers."""
