"""The input of the audit command: a run folder, layer information, or a Q/DQ model that must be built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from qdqtool.auditing.context import AuditContext, stage
from qdqtool.backends import BUILDERS
from qdqtool.backends.shapes import profiles
from qdqtool.core.explore import CostModel
from qdqtool.core.kinds import BUILD, PLACEMENT
from qdqtool.core.protocols import Builder, BuildRequest
from qdqtool.engine.diff import Explored, compare
from qdqtool.engine.layer_info import read
from qdqtool.engine.profile_forms import read_profile
from qdqtool.engine.view import view
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.engine_files import engine_of, log_of
from qdqtool.pipeline.random_shapes import shapes_of

_MODEL = ".onnx"


PREPARED = "model.prepared.onnx"
"""The float model in a run folder."""


def float_model(model: Path) -> str:
    """Return the float model of the run folder that contains this model; "" if it is in no run folder."""
    beside = model.with_name(PREPARED)
    return str(beside) if beside.is_file() else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditArguments:
    """The arguments of `qdqtool audit`.

    Attributes:
        subject: run folder, Q/DQ model, or layer information.
        layers: layer information of the model.
        placement: placement.json.
        sm: architecture, as "86".
        profile: times of the engine's layers.
        against: layer information of an engine to compare with.
        against_profile: times of that engine's layers.
        log: verbose log of the build.
    """

    subject: Path
    layers: Path | None = None
    placement: Path | None = None
    sm: str = ""
    profile: Path | None = None
    against: Path | None = None
    against_profile: Path | None = None
    log: Path | None = None

    @property
    def files(self) -> dict[str, str]:
        """The files of this audit for the placeholders in printed commands; see `core.advice.with_files`."""
        if self.subject.is_dir():
            prepared = _in(self.subject, PREPARED) or self.subject / "model.qdq.onnx"
            return {"model": str(prepared), "run": str(self.subject), "float_model": float_model(prepared)}
        if self.subject.suffix == _MODEL:
            layers = "" if self.layers is None else str(self.layers)
            return {"model": str(self.subject), "layers": layers, "float_model": float_model(self.subject)}
        return {"layers": str(self.subject)}


def gather(arguments: AuditArguments) -> AuditContext:
    """Return the audit context for the arguments; build the model if only a model is passed.

    Raises:
        UsageError: there is no layer information.
        InputFileError: a file cannot be read.
    """
    if arguments.subject.suffix == _MODEL and arguments.subject.is_file() and arguments.layers is None:
        with TemporaryDirectory() as place:
            return _scene(arguments, None, build(arguments.subject, Path(place), arguments.sm or "86"))
    folder = arguments.subject if arguments.subject.is_dir() else None
    return _scene(arguments, folder, _layers(arguments, folder))


def build(model: Path, folder: Path, sm: str) -> Path:
    """Build the model with TensorRT for RTX and return the path of its layer information.

    Dynamic inputs are built for their usual shapes.

    Raises:
        BuildError: the builder refuses the model.
        MissingPackage: the builder is not installed.
    """
    from qdqtool.cli.screen import stderr

    opened = load(model)
    shapes, notes = profiles(opened.view.inputs, {}, {}, {}, shapes_of(opened))
    for note in notes:
        stderr().print(f"note: {note}")
    request = BuildRequest(
        model=model, folder=folder, targets=(f"sm{sm.removeprefix('sm')}",), profiles=shapes
    )
    plugin: Builder = BUILDERS.load("rtx")
    plugin.build(request)
    return folder / "layers.txt"


def _scene(arguments: AuditArguments, folder: Path | None, path: Path) -> AuditContext:
    placement, built = arguments.placement or _in(folder, "placement.json"), _in(folder, "build.json")
    result = BUILD.read(built) if built else None
    model = (
        folder / (result.model if result and result.model else "model.qdq.onnx")
        if folder
        else arguments.subject
    )
    architectures = (f"sm{arguments.sm.removeprefix('sm')}",) if arguments.sm else ()
    engine = engine_of(path)
    scene = stage(
        engine,
        load(model) if model.suffix == _MODEL else None,
        PLACEMENT.read(placement) if placement else None,
        targets=architectures or (result.targets if result else ()),
    )
    log = arguments.log or _in(folder, "build.log")
    return replace(
        _add_comparison(scene, arguments),
        layers_file="layers.json" if folder else path.name,
        log=log_of(log, path, engine.form),
        log_file=(log or path).name,
    )


def _layers(arguments: AuditArguments, folder: Path | None) -> Path:
    alone = None if folder or arguments.subject.suffix == _MODEL else arguments.subject
    path = arguments.layers or _in(folder, "layers.txt") or _in(folder, "layers.json") or alone
    if path is None:
        raise UsageError(
            "no layer information to audit",
            fix="pass --layers FILE, or build the run folder first",
            where=str(arguments.subject),
        )
    return path


def _add_comparison(context: AuditContext, arguments: AuditArguments) -> AuditContext:
    """Return the audit context with costs of layers, times from a profile, and a comparison if requested."""
    profile = read_profile(arguments.profile) if arguments.profile else None
    explored = view(context.engine, profile=profile, cost_model=CostModel.EXACT)
    if arguments.against is None:
        return replace(context, explored=explored)
    rival = read(arguments.against)
    times = read_profile(arguments.against_profile) if arguments.against_profile else None
    left = Explored(name=arguments.against.name, engine=rival, view=view(rival, profile=times))
    right = Explored(name="this engine", engine=context.engine, view=explored)
    return replace(context, explored=explored, compared=compare(left, right))


def _in(folder: Path | None, name: str) -> Path | None:
    path = folder / name if folder else None
    return path if path is not None and path.is_file() else None
