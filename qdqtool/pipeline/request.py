"""The request for a run, the listener that receives its progress, and the state that every step can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from qdqtool.calibration.samples import SampleInput, Samples
from qdqtool.calibration.samples.batches import SamplePart
from qdqtool.core.commands import Command
from qdqtool.core.kinds import PREPARATION
from qdqtool.core.preparation import Preparation
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import Recipe
from qdqtool.core.tensors import TensorInfo
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import give_constants
from qdqtool.graph.qdq.kv_caches import with_float_caches
from qdqtool.pipeline.folder import RunFolder
from qdqtool.pipeline.preparations import with_known_inputs
from qdqtool.pipeline.random_shapes import Opener, add_usual_shapes, samples_for


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The request for a run.

    Attributes:
        model: the float ONNX file.
        recipe: the method.
        samples: where calibration samples come from, as typed on the command line, or objects.
        eval_samples: where evaluation samples come from; None compares on the calibration samples.
        labels: file of class indices for the evaluation samples, or None.
        out: the run folder.
        cache: folder of finished builds by digest, or None.
        histograms: a histograms.npz of the same model and samples that spares the collection, or None.
        table: a calibration.json whose ranges and shifts are taken, as far as their nodes are quantized, or None.
        calibration_cache: the cache whose scales the float model gets, or None.
        reference: the float model that a Q/DQ model is compared with; None uses what remains without its Q/DQ.
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
        """Return the command that repeats this run with the recipe in its folder. Objects that were passed appear as DATA."""
        words = [str(self.model), "--recipe", str(self.out / "recipe.yaml")]
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
        """Open the model, unless it is open already.

        Raises:
            InputFileError: it cannot be read.
        """
        return load(self.model) if self.brought is None else self.brought


class ProgressListener(Protocol):
    """Receives the progress of a run."""

    def started(self, step: str) -> None:
        """The step begins."""

    def progressed(self, done: int, total: int | None) -> None:
        """`done` of `total` pieces of the current step are finished."""

    def reported(self, words: str) -> None:
        """The current step reports what it does or what it found; its count of pieces starts again."""

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """The step has ended; `skipped` if its files were up to date and nothing was done."""


class NullProgress:
    """A listener that does nothing."""

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
    """A run in progress; files stay open so that no step reads them twice."""

    def __init__(self, request: RunRequest, folder: RunFolder, listener: ProgressListener) -> None:
        self.request = request
        self.recipe = with_known_inputs(request.recipe, request.samples, request.opened, request.model)
        self.folder = folder
        self.listener = listener
        self._models: dict[str, Model] = {}

    def model(self, name: str) -> Model:
        """Return the ONNX file `name` of the run folder, opened once."""
        if name not in self._models:
            self._models[name] = load(self.folder / name)
        return self._models[name]

    def forget(self, name: str) -> None:
        """Forget the opened file, since it was written again."""
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
        return whole if self.request.part is None else SamplePart(whole, *self.request.part)

    def open_samples(self) -> None:
        """Open all samples, so that their errors, and those of labels, are reported before the slow steps.

        Raises:
            UsageError: there are none of that name, or labels that do not fit them.
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
        """Open samples for these inputs, as the recipe prepares them."""
        runner = Opener(self._bring_model)
        return samples_for(samples, inputs, self.recipe, runner, labels=labels, limit=limit)

    def shaped(self, samples: SampleInput, inputs: tuple[TensorInfo, ...]) -> SampleInput:
        """Give random samples of a dynamic model the usual shapes of the engine, or shapes that the model runs with."""
        return add_usual_shapes(samples, inputs, self.recipe.build.opt_shapes, Opener(self._bring_model))

    def _bring_model(self) -> Model:
        """Return the model as given, except for inputs that the recipe turns into constants."""
        return with_float_caches(give_constants(self.request.opened(), self.recipe.prepare.constants))

    def path(self, name: str) -> Path:
        """Return the path of a file in the run folder."""
        return self.folder / name
