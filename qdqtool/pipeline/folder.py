"""A run folder: its files, the step that made each file, and what the step depended on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from qdqtool.core.artefacts import Artefact
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import acquire, digest_file, make_folder, native_path, release, sweep, unwritable
from qdqtool.platform import resident_mib

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """The record of a finished step.

    Attributes:
        key: digest of everything the step depended on.
        outputs: digest of every file it wrote.
        measured: seconds and peak MiB as measured when it ran; never part of `key`.
    """

    key: str
    outputs: dict[str, str]
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprints:
    """The records of all finished steps of a run folder."""

    steps: dict[str, StepRecord] = field(default_factory=dict)


STEPS = Artefact(kind="steps", schema=1, type=Footprints)


class RunFolder:
    """The files of one run. A step is up to date if what it depends on and what it wrote are unchanged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def make(self) -> None:
        """Create the folder if it does not exist.

        Raises:
            InputFileError: it cannot be made, or what it holds could not be opened by onnxruntime and the builder.
        """
        native_path(self.path.absolute())
        try:
            make_folder(self.path)
        except OSError as error:
            raise InputFileError(
                f"cannot be created: {error.strerror}", fix="choose another --out", where=str(self.path)
            ) from error

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Lock this folder against a second run; with `wait`, wait until the other run has ended.

        Raises:
            UsageError: another run is at work here.
            InputFileError: the folder cannot be made.
        """
        self.make()
        lock = FileLock(self.path / ".lock", timeout=-1 if wait else 0)
        try:
            acquire(lock)
        except Timeout:
            raise UsageError(
                "another run is using this folder",
                fix="wait for it, or choose another --out",
                where=str(self.path),
            ) from None
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            sweep(self.path)
            yield
        finally:
            release(lock)

    def footprints(self) -> dict[str, StepRecord]:
        """Return the records of finished steps. If they cannot be read, all steps run again."""
        path = self / "steps.json"
        if not path.exists():
            return {}
        try:
            return dict(STEPS.read(path).steps)
        except InputFileError as error:
            log.warning("%s; all steps run again", error)
            return {}

    def remember(self, step: str, footprint: StepRecord) -> None:
        """Record that `step` has finished."""
        STEPS.write(self / "steps.json", Footprints(steps={**self.footprints(), step: footprint}))

    def is_up_to_date(self, step: str, key: str) -> bool:
        """Return whether `step` has run with this key and its files are unchanged since."""
        footprint = self.footprints().get(step)
        if footprint is None or footprint.key != key:
            return False
        return all(
            (self / name).is_file() and digest_file(self / name) == digest
            for name, digest in footprint.outputs.items()
        )


class UsageMeter:
    """A context that measures how long it took and how large the process grew.

    Peak memory is sampled every 20 ms from the operating system.
    """

    def __init__(self) -> None:
        self._peak = 0.0
        self._done = threading.Event()
        self._start = 0.0
        self._seconds = 0.0
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> UsageMeter:
        self._start = time.perf_counter()
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.perf_counter() - self._start
        self._done.set()
        self._watcher.join()

    @property
    def measured(self) -> dict[str, float]:
        """Return `seconds` and `peak_mib`."""
        return {"seconds": round(self._seconds, 3), "peak_mib": round(self._peak, 1)}

    def _watch(self) -> None:
        while True:
            self._peak = max(self._peak, resident_mib())
            if self._done.wait(0.02):
                return
