"""Builds by running trtexec, and keeps what it says and writes."""

from __future__ import annotations

from pathlib import Path

from qdqtool.backends.building.crashes import crash
from qdqtool.backends.building.facts import facts_of
from qdqtool.backends.building.guards import Abilities, choose_typing, guards
from qdqtool.backends.building.procedure import Made, go_through
from qdqtool.backends.building.products import ENGINE, LAYERS, LOG
from qdqtool.backends.building.refusals import clean, is_noise, refusal
from qdqtool.backends.flags import parse_flags
from qdqtool.backends.releases import spell
from qdqtool.backends.trtexec.command import build_command
from qdqtool.backends.trtexec.listener import Listener
from qdqtool.backends.trtexec.program import Program, ask, find_trtexec
from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.errors import QdqError, UsageError
from qdqtool.io import child
from qdqtool.io.files import unwritable


class TrtexecBuilder:
    """Builds engines with the trtexec of this machine."""

    def version(self) -> str:
        """The release in trtexec's banner, "unknown" where it prints none.

        Raises:
            MissingPackage: there is no working trtexec.
        """
        return spell(ask(find_trtexec()).release) or "unknown"

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """The engine, trtexec's whole output and its layer information, in `request.folder`.

        Ctrl-C ends trtexec and leaves the folder as it was. A failed build leaves its log, and no engine.

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
            make=lambda drafts: _make(program, request, drafts, on_progress),
        )


def _make(
    program: Program, request: BuildRequest, drafts: Path, on_progress: OnProgress | None
) -> Made | QdqError:
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
    return Made(result=_result(program, request, drafts, listener, warnings))


def _plan(program: Program, request: BuildRequest, drafts: Path) -> tuple[list[str], list[str]]:
    """The command, and what is to be said about it."""
    facts = facts_of(request.model)
    can = Abilities(name=f"trtexec {spell(program.release)}".strip(), strong=program.strong)
    flags, chosen = choose_typing(facts, parse_flags(request.flags), can)
    profiled = frozenset(profile.name for profile in request.profiles)
    found = guards(facts, flags, can, profiled=profiled)
    for guard in found:
        if guard.fatal:
            raise UsageError(guard.what, fix=guard.fix, where=str(request.model))
    command = build_command(program, request, flags, drafts)
    return command, [*([chosen] if chosen else []), *map(str, found)]


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
        profiles=request.profiles,
        notes=(f"built for the GPU at hand ({here}): trtexec builds for no other",),
    )


def _failure(ended: child.Ended, request: BuildRequest, listener: Listener, log: Path) -> QdqError:
    complained = listener.mistakes or listener.errors
    if ended.timed_out or ended.code < 0 or not complained:
        return crash(ended, request, log)
    kept = str(request.folder / LOG)
    return refusal(listener.mistakes, listener.errors, where=str(request.model), log=kept)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
