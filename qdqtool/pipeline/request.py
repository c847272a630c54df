"""The request for a run, the run folder, the listener for progress, and the state that all steps share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol

from filelock import FileLock, Timeout

from qdqtool.calibration.samples import SampleInput, Samples
from qdqtool.calibration.samples.opening import SamplePart
from qdqtool.core.artefacts import Artefact
from qdqtool.core.kinds import PREPARATION
from qdqtool.core.preparation import Preparation
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import Recipe
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import Command
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import give_constants
from qdqtool.graph.qdq.kv_caches import with_float_caches
from qdqtool.graph.view import Model
from qdqtool.io.files import acquire, digest_file, make_folder, native_path, release, sweep, unwritable
from qdqtool.pipeline.preparations import with_known_inputs
from qdqtool.pipeline.random_shapes import Opener, add_usual_shapes, samples_for
from qdqtool.pipeline.recipes import names_code
from qdqtool.platform import resident_mib

log = logging.getLogger(__name__)


# --- folder ----------------------------------------------------------------------------------------------------------
# A run folder: its files, the step that made each file, and what the step depends on.


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
    """The files of one run. A step is up to date if its inputs and its outputs are unchanged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def make(self) -> None:
        """Create the run folder if it does not exist.

        Raises:
            InputFileError: the folder cannot be created, or onnxruntime and the builder could not open files in it.
        """
        native_path(self.path.absolute())
        try:
            make_folder(self.path)
        except OSError as error:
            raise InputFileError(
                f"the folder cannot be created: {error.strerror}",
                fix="choose another --out",
                where=str(self.path),
            ) from error

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the run folder against a second run. With `wait`, wait until the other run has ended.

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
                fix="wait until that run ends, or choose another --out",
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
        """Return the records of finished steps. If the records cannot be read, all steps run again."""
        path = self / "steps.json"
        if not path.exists():
            return {}
        try:
            return dict(STEPS.read(path).steps)
        except InputFileError as error:
            log.warning("%s; all steps run again", error)
            return {}

    def remember(self, step: str, footprint: StepRecord) -> None:
        """Record in the run folder that `step` has finished."""
        STEPS.write(self / "steps.json", Footprints(steps={**self.footprints(), step: footprint}))

    def is_up_to_date(self, step: str, key: str) -> bool:
        """Return True if `step` ran with this digest of inputs and settings, and its files are unchanged."""
        footprint = self.footprints().get(step)
        if footprint is None or footprint.key != key:
            return False
        return all(
            (self / name).is_file() and digest_file(self / name) == digest
            for name, digest in footprint.outputs.items()
        )


class UsageMeter:
    """A context manager that measures its duration and the peak memory of the process.

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
        """Return the measured `seconds` and `peak_mib`."""
        return {"seconds": round(self._seconds, 3), "peak_mib": round(self._peak, 1)}

    def _watch(self) -> None:
        while True:
            self._peak = max(self._peak, resident_mib())
            if self._done.wait(0.02):
                return


# --- request ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The request for a run.

    Attributes:
        model: the float ONNX file.
        recipe: the method.
        samples: source of the calibration samples, as typed on the command line, or objects.
        eval_samples: source of the evaluation samples; None compares on the calibration samples.
        labels: file of class indices for the evaluation samples, or None.
        out: the run folder.
        cache: folder of finished builds by digest, or None.
        histograms: a histograms.npz of the same model and samples that spares the collection, or None.
        table: a calibration.json whose ranges and shifts are taken, as far as their nodes are quantized, or None.
        calibration_cache: the cache whose scales the float model gets, or None.
        reference: the float model with which a Q/DQ model is compared; None uses the model without its Q/DQ.
        brought: the opened model of the file `model`; None opens the file.
        part: which of the evaluation samples: the first one, and the distance to the next; None takes all.
    """

    model: Path
    recipe: Recipe
    samples: SampleInput
    eval_samples: SampleInput | None
    labels: str | None
    out: Path
    cache: Path | None = None
    histograms: Path | None = None
    table: Path | None = None
    calibration_cache: Path | None = None
    reference: Path | None = None
    brought: Model | None = None
    part: tuple[int, int] | None = None

    def typed(self) -> Command:
        """Return the command that repeats this run with the recipe in its folder. Python objects appear as DATA."""
        words = [str(self.model), "--recipe", str(self.out / "recipe.yaml")]
        words += ["--trust"] if names_code(self.recipe) else []
        samples = [("--samples", self.samples), ("--eval-samples", self.eval_samples)]
        files = [
            ("--labels", self.labels),
            ("--calibration-cache", self.calibration_cache),
            ("--reference", self.reference),
        ]
        for option, value in (*samples, *files):
            if value is not None:
                words += [option, str(value) if isinstance(value, str | Path) else "DATA"]
        return Command("run", (*words, "--out", str(self.out)))

    def opened(self) -> Model:
        """Open the requested model, unless it is open already.

        Raises:
            InputFileError: it cannot be read.
        """
        return load(self.model) if self.brought is None else self.brought


class ProgressListener(Protocol):
    """Receives the progress of a run."""

    def started(self, step: str) -> None:
        """Called when a step of a run begins."""

    def progressed(self, done: int, total: int | None) -> None:
        """Called when `done` of `total` pieces of the current step are finished."""

    def reported(self, words: str) -> None:
        """Called when the current step of a run reports a message; the step then counts its pieces from zero again."""

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """Called when a step of a run has ended; `skipped` means that the files of the step were up to date."""


class NullProgress:
    """A listener that ignores all calls."""

    def started(self, step: str) -> None:
        """Do nothing."""

    def progressed(self, done: int, total: int | None) -> None:
        """Do nothing."""

    def reported(self, words: str) -> None:
        """Do nothing."""

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """Do nothing."""


# --- context ---------------------------------------------------------------------------------------------------------
# The state of a run that every step can use: request, folder, listener and samples.


class RunContext:
    """A run in progress. Files stay open, so that each file is read once."""

    def __init__(self, request: RunRequest, folder: RunFolder, listener: ProgressListener) -> None:
        self.request = request
        self.recipe = with_known_inputs(request.recipe, request.samples, request.model, opened=request.opened)
        self.folder = folder
        self.listener = listener
        self._models: dict[str, Model] = {}

    def model(self, name: str) -> Model:
        """Return the ONNX file `name` of the run folder, opened once."""
        if name not in self._models:
            self._models[name] = load(self.folder / name)
        return self._models[name]

    def forget(self, name: str) -> None:
        """Forget the opened file `name`, because a step has written it again."""
        self._models.pop(name, None)

    @cached_property
    def preparation(self) -> Preparation:
        """Notes of the step `prepare` about the model."""
        return PREPARATION.read(self.folder / "preparation.json")

    @cached_property
    def samples(self) -> Samples:
        """The calibration samples."""
        return self.opened(self.request.samples, self.preparation.inputs, limit=self.recipe.samples.limit)

    @cached_property
    def evaluation(self) -> SampleSource:
        """The evaluation samples, with labels if there are any."""
        spec = self.request.eval_samples or self.request.samples
        limit, labels = self.recipe.compare.limit, self.request.labels
        whole = self.opened(spec, self.preparation.inputs, labels=labels, limit=limit)
        first, step = self.request.part or (0, 1)
        return whole if self.request.part is None else SamplePart(whole, range(len(whole))[first::step])

    def open_samples(self) -> None:
        """Open all samples, so that errors in samples and labels are reported before the slow steps.

        Raises:
            UsageError: there are no such samples, or the labels do not fit them.
            InputFileError: they cannot be read, or do not fit the model.
        """
        _ = self.samples, self.evaluation

    def opened(
        self,
        samples: SampleInput,
        inputs: tuple[TensorInfo, ...],
        *,
        labels: str | None = None,
        limit: int | None = None,
    ) -> Samples:
        """Open samples for the inputs of a model, as the recipe prepares them."""
        runner = Opener(self._bring_model)
        return samples_for(samples, inputs, self.recipe, runner, labels=labels, limit=limit)

    def shaped(self, samples: SampleInput, inputs: tuple[TensorInfo, ...]) -> SampleInput:
        """Give random samples of a dynamic model the usual shapes of the engine, or shapes with which the model runs."""
        return add_usual_shapes(samples, inputs, self.recipe.build.opt_shapes, Opener(self._bring_model))

    def _bring_model(self) -> Model:
        """Return the original model, in which constants replace the inputs that the recipe names."""
        return with_float_caches(give_constants(self.request.opened(), self.recipe.prepare.constants))

    def path(self, name: str) -> Path:
        """Return the path of the file `name` in the run folder."""
        return self.folder / name
