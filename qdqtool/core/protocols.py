"""What a backend must be able to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.core.tensors import TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

Feeds = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One set of model inputs.

    Attributes:
        name: where it came from, for messages ("cat.jpg", "x.npz[17]").
        feeds: one array per model input, with the batch dimension.
        label: class index, or None.
    """

    name: str
    feeds: Feeds
    label: int | None = None


class SampleSource(Protocol):
    """Samples that can be read again and again, always in the same order."""

    @property
    def description(self) -> str:
        """What the samples are, in words."""

    @property
    def meaningful(self) -> bool:
        """False for random data: whatever is measured on it says nothing about accuracy."""

    @property
    def digest(self) -> str:
        """Changes whenever the samples change."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sample]: ...


class Runner(Protocol):
    """Something that computes a model's outputs."""

    @property
    def description(self) -> str:
        """What runs what, in words."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What it wants to be fed."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it returns."""

    @property
    def at_once(self) -> int:
        """How many calls of `run` may go on at a time; 1 where their order matters or one takes all cores."""

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """One array per output."""


class Builder(Protocol):
    """Something that makes an engine from an ONNX file."""

    def version(self) -> str:
        """The builder's own version.

        Raises:
            MissingPackage: it is not installed.
        """

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """The engine, its log and its layer information, in `request.folder`.

        Raises:
            BuildError: refused, crashed or out of time; the log is kept.
            MissingPackage: the builder is not installed.
        """
