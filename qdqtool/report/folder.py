"""Reads a run folder back into a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from qdqtool.core import kinds
from qdqtool.core.artefacts import Artefact
from qdqtool.core.report import Report
from qdqtool.errors import InputFileError
from qdqtool.report.assemble import Material, assemble

T = TypeVar("T")


def read_report(run: Path) -> Report:
    """The report of a run folder: its report.json, else what its other artefacts give; with sensitivity.json.

    Raises:
        InputFileError: no such folder, nothing to report on, or a damaged artefact.
    """
    if not run.is_dir():
        raise InputFileError("is not a folder", fix="pass the --out folder of `qdqtool run`", where=str(run))
    studied = _read(run / "sensitivity.json", kinds.SENSITIVITY)
    if (run / "report.json").is_file():
        found = kinds.REPORT.read(run / "report.json")
        return replace(found, sensitivity=studied) if studied else found
    material = Material(
        model_name=run.resolve().name,
        placement=_read(run / "placement.json", kinds.PLACEMENT),
        table=_read(run / "calibration.json", kinds.CALIBRATION),
        build=_read(run / "build.json", kinds.BUILD),
        engine=_read(run / "layers.json", kinds.ENGINE),
        audit=_read(run / "findings.json", kinds.AUDIT),
        comparison=_read(run / "accuracy.json", kinds.ACCURACY),
        sensitivity=studied,
    )
    if material == Material(model_name=material.model_name):
        raise InputFileError(
            "holds no artefacts to report on",
            fix="pass the --out folder of `qdqtool run`, or run a step into this folder first",
            where=str(run),
        )
    return assemble(material)


def _read(path: Path, artefact: Artefact[T]) -> T | None:
    return artefact.read(path) if path.is_file() else None
