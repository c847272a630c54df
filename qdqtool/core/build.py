"""The request to a builder, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qdqtool.core.showing import Displayable

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputProfile:
    """Smallest, usual and largest shape of one dynamic input, or value of an input that other shapes are computed from.

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
        folder: where engine, log and layer dump go.
        targets: GPU architectures, as "sm86".
        profiles: shapes of dynamic inputs.
        timeout_s: wall-clock limit in seconds.
        stack_mib: stack of the building process in MiB (deep graphs recurse).
        cache: folder of finished builds by digest; None to build again.
        flags: further options in trtexec's spelling ("--builderOptimizationLevel=5"); each backend honours what it
            can and refuses the rest.
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
        notes: what was assumed on the way, such as shapes taken from the samples.
        model: file name of the model that was built in the end, inside the folder, if it is not the one asked for
            because Q/DQ had to be given up; else "".
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
