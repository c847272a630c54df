"""Kinds of files, recognized by content and not by name, and the commands that read them.

Used in messages about a wrong file.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from shlex import quote

from qdqtool.core.wording import Command
from qdqtool.errors import InputFileError, QdqError, UsageError

# Number of bytes at each end of a file that show its kind.
_HEAD = 1 << 16
_LOG = re.compile(rb"\[(?:TRT|TensorRT|V|I|W|E)\]|&&&& RUNNING TensorRT|TensorRT-RTX")
_VLLM = re.compile(
    rb"\bvllm[/.]|vLLM API server|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\]"
)
_TIMES = re.compile(rb"\s*\[\s*\{\s*\"(?:start(?:In|Enq|H2d|Compute)Ms|(?:in|h2d|compute|latency)Ms)\"")
_CACHE = re.compile(rb"TRT-\d{3,6}-\w+\s*\n|[^\n]+: [0-9a-f]{8}\r?\n")
_LAYERS = re.compile(rb'"Layers"\s*:|"LayerType"\s*:|"averageMs"')
_ARTEFACT = re.compile(rb'\n "kind": "([a-z-]+)",\n "provenance"')
"""Pattern of an artefact's kind. Artefacts are written with sorted keys, so the kind follows the data, near the end."""
_TAIL = 4096
_OTHER_KIND = re.compile(r"\b(?:is not|is no|are not|holds no layer|not JSON|not UTF-8)\b")
"""Pattern of error messages about a file of the wrong kind."""
_OF_MODELS = frozenset(
    [
        "run",
        "quantize",
        "convert",
        "place",
        "calibrate",
        "insert",
        "build",
        "compare",
        "audit",
        "fix",
        "lint",
        "predict",
        "repair",
        "scales",
        "sensitivity",
        "sweep",
        "engine",
        "to-qdq",
        "time",
        "report",
    ]
)
"""Commands that accept an ONNX model in some argument."""
_OF_SAMPLES = frozenset({"--samples", "--eval-samples"})
_ONNX = re.compile(rb"\x08[\x01-\x20](?:[\x12\x1a\x22\x28\x3a\x42]|\x00)")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileKind:
    """A kind of file that a user may pass, and the commands that read it.

    Attributes:
        name: name of the kind.
        words: words that name this kind; an error with one of these words needs no further hint.
        commands: commands that read the kind, with `FILE` for its path.
    """

    name: str
    words: tuple[str, ...]
    commands: str


def advise_other_command(error: QdqError, arguments: list[str]) -> QdqError:
    """If the user passed the wrong kind of file, return the error with commands that read this file."""
    if not isinstance(error, (InputFileError, UsageError)) or not error.where:
        return error
    # A place inside a file of JSON is its name and an index: "times.json[0], input 'x'".
    names = [
        word
        for word in arguments
        if any(error.where == name or error.where.startswith(f"{name}[") for name in (word, Path(word).name))
    ]
    path = next((Path(word) for word in names if Path(word).is_file()), None)
    if path is None:
        return error
    if not path.stat().st_size:
        return error if "is empty" in error.what else _say_empty(error)
    kind = kind_of(path)
    if kind is None or any(word in error.what for word in kind.words):
        return error
    if kind is MODEL and set(arguments) & _OF_MODELS and not _OTHER_KIND.search(error.what):
        return error  # a model was expected, and the reader reported its error
    if kind is SAMPLES and any(
        option in _OF_SAMPLES and word in names for option, word in pairwise(arguments)
    ):
        return error  # samples were expected, and their error was reported
    named = quote(str(path))
    if any(f" {word} FILE" in kind.commands for word in arguments[:1]):
        return error  # it would suggest the command that failed
    says = (
        f"the file has the name of {kind.name}, but not its content"
        if kind in _MARKED and not _kind_by_content(path)
        else f"this is {kind.name}: {kind.commands.replace('FILE', named)}"
    )
    return type(error)(error.what, fix=f"{error.fix}; {says}", where=error.where)


def _say_empty(error: QdqError) -> QdqError:
    return type(error)("the file is empty", fix="write or copy the file again", where=error.where)


def kind_of(path: Path) -> FileKind | None:
    """Return the kind of a file from its content; if that is unclear, from its suffix; None if unknown."""
    return _kind_by_content(path) or _BY_SUFFIX.get(path.suffix.lower())


def _kind_by_content(path: Path) -> FileKind | None:
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
            stream.seek(-min(_TAIL, path.stat().st_size), 2)
            tail = stream.read()
    except OSError:
        return None
    artefact = _ARTEFACT.search(tail) if head.startswith(b"{") else None
    if artefact is not None:
        return _ARTEFACTS.get(artefact[1].decode(), RUN_FILE)
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    return next((kind for test, kind in _BY_CONTENT if test(head)), None)


def _archive(path: Path) -> FileKind | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return None
    if any(name.endswith(".npy") for name in names):
        return SAMPLES
    if any(name.endswith(("/version", "archive_format", "data.pkl")) for name in names):
        return TORCH
    return None


SAMPLES = FileKind(
    name="a file of arrays",
    words=(".npz", ".npy"),
    commands=f"samples go to --samples of {Command('run', ('MODEL', '--samples', 'FILE', '--out', 'runs/first'))}",
)
TORCH = FileKind(
    name="a file of PyTorch",
    words=("PyTorch", "torch"),
    commands=f"{Command('run')} takes .pt2 files of torch.export and file.py:function, and checkpoints of Ultralytics if it is installed; export anything else with torch.onnx.export first",
)
MODEL = FileKind(
    name="an ONNX model",
    words=("ONNX",),
    commands=f"{Command('run', ('FILE', '--out', 'runs/first'))} quantizes it and builds the engine, {Command('lint', ('FILE',))} checks its Q/DQ",
)
RECIPE = FileKind(
    name="a YAML file",
    words=("recipe", "YAML"),
    commands=f"{Command('recipe', ('show', 'FILE'))} reads recipes, and {Command('run', ('MODEL', '--recipe', 'FILE'))} uses them",
)
LOG = FileKind(
    name="the log of a build",
    words=("log of", "build log"),
    commands=f"{Command('parse', ('FILE',))} reads it",
)
LAYERS = FileKind(
    name="layer information of an engine",
    words=("layer information",),
    commands=f"{Command('engine', ('show', 'FILE'))} reads it, and {Command('audit', ('FILE',))} lists the nodes that are not INT8",
)
CACHE = FileKind(
    name="a calibration cache",
    words=("calibration cache",),
    commands=f"{Command('cache', ('show', 'FILE'))} reads it, and {Command('cache', ('to-qdq', 'MODEL', 'FILE'))} turns it into a Q/DQ model",
)
TIMES = FileKind(
    name="a file of times of inferences (--exportTimes)",
    words=("--exportTimes",),
    commands=f"{Command('engine', ('about', 'FILE'))} reads it",
)
ENGINE = FileKind(
    name="an engine",
    words=("engine",),
    commands=f"only its builder reads it; {Command('engine', ('show',))} reads its layer information (--exportLayerInfo)",
)
SCRIPT = FileKind(
    name="a Python script", words=("script",), commands=f"{Command('migrate', ('FILE',))} reads build scripts"
)
IMAGE = FileKind(
    name="an image",
    words=("image",),
    commands=f"a folder of images goes to --samples of {Command('run', ('MODEL', '--samples', 'FOLDER', '--out', 'runs/first'))}",
)


RUN_FILE = FileKind(
    name="a file of a run folder",
    words=(),
    commands=f"{Command('report', ('FOLDER',))} reads the folder that it is from",
)
_ARTEFACTS = {
    "placement": FileKind(
        name="a placement",
        words=(),
        commands=f"{Command('insert', ('MODEL', '--placement', 'FILE'))} takes it",
    ),
    "calibration": FileKind(
        name="a calibration table",
        words=(),
        commands=f"{Command('insert', ('MODEL', '--calibration', 'FILE'))} takes it",
    ),
    "engine": LAYERS,
}
VLLM = FileKind(
    name="a log of vLLM, which runs a checkpoint without TensorRT",
    words=("vLLM",),
    commands="the words after quantization= and kv_cache_dtype= in its line about the engine are the formats that vLLM computes in; "
    "no command here reads more from it, and logs of trtllm-build or trtexec are read by qdqtool parse",
)
_BY_CONTENT = (
    (lambda head: head.startswith(b"\x93NUMPY"), SAMPLES),
    (lambda head: head.startswith((b"\x89PNG\r\n", b"\xff\xd8\xff", b"BM")), IMAGE),
    (lambda head: head.startswith((b"ftrt", b"ptrt", b"vtrt")), ENGINE),
    (lambda head: b"\0" not in head and _LAYERS.search(head) is not None, LAYERS),
    (lambda head: _TIMES.match(head) is not None, TIMES),
    (lambda head: b"\0" not in head and _CACHE.match(head) is not None, CACHE),
    (lambda head: b"\0" not in head and _LOG.search(head) is not None, LOG),
    (lambda head: _VLLM.search(head) is not None, VLLM),
    (lambda head: _ONNX.match(head) is not None, MODEL),
)
_BY_SUFFIX = {
    **dict.fromkeys((".yaml", ".yml"), RECIPE),
    **dict.fromkeys((".pt", ".pth", ".pt2"), TORCH),
    **dict.fromkeys((".plan", ".engine", ".trt"), ENGINE),
    ".py": SCRIPT,
    ".onnx": MODEL,
    ".npz": SAMPLES,
}
_MARKED = frozenset({ENGINE, MODEL, SAMPLES})
"""Kinds that are recognised by content only, never by name."""
