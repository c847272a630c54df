"""Steps that all builds share: the build cache, draft files, and retries without refused Q/DQ."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.backends.building.failures import NoKernelError
from qdqtool.backends.gpu import gpus
from qdqtool.core.kinds import BUILD
from qdqtool.core.protocols import BuildCost, Builder, BuildRequest, BuildResult, OnProgress
from qdqtool.errors import InputFileError, QdqError, SystemFault
from qdqtool.io.files import digest_file, drafting, publish, replacing, withdraw, write_text

if TYPE_CHECKING:
    from qdqtool.graph.view import Model


# --- products --------------------------------------------------------------------------------------------------------
# Names of the files that every builder writes to a run folder.


ENGINE, LOG, LAYERS = "engine.plan", "build.log", "layers.txt"
"""File names of engine, log and layer information. The layer information is stored as the builder writes it,
as a dump or JSON.
"""


# --- cache -----------------------------------------------------------------------------------------------------------
# Cache of finished builds by digest: one build per model, targets, flags, builder and release.
#
# An entry is a folder named by the digest, moved into place in one step. Its files are checked before use: an
# incomplete or changed entry counts as absent.


_INDEX = "digests.json"
_RESULT = "result.json"


def digest(request: BuildRequest, builder: str, version: str) -> str:
    """Return the SHA-256 of everything that determines an engine, as key of the build cache.

    The digest covers the model, external data, targets, flags and the files that they name, profiles, builder and
    release.
    """
    files = [request.model, *external_files(request.model), *_named_files(request.flags)]
    facts = [builder, version, *request.targets, *request.flags, *map(repr, request.profiles)]
    facts += map(digest_file, files)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _named_files(flags: Iterable[str]) -> Iterator[Path]:
    """Yield the files that flags name, such as libraries of plug-ins. Timing caches change with every build and are skipped."""
    from qdqtool.graph.onnx_io.deferred import is_file

    for flag in flags:
        name, _, value = flag.partition("=")
        if value and name != "--timingCacheFile" and is_file(Path(value)):
            yield Path(value)


def external_files(model: Path) -> tuple[Path, ...]:
    """Return the existing files that the model's tensors name as external data."""
    from qdqtool.graph.onnx_io.deferred import is_file
    from qdqtool.graph.onnx_io.read import external_locations

    files = (model.parent / name for name in external_locations(model) if name and "\0" not in name)
    return tuple(sorted(path for path in files if is_file(path)))


def fetch(cache: Path, key: str, folder: Path) -> BuildResult | None:
    """Copy a build from the cache into `folder`; return None if the cache has no valid entry."""
    entry = cache / key
    result = _sound(entry)
    if result is not None:
        copy_build(folder, {name: entry / name for name in _files(result)})
    return result


def copy_build(folder: Path, files: Mapping[str, Path]) -> None:
    """Copy the files of a build to `folder`, and remove the engine and layers of an earlier build."""
    for name, source in files.items():
        with replacing(folder / name) as draft:
            shutil.copyfile(source, draft)
    withdraw(folder, {ENGINE, LAYERS} - set(files))


def keep(cache: Path, key: str, folder: Path, result: BuildResult) -> None:
    """Add a finished build to the cache. An invalid entry with this key is replaced; a valid entry is kept.

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
            fix=f"check its permissions and the free space, or name another folder (--build-cache or {CACHE_VARIABLE})",
            where=str(cache),
        ) from error


def _place(entry: Path, place: Path, aside: Path) -> None:
    """Move a new entry into the build cache, unless another process has stored a valid one meanwhile."""
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
    """Return the build result in a cache entry; None if the entry is absent, truncated or changed."""
    try:
        index = json.loads((entry / _INDEX).read_text("utf-8"))
        result = BUILD.read(entry / _RESULT)
        changed = any(digest_file(entry / name) != index[name] for name in _files(result))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InputFileError):
        return None
    return None if changed else result


def _files(result: BuildResult) -> tuple[str, ...]:
    """Return the file names of a build result. Refuse names that contain folders."""
    names = (result.engine, result.log, *((result.layers,) if result.layers else ()))
    if any(Path(name).name != name for name in names):
        raise ValueError(names)
    return names


# --- procedure -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedBuild:
    """A finished engine whose files are in the draft folder.

    Attributes:
        result: facts about the build.
        peak_mib: peak memory of the builder in MiB; None if not measured.
    """

    result: BuildResult
    peak_mib: float | None = None


CACHE_VARIABLE = "QDQTOOL_BUILD_CACHE"
"""Environment variable with the folder that keeps finished builds."""
Make = Callable[[Path], FinishedBuild | QdqError]
"""Function that builds into a draft folder. If there is no engine, it returns the error and leaves the log in
the draft folder.
"""


def go_through(
    request: BuildRequest, *, builder: str, release: str, portable: bool, make: Make
) -> tuple[BuildResult, BuildCost]:
    """Take an engine from the build cache or from `make`, and copy its files to `request.folder`.

    The engine of a portable builder depends on its targets; other engines also depend on the GPU of this machine.

    After an interruption, the folder is unchanged. A failed build leaves its log, and removes the files of an
    earlier build, which do not belong to this log.

    Raises:
        QdqError: the build failed; the error comes from `make`.
        InputFileError: there is no model, or the folder cannot be written.
    """
    start = time.monotonic()
    if not request.model.is_file():
        raise InputFileError("the file does not exist", fix="check the path", where=str(request.model))
    cache = request.cache or (_usual_cache() if portable else None)
    made_on = release if portable else f"{release} {[gpu.name for gpu in gpus()]}"
    key = digest(request, builder, made_on) if cache else ""
    if cache and (cached := fetch(cache, key, request.folder)):
        return cached, BuildCost(seconds=time.monotonic() - start, peak_mib=None, cached=True)
    with drafting(request.folder) as drafts:
        outcome = make(drafts)
        if isinstance(outcome, QdqError):
            publish(drafts, request.folder, [LOG])
            withdraw(request.folder, [ENGINE, LAYERS, "build.json"])
            raise outcome
        publish(drafts, request.folder, [name for name in (outcome.result.layers, LOG, ENGINE) if name])
    if outcome.result.layers is None:
        withdraw(request.folder, [LAYERS])
    if cache:
        keep(cache, key, request.folder, outcome.result)
    return outcome.result, BuildCost(
        seconds=time.monotonic() - start, peak_mib=outcome.peak_mib, cached=False
    )


def _usual_cache() -> Path | None:
    """Return the build cache that the user set for builds that are the same on every machine; None if there is none."""
    folder = os.environ.get(CACHE_VARIABLE)
    return Path(folder) if folder else None


# --- retry -----------------------------------------------------------------------------------------------------------
# Repeats a build without the Q/DQ of a node that has no kernel, a limited number of times.
#
# TensorRT prints "Could not find any implementation for node X" if no kernel fits the precisions around X. Without
# Q/DQ on its inputs, X runs in float. Every such node is reported, and the model that was finally built is kept beside
# the engine.


MODEL = "model.retried.onnx"
"""Name of the model file that was finally built, stored next to the engine."""


def build_with_retries(
    builder: Builder, request: BuildRequest, on_progress: OnProgress | None = None, *, most: int = 3
) -> tuple[BuildResult, BuildCost]:
    """Build the model. If a node or fused group has no kernel, remove its Q/DQ and build again, at most `most` times.

    The notes of the result list the nodes without Q/DQ.

    Raises:
        BuildError: as the builder does; also when a node without a kernel has no Q/DQ to give up.
    """
    given_up: list[tuple[str, ...]] = []
    current = request
    for _ in range(most):
        built, error = _attempt(builder, current, on_progress)
        if built is not None:
            return _with_notes(built, given_up)
        assert error is not None
        given_up.append(_float_instead(request, given_up, error))
        current = replace(request, model=request.folder / MODEL)
    return _with_notes(builder.build(current, on_progress), given_up)


def _attempt(
    builder: Builder, request: BuildRequest, on_progress: OnProgress | None
) -> tuple[tuple[BuildResult, BuildCost] | None, NoKernelError | None]:
    try:
        return builder.build(request, on_progress), None
    except NoKernelError as error:
        return None, error


def _with_notes(
    built: tuple[BuildResult, BuildCost], given_up: list[tuple[str, ...]]
) -> tuple[BuildResult, BuildCost]:
    result, cost = built
    notes = [f"no INT8 kernel for {', '.join(names)}: built without its Q/DQ" for names in given_up]
    notes += [f"{MODEL} is the model that was built"] if given_up else []
    return replace(result, notes=(*result.notes, *notes), model=MODEL if given_up else result.model), cost


def _float_instead(
    request: BuildRequest, given_up: list[tuple[str, ...]], error: NoKernelError
) -> tuple[str, ...]:
    """Write the model without the Q/DQ of all nodes refused so far. Return the newly refused nodes.

    `given_up` has the nodes refused earlier.

    Raises:
        NoKernelError: the error itself, when it names no node with Q/DQ.
    """
    from qdqtool.backends.writing import write
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.qdq.unquantize import unquantize

    model = load(request.model)
    already = {name for names in given_up for name in names}
    names = tuple(name for name in _quantized_nodes(model, error.node) if name not in already)
    if not names:
        raise error
    write(unquantize(model, already | set(names)), request.folder / MODEL, step="build")
    return names


def _quantized_nodes(model: Model, engine_name: str) -> tuple[str, ...]:
    """Return the nodes in the name of an engine layer that read a DequantizeLinear.

    `a + b`, `a || b` and `PWN(PWN(a), b)` name all their nodes; `{ForeignNode[a...z]}` names the first and the last,
    and means all between them.
    """
    view = model.view
    spaced = engine_name.replace("...", " ... ")
    named = [node for node in view.nodes if _mentions(spaced, node.name)]
    if "ForeignNode[" in engine_name and len(named) > 1:
        named = list(view.nodes[named[0].position : named[-1].position + 1])
    return tuple(
        node.name
        for node in named
        if any(maker and maker.op == "DequantizeLinear" for maker in map(view.producer, node.inputs))
    )


def _mentions(text: str, name: str) -> bool:
    """Return True if `text` contains `name` as a whole name, and not only as part of a longer name."""
    return name in text and re.search(rf"(?<![\w/.:-]){re.escape(name)}(?![\w/.:-])", text) is not None
