"""Builds by running trtexec, and keeps what it says and writes."""

from __future__ import annotations

import time
from pathlib import Path

from qdqtool.backends import cache, child
from qdqtool.backends.crashes import crash
from qdqtool.backends.drafts import ENGINE, LAYERS, LOG, drafting, publish, unwritable, withdraw
from qdqtool.backends.facts import facts_of
from qdqtool.backends.flags import parse_flags
from qdqtool.backends.guards import Abilities, choose_typing, guards
from qdqtool.backends.refusals import clean, is_noise, refusal
from qdqtool.backends.releases import spell
from qdqtool.backends.trtexec.command import build_command
from qdqtool.backends.trtexec.listener import Listener
from qdqtool.backends.trtexec.program import Program, ask, find_trtexec
from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.errors import InputFileError, QdqError, UsageError


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
        start = time.monotonic()
        program = ask(find_trtexec())
        if not request.model.is_file():
            raise InputFileError("there is no such file", fix="check the path", where=str(request.model))
        key = cache.digest(request, "trtexec", spell(program.release)) if request.cache else ""
        if request.cache and (found := cache.fetch(request.cache, key, request.folder)):
            return found, BuildCost(seconds=time.monotonic() - start, peak_mib=None, cached=True)
        with drafting(request.folder) as drafts:
            result = _build(program, request, drafts, on_progress)
        if request.cache:
            cache.keep(request.cache, key, request.folder, result)
        return result, BuildCost(seconds=time.monotonic() - start, peak_mib=None, cached=False)


def _build(
    program: Program, request: BuildRequest, drafts: Path, on_progress: OnProgress | None
) -> BuildResult:
    command, warnings = _plan(program, request, drafts)
    listener = Listener(on_progress=on_progress)
    try:
        with (drafts / LOG).open("wb") as log:

            def hear(line: bytes) -> None:
                log.write(line)
                listener.hear(line.decode("utf-8", "replace"))

            ended = child.run(command, on_line=hear, timeout_s=request.timeout_s)
    except OSError as error:
        raise unwritable(request.folder, error.strerror or str(error)) from error
    if ended.code == 0 and not ended.timed_out and _size(drafts / ENGINE):
        result = _result(program, request, drafts, listener, warnings)
        publish(drafts, request.folder, [name for name in (result.layers, LOG, ENGINE) if name])
        return result
    failure = _failure(ended, request, listener, drafts)
    publish(drafts, request.folder, [LOG])
    withdraw(request.folder, [ENGINE, LAYERS])
    raise failure


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


def _failure(ended: child.Ended, request: BuildRequest, listener: Listener, drafts: Path) -> QdqError:
    if ended.timed_out or ended.code < 0:
        return crash(ended, request, drafts / LOG)
    if listener.mistakes or listener.errors:
        log = str(request.folder / LOG)
        return refusal(listener.mistakes, listener.errors, where=str(request.model), log=log)
    return crash(ended, request, drafts / LOG)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
