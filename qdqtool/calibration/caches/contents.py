"""A calibration cache in memory: its entries, and the exact text of its file."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from qdqtool.core.calibration import INT8_LEVELS
from qdqtool.core.target import packed_release
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import UsageError

# --- header ----------------------------------------------------------------------------------------------------------
# The first line of a TensorRT calibration cache.
#
#     TRT-8601-EntropyCalibration2          release 8.6.1: one digit major, one minor, two patch
#     TRT-100300-EntropyCalibration2        release 10.3.0: two digits each
#     0 3ff0000000000000 3fefffeb074a771d   5.x: algorithm, regression cut-off and quantile as big-endian doubles
#
# TensorRT compares release and algorithm with its own and throws the cache away when they differ.


ALGORITHMS = ("EntropyCalibration2", "MinMaxCalibration", "EntropyCalibration", "LegacyCalibration")
LAST_WITH_CALIBRATORS = 10
"""Last major release with calibrators: TensorRT 11 removed implicit quantization."""
MARK = "\ufeff"
"""Byte order mark that some editors put before a text."""
_NAMED = re.compile(r"TRT-(\d{3,6})-(\w+)")
_OLD = re.compile(r"(\d) ([0-9a-f]{16}) ([0-9a-f]{16})")
_BY_NUMBER = ("LegacyCalibration", "EntropyCalibration", "EntropyCalibration2", "MinMaxCalibration")


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """TensorRT release and calibrator that wrote a cache.

    Attributes:
        text: the line itself.
        version: the TensorRT release as (major, minor, patch); None if the line does not say.
        algorithm: name of the calibrator.
    """

    text: str
    version: tuple[int, int, int] | None
    algorithm: str


def parse_header(line: str) -> Header | None:
    """Parse a line as a header; return None if it is not a header."""
    words = line.removeprefix(MARK).strip()
    named = _NAMED.fullmatch(words)
    if named:
        return Header(text=line, version=packed_release(int(named[1])), algorithm=named[2])
    old = _OLD.fullmatch(words)
    if old and int(old[1]) < len(_BY_NUMBER):
        return Header(text=line, version=None, algorithm=_BY_NUMBER[int(old[1])])
    return None


def make_header(release: str, algorithm: str) -> Header:
    """Make the header that TensorRT `release` ("8.6.1", "10.3") expects for `algorithm`.

    Raises:
        UsageError: not a release, one without calibrators, or an unknown algorithm.
    """
    words = release.split(".")
    if not 1 < len(words) <= 4 or not all(word.isdecimal() for word in words):
        raise UsageError(
            f"{release!r} is not a TensorRT release", fix="write the release like 8.6.1 or 10.3.0"
        )
    major, minor, patch = (*(int(word) for word in words[:3]), 0)[:3]
    if major > LAST_WITH_CALIBRATORS:
        raise UsageError(
            f"TensorRT {major} cannot read calibration caches: implicit quantization ended with release 10",
            fix="turn the float model and the cache into a Q/DQ model: qdqtool cache to-qdq",
        )
    if algorithm not in ALGORITHMS:
        raise UsageError(f"{algorithm!r} is not a calibrator", fix=f"choose one of {', '.join(ALGORITHMS)}")
    number = f"{major}{minor:02}{patch:02}" if major >= 10 else f"{major}{minor}{patch:02}"
    return Header(text=f"TRT-{number}-{algorithm}", version=(major, minor, patch), algorithm=algorithm)


# --- contents --------------------------------------------------------------------------------------------------------


TENSORRT, ORT_TEXT, ORT_JSON, ORT_FLATBUFFERS, TABLE = (
    "TensorRT cache",
    "onnxruntime text table",
    "onnxruntime JSON table",
    "onnxruntime flatbuffer table",
    "qdqtool table",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a calibration cache: the scale of one tensor.

    Attributes:
        tensor: its name.
        scale: the quantization step, amax / 127, as the file gives it; may be zero, negative or NaN.
        line: line number in the file, from 1; 0 if the file has no lines.
        text: the number as the file spells it ("3c010a14"); "" for a new entry.
    """

    tensor: str
    scale: float
    line: int = 0
    text: str = ""

    @property
    def amax(self) -> float:
        """The magnitude that INT8 stores as 127."""
        return self.scale * INT8_LEVELS

    @property
    def is_usable(self) -> bool:
        """Whether the scale of the entry is a positive, finite number."""
        return 0 < self.scale < float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadLine:
    """A line that is neither a header nor an entry."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Contents of a calibration cache.

    Attributes:
        format: one of the names above.
        header: of a TensorRT cache; None if there is none.
        entries: in the order of the file, repeats included.
        unread: unknown lines.
        newline: how lines end in the file.
        ends_open: whether the last line lacks its newline.
    """

    format: str = TENSORRT
    header: Header | None = None
    entries: tuple[Entry, ...] = ()
    unread: tuple[UnreadLine, ...] = ()
    newline: str = "\n"
    ends_open: bool = False

    def by_tensor(self) -> dict[str, Entry]:
        """Return the entry of each tensor. For repeated entries, return the last one, as trtexec does."""
        return {entry.tensor: entry for entry in self.entries}

    def repeated(self) -> dict[str, tuple[Entry, ...]]:
        """Return the tensors with more than one entry, and their entries."""
        by_tensor: dict[str, list[Entry]] = {}
        for entry in self.entries:
            by_tensor.setdefault(entry.tensor, []).append(entry)
        return {tensor: tuple(entries) for tensor, entries in by_tensor.items() if len(entries) > 1}

    def with_header(self, header: Header) -> Cache:
        """Replace the header; line numbers increase by one if there was no header."""
        shift = 1 if self.header is None else 0
        return replace(
            self,
            header=header,
            entries=tuple(replace(entry, line=entry.line + shift) for entry in self.entries),
            unread=tuple(replace(unread, line=unread.line + shift) for unread in self.unread),
        )


def cache_of(scales: Mapping[str, float], header: Header) -> Cache:
    """Make a new TensorRT cache, sorted by tensor name."""
    entries = (Entry(tensor=tensor, scale=scales[tensor]) for tensor in sorted(scales))
    return Cache(
        header=header, entries=tuple(replace(entry, line=line) for line, entry in enumerate(entries, start=2))
    )


def to_hex(scale: float) -> str:
    """Format a scale as TensorRT does: the bits of the float32 in hexadecimal, big-endian, without leading zeros."""
    with np.errstate(over="ignore"):
        bits = struct.unpack(">I", struct.pack(">f", np.float32(scale)))[0]
    return f"{bits:x}"


def from_hex(text: str) -> float:
    """Parse up to eight hexadecimal digits as the bits of a float32."""
    return float(struct.unpack(">f", bytes.fromhex(text.rjust(8, "0")))[0])


# --- comparing -------------------------------------------------------------------------------------------------------
# Compares two caches, and merges several into one.


Winner = Literal["error", "first", "last", "max"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One tensor whose scale differs between two calibration caches.

    Attributes:
        tensor: its name.
        first: scale in the first cache; None if it has no entry.
        second: scale in the second cache; None if it has no entry.
    """

    tensor: str
    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """Scale in the second cache / scale in the first.

        None if a scale is missing, or if the first is not positive and finite.
        """
        if self.first is None or self.second is None or not (0 < self.first < math.inf):
            return None
        return self.second / self.first

    @property
    def distance(self) -> float:
        """Sort key of a difference: absolute logarithm of the ratio; infinite if a scale is missing or unusable."""
        ratio = self.ratio
        return abs(math.log(ratio)) if ratio is not None and 0 < ratio < math.inf else math.inf


def differences(first: Cache, second: Cache) -> tuple[Difference, ...]:
    """Return every tensor whose scales differ, sorted by distance (largest first), then by name."""
    left, right = first.by_tensor(), second.by_tensor()
    compared = (
        Difference(
            tensor=tensor,
            first=left[tensor].scale if tensor in left else None,
            second=right[tensor].scale if tensor in right else None,
        )
        for tensor in sorted(left.keys() | right.keys())
    )
    apart = [entry for entry in compared if not _same(entry.first, entry.second)]
    return tuple(sorted(apart, key=lambda entry: (-entry.distance, entry.tensor)))


def merge_caches(caches: Sequence[Cache], winner: Winner = "error") -> Cache:
    """Merge the entries of all caches, sorted by tensor; header and format are those of the first cache.

    If caches disagree on a scale, `winner` decides: an error, the first, the last, or the largest.

    Raises:
        UsageError: scales disagree and `winner` is "error".
    """
    merged: dict[str, Entry] = {}
    disagreeing: list[str] = []
    for cache in caches:
        for tensor, entry in cache.by_tensor().items():
            earlier = merged.get(tensor)
            if earlier is None:
                merged[tensor] = entry
            elif not _same(earlier.scale, entry.scale):
                disagreeing.append(tensor)
                merged[tensor] = _choose_entry(earlier, entry, winner)
    if disagreeing and winner == "error":
        raise UsageError(
            f"{count_noun(len(set(disagreeing)), 'tensor has', 'tensors have')} different scales in the caches, first {disagreeing[0]!r}",
            fix=f"choose a scale with --take first, last or max; {Command('cache', ('diff',))} shows the differences",
        )
    first = caches[0]
    start = 2 if first.header else 1
    entries = tuple(
        replace(merged[tensor], line=line, text=merged[tensor].text if cache_of_same_kind(caches) else "")
        for line, tensor in enumerate(sorted(merged), start=start)
    )
    return replace(first, entries=entries, unread=(), ends_open=False)


def cache_of_same_kind(caches: Sequence[Cache]) -> bool:
    """Return True if all caches have one file format, so that numbers can be copied as text."""
    return len({cache.format for cache in caches}) == 1


def _choose_entry(earlier: Entry, entry: Entry, winner: Winner) -> Entry:
    if winner == "last":
        return entry
    if winner == "max":
        return max(
            earlier, entry, key=lambda candidate: candidate.scale if candidate.is_usable else -math.inf
        )
    return earlier


def _same(first: float | None, second: float | None) -> bool:
    both_nan = first is not None and second is not None and math.isnan(first) and math.isnan(second)
    return both_nan or first == second
