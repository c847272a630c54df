"""Stores the result of every run, so that stopped work can resume."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from qdqtool.errors import InputFileError
from qdqtool.io.files import make_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRun:
    """The result of one run on one sample.

    Attributes:
        noise: energy of the difference to the float model, per output.
        signal: energy of the float model's output, per output.
        hits: whether float model and subset were right; None if that is not asked.
        boxes: they are shares of boxes.
    """

    noise: tuple[float, ...]
    signal: tuple[float, ...]
    hits: tuple[float, float] | None = None
    boxes: bool = False


class RunStore(Protocol):
    """Results on a sample, by a key that identifies one set of nodes."""

    def read(self, sample: int) -> dict[str, SampleRun]:
        """Return the results of earlier runs on this sample."""

    def write(self, sample: int, shown: Mapping[str, SampleRun]) -> None:
        """Store runs on this sample."""


class RunMemory:
    """Stores results in memory, for the life of the process."""

    def __init__(self) -> None:
        self._shown: dict[int, dict[str, SampleRun]] = defaultdict(dict)

    def read(self, sample: int) -> dict[str, SampleRun]:
        """Return the results of earlier runs on this sample."""
        return dict(self._shown[sample])

    def write(self, sample: int, shown: Mapping[str, SampleRun]) -> None:
        """Store runs on this sample."""
        self._shown[sample].update(shown)


class RunJournal:
    """Stores results in a file with one line per sample and batch of runs; an incomplete line is ignored.

    The first line holds `key`, a digest of everything the runs depend on; under another key the file starts anew.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._memory = RunMemory()
        first, *rest = self._lines() or [None]
        if first != {"key": key}:
            self._replace({"key": key})
            return
        for line in rest:
            self._remember(line)

    def read(self, sample: int) -> dict[str, SampleRun]:
        """Return the results of earlier runs on this sample."""
        return self._memory.read(sample)

    def write(self, sample: int, shown: Mapping[str, SampleRun]) -> None:
        """Store runs on this sample; they are on disk when the call returns.

        Raises:
            InputFileError: the file cannot be written.
        """
        self._memory.write(sample, shown)
        self._append({"sample": sample, "runs": {name: asdict(entry) for name, entry in shown.items()}})

    def _lines(self) -> list[object]:
        if not self._path.is_file():
            return []
        return [_parsed(line) for line in self._path.read_text("utf-8", errors="replace").splitlines()]

    def _remember(self, line: object) -> None:
        try:
            entry = _LINE.validate_python(line)
        except ValidationError:
            return
        self._memory.write(entry.sample, entry.runs)

    def _replace(self, line: object) -> None:
        make_folder(self._path.parent)
        self._path.unlink(missing_ok=True)
        self._append(line)

    def _append(self, line: object) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                # A line that a killed process left unfinished must not swallow this one.
                stream.write(("" if stream.tell() == 0 else "\n") + json.dumps(line, sort_keys=True))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise InputFileError(
                f"cannot be written: {error.strerror or error}",
                fix="free some space or choose another --out; finished runs are kept",
                where=str(self._path),
            ) from error


def _parsed(line: str) -> object:
    """Return the JSON value of a line; None if the line is incomplete."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredLine:
    sample: int
    runs: dict[str, SampleRun]


_LINE = TypeAdapter(_StoredLine)
