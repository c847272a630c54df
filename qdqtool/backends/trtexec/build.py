"""Builds engines by running trtexec: composes the command line, reads the output and collects the files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from qdqtool.backends.building.failures import Mistake, clean, crash, is_noise, refusal
from qdqtool.backends.building.guards import Abilities, choose_typing, facts_of, guards
from qdqtool.backends.building.procedure import ENGINE, LAYERS, LOG, FinishedBuild, go_through
from qdqtool.backends.flags import Flag, parse_flags, plain_sizes
from qdqtool.backends.plan import spell
from qdqtool.backends.shapes import spell_shapes
from qdqtool.backends.trtexec.program import Program, ask, find_trtexec
from qdqtool.core.protocols import (
    BuildCost,
    BuildProgress,
    BuildRequest,
    BuildResult,
    InputProfile,
    OnProgress,
)
from qdqtool.errors import QdqError, UsageError
from qdqtool.io import child
from qdqtool.io.files import unwritable

# --- build -----------------------------------------------------------------------------------------------------------
# Builds with trtexec, and keeps its log and files.


class TrtexecBuilder:
    """Builder that runs the trtexec of this machine."""

    def version(self) -> str:
        """Return the release in trtexec's banner; "unknown" if trtexec prints none.

        Raises:
            MissingPackage: there is no working trtexec.
        """
        return spell(ask(find_trtexec()).release) or "unknown"

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """Build the engine, and write it with trtexec's output and layer information to `request.folder`.

        Ctrl-C ends trtexec and leaves the folder unchanged. A failed build leaves its log, and no engine.

        Raises:
            BuildError: trtexec refused, crashed or ran out of time.
            InputFileError: the model cannot be read, or the folder cannot be written.
            MissingPackage: there is no working trtexec.
            UsageError: flags that this trtexec does not know, or that make no sense for the model.
        """
        program = ask(find_trtexec())
        return go_through(
            request,
            builder="trtexec",
            release=spell(program.release),
            portable=False,
            make=lambda drafts: _make(program, request, drafts, on_progress),
        )


def _make(
    program: Program, request: BuildRequest, drafts: Path, on_progress: OnProgress | None
) -> FinishedBuild | QdqError:
    command, warnings = _plan(program, request, drafts)
    listener = Listener(on_progress=on_progress)
    try:
        with (drafts / LOG).open("wb") as log:

            def hear(line: bytes) -> None:
                log.write(line)
                listener.hear(line.decode("utf-8", "replace"))

            ended = child.run(command, on_line=hear, timeout_s=request.timeout_s)
    except OSError as error:
        raise unwritable(request.folder, error) from error
    if ended.code != 0 or ended.timed_out or not _size(drafts / ENGINE):
        return _failure(ended, request, listener, drafts / LOG)
    return FinishedBuild(result=_result(program, request, drafts, listener, warnings))


def _plan(program: Program, request: BuildRequest, drafts: Path) -> tuple[list[str], list[str]]:
    """Return the trtexec command of a build, and warnings about its flags."""
    facts = facts_of(request.model)
    can = Abilities(name=f"trtexec {spell(program.release)}".strip(), strong=program.strong)
    flags, chosen = choose_typing(facts, parse_flags(request.flags), can)
    profiled = frozenset(profile.name for profile in request.profiles if not profile.is_value)
    problems = guards(facts, flags, can, profiled=profiled)
    for guard in problems:
        if guard.fatal:
            raise UsageError(guard.what, fix=guard.fix, where=str(request.model))
    command = build_command(program, request, flags, drafts)
    return command, [*([chosen] if chosen else []), *map(str, problems)]


def _result(
    program: Program, request: BuildRequest, drafts: Path, listener: Listener, warnings: list[str]
) -> BuildResult:
    here = f"sm{listener.sm}" if listener.sm else "unknown"
    return BuildResult(
        builder="trtexec",
        version=spell(program.release) or "unknown",
        targets=(here,) if listener.sm else (),
        engine=ENGINE,
        log=LOG,
        layers=LAYERS if _size(drafts / LAYERS) else None,
        engine_bytes=_size(drafts / ENGINE),
        warnings=(*warnings, *(clean(text) for text in listener.warnings if not is_noise(text))),
        profiles=tuple(profile for profile in request.profiles if not profile.is_value),
        notes=(f"built for the GPU of this machine ({here}): trtexec cannot build for another GPU",),
    )


def _failure(ended: child.Ended, request: BuildRequest, listener: Listener, log: Path) -> QdqError:
    complained = listener.mistakes or listener.errors
    if ended.timed_out or ended.code < 0 or not complained:
        return crash(ended, request, log)
    kept = str(request.folder / LOG)
    return refusal(listener.mistakes, listener.errors, where=str(request.model), log=kept)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


# --- command line ----------------------------------------------------------------------------------------------------
# Assembles the command line for one version of trtexec.

_OURS = frozenset(
    {"onnx", "saveEngine", "loadEngine", "exportLayerInfo", "minShapes", "optShapes", "maxShapes"}
)
"""Flags that follow from the request and cannot be given again."""


def build_command(
    program: Program, request: BuildRequest, flags: tuple[Flag, ...], drafts: Path
) -> list[str]:
    """Return the command that builds `request` with `flags`; its output files go to `drafts`.

    Raises:
        UsageError: this trtexec does not support a flag, or a flag contradicts the request.
    """
    clash = [str(flag) for flag in flags if flag.name in _OURS]
    if clash:
        raise UsageError(f"{', '.join(clash)} is already set by the build", fix="remove it from the flags")
    program.check(flags)
    ours = [
        Flag(name="onnx", value=str(request.model.absolute())),
        Flag(name="saveEngine", value=str((drafts / ENGINE).absolute())),
        *_shapes(request.profiles, program),
        *_list_wished_flags(program, drafts),
    ]
    present = {flag.name for flag in flags}
    both = [*(flag for flag in ours if flag.name not in present), *map(plain_sizes, flags)]
    return [str(program.path), *map(str, both)]


def _list_wished_flags(program: Program, drafts: Path) -> Iterable[Flag]:
    """Yield the flags that every build uses if this trtexec supports them."""
    choices = (
        Flag(name="exportLayerInfo", value=str((drafts / LAYERS).absolute())),
        Flag(name="profilingVerbosity", value="detailed"),
        Flag(name="verbose"),
    )
    yield from (flag for flag in choices if flag.name in program.flags)
    build_only = program.first_of("skipInference", "buildOnly")
    if build_only:
        yield build_only


def _shapes(profiles: tuple[InputProfile, ...], program: Program) -> Iterable[Flag]:
    """Yield the flags of each optimization profile, in order: its number (if several) and its shapes."""
    # trtexec takes the values of shape inputs together with the shapes, and refuses the values of other inputs. Its
    # log names them (cause "shape-input").
    profiles = tuple(profile for profile in profiles if not profile.is_value)
    numbers = sorted({profile.number for profile in profiles})
    if len(numbers) > 1:
        program.check((Flag(name="profile"),))
    for number in numbers:
        if len(numbers) > 1:
            yield Flag(name="profile", value=str(number))
        here = [profile for profile in profiles if profile.number == number]
        yield Flag(name="minShapes", value=spell_shapes({profile.name: profile.low for profile in here}))
        yield Flag(name="optShapes", value=spell_shapes({profile.name: profile.opt for profile in here}))
        yield Flag(name="maxShapes", value=spell_shapes({profile.name: profile.high for profile in here}))


# --- listener --------------------------------------------------------------------------------------------------------
# Reads trtexec's output during a build: errors, progress, and GPU.

_PREFIX = re.compile(
    r"^(?:\[[\d/:\-. ]+\] )?(?:\[TRT\] )?\[(?P<severity>[VIWEF])\] (?:\[TRT\] )?(?P<message>.*)"
)
_CAPABILITY = re.compile(r"Compute Capability: (\d+)\.(\d+)")
_FAILING = re.compile(r"While parsing node number (?P<number>\d+) \[(?P<op>\w+)")
_NAME = re.compile(r'(?:^|\] |: )(?:Node )?name: "?(?P<name>[^"]*)"?\s*$')
_REASON = re.compile(r"ERROR: \S+:\d+ In function \w+:\s*(?P<rest>.*)")
_CODE = re.compile(r"^\[(?P<code>\d+)\] (?P<text>.*)")
_UNSUPPORTED = "8"
"""Error code kUNSUPPORTED_NODE of the parser."""
_LAYERS = re.compile(r"After .*: (\d+) layers")
_STEPS = (
    ("parsing", re.compile(r"Start parsing network model|Parsing node:")),
    ("optimizing", re.compile(r"Applying generic optimizations|Original: \d+ layers")),
    ("timing kernels", re.compile(r"Computing costs for")),
    ("finishing", re.compile(r"Engine generation completed|Total Activation Memory")),
)
# A build may repeat one error for every tactic; 200 errors are enough.
_MOST = 200


@dataclass(slots=True)
class Listener:
    """Collects facts from trtexec's output while it runs.

    Attributes:
        errors: each different error message once, without prefix.
        warnings: each different warning once, without prefix.
        mistakes: the ONNX parser's complaints.
        sm: compute capability of the GPU times ten.
    """

    on_progress: OnProgress | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    sm: int | None = None
    _op: str = ""
    _node: str = ""
    _expects_reason: bool = False
    _layers: int | None = None
    _timed: int = 0
    _phase: str = ""

    def hear(self, line: str) -> None:
        """Read one line of trtexec's output."""
        match = _PREFIX.match(line)
        severity, message = (match["severity"], match["message"].rstrip()) if match else ("", line.rstrip())
        if severity in {"E", "F"}:
            _keep(self.errors, message)
        elif severity == "W":
            _keep(self.warnings, message)
        self._hear_parser(message)
        if severity in {"", "I"} and (device := _CAPABILITY.search(message)):
            self.sm = 10 * int(device[1]) + int(device[2])
        self._hear_progress(message)

    def _hear_parser(self, message: str) -> None:
        if failing := _FAILING.search(message):
            self._op, self._node = failing["op"], f"number {failing['number']}"
        elif self._op and (name := _NAME.search(message)):
            self._node = name["name"]
        elif self._op and (reason := _REASON.search(message)):
            self._expects_reason = True
            message = reason["rest"]
        if self._expects_reason and (code := _CODE.match(message.strip())):
            kind = "UNSUPPORTED_NODE" if code["code"] == _UNSUPPORTED else ""
            if len(self.mistakes) < _MOST:
                self.mistakes.append(Mistake(code=kind, node=self._node, op=self._op, text=code["text"]))
            self._op, self._expects_reason = "", False

    def _hear_progress(self, message: str) -> None:
        if layers := _LAYERS.search(message):
            self._layers = int(layers[1])
        for phase, pattern in _STEPS:
            if not pattern.search(message):
                continue
            self._timed += phase == "timing kernels"
            if self.on_progress is not None and (phase != self._phase or phase == "timing kernels"):
                counted = phase == "timing kernels"
                total = max(self._layers or 0, self._timed) if counted else None
                self.on_progress(BuildProgress(phase=phase, done=self._timed if counted else 0, total=total))
            self._phase = phase


def _keep(messages: list[str], message: str) -> None:
    if len(messages) < _MOST and message not in messages:
        messages.append(message)
