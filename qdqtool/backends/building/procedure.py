"""Steps of a build that all backends share: look in the cache, build into drafts, deliver the files."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qdqtool.core.build import BuildCost, BuildRequest, BuildResult
from qdqtool.core.kinds import BUILD
from qdqtool.errors import InputFileError, QdqError, SystemFault
from qdqtool.io.files import digest_file, replacing, write_text
from qdqtool.io.folders import drafting, publish, withdraw

# --- products --------------------------------------------------------------------------------------------------------
# Names of the files that every builder writes to a run folder.


ENGINE, LOG, LAYERS = "engine.plan", "build.log", "layers.txt"
"""File names of engine, log and layer information. The layer information is stored as the builder writes it,
as a dump or JSON.
"""


# --- cache -----------------------------------------------------------------------------------------------------------
# Cache of finished builds by digest: one build per model, targets, flags, builder and release.
#
# An entry is a folder named by the digest, moved into place in one step. Its files are checked before use: an entry
# that was cut short or changed counts as absent.


_INDEX = "digests.json"
_RESULT = "result.json"


def digest(request: BuildRequest, builder: str, version: str) -> str:
    """Return the SHA-256 of everything the engine depends on.

    Hashed are the model, external data, targets, flags, profiles, builder and release.
    """
    files = [request.model, *external_files(request.model)]
    facts = [builder, version, *request.targets, *request.flags, *map(repr, request.profiles)]
    facts += map(digest_file, files)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def external_files(model: Path) -> tuple[Path, ...]:
    """Return the existing files that the model's tensors name as external data."""
    from qdqtool.graph.onnx_io.external import is_file
    from qdqtool.graph.onnx_io.pieces import external_locations

    found = (model.parent / name for name in external_locations(model) if name and "\0" not in name)
    return tuple(sorted(path for path in found if is_file(path)))


def fetch(cache: Path, key: str, folder: Path) -> BuildResult | None:
    """Copy a finished build into `folder`; return None if there is no valid entry."""
    entry = cache / key
    result = _sound(entry)
    if result is not None:
        for name in _files(result):
            with replacing(folder / name) as draft:
                shutil.copyfile(entry / name, draft)
    return result


def keep(cache: Path, key: str, folder: Path, result: BuildResult) -> None:
    """Add a finished build to the cache. An invalid entry with this key is replaced; a valid one is kept.

    Raises:
        SystemFault: the cache folder cannot be written.
    """
    try:
        with drafting(cache) as drafts:
            entry = drafts / key
            entry.mkdir()
            for name in _files(result):
                shutil.copyfile(folder / name, entry / name)
            BUILD.write(entry / _RESULT, result)
            write_text(
                entry / _INDEX, json.dumps({name: digest_file(entry / name) for name in _files(result)})
            )
            _place(entry, cache / key, drafts / "unsound")
    except (OSError, InputFileError) as error:
        why = error.what if isinstance(error, InputFileError) else error.strerror or error
        raise SystemFault(
            f"cannot write to the build cache: {why}",
            fix="check its permissions and the free space, or build without a cache",
            where=str(cache),
        ) from error


def _place(entry: Path, place: Path, aside: Path) -> None:
    """Move a new entry to its place, unless another process has stored a valid entry there in the meantime."""
    if _sound(place) is not None:
        return
    with suppress(FileNotFoundError):
        place.rename(aside)
    try:
        entry.rename(place)
    except OSError:
        if _sound(place) is None:
            raise


def _sound(entry: Path) -> BuildResult | None:
    """Return the result stored in an entry; None if the entry is absent, truncated or changed."""
    try:
        index = json.loads((entry / _INDEX).read_text("utf-8"))
        result = BUILD.read(entry / _RESULT)
        changed = any(digest_file(entry / name) != index[name] for name in _files(result))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InputFileError):
        return None
    return None if changed else result


def _files(result: BuildResult) -> tuple[str, ...]:
    """Return the file names of a build; refuse names that contain folders.

    Raises:
        ValueError: a name is not plain.
    """
    names = (result.engine, result.log, *((result.layers,) if result.layers else ()))
    if any(Path(name).name != name for name in names):
        raise ValueError(names)
    return names


# --- procedure -------------------------------------------------------------------------------------------------------


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
    key = digest(request, builder, release) if request.cache else ""
    if request.cache and (found := fetch(request.cache, key, request.folder)):
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
        keep(request.cache, key, request.folder, made.result)
    return made.result, BuildCost(seconds=time.monotonic() - start, peak_mib=made.peak_mib, cached=False)
