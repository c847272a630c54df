"""Makes the report of a run folder from the files of its steps, in the same way during a run and after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from qdqtool.calibration.histograms import fitting_histograms, load_histograms
from qdqtool.core import kinds
from qdqtool.core.artefacts import Artefact
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.report import Report
from qdqtool.core.wording import Command
from qdqtool.engine.view import view
from qdqtool.errors import InputFileError
from qdqtool.pipeline import recipes
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.section import collect_data

T = TypeVar("T")


def read_material(run: Path) -> Material:
    """Read everything that the steps of a run wrote to its folder; missing parts are None or empty.

    Raises:
        InputFileError: a damaged artefact.
    """
    prepared = _read(run / "preparation.json", kinds.PREPARATION)
    inserted = _read(run / "insertion.json", kinds.INSERTION)
    built = _read(run / "build.json", kinds.BUILD)
    engine = _read(run / "layers.json", kinds.ENGINE)
    table = _read(run / "calibration.json", kinds.CALIBRATION)
    histograms = fitting_histograms(run)
    return Material(
        model_name=prepared.model if prepared else run.resolve().name,
        placement=_read(run / "placement.json", kinds.PLACEMENT),
        table=table,
        build=built,
        engine=engine,
        view=view(engine) if engine else None,
        log=_read(run / "log.json", kinds.LOG),
        histograms=load_histograms(histograms).tensors if histograms.is_file() else {},
        audit=_read(run / "findings.json", kinds.AUDIT),
        comparison=_read(run / "accuracy.json", kinds.ACCURACY),
        data=_read(run / "data.json", kinds.DATA),
        worth=_read(run / "worth.json", kinds.WORTH),
        sensitivity=_read(run / "sensitivity.json", kinds.SENSITIVITY),
        sections=collect_data(run) | _settings(run, table),
        notes=(
            *(prepared.notes if prepared else ()),
            *(inserted.notes if inserted else ()),
            *(built.notes if built else ()),
        ),
    )


def read_report(run: Path) -> Report:
    """Read the report of a run folder from report.json; without this file, make it from the other files. Add sensitivity.json.

    Raises:
        InputFileError: a missing folder, a folder without artefacts, or a damaged artefact.
    """
    if not run.is_dir():
        raise InputFileError(
            "the path is not a folder", fix=f"pass the --out folder of {Command('run')}", where=str(run)
        )
    if (run / "report.json").is_file():
        report = kinds.REPORT.read(run / "report.json")
        studied = _read(run / "sensitivity.json", kinds.SENSITIVITY)
        return replace(report, sensitivity=studied) if studied else report
    material = read_material(run)
    if material == Material(model_name=material.model_name):
        raise InputFileError(
            "the folder contains no artefacts to report",
            fix=f"pass the --out folder of {Command('run')}, or run a command that writes into this folder first",
            where=str(run),
        )
    models = [model for name in ("model.prepared.onnx", "model.qdq.onnx") if (model := run / name).is_file()]
    typed = Command("run", (str(models[0]), "--samples", "DATA")) if models else None
    return assemble(replace(material, typed=typed))


def _settings(run: Path, table: CalibrationTable | None) -> dict[str, dict[str, str]]:
    """Return the settings in which two runs may differ: the values of the recipe, and the calibration samples."""
    recipe = run / "recipe.yaml"
    if not recipe.is_file():
        return {}
    settings = recipes.values(recipe)
    if table is not None and table.samples is not None:
        settings["calibration samples"] = (
            f"{table.samples} of {table.source}" if table.source else str(table.samples)
        )
    return {"settings": settings}


def _read(path: Path, artefact: Artefact[T]) -> T | None:
    return artefact.read(path) if path.is_file() else None
