"""A run folder: files, and which step made each of them from what."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from qdqtool.core.artefacts import Artefact
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import digest_file, make_folder, native_path, sweep, unwritable
from qdqtool.io.folders import acquire, release
from qdqtool.io.json_files import canonical

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What a finished step left behind.

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
    """All finished steps of a run folder."""

    steps: dict[str, StepRecord] = field(default_factory=dict)


STEPS = Artefact(kind="steps", schema=1, type=Footprints)


class RunFolder:
    """The files of one run; a step is up to date when what it depends on and what it wrote are unchanged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def make(self) -> None:
        """Make the folder where it is not there yet.

        Raises:
            InputFileError: it cannot be made, or what it holds could not be opened by onnxruntime and the builder.
        """
        native_path(self.path.absolute())
        try:
            make_folder(self.path)
        except OSError as error:
            raise InputFileError(
                f"cannot be made: {error.strerror}", fix="choose another --out", where=str(self.path)
            ) from error

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep a second run out of this folder, or `wait` until the first one has ended.

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
                "another run is at work in this folder",
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
        """What is known of finished steps; an unreadable record means that all steps run again."""
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
        """Whether `step` has run with this key and its files are as it left them."""
        footprint = self.footprints().get(step)
        if footprint is None or footprint.key != key:
            return False
        return all(
            (self / name).is_file() and digest_file(self / name) == digest
            for name, digest in footprint.outputs.items()
        )


def key_of(parts: Mapping[str, object]) -> str:
    """One digest for everything a step depends on."""
    return hashlib.sha256(canonical(dict(parts)).encode()).hexdigest()
