"""The interfaces of a backend: samples, runners and builders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.core.tensors import TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Feeds = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One set of model inputs.

    Attributes:
        name: its source, for messages ("cat.jpg", "x.npz[17]").
        feeds: one array per model input, with the batch dimension.
        label: class index, or None.
        boxes: labelled boxes, (boxes, 5): class, left, top, right, bottom in pixels of the input; None if unlabelled.
    """

    name: str
    feeds: Feeds
    label: int | None = None
    boxes: NDArray[np.float64] | None = None


class SampleSource(Protocol):
    """Samples that can be read repeatedly, always in the same order."""

    @property
    def description(self) -> str:
        """Description of the samples."""

    @property
    def meaningful(self) -> bool:
        """False for random data, because measurements on it say nothing about accuracy."""

    @property
    def digest(self) -> str:
        """Digest of the samples; it changes if any sample changes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sample]: ...


class Runner(Protocol):
    """A runner that computes the outputs of a model."""

    @property
    def description(self) -> str:
        """Description of the runner and of the model that it runs."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs that the model expects."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""

    @property
    def at_once(self) -> int:
        """Largest number of concurrent calls of `run`; 1 if their order matters or one call uses all cores."""

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run the model on `feeds` and return one array per output."""


class Builder(Protocol):
    """A builder that makes an engine from an ONNX file."""

    def version(self) -> str:
        """Return the builder's own version.

        Raises:
            MissingPackage: it is not installed.
        """

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """Build the engine. Write it, its log and its layer information into `request.folder`.

        Raises:
            BuildError: refused, crashed or out of time; the log is kept.
            MissingPackage: the builder is not installed.
        """
