"""The straight line of a trained model: trained ranges instead of calibrated ones, compared with the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qdqtool.accuracy.compare import compare
from qdqtool.backends.ort import open_runner
from qdqtool.core.kinds import ACCURACY, CALIBRATION
from qdqtool.io.files import digest_file
from qdqtool.pipeline import steps
from qdqtool.pipeline.comparing import noise_inside
from qdqtool.pipeline.context import RunContext
from qdqtool.pipeline.runner import LINE, Step


def course(trained: Path, reference: Path) -> tuple[Step, ...]:
    """The line with two steps exchanged.

    `calibrate` takes the ranges of the table `trained` where training had a quantizer, and calibrates the rest on the
    trained weights; `compare` measures against the float model `reference`, as it was before training.
    """

    def calibrate(work: RunContext) -> Mapping[str, float]:
        steps.calibrate(work)
        path = work.path("calibration.json")
        known = {
            entry.tensor: entry for entry in CALIBRATION.read(trained).ranges if entry.method == "trained"
        }
        table = CALIBRATION.read(path)
        CALIBRATION.write(
            path, replace(table, ranges=tuple(known.get(entry.tensor, entry) for entry in table.ranges))
        )
        return {}

    def against_the_original(work: RunContext) -> Mapping[str, float]:
        found = compare(
            open_runner(reference, description="float model before training", crowded=True),
            open_runner(work.path(steps.built_model(work)), description="trained Q/DQ model", crowded=True),
            work.evaluation,
            work.recipe.compare,
            on_progress=work.listener.progressed,
        )
        models = (work.model("model.prepared.onnx"), work.model("model.qdq.onnx"))
        inside = noise_inside(models, work.evaluation, work.recipe.compare)
        note = "tensors inside are compared with the trained float model"
        ACCURACY.write(work.path("accuracy.json"), replace(found, tensors=inside, notes=(*found.notes, note)))
        return {"samples": float(found.samples)}

    exchanged = {"calibrate": (calibrate, trained), "compare": (against_the_original, reference)}
    return tuple(_exchange(step, *exchanged[step.name]) if step.name in exchanged else step for step in LINE)


def _exchange(step: Step, act: object, file: Path) -> Step:
    def outside(work: RunContext) -> Mapping[str, str]:
        return {**step.outside(work), "file": digest_file(file)}

    assert callable(act)
    return replace(step, act=act, outside=outside)
