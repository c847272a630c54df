"""Results of API calls that return a model or an engine together with reports."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.comparison import Comparison
from qdqtool.core.findings import Finding
from qdqtool.core.fixes import FixReport, RepairReport
from qdqtool.core.placement import Placement
from qdqtool.core.preparation import Conversion
from qdqtool.core.protocols import BuildResult
from qdqtool.core.report import Report
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.showing import Displayable, draw_with, lists_of, no_list
from qdqtool.core.sweep import Sweep
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.io.files import make_folder, path_of, write_bytes

if TYPE_CHECKING:
    import onnx
    import onnx_graphsurgeon as gs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class ModelResult(Displayable):
    """An ONNX model that a call of the API returned.

    Attributes:
        model: the ONNX model, in memory.
        notes: remarks that a reader needs, one sentence each.
    """

    model: onnx.ModelProto = field(repr=False)
    notes: tuple[str, ...] = ()

    def graph(self) -> gs.Graph:
        """Return the model as a graph of onnx-graphsurgeon."""
        import onnx_graphsurgeon

        return onnx_graphsurgeon.import_onnx(self.model)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the ONNX file and return its path. Weights above 2 GiB are written beside the file.

        Raises:
            InputFileError: the folder cannot be written.
        """
        from qdqtool.graph.onnx_io.save import save
        from qdqtool.graph.view import Model

        # A model in memory has no file, so no file can be overwritten by mistake.
        place = path_of(path)
        save(Model(proto=self.model, path=Path(os.devnull)), place)
        return place

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the model, as plain lists, dicts, numbers and strings."""
        entries: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.repr:
                entries[each.name] = value.to_dict() if isinstance(value, Displayable) else _plain(value)
        return entries


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Quantized(ModelResult):
    """A Q/DQ model with its placement, the reasons, and the ranges."""

    placement: Placement
    calibration: CalibrationTable

    def headline(self) -> str:
        """One line: the number of quantized inputs and the number of ranges."""
        inputs = f"{len(self.placement.quantized)} of {count_noun(len(self.placement.decisions), 'input')}"
        return f"{inputs} of nodes quantized, {count_noun(len(self.ranges), 'range')}"

    @property
    def ranges(self) -> tuple[TensorRange, ...]:
        """The calibrated ranges: one per tensor, sorted by name."""
        return self.calibration.ranges

    def to_dataframe(self, table: str = "ranges") -> Any:
        """Return the ranges, or another list of `calibration` or `placement`, as a data frame.

        Raises:
            UsageError: neither has such a list.
            MissingPackage: neither pandas nor polars is installed.
        """
        ranges, decisions = lists_of(self.calibration), lists_of(self.placement)
        if table and table not in (*ranges, *decisions):
            raise no_list(table, [*dict.fromkeys((*ranges, *decisions))])
        return (self.calibration if not table or table in ranges else self.placement).to_dataframe(
            table or "ranges"
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Converted(ModelResult):
    """A model whose float part was converted."""

    conversion: Conversion

    def to_dataframe(self, table: str = "") -> Any:
        """Return a list of `conversion` as a data frame."""
        return self.conversion.to_dataframe(table)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Repaired(ModelResult):
    """A repaired Q/DQ model and the changes."""

    report: RepairReport

    def to_dataframe(self, table: str = "changes") -> Any:
        """Return the changes, or another list of `report`, as a data frame."""
        return self.report.to_dataframe(table)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Fixed(ModelResult):
    """Result of `fix`: the best model, the trials, and the remaining findings."""

    report: FixReport
    findings: tuple[Finding, ...]

    def to_dataframe(self, table: str = "trials") -> Any:
        """Return the trials, or another list of `report`, as a data frame."""
        return self.report.to_dataframe(table)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class BuiltEngine(Displayable):
    """An engine in memory, with the details of its build.

    Attributes:
        result: builder, targets, shapes, warnings and notes.
        files: content of the engine, its verbose log and its layer information, by file name.
    """

    result: BuildResult
    files: dict[str, bytes] = field(repr=False)

    @property
    def plan(self) -> bytes:
        """The serialized engine."""
        return self.files[self.result.engine]

    @property
    def log(self) -> str:
        """The complete verbose log of the engine builder."""
        return self.files[self.result.log].decode("utf-8", "replace")

    @property
    def layers(self) -> str:
        """The layer information of the engine as JSON text; "" if the builder wrote none."""
        name = self.result.layers
        return "" if name is None else self.files[name].decode("utf-8", "replace")

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the build, such as shapes of dynamic inputs."""
        return self.result.notes

    @property
    def targets(self) -> tuple[str, ...]:
        """GPU architectures that the engine supports."""
        return self.result.targets

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write engine, log, layer information and build.json into the folder `path`, and return the folder.

        Raises:
            InputFileError: the folder cannot be written.
        """
        from qdqtool.core.kinds import BUILD

        folder = path_of(path)
        if folder.is_file():
            raise UsageError("the path is a file", fix="pass a folder", where=str(folder))
        make_folder(folder)
        for name, content in self.files.items():
            write_bytes(folder / name, content)
        BUILD.write(folder / "build.json", self.result)
        return folder

    def to_dict(self) -> dict[str, Any]:
        """Return the build result as plain lists, dicts, numbers and strings."""
        return self.result.to_dict()

    def to_dataframe(self, table: str = "layers") -> Any:
        """Return the engine's layers, or a list of `result`, as a data frame."""
        if table != "layers":
            return self.result.to_dataframe(table)
        from qdqtool.engine.layer_info import read_text

        return read_text(self.layers, where=self.result.layers or "layers").to_dataframe("layers")


def _plain(value: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_python(value, mode="json") if value != () else []


# --- charts ----------------------------------------------------------------------------------------------------------
# Charts of results for `plot`.


def _charts_of(result: Any) -> dict[str, Any]:
    """Return the charts of a result by their names; {} if it has none."""
    from qdqtool.report import figures, sweeps
    from qdqtool.report.assemble import report_of
    from qdqtool.report.svg import Picture

    if isinstance(result, Sweep):
        return {"sweep": Picture(sweeps.chart(result))}
    if isinstance(result, (Comparison, Sensitivity)):
        result = report_of(result)
    if not isinstance(result, Report):
        return {}
    return {name: Picture(drawing) for name, drawing in figures.charts(result).items()}


draw_with(_charts_of)
