"""Histograms of many tensors: the samples that they cover, their file, and the addition of parts.

`histograms.npz` holds no Python objects: a JSON text as bytes ("about") and one array of counts, (tensors, 4096).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram, merge
from calibrators.kernels import BINS
from qdqtool.calibration.samples.arrays import members
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import write_bytes
from qdqtool.io.json_files import canonical

# --- span ------------------------------------------------------------------------------------------------------------
# Part of the samples that a collection covers.


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Span:
    """The part of the samples that a histogram covers: every `shards`-th sample from number `shard`, of which `done` ran.

    Attributes:
        shard: 0 to shards - 1.
        shards: into how many parts the samples are divided.
        total: how many samples there are in all parts together.
        done: how many samples of this part were run.
    """

    shard: int = 0
    shards: int = 1
    total: int = 0
    done: int = 0

    @property
    def positions(self) -> range:
        """Positions of this part among all samples."""
        return range(self.shard, self.total, self.shards)

    @property
    def left(self) -> range:
        """Positions of the samples in this part that did not run yet."""
        return self.positions[self.done :]

    @property
    def is_complete(self) -> bool:
        """Whether all samples of this part ran."""
        return not self.left

    def __str__(self) -> str:
        part = f"shard {self.shard + 1}/{self.shards}, " if self.shards > 1 else ""
        return f"{part}{self.done} of {count_noun(len(self.positions), 'sample')}"


NOTHING: Final = Span()
"""Empty span without samples."""


def parse_shard(text: str) -> tuple[int, int]:
    """Parse a shard such as "2/8", the second of eight, into its number (from 0) and the count.

    Raises:
        UsageError: not of that form.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    shard, shards = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= shard <= shards:
        raise UsageError(f"{text!r} is not a shard", fix="write --shard 2/8 for the second of eight shards")
    return shard - 1, shards


# --- histograms ------------------------------------------------------------------------------------------------------


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
    """Histograms of all tensors, and the samples that were counted.

    Attributes:
        tensors: histogram by tensor name, sorted by name.
        samples: how many samples were run.
        meaningful: False when they were random.
        source: description of the samples.
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
    arrays = {member.key: member for member in members(path)}
    if arrays.keys() != {"about", "counts"}:
        raise _misfit(path, "the file is not a file of histograms")
    about = _about(path, arrays["about"].whole())
    counts = arrays["counts"]
    entries = about["tensors"]
    if counts.shape != (len(entries), BINS) or counts.dtype.kind not in "iu":
        raise _misfit(
            path,
            f"the file holds counts of {counts.dtype} {counts.shape} for {count_noun(len(entries), 'tensor')}",
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
    """Return the histograms of a run folder: of the equalized network, if any, or else of the model."""
    equalized = run / EQUALIZED
    return equalized if equalized.is_file() else run / "histograms.npz"


def merge_histograms(parts: Iterable[Mapping[str, Histogram]]) -> dict[str, Histogram]:
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
        raise _misfit(path, f"the file contains a damaged description: {error}") from error
    kinds = {
        "samples": int,
        "meaningful": bool,
        "source": str,
        "span": dict,
        "identity": dict,
        "tensors": list,
    }
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise _misfit(path, "the file is not a file of histograms")
    if not isinstance(about.get("schema"), int) or about["schema"] > SCHEMA:
        raise _misfit(path, f"the file has schema {about.get('schema')!r}; this version reads up to {SCHEMA}")
    if any(not isinstance(about.get(name), kind) for name, kind in kinds.items()):
        raise _misfit(path, "the file contains a damaged description")
    numbers = about["span"]
    if numbers.keys() != asdict(NOTHING).keys() or not all(
        isinstance(value, int) for value in numbers.values()
    ):
        raise _misfit(path, "the file contains a damaged description of its span")
    return about


def _histogram(path: Path, entry: Any, counts: NDArray[Any]) -> tuple[str, Histogram]:
    """Return the name and the histogram of one tensor in a file."""
    is_right = isinstance(entry, dict) and isinstance(entry.get("name"), str)
    if not is_right or any(not isinstance(entry.get(name, ""), kinds) for name, kinds in _NUMBERS.items()):
        raise _misfit(path, "the file contains a damaged description of a tensor")
    histogram = Histogram(counts=counts.astype(np.int64), **{name: entry[name] for name in _NUMBERS})
    return entry["name"], histogram


def _misfit(path: Path, problem: str) -> InputFileError:
    return InputFileError(problem, fix="write the histograms again with qdqtool calibrate", where=str(path))


# --- shards ----------------------------------------------------------------------------------------------------------
# Adds up parts of a collection exactly, even if other machines made them.


_NAMES = {
    "model": "models",
    "samples": "samples",
    "collected": "tensors or options",
    "device": "kinds of device",
}


def merge_files(paths: Iterable[Path]) -> Histograms:
    """Merge the histograms of all shards. The result is equal, bit for bit, to the histograms of a single pass.

    Raises:
        InputFileError: a part belongs elsewhere, is there twice, is missing, or was interrupted.
    """
    return merge_parts({str(path): load_histograms(path) for path in paths})


def merge_parts(parts: Mapping[str, Histograms]) -> Histograms:
    """Merge the histograms of all shards in memory. Error messages name a shard by its key in `parts`.

    Raises:
        InputFileError: as above.
    """
    if not parts:
        raise InputFileError("there are no histograms to merge", fix="pass the .npz files of all shards")
    (first_name, first), *further = parts.items()
    shards: dict[int, str] = {}
    for name, part in parts.items():
        _check_same(name, part, first_name, first)
        if part.span.shard in shards:
            raise InputFileError(
                f"the file holds {part.span}, and {shards[part.span.shard]} holds the same shard",
                fix="remove one of the two files",
                where=name,
            )
        if not part.span.is_complete:
            raise InputFileError(
                f"the collection was interrupted: {part.span}",
                fix="run the command for this shard again; it continues where it stopped",
                where=name,
            )
        shards[part.span.shard] = name
    missing = [number for number in range(first.span.shards) if number not in shards]
    if missing:
        raise InputFileError(
            f"{len(missing)} of {first.span.shards} shards are missing, first {missing[0] + 1}/{first.span.shards}",
            fix=f"run the missing shards: qdqtool calibrate --shard {missing[0] + 1}/{first.span.shards}",
        )
    total = first.span.total
    return replace(
        first,
        tensors=merge_histograms(part.tensors for part in (first, *(part for _, part in further))),
        samples=sum(part.samples for part in parts.values()),
        span=Span(total=total, done=total),
    )


def releases() -> dict[str, str]:
    """Return the releases of the packages that can change the last bits of a histogram."""
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
            f"these histograms and {first_name} were collected from different {_NAMES[differing[0]]}",
            fix="merge only shards of one model, one set of samples, one recipe and one kind of device",
            where=name,
        )
    if (part.span.shards, part.span.total) != (first.span.shards, first.span.total):
        raise InputFileError(
            f"the file holds {part.span}, but {first_name} holds {first.span}",
            fix="merge only shards of one set, such as 1/8 to 8/8",
            where=name,
        )
