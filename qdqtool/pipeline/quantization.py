"""Turns a float model and samples into a Q/DQ model in one process, with one load, one preparation and one collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from qdqtool.calibration.samples import SampleInput
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.kinds import PLACEMENT
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare, prepare_as_placed
from qdqtool.graph.provenance import Provenance, stamp_provenance
from qdqtool.graph.qdq.insert import insert_for_engine, refuse_quantized
from qdqtool.graph.view import Model
from qdqtool.io.json_files import digest_of
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.conversion import reach_for
from qdqtool.pipeline.preparations import with_known_inputs, written
from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
from qdqtool.placement.decide import decide
from qdqtool.runtime.operators import use_operators
from qdqtool.runtime.session import computing_on

OnStep = Callable[[str, int, "int | None"], None]
"""Function called with the current step, the pieces that are done, and their total number."""


_SECTIONS: Final = ("prepare", "place", "calibrate", "weights", "insert")
"""Sections of a recipe that a Q/DQ model depends on. The preparation of samples is not listed, because it is in their
digest.
"""


def recipe_digest(recipe: Recipe) -> str:
    """Return the SHA-256 of the settings that determine a Q/DQ model."""
    return digest_of({name: getattr(recipe, name).model_dump(mode="json") for name in _SECTIONS})


def mark_provenance(model: Model, recipe: Recipe, table: CalibrationTable, samples: str) -> Model:
    """Return the Q/DQ model with its provenance. `samples` is the digest of the samples; "" if unknown."""
    methods = {entry.method for entry in table.ranges if entry.axis is None and entry.method}
    provenance = Provenance(
        recipe=recipe_digest(recipe),
        samples=samples,
        method=", ".join(sorted(methods)),
        pictures=written(recipe),
    )
    return stamp_provenance(model, provenance)


class QuantizationJob:
    """A float model that is loaded, prepared and placed, and the samples for its ranges.

    `opened` gives the model in `path` if it is already open.

    Attributes:
        model: the prepared model.
        placement: slots with Q/DQ, and the reasons.

    Raises:
        UsageError: the model is quantized already, or a pattern of the recipe matches nothing.
        InputFileError: the model or the placement cannot be read.
    """

    def __init__(
        self,
        path: Path,
        recipe: Recipe,
        samples: SampleInput = "",
        placement: Placement | Path | None = None,
        *,
        opened: Callable[[], Model] | None = None,
    ) -> None:
        use_operators(recipe)
        original = load(path) if opened is None else opened()
        refuse_quantized(original)
        refuse_unmatched(recipe, original.view, "prepare")
        recipe = with_known_inputs(recipe, samples, path, opened=lambda: original)
        self._recipe = recipe
        self.model: Model
        self.placement: Placement
        if placement is None:
            self.model = prepare(original, recipe.preparing)
            self.placement = decide(self.model.view, recipe.placing)
        else:
            self.placement = PLACEMENT.read(placement) if isinstance(placement, Path) else placement
            self.model = prepare_as_placed(original, recipe.preparing, self.placement)
        refuse_unmatched(recipe, self.model.view, "calibrate", "insert", *([] if placement else ["place"]))
        self._job = Calibration(CalibrationRequest(model=path, recipe=recipe, samples=samples))
        self._job.use(self.model, self.placement)

    def table(self, on_step: OnStep) -> CalibrationTable:
        """Return the ranges, with corrected biases and findings if the recipe and the model give any.

        Raises:
            UsageError: there are no samples.
            InputFileError: a sample cannot be read, or does not fit.
        """
        return self._job.table(partial(on_step, "calibrate"))

    def inserted(self, table: CalibrationTable, on_step: OnStep = lambda *_: None) -> Model:
        """Return the Q/DQ model with notes of its placement. Tensors that overflow FP16 on the samples stay FP32.

        Raises:
            UsageError: a quantized tensor has no range.
        """
        options = self._recipe.insert
        reach, notes = None, tuple[str, ...]()
        if self._job.request.samples:
            with computing_on(self._recipe.compute.device):
                reach, notes = reach_for(
                    self.model, options, self._job.samples, partial(on_step, "FP16 range")
                )
        samples = self._job.samples.digest if self._job.request.samples else ""
        quantized = mark_provenance(
            insert_for_engine(self.model, self.placement, table, options, reach), self._recipe, table, samples
        )
        notes = (*self._job.input_notes, *self.placement.notes, *quantized.notes, *notes)
        return replace(quantized, notes=tuple(dict.fromkeys(notes)))
