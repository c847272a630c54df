"""A float model and samples become a Q/DQ model in one process: one load, one preparation, one collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from qdqtool.calibration.span import Span
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert_for_engine, refuse_quantized
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.dynamic_range import reach_for
from qdqtool.placement.decide import decide

OnStep = Callable[[str, int, "int | None"], None]
"""Called with what is being done, and how many pieces of how many are done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """What was written.

    Attributes:
        placement: where Q/DQ went, and why.
        table: ranges, bias corrections, and findings about both.
        notes: what a reader of the model must know.
    """

    placement: Placement
    table: CalibrationTable
    notes: tuple[str, ...]


def quantize_file(model: Path, samples: str, out: Path, recipe: Recipe, on_step: OnStep) -> Quantization:
    """Place, calibrate, insert, and write the Q/DQ model at `out`.

    Raises:
        UsageError: the model is quantized already.
        InputFileError: the model or a sample cannot be read, or does not fit.
    """
    original = load(model)
    refuse_quantized(original)
    job = Calibration(CalibrationRequest(model=model, recipe=recipe, samples=samples))
    ready = prepare(original, recipe.preparing)
    job.use(ready, decide(ready.view, recipe.placing))
    method = recipe.calibrate.method
    collection = job.collection(job.collect_options([method]), resumable=False)
    histograms = collection.run(Span(total=len(job.samples)), on_progress=partial(on_step, "calibrate"))
    table = job.tables(histograms, [method])[method]
    reach = reach_for(ready, recipe.insert, job.samples, partial(on_step, "FP16 range"))
    made = insert_for_engine(ready, job.placement, table, recipe.insert, reach)
    save(made, out)
    return Quantization(
        placement=job.placement, table=replace(table, findings=job.findings(table)), notes=made.notes
    )
