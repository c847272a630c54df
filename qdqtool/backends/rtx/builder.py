"""Asks a child process for an engine and keeps what comes back."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qdqtool.backends import cache, child
from qdqtool.backends.crashes import crash
from qdqtool.backends.drafts import drafting, publish, unwritable, withdraw
from qdqtool.backends.refusals import Mistake, clean, is_noise, refusal
from qdqtool.core.build import BuildCost, BuildProgress, BuildRequest, BuildResult, OnProgress
from qdqtool.errors import InputFileError, MissingPackage, QdqError, UsageError

_OLDEST = (1, 7, 1)
"""Releases before this one cannot build any INT8 convolution."""
_ENGINE, _LOG, _LAYERS = "engine.plan", "build.log", "layers.txt"
_SPELLING = re.compile(r"(?:sm)?[_-]?(\d+)\.?(\d)", re.ASCII | re.IGNORECASE)


class RtxBuilder:
    """Builds engines with TensorRT for RTX."""

    def version(self) -> str:
        """The installed release, as "1.7.1.116".

        Raises:
            MissingPackage: not installed, or too old to build INT8 convolutions.
        """
        try:
            found = version("tensorrt_rtx")
        except PackageNotFoundError:
            raise MissingPackage(
                "TensorRT for RTX is not installed", fix="pip install 'qdqtool[rtx]'"
            ) from None
        if tuple(int(part) for part in re.findall(r"\d+", found)[:3]) < _OLDEST:
            raise MissingPackage(
                f"TensorRT for RTX {found} cannot build INT8 convolutions",
                fix="pip install --upgrade 'tensorrt-rtx>=1.7.1'",
            )
        return found

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """The engine, its log and its layer dump, in `request.folder`.

        Ctrl-C ends the child and leaves the folder as it was. A failed build leaves its log, and no engine.

        Raises:
            BuildError: refused, crashed or out of time.
            InputFileError: the model cannot be read, or the folder cannot be written.
            MissingPackage: TensorRT for RTX is not installed.
            UsageError: a target that the builder does not know.
        """
        start = time.monotonic()
        release = self.version()
        if not request.model.is_file():
            raise InputFileError("there is no such file", fix="check the path", where=str(request.model))
        key = cache.digest(request, "rtx", release) if request.cache else ""
        if request.cache and (found := cache.fetch(request.cache, key, request.folder)):
            return found, BuildCost(seconds=time.monotonic() - start, peak_mib=None, cached=True)
        with drafting(request.folder) as drafts:
            result, peak = _build(request, drafts, release, on_progress)
        if request.cache:
            cache.keep(request.cache, key, request.folder, result)
        return result, BuildCost(seconds=time.monotonic() - start, peak_mib=peak, cached=False)


def target_of(word: str) -> str:
    """A GPU architecture in one spelling: "86", "8.6", "SM_86" and "sm86" are all "sm86"; other words stay."""
    spelled = _SPELLING.fullmatch(word.strip())
    return f"sm{spelled[1]}{spelled[2]}" if spelled else word.strip().lower()


def _build(
    request: BuildRequest, drafts: Path, release: str, on_progress: OnProgress | None
) -> tuple[BuildResult, float | None]:
    verdict: dict[str, Any] = {"event": "none"}

    def hear(line: str) -> None:
        nonlocal verdict
        event = json.loads(line)
        if event["event"] != "progress":
            verdict = event
        elif on_progress is not None:
            on_progress(BuildProgress(phase=event["phase"], done=event["percent"], total=100))

    targets = tuple(dict.fromkeys(target_of(word) for word in request.targets))
    ended = child.run(
        (sys.executable, "-m", "qdqtool.backends.rtx.worker"),
        first_words=_order(request, targets, drafts),
        errors=drafts / _LOG,
        on_line=hear,
        timeout_s=request.timeout_s,
    )
    if verdict["event"] == "built":
        result = _result(request, targets, release, verdict, drafts)
        publish(drafts, request.folder, [name for name in (result.layers, _LOG, _ENGINE) if name])
        return result, verdict["peak_mib"]
    error = _failure(verdict, ended, request, drafts / _LOG)
    publish(drafts, request.folder, [_LOG])
    withdraw(request.folder, [_ENGINE, _LAYERS])
    raise error


def _order(request: BuildRequest, targets: tuple[str, ...], drafts: Path) -> str:
    order = {
        "model": str(request.model.absolute()),
        "plan": str((drafts / _ENGINE).absolute()),
        "layers": str((drafts / _LAYERS).absolute()),
        "targets": targets,
        "profiles": [asdict(profile) for profile in request.profiles],
        "stack_mib": request.stack_mib,
    }
    return json.dumps(order) + "\n"


def _result(
    request: BuildRequest, targets: tuple[str, ...], release: str, verdict: dict[str, Any], drafts: Path
) -> BuildResult:
    warnings = [clean(text) for text in verdict["warnings"] if not is_noise(text)]
    if "sm75" in targets:
        warnings.append("on sm75 this builder turns every INT8 convolution into Half")
    if len(targets) > 1:
        warnings.append(f"the builder prints one layer dump for all of {', '.join(targets)}")
    has_layers = (drafts / _LAYERS).stat().st_size > 0
    return BuildResult(
        builder="rtx",
        version=release,
        targets=targets,
        engine=_ENGINE,
        log=_LOG,
        layers=_LAYERS if has_layers else None,
        engine_bytes=(drafts / _ENGINE).stat().st_size,
        warnings=tuple(warnings),
        profiles=request.profiles,
    )


def _failure(verdict: dict[str, Any], ended: child.Ended, request: BuildRequest, log: Path) -> QdqError:
    where = str(request.model)
    if verdict["event"] == "refused":
        mistakes = [Mistake(**mistake) for mistake in verdict["mistakes"]]
        return refusal(mistakes, verdict["messages"], where=where, log=str(request.folder / _LOG))
    if verdict["event"] == "unknown targets":
        return UsageError(
            f"cannot build for {', '.join(verdict['unknown'])}",
            fix=f"choose from {', '.join(verdict['supported'])}",
        )
    if verdict["event"] == "unwritable":
        return unwritable(request.folder, OSError(None, verdict["reason"]))
    return crash(ended, request, log)
