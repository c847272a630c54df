"""Passes a finished calibration cache to TensorRT up to 10.x; nothing is calibrated here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qdqtool.backends.flags import Flag
from qdqtool.backends.native.settings import refused_flag

_CLASSES = {
    "EntropyCalibration2": "IInt8EntropyCalibrator2",
    "EntropyCalibration": "IInt8EntropyCalibrator",
    "MinMaxCalibration": "IInt8MinMaxCalibrator",
    "LegacyCalibration": "IInt8LegacyCalibrator",
}
"""Calibrator classes by the last word of a cache's first line ("TRT-8600-EntropyCalibration2")."""


def attach_cache(trt: Any, config: Any, flags: tuple[Flag, ...]) -> Any:
    """Set a calibrator that only reads the cache of `--calib`. The caller must keep it alive until the build ends.

    Raises:
        NoEngine: no such file, an unknown kind of cache, or a library without calibrators.
    """
    flag = next((flag for flag in flags if flag.name == "calib"), None)
    if flag is None:
        return None
    if not hasattr(config, "int8_calibrator"):
        raise refused_flag(
            flag, "this release has no calibrators; turn the cache into Q/DQ: qdqtool cache to-qdq"
        )
    path = Path(flag.value or "")
    if not path.is_file():
        raise refused_flag(flag, "the file does not exist")
    content = path.read_bytes()
    kind = content.split(b"\n", 1)[0].decode("ascii", "replace").strip().rpartition("-")[2]
    if kind not in _CLASSES:
        raise refused_flag(flag, f"its first line names no calibration algorithm: {kind[:60]!r}")
    calibrator = _reader(getattr(trt, _CLASSES[kind]), content)
    config.int8_calibrator = calibrator
    return calibrator


def _reader(parent: Any, content: bytes) -> Any:
    class CacheReader(parent):  # type: ignore[misc] # the native base class has no types
        """Calibrator that returns the cache and no data."""

        def __init__(self) -> None:
            # The native base must be initialised by name: a cooperative call crashes the library.
            parent.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> None:
            del names

        def read_calibration_cache(self) -> bytes:
            return content

        def write_calibration_cache(self, cache: Any) -> None:
            del cache

        def get_quantile(self) -> float:
            return 0.9999

        def get_regression_cutoff(self) -> float:
            return 1.0

        def read_histogram_cache(self, length: int) -> None:
            del length

        def write_histogram_cache(self, data: Any, length: int) -> None:
            del data, length

    return CacheReader()
