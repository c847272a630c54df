"""Reads the maker and the release in the first bytes of an engine. The engine is not loaded.

Engines hold code for the GPU and the host, so they are only ever loaded when the user trusts them; this looks at
32 bytes. Source: trtexec's --getPlanVersionOnly checks the tag "ftrt" and reads the release from bytes 24 to 27
(engines of 8.6 and later); TensorRT for RTX writes "vtrt" in the same layout, with the file's size in bytes 16 to 23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qdqtool.core.target import packed_release
from qdqtool.errors import (
    BuildError,
    InputFileError,
    MissingPackage,
    QdqError,
    UsageError,
    of_system,
)
from qdqtool.io.files import require_file, unreadable

# --- releases --------------------------------------------------------------------------------------------------------
# Release numbers as tuples of integers, which can be compared.


Release = tuple[int, ...]

_BANNER = re.compile(r"&&&& RUNNING TensorRT\.trtexec \[TensorRT v(\d{4,6})\]")


def banner_release(text: str) -> Release:
    """Return the release in the first trtexec banner of a text.

    Return an empty tuple if there is none; 7.x and older print no number.
    """
    match = _BANNER.search(text)
    return packed_release(int(match[1])) if match else ()


def spell(release: Release) -> str:
    """Return a release number as text with dots: (10, 13) becomes "10.13"."""
    return ".".join(map(str, release))


# --- plan ------------------------------------------------------------------------------------------------------------


# Bytes in front of a plan that hold its magic number and its versions.
_HEADER = 32
_MAKERS = {b"ftrt": "TensorRT", b"vtrt": "TensorRT for RTX"}
MODULES = {"TensorRT": "tensorrt", "TensorRT for RTX": "tensorrt_rtx"}
"""Python modules that load engines, by maker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnginePlan:
    """Header of an engine file.

    Attributes:
        path: the file.
        maker: "TensorRT" or "TensorRT for RTX".
        release: who built it, as (10, 9, 0, 34).
    """

    path: Path
    maker: str
    release: Release


def read_plan(path: Path) -> EnginePlan:
    """Read the header of the engine at `path`.

    Raises:
        InputFileError: missing, no engine, or cut short.
    """
    require_file(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(_HEADER)
    except OSError as error:
        raise unreadable(path, error) from error
    maker = _MAKERS.get(head[:4])
    if maker is None or len(head) < _HEADER:
        raise InputFileError(
            "the file is not a TensorRT engine of 8.6 or later",
            fix="pass an engine.plan, or an ONNX model",
            where=str(path),
        )
    declared = int.from_bytes(head[16:24], "little")
    if maker == "TensorRT for RTX" and declared != size:
        raise InputFileError(
            f"the engine file has {size} bytes, but its header declares {declared}: the file is damaged",
            fix="build or copy the engine again",
            where=str(path),
        )
    return EnginePlan(path=path, maker=maker, release=tuple(head[24:28]))


def require_trust(trust: bool, path: Path) -> None:
    """Refuse to load an engine that the user does not trust.

    Raises:
        UsageError: it is not trusted.
    """
    if not trust:
        raise UsageError(
            "an engine contains code that runs when it is loaded",
            fix="pass --trust only if you built the engine or you trust its author",
            where=str(path),
        )


def child_failure(error: ImportError | OSError) -> QdqError:
    """Return the error for an exception in a process that loads engines: a fault of the system, or no library."""
    fault = of_system(error) if isinstance(error, OSError) else None
    return fault or MissingPackage(str(error), fix="see qdqtool doctor")


def run_failure(
    code: int, message: str, path: Path, program: str = "the process that ran the engine"
) -> BuildError:
    """Return the error for a program that ended while it ran an engine."""
    return BuildError(
        f"{program} ended with code {code}: {message}",
        fix="rebuild the engine with this release and on this GPU",
        where=str(path),
    )
