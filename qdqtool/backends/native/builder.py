"""Builds an engine in a child process and stores the results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qdqtool.backends.building.failures import Mistake, clean, crash, is_noise, last_parsed, refusal, tail
from qdqtool.backends.building.guards import facts_of
from qdqtool.backends.building.procedure import ENGINE, LAYERS, LOG, FinishedBuild, go_through
from qdqtool.backends.flags import absolute, parse_flags
from qdqtool.core.protocols import BuildCost, BuildProgress, BuildRequest, BuildResult, OnProgress
from qdqtool.core.target import target_of
from qdqtool.errors import MissingPackage, QdqError, SystemFault, UsageError
from qdqtool.io import child
from qdqtool.io.files import native_path, unwritable

_WORKER = "qdqtool.backends.native.worker"
_COMMON = frozenset({"sm75", "sm80", "sm86", "sm89", "sm120"})
"""Targets of every supported release. For other targets, the library itself is asked."""
_NOT_STARTED = frozenset({"unknown targets", "refused flag", "guard", "no library"})
"""Events of a request that was refused before the build: the engine of an earlier build stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A native library that builds engines.

    Attributes:
        name: the backend's name.
        title: name for readers.
        module: the Python module.
        oldest: first release that is good enough.
        too_old: reason why older releases do not suffice.
        portable: whether it builds for GPUs that are not here.
    """

    name: str
    title: str
    module: str
    oldest: tuple[int, ...]
    too_old: str
    portable: bool


class NativeBuilder:
    """Builder that uses a native library in a separate process."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def version(self) -> str:
        """Return the installed release, such as "1.7.1.116".

        Raises:
            MissingPackage: not installed, or too old.
        """
        library = self._library
        try:
            package = _package_of(library.module)
            release = version(package)
        except PackageNotFoundError:
            raise MissingPackage(
                f"{library.title} is not installed", fix=f"pip install 'qdqtool[{library.name}]'"
            ) from None
        if tuple(int(part) for part in re.findall(r"\d+", release)[:3]) < library.oldest:
            oldest = ".".join(map(str, library.oldest))
            raise MissingPackage(
                f"{library.title} {release} {library.too_old}",
                fix=f"pip install --upgrade '{package.replace('_', '-')}>={oldest}'",
            )
        return release

    def check_targets(self, targets: Iterable[str]) -> None:
        """Refuse GPU architectures that `build` would refuse. The library is only asked about uncommon ones.

        Raises:
            MissingPackage: the library is not installed.
            UsageError: a target that the library does not build for.
        """
        self.version()
        names = [target_of(word) for word in targets]
        if not self._library.portable or _COMMON.issuperset(names):
            return
        order = {"module": self._library.module, "targets": names, "stack_mib": 8, "check": True}
        with TemporaryDirectory(prefix="qdqtool-targets-") as folder:
            verdict, _ = child.ask(_WORKER, order, on_event={}, errors=Path(folder) / LOG, timeout_s=60)
        if verdict["event"] == "unknown targets":
            raise _unknown(verdict)

    def check_model(self, request: BuildRequest) -> None:
        """Refuse a model that the parser does not import. Nothing is built.

        Only `build` checks models for TensorRT with the GPU of this machine.

        Raises:
            BuildError: as `build` does.
            MissingPackage: the library is not installed.
        """
        self.version()
        if not self._library.portable:
            return
        with TemporaryDirectory(prefix="qdqtool-parser-") as folder:
            order = {**self._order(request, request.model, Path(folder)), "check": True}
            log = Path(folder) / LOG
            verdict, ended = child.ask(_WORKER, order, on_event={}, errors=log, timeout_s=request.timeout_s)
            if verdict["event"] != "checked":
                raise _failure(verdict, ended, request, log)

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """Build the engine, and write it with its log and layer information to `request.folder`.

        Ctrl-C ends the child process and leaves the folder unchanged. A failed build leaves its log, and no engine.

        Raises:
            BuildError: refused, crashed or out of time.
            InputFileError: the model cannot be read, or the folder cannot be written.
            MissingPackage: the library is not installed.
            UsageError: a target or a flag that the library does not know.
        """
        release = self.version()
        return go_through(
            request,
            builder=self._library.name,
            release=release,
            portable=self._library.portable,
            make=lambda drafts: self._make(request, drafts, release, on_progress),
        )

    def _make(
        self, request: BuildRequest, drafts: Path, release: str, on_progress: OnProgress | None
    ) -> FinishedBuild | QdqError:
        def progress(event: dict[str, Any]) -> None:
            if on_progress is not None:
                on_progress(BuildProgress(phase=event["phase"], done=event["percent"], total=100))

        verdict, ended = child.ask(
            _WORKER,
            self._order(request, _sparse(request, drafts), drafts),
            on_event={"progress": progress},
            errors=drafts / LOG,
            timeout_s=request.timeout_s,
        )
        if verdict["event"] in _NOT_STARTED:
            raise _failure(verdict, ended, request, drafts / LOG)
        if verdict["event"] != "built":
            return _failure(verdict, ended, request, drafts / LOG)
        return FinishedBuild(
            result=self._result(request, release, verdict, drafts), peak_mib=verdict["peak_mib"]
        )

    def _order(self, request: BuildRequest, model: Path, drafts: Path) -> dict[str, Any]:
        flags = parse_flags(request.flags)
        # TensorRT for RTX always keeps the model's types, so no check is needed.
        facts = None if self._library.portable else asdict(facts_of(request.model))
        return {
            "module": self._library.module,
            "model": native_path(model.absolute()),
            "plan": str((drafts / ENGINE).absolute()),
            "layers": str((drafts / LAYERS).absolute()),
            "targets": list(dict.fromkeys(target_of(word) for word in request.targets)),
            "profiles": [asdict(profile) for profile in request.profiles],
            "flags": [str(absolute(flag)) for flag in flags],
            "facts": facts,
            "stack_mib": request.stack_mib,
        }

    def _result(
        self, request: BuildRequest, release: str, verdict: dict[str, Any], drafts: Path
    ) -> BuildResult:
        targets = tuple(verdict["targets"])
        layers = drafts / LAYERS
        return BuildResult(
            builder=self._library.name,
            version=release,
            targets=targets,
            engine=ENGINE,
            log=LOG,
            layers=LAYERS if layers.stat().st_size > 0 else None,
            engine_bytes=(drafts / ENGINE).stat().st_size,
            warnings=tuple(clean(text) for text in verdict["warnings"] if not is_noise(text)),
            profiles=tuple(
                profile
                for profile in request.profiles
                if not profile.is_value or profile.name in verdict["values"]
            ),
            notes=self._notes(targets, verdict["flags"]),
        )

    def _notes(self, targets: tuple[str, ...], flags: list[str]) -> tuple[str, ...]:
        notes = [f"flags: {' '.join(flags)}"] if flags else []
        if "--sparsity=force" in flags:
            notes.append(
                "weights were overwritten with the 2:4 pattern: the engine computes nothing meaningful"
            )
        if not self._library.portable:
            here = ", ".join(targets) or "unknown"
            notes.append(f"built for the GPU of this machine ({here}): TensorRT cannot build for another GPU")
        weak = "sm75" in targets and self._library.portable
        if weak and len(targets) == 1:
            notes.append("on sm75 this builder runs every INT8 convolution in FP16")
        if len(targets) > 1:
            notes.append(
                f"the choice of kernels and the layer dump are the same for all of {', '.join(targets)}"
            )
        if weak and len(targets) > 1:
            notes.append(
                "with sm75 among the targets, no target gets INT8 convolutions: build for sm75 separately"
            )
        return tuple(notes)


def _package_of(module: str) -> str:
    """Return the installed package of a module, such as "tensorrt", or "tensorrt_cu12" of one release of CUDA."""
    try:
        version(module)
    except PackageNotFoundError:
        return next(iter(packages_distributions().get(module, ())), module)
    return module


def _sparse(request: BuildRequest, drafts: Path) -> Path:
    """Return the model to build; for `--sparsity=force`, a copy with 2:4 weights, as in trtexec."""
    if "--sparsity=force" not in request.flags:
        return request.model
    from qdqtool.backends.writing import write
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.sparse import sparsify

    target = drafts / "model.sparse.onnx"
    write(sparsify(load(request.model))[0], target, step="build")
    return target


def _unknown(verdict: dict[str, Any]) -> UsageError:
    return UsageError(
        f"cannot build for {', '.join(verdict['unknown'])}",
        fix=f"choose from {', '.join(verdict['supported'])}",
    )


def _add_place(mistake: Mistake, log: Path) -> Mistake:
    """Add the node that the parser read last to an error that names neither a node nor an operator.

    Failed assertions in the parser's helpers name no node.
    """
    if mistake.node or mistake.op:
        return mistake
    name, op = last_parsed(tail(log))
    return replace(mistake, node=name, op=op)


def _failure(verdict: dict[str, Any], ended: child.Ended, request: BuildRequest, log: Path) -> QdqError:
    where = str(request.model)
    event = verdict["event"]
    if event == "refused":
        mistakes = [_add_place(Mistake(**mistake), log) for mistake in verdict["mistakes"]]
        return refusal(mistakes, verdict["messages"], where=where, log=str(request.folder / LOG))
    if event == "unknown targets":
        return _unknown(verdict)
    if event == "refused flag":
        return UsageError(f"{verdict['flag']}: {verdict['why']}", fix="remove the flag, or correct it")
    if event == "guard":
        return UsageError(verdict["what"], fix=verdict["fix"], where=where)
    if event == "unwritable":
        return unwritable(request.folder, verdict["why"])
    if event == "system fault":
        return SystemFault(verdict["what"], fix=verdict["fix"], where=str(request.folder))
    if event == "no library":
        return MissingPackage(
            f"the library cannot be loaded: {verdict['why']}", fix="run qdqtool doctor to see what is missing"
        )
    return crash(ended, request, log)
