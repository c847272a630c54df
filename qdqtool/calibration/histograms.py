"""Histograms of many tensors, and the file that stores them.

`histograms.npz` holds no Python objects: a JSON text as bytes ("about") and one array of counts, (tensors, 4096).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram, merge
from calibrators.kernels import BINS
from qdqtool.calibration.samples.arrays import members
from qdqtool.calibration.span import NOTHING, Span
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError
from qdqtool.io.files import write_bytes
from qdqtool.io.json_files import canonical

KIND: Final = "histograms"
SCHEMA: Final = 1
EQUALIZED: Final = "histograms.equalized.npz"
"""File name, in a run folder, for histograms of the network that `weights.equalize: auto` has equalized."""
_NUMBERS: Final = {
    "exponent": (int, type(None)),
    "low": (float,),
    "high": (float,),
    "total": (int,),
    "nan": (int,),
    "inf": (int,),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histograms:
    """Histograms of all tensors, and the samples they come from.

    Attributes:
        tensors: histogram by tensor name, sorted by name.
        samples: how many samples were run.
        meaningful: False when they were random.
        source: what they were, in words.
        span: which part of the samples this is.
        identity: digests of model, samples and manner; empty if not requested. Parts that are added up must agree in
            it.
    """

    tensors: Mapping[str, Histogram]
    samples: int
    meaningful: bool = True
    source: str = ""
    span: Span = NOTHING
    identity: Mapping[str, str] = field(default_factory=dict)


def save_histograms(path: Path, histograms: Histograms) -> None:
    """Write the histograms to `path`; equal content gives equal bytes."""
    names = sorted(histograms.tensors)
    about = {
        "kind": KIND,
        "schema": SCHEMA,
        "samples": histograms.samples,
        "meaningful": histograms.meaningful,
        "source": histograms.source,
        "span": asdict(histograms.span),
        "identity": dict(histograms.identity),
        "tensors": [{"name": name, **_numbers(histograms.tensors[name])} for name in names],
    }
    counts = (
        np.stack([histograms.tensors[name].counts for name in names])
        if names
        else np.zeros((0, BINS), np.int64)
    )
    if counts.max(initial=0) < 1 << 32:
        counts = counts.astype(np.uint32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.frombuffer(canonical(about).encode(), np.uint8), counts=counts)
    write_bytes(path, buffer.getvalue())


def load_histograms(path: Path) -> Histograms:
    """Read a file that `save_histograms` wrote.

    Raises:
        InputFileError: unreadable, damaged, another kind of file, or a newer schema.
    """
    found = {member.key: member for member in members(path)}
    if found.keys() != {"about", "counts"}:
        raise _misfit(path, "is not a file of histograms")
    about = _about(path, found["about"].whole())
    counts = found["counts"]
    entries = about["tensors"]
    if counts.shape != (len(entries), BINS) or counts.dtype.kind not in "iu":
        raise _misfit(
            path, f"holds counts of {counts.dtype} {counts.shape} for {counted(len(entries), 'tensor')}"
        )
    rows = counts.rows(range(len(entries)))
    tensors = dict(_histogram(path, entry, row) for entry, row in zip(entries, rows, strict=True))
    return Histograms(
        tensors=tensors,
        samples=about["samples"],
        meaningful=about["meaningful"],
        source=about["source"],
        span=Span(**about["span"]),
        identity=about["identity"],
    )


def fitting_histograms(run: Path) -> Path:
    """Return the path of the histograms that belong to the table of a run folder."""
    equalized = run / EQUALIZED
    return equalized if equalized.is_file() else run / "histograms.npz"


def merged(parts: Iterable[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    """Merge the histograms of all parts, sorted by tensor."""
    result: dict[str, Histogram] = {}
    for part in parts:
        for name, histogram in part.items():
            result[name] = merge(result[name], histogram) if name in result else histogram
    return dict(sorted(result.items()))


def _numbers(histogram: Histogram) -> dict[str, object]:
    return {name: getattr(histogram, name) for name in _NUMBERS}


def _about(path: Path, text: NDArray[Any]) -> dict[str, Any]:
    try:
        about = json.loads(text.tobytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _misfit(path, f"contains a damaged description: {error}") from error
    wanted = {
        "samples": int,
        "meaningful": bool,
        "source": str,
        "span": dict,
        "identity": dict,
        "tensors": list,
    }
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise _misfit(path, "is not a file of histograms")
    if not isinstance(about.get("schema"), int) or about["schema"] > SCHEMA:
        raise _misfit(path, f"has schema {about.get('schema')!r}; this version reads up to {SCHEMA}")
    if any(not isinstance(about.get(name), kind) for name, kind in wanted.items()):
        raise _misfit(path, "contains a damaged description")
    numbers = about["span"]
    if numbers.keys() != asdict(NOTHING).keys() or not all(
        isinstance(value, int) for value in numbers.values()
    ):
        raise _misfit(path, "contains a damaged description of its span")
    return about


def _histogram(path: Path, entry: Any, counts: NDArray[Any]) -> tuple[str, Histogram]:
    """Return the name of a tensor and its histogram."""
    is_right = isinstance(entry, dict) and isinstance(entry.get("name"), str)
    if not is_right or any(not isinstance(entry.get(name, ""), kinds) for name, kinds in _NUMBERS.items()):
        raise _misfit(path, "contains a damaged description of a tensor")
    histogram = Histogram(counts=counts.astype(np.int64), **{name: entry[name] for name in _NUMBERS})
    return entry["name"], histogram


def _misfit(path: Path, what: str) -> InputFileError:
    return InputFileError(what, fix="write it again with qdqtool calibrate", where=str(path))
