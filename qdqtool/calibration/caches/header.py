"""The first line of a TensorRT calibration cache.

    TRT-8601-EntropyCalibration2          release 8.6.1: one digit major, one minor, two patch
    TRT-100300-EntropyCalibration2        release 10.3.0: two digits each
    0 3ff0000000000000 3fefffeb074a771d   5.x: algorithm, regression cut-off and quantile as big-endian doubles

TensorRT compares release and algorithm with its own and throws the cache away when they differ.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from qdqtool.errors import UsageError

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
        quantile: of the legacy calibrator, where the line says.
        cutoff: regression cut-off of the legacy calibrator, where the line says.
    """

    text: str
    version: tuple[int, int, int] | None
    algorithm: str
    quantile: float | None = None
    cutoff: float | None = None


def parse_header(line: str) -> Header | None:
    """Parse a line as a header; return None if it is not a header."""
    words = line.removeprefix(MARK).strip()
    named = _NAMED.fullmatch(words)
    if named:
        return Header(text=line, version=_version(int(named[1])), algorithm=named[2])
    old = _OLD.fullmatch(words)
    if old and int(old[1]) < len(_BY_NUMBER):
        cutoff, quantile = (struct.unpack(">d", bytes.fromhex(old[index]))[0] for index in (2, 3))
        return Header(
            text=line, version=None, algorithm=_BY_NUMBER[int(old[1])], quantile=quantile, cutoff=cutoff
        )
    return None


def make_header(release: str, algorithm: str) -> Header:
    """Make the header that TensorRT `release` ("8.6.1", "10.3") expects for `algorithm`.

    Raises:
        UsageError: not a release, one without calibrators, or an unknown algorithm.
    """
    words = release.split(".")
    if not 1 < len(words) <= 4 or not all(word.isdecimal() for word in words):
        raise UsageError(f"{release!r} is not a TensorRT release", fix="write it like 8.6.1 or 10.3.0")
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


def _version(number: int) -> tuple[int, int, int]:
    """Split the number of a release; from 10 on, the minor number has two digits."""
    if number >= 10_000:
        return number // 10_000, number // 100 % 100, number % 100
    return number // 1000, number // 100 % 10, number % 100
