"""A calibration cache in memory: its entries, and the exact text of its file."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from qdqtool.calibration.caches.header import Header
from qdqtool.core.calibration import INT8_LEVELS

TENSORRT, ORT_TEXT, ORT_JSON, ORT_FLATBUFFERS, TABLE = (
    "TensorRT cache",
    "onnxruntime text table",
    "onnxruntime JSON table",
    "onnxruntime flatbuffer table",
    "qdqtool table",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Range of one tensor.

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
        """Magnitude that maps to 127."""
        return self.scale * INT8_LEVELS

    @property
    def is_usable(self) -> bool:
        """Whether the scale is a positive, finite number."""
        return 0 < self.scale < float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadLine:
    """A line that is neither header nor entry."""

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
        """Return the entry of each tensor; of repeated entries the last, as trtexec does."""
        return {entry.tensor: entry for entry in self.entries}

    def repeated(self) -> dict[str, tuple[Entry, ...]]:
        """Return the tensors with more than one entry, and their entries."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.tensor, []).append(entry)
        return {tensor: tuple(entries) for tensor, entries in found.items() if len(entries) > 1}

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
