"""Steps of a build that all backends share: look in the cache, build into drafts, deliver the files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qdqtool.backends.building import cache
from qdqtool.backends.building.products import ENGINE, LAYERS, LOG
from qdqtool.core.build import BuildCost, BuildRequest, BuildResult
from qdqtool.errors import InputFileError, QdqError
from qdqtool.io.folders import drafting, publish, withdraw


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedBuild:
    """A finished engine whose files are in the draft folder.

    Attributes:
        result: what is known of it.
        peak_mib: peak memory of the builder in MiB; None if not measured.
    """

    result: BuildResult
    peak_mib: float | None = None


Make = Callable[[Path], FinishedBuild | QdqError]
"""Function that builds into a draft folder. If there is no engine, it returns the error and leaves the log in
the draft folder.
"""


def go_through(
    request: BuildRequest, *, builder: str, release: str, make: Make
) -> tuple[BuildResult, BuildCost]:
    """Get the engine from the cache or from `make`, and deliver its files to `request.folder`.

    Whatever interrupts it leaves the folder as it was. A failed build delivers its log and takes the engine of an
    earlier one with it, which does not belong to that log.

    Raises:
        QdqError: what `make` found.
        InputFileError: there is no model, or the folder cannot be written.
    """
    start = time.monotonic()
    if not request.model.is_file():
        raise InputFileError("the file does not exist", fix="check the path", where=str(request.model))
    key = cache.digest(request, builder, release) if request.cache else ""
    if request.cache and (found := cache.fetch(request.cache, key, request.folder)):
        return found, BuildCost(seconds=time.monotonic() - start, peak_mib=None, cached=True)
    with drafting(request.folder) as drafts:
        made = make(drafts)
        if isinstance(made, QdqError):
            publish(drafts, request.folder, [LOG])
            withdraw(request.folder, [ENGINE, LAYERS])
            raise made
        publish(drafts, request.folder, [name for name in (made.result.layers, LOG, ENGINE) if name])
    if made.result.layers is None:
        withdraw(request.folder, [LAYERS])
    if request.cache:
        cache.keep(request.cache, key, request.folder, made.result)
    return made.result, BuildCost(seconds=time.monotonic() - start, peak_mib=made.peak_mib, cached=False)
