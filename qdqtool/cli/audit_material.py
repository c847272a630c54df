"""What the audit command looks at: from a run folder, or from files one by one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtool.core.engine import Engine
from qdqtool.core.kinds import BUILD, PLACEMENT
from qdqtool.core.placement import Placement
from qdqtool.engine.read import read
from qdqtool.errors import UsageError
from qdqtool.graph.load import load
from qdqtool.graph.model import Model


@dataclass(frozen=True, kw_only=True)
class AuditMaterial:
    """Model, engine and what is known of how they were made."""

    model: Model
    engine: Engine
    placement: Placement | None
    targets: tuple[str, ...]


def gather(subject: Path, layers: Path | None, placement: Path | None, sm: str) -> AuditMaterial:
    """The material of a run folder or of a model; `layers`, `placement` and `sm` win over what the folder holds.

    Raises:
        UsageError: `subject` is a model and `layers` is missing, or the run folder has no engine yet.
        InputFileError: a file cannot be read.
    """
    folder = subject if subject.is_dir() else None
    layers = layers or _in(folder, "layers.txt") or _in(folder, "layers.json")
    if layers is None:
        raise UsageError(
            "there is no layer information to audit",
            fix="pass --layers FILE, or build the run folder first with `qdqtool build`",
            where=str(subject),
        )
    placement = placement or _in(folder, "placement.json")
    build = _in(folder, "build.json")
    given = (f"sm{sm.removeprefix('sm')}",) if sm else ()
    return AuditMaterial(
        model=load(folder / "model.qdq.onnx" if folder else subject),
        engine=read(layers),
        placement=PLACEMENT.read(placement) if placement else None,
        targets=given or (BUILD.read(build).targets if build else ()),
    )


def _in(folder: Path | None, name: str) -> Path | None:
    path = folder / name if folder else None
    return path if path is not None and path.is_file() else None
