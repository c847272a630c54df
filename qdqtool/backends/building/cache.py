"""Cache of finished builds by digest: one build per model, targets, flags, builder and release.

An entry is a folder named by the digest, moved into place in one step. Its files are checked before use: an entry
that was cut short or changed counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path

from qdqtool.core.build import BuildRequest, BuildResult
from qdqtool.core.kinds import BUILD
from qdqtool.errors import InputFileError, SystemFault
from qdqtool.io.files import digest_file, replacing, write_text
from qdqtool.io.folders import drafting

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
