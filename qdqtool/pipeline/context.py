"""The state of a run that every step can use: request, folder, listener and samples."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from qdqtool.calibration.samples import SampleInput, Samples, open_samples
from qdqtool.calibration.samples.batches import SamplePart
from qdqtool.core.kinds import PREPARATION
from qdqtool.core.preparation import Preparation
from qdqtool.core.protocols import SampleSource
from qdqtool.core.tensors import TensorInfo
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import give_constants
from qdqtool.graph.qdq.stored_caches import with_float_caches
from qdqtool.pipeline.folder import RunFolder
from qdqtool.pipeline.preparations import with_known_inputs
from qdqtool.pipeline.random_shapes import Opener, shaped
from qdqtool.pipeline.request import ProgressListener, RunRequest


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
        options = self.recipe.samples
        return open_samples(
            self.shaped(self.request.samples, self.preparation.inputs),
            self.preparation.inputs,
            options.preprocess,
            limit=options.limit,
            on_nan=options.nan,
        )

    @cached_property
    def evaluation(self) -> SampleSource:
        """The evaluation samples, with labels if there are any."""
        spec = self.request.eval_samples or self.request.samples
        whole = open_samples(
            self.shaped(spec, self.preparation.inputs),
            self.preparation.inputs,
            self.recipe.samples.preprocess,
            labels=self.request.labels,
            limit=self.recipe.compare.limit,
            on_nan=self.recipe.samples.nan,
        )
        return whole if self.request.part is None else SamplePart(whole, *self.request.part)

    def open_samples(self) -> None:
        """Open all samples, so that their errors, and those of labels, are reported before the slow steps.

        Raises:
            UsageError: there are none of that name, or labels that do not fit them.
            InputFileError: they cannot be read, or do not fit the model.
        """
        _ = self.samples, self.evaluation

    def shaped(self, samples: SampleInput, inputs: tuple[TensorInfo, ...]) -> SampleInput:
        """Give random samples of a dynamic model the usual shapes of the engine, or shapes that the model runs with."""
        return shaped(samples, inputs, self.recipe.build.opt_shapes, Opener(self._brought))

    def _brought(self) -> Model:
        """Return the model as given, except for inputs that the recipe turns into constants."""
        return with_float_caches(give_constants(self.request.opened(), self.recipe.prepare.constants))

    def path(self, name: str) -> Path:
        """Return the path of a file in the run folder."""
        return self.folder / name
