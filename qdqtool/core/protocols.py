"""The interfaces of a backend: samples, runners and builders, with the request to a builder and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# --- builds ----------------------------------------------------------------------------------------------------------


Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputProfile:
    """Smallest, usual and largest shape of a dynamic input; or the values of an input from which other shapes are computed.

    Attributes:
        number: number of its optimization profile.
        is_value: whether these are values, not shapes; a builder leaves them out if no shape depends on the input.
    """

    name: str
    low: Shape
    opt: Shape
    high: Shape
    number: int = 0
    is_value: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """A request to build one engine.

    Attributes:
        model: the ONNX file.
        folder: folder for engine, log and layer dump.
        targets: GPU architectures, as "sm86".
        profiles: shapes of dynamic inputs.
        timeout_s: wall-clock limit in seconds.
        stack_mib: stack of the building process in MiB (deep graphs recurse).
        cache: folder of finished builds by digest; None to build again.
        flags: further options in trtexec's spelling ("--builderOptimizationLevel=5"); a backend refuses options that
            it does not support.
    """

    model: Path
    folder: Path
    targets: tuple[str, ...] = ("sm86",)
    profiles: tuple[InputProfile, ...] = ()
    timeout_s: float = 1800.0
    stack_mib: int = 1024
    cache: Path | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class BuildResult(Displayable):
    """A built engine and the facts about its build.

    Attributes:
        builder: backend name ("rtx").
        version: the builder's own version.
        targets: GPU architectures.
        engine: file name of the plan inside the folder.
        log: file name of the log, every line kept.
        layers: file name of the layer information; None if the builder gave none.
        engine_bytes: size of the plan.
        warnings: warnings of the builder a person should read, each once.
        profiles: shapes of dynamic inputs that were built for.
        notes: assumptions, such as shapes from the samples.
        model: file name, inside the folder, of the model that was built in the end, if Q/DQ had to be removed from
            the requested model; otherwise "".
    """

    builder: str
    version: str
    targets: tuple[str, ...]
    engine: str
    log: str
    layers: str | None
    engine_bytes: int
    warnings: tuple[str, ...] = ()
    profiles: tuple[InputProfile, ...] = ()
    notes: tuple[str, ...] = ()
    model: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildCost:
    """Measured cost of a build on this machine. It is not reproducible, so it is never part of an artefact."""

    seconds: float
    peak_mib: float | None
    cached: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildProgress:
    """Progress that a builder reports: `done` of `total` steps of the phase; `total` is None if it is unknown."""

    phase: str
    done: int
    total: int | None


OnProgress = Callable[[BuildProgress], None]


# --- samples, runners and builders -----------------------------------------------------------------------------------


Feeds = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One set of model inputs.

    Attributes:
        name: its source, for messages ("cat.jpg", "x.npz[17]").
        feeds: one array per model input, with the batch dimension.
        label: class index, or None.
        boxes: labelled boxes, (boxes, 5): class, left, top, right, bottom in pixels of the input; None if unlabelled.
        points: of each labelled box its outline, (corners, 2), or its keypoints, (keypoints, 3): x, y in pixels of the input, and above 0 if it
            is visible; None if labels are boxes only.
    """

    name: str
    feeds: Feeds
    label: int | None = None
    boxes: NDArray[np.float64] | None = None
    points: tuple[NDArray[np.float64], ...] | None = None


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
        """Largest number of parallel calls of `run`; 1 if their order matters or each call uses all cores."""

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
