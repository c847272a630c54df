"""Plays back a recorded build. It needs no builder and no GPU; the build may come from another machine.

    qdqtool build model.onnx --out built --builder replay --flags "--from=recorded"

The recording is a folder. A recording that `qdqtool build` or `qdqtool run` made (it contains `build.json`) is used
unchanged, with the name and release of its builder. Any other folder must contain one log, `*.log`. It may contain
one engine, `*.plan` or `*.engine`, and one layer dump: `layers.txt`, or a `.json` file with "layer" or "graph" in its
name (as --exportLayerInfo writes it). The release is read from trtexec's banner in the log.

Files are copied, never run or loaded. A recording does not show whether it was made from this very model; the result
names its origin.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from qdqtool.backends.building.procedure import ENGINE, LAYERS, LOG, copy_build
from qdqtool.backends.flags import parse_flags
from qdqtool.backends.plan import banner_release, spell
from qdqtool.core.kinds import BUILD
from qdqtool.core.protocols import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.errors import InputFileError, UsageError

_HEAD = 1 << 16
"""Bytes at the start of a log that are searched for trtexec's banner."""


class ReplayBuilder:
    """Builder that copies the files of an earlier build, possibly from another machine."""

    def version(self) -> str:
        """Return "recorded"; the actual release is in the recording."""
        return "recorded"

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """Copy the recorded engine, log and layer information to `request.folder`.

        Raises:
            InputFileError: the recording cannot be read, or is not one.
            UsageError: no recording was named.
        """
        del on_progress
        start = time.monotonic()
        recording = _recording(request)
        recorded = _own(recording) if (recording / "build.json").is_file() else _foreign(recording)
        result, files = recorded
        copy_build(request.folder, files)
        return result, BuildCost(seconds=time.monotonic() - start, peak_mib=None, cached=True)


def _recording(request: BuildRequest) -> Path:
    flags = parse_flags(request.flags)
    foreign = [str(flag) for flag in flags if flag.name != "from"]
    named = [flag.value for flag in flags if flag.name == "from" and flag.value]
    if foreign or len(named) != 1:
        raise UsageError("a replay needs the folder of the recording", fix='pass --flags "--from=FOLDER"')
    path = Path(named[0])
    if not path.is_dir():
        raise InputFileError("the folder does not exist", fix="pass a recorded build folder", where=str(path))
    return path


def _own(recording: Path) -> tuple[BuildResult, dict[str, Path]]:
    """Read a recorded build of qdqtool: its `build.json`, and its files by target name."""
    result = BUILD.read(recording / "build.json")
    names = [name for name in (result.layers, result.log, result.model, result.engine) if name]
    for name in names:
        if Path(name).name != name or not (recording / name).is_file():
            raise InputFileError(
                f"the file names {name!r}, which is not in the folder",
                fix="record the build again",
                where=str(recording / "build.json"),
            )
    note = f"played back from a recorded build by {result.builder} {result.version}"
    return replace(result, notes=(*result.notes, note)), {name: recording / name for name in names}


def _foreign(recording: Path) -> tuple[BuildResult, dict[str, Path]]:
    """Read a recorded build of another tool: one log, optionally an engine and a layer dump."""
    files = sorted(path for path in recording.iterdir() if path.is_file())
    log = _only(recording, "log", [path for path in files if path.suffix == ".log"])
    engine = _only(recording, "engine", [path for path in files if path.suffix in {".plan", ".engine"}])
    layers = _only(recording, "layer dump", [path for path in files if _is_layer_dump(path)])
    if log is None:
        raise InputFileError(
            "the folder holds no log",
            fix="put the log of the build into the folder, as *.log",
            where=str(recording),
        )
    with log.open("rb") as stream:
        release = banner_release(stream.read(_HEAD).decode("utf-8", "replace"))
    result = BuildResult(
        builder="replay",
        version=spell(release) or "unknown",
        targets=(),
        engine=ENGINE if engine else "",
        log=LOG,
        layers=LAYERS if layers else None,
        engine_bytes=engine.stat().st_size if engine else 0,
        notes=("played back from a recorded build by an unknown builder",),
    )
    named = {LOG: log, ENGINE: engine, LAYERS: layers}
    return result, {name: path for name, path in named.items() if path is not None}


def _is_layer_dump(path: Path) -> bool:
    return path.name == LAYERS or (path.suffix == ".json" and ("layer" in path.name or "graph" in path.name))


def _only(recording: Path, kind: str, files: list[Path]) -> Path | None:
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise InputFileError(
            f"the folder holds more than one {kind}: {names}",
            fix="keep one of the files",
            where=str(recording),
        )
    return files[0] if files else None


PLUGIN = ReplayBuilder()
