"""Adds up parts of a collection exactly, wherever they were made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from qdqtool.calibration.histograms import Histograms, load_histograms, merged
from qdqtool.calibration.span import Span
from qdqtool.errors import InputFileError

_NAMES = {"model": "another model", "samples": "other samples", "collected": "other tensors or options"}


def merge_files(paths: Iterable[Path]) -> Histograms:
    """Merge the histograms of all shards; the result is identical, bit for bit, to a single pass.

    Raises:
        InputFileError: a part belongs elsewhere, is there twice, is missing, or was interrupted.
    """
    return merge_parts({str(path): load_histograms(path) for path in paths})


def merge_parts(parts: Mapping[str, Histograms]) -> Histograms:
    """Merge the histograms of all shards in memory; keys are their names in messages.

    Raises:
        InputFileError: as above.
    """
    if not parts:
        raise InputFileError("no parts to merge", fix="pass the .npz files of all shards")
    (first_name, first), *others = parts.items()
    seen: dict[int, str] = {}
    for name, part in parts.items():
        _check_same(name, part, first_name, first)
        if part.span.shard in seen:
            raise InputFileError(
                f"is {part.span}, which {seen[part.span.shard]} also contains",
                fix="remove one of them",
                where=name,
            )
        if not part.span.is_complete:
            raise InputFileError(
                f"was interrupted: {part.span}",
                fix="run the same shard again; it continues where it stopped",
                where=name,
            )
        seen[part.span.shard] = name
    missing = [number for number in range(first.span.shards) if number not in seen]
    if missing:
        raise InputFileError(
            f"{len(missing)} of {first.span.shards} shards are missing, first {missing[0] + 1}/{first.span.shards}",
            fix=f"run them: qdqtool calibrate --shard {missing[0] + 1}/{first.span.shards}",
        )
    total = first.span.total
    return replace(
        first,
        tensors=merged(part.tensors for part in (first, *(other for _, other in others))),
        samples=sum(part.samples for part in parts.values()),
        span=Span(total=total, done=total),
    )


def releases() -> dict[str, str]:
    """Return the releases of packages that affect the bits of a part."""
    import numpy as np

    from qdqtool._version import __version__
    from qdqtool.runtime.session import release

    return {
        "qdqtool": __version__,
        "onnxruntime": release(),
        "numpy": np.__version__,
    }


def _check_same(name: str, part: Histograms, first_name: str, first: Histograms) -> None:
    differing = [key for key in _NAMES if part.identity.get(key) != first.identity.get(key)]
    if differing:
        raise InputFileError(
            f"was collected from {_NAMES[differing[0]]} than {first_name}",
            fix="merge only shards of one model, one set of samples and one recipe",
            where=name,
        )
    if (part.span.shards, part.span.total) != (first.span.shards, first.span.total):
        raise InputFileError(
            f"is {part.span} and does not belong to {first_name}, {first.span}",
            fix="merge only shards of one division",
            where=name,
        )
