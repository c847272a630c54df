"""Times trials on another machine: exports their models and a script, and reads the file of times.

The script (`time_trials.py`) needs Python and trtexec, and nothing of this project.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from qdqtool.backends.shapes import spelled
from qdqtool.core.sweep import FloatPoint, Sweep, Trial
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.io.files import digest_file, make_folder, write_text
from qdqtool.io.json_files import canonical, read_json
from qdqtool.pipeline.random_shapes import shapes_of
from qdqtool.pipeline.sweep.front import front
from qdqtool.pipeline.writing import write

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT: Final = "time_trials.py"
FLOATS: Final = {"FP32": "float", "FP16": "float16"}
"""Names of the models of `Sweep.floats` on the other machine."""
# As every interval of the tool.
_SURE: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTimes:
    """The file that the script writes.

    Attributes:
        digest: of the trials that were exported.
        gpu: where they were timed.
        rounds: milliseconds of each round by model.
        failed: why a model has no engine there, by model.
    """

    digest: str
    gpu: str
    rounds: dict[str, list[float]]
    failed: dict[str, str]


_TIMES: Final = TypeAdapter(MeasuredTimes)


def export(
    sweep: Sweep,
    floats: Mapping[str, Path],
    made: Callable[[Trial], Path],
    folder: Path,
    tell: Callable[[int, int], None],
) -> Path:
    """Write the float models, the models of all finished trials, and the script that times them. Return the script.

    Args:
        sweep: with its trials.
        floats: the models with nothing quantized, by the names of `Sweep.floats`.
        made: makes the Q/DQ model of a trial.
        folder: made if it is not there.
        tell: how many models are written, and of how many.

    Raises:
        InputFileError: a file cannot be written.
    """
    make_folder(folder)
    done = [trial for trial in sweep.trials if trial.outcome is not None]
    entries = [
        _written(path, FLOATS[name], folder, weakly=("--fp16",) if name == "FP16" else ())
        for name, path in floats.items()
    ]
    for number, trial in enumerate(done):
        tell(number, len(done))
        entries.append(_written(made(trial), _name(trial), folder, weakly=("--int8", "--fp16")))
    write_text(folder / "manifest.json", canonical({"digest": digest(sweep), "models": entries}))
    script = folder / SCRIPT
    shutil.copyfile(Path(__file__).with_name(SCRIPT), script)
    return script


def export_models(models: Sequence[Path], folder: Path) -> Path:
    """Write models, named by their number, and the script that times them, as `export` does. Return the script.

    Raises:
        InputFileError: a model cannot be read, or a file cannot be written.
    """
    make_folder(folder)
    entries = [
        _written(path, f"{number:04}", folder, weakly=("--int8", "--fp16"))
        for number, path in enumerate(models)
    ]
    about = hashlib.sha256("".join(digest_file(path) for path in models).encode()).hexdigest()
    write_text(folder / "manifest.json", canonical({"digest": about, "models": entries}))
    script = folder / SCRIPT
    shutil.copyfile(Path(__file__).with_name(SCRIPT), script)
    return script


def with_times(sweep: Sweep, path: Path) -> Sweep:
    """Return the sweep with the measured times of `path`; trials without an engine there count as failed.

    Raises:
        InputFileError: the file is damaged, or of another sweep.
    """
    times = read_times(path)
    if times.digest != digest(sweep):
        raise InputFileError(
            "was measured for trials of another sweep",
            fix="export this sweep again with --export, and time that",
            where=str(path),
        )
    trials = tuple(_timed(trial, times) for trial in sweep.trials)
    floats = tuple(_float_timed(point, times) for point in sweep.floats)
    return replace(
        sweep,
        trials=trials,
        pareto=front(trials),
        speed="measured",
        device=times.gpu,
        spread=None,
        floats=tuple(point for point in floats if point is not None),
    )


def digest(sweep: Sweep) -> str:
    """Return a digest of the settings of all finished trials."""
    about = {_name(trial): trial.outcome.settings for trial in sweep.trials if trial.outcome is not None}
    return hashlib.sha256(canonical(about).encode()).hexdigest()


def middle(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the median and its 95 % interval, from the order of the values; no interval below 6 values."""
    ordered, count = sorted(values), len(values)
    outside, left = 0.0, 0
    while left < count // 2:
        outside += 2 * math.comb(count, left) / 2**count
        if outside > 1 - _SURE:
            break
        left += 1
    if not left:
        return median(ordered), None, None
    return median(ordered), ordered[left - 1], ordered[count - left]


def _float_timed(point: FloatPoint, times: MeasuredTimes) -> FloatPoint | None:
    rounds = times.rounds.get(FLOATS[point.name])
    if not rounds:
        return None
    ms, low, high = middle(rounds)
    return replace(point, ms=ms, ms_low=low, ms_high=high)


def _timed(trial: Trial, times: MeasuredTimes) -> Trial:
    if trial.outcome is None:
        return trial
    rounds = times.rounds.get(_name(trial))
    if not rounds:
        why = times.failed.get(_name(trial), "it was not timed")
        return replace(trial, state="failed", outcome=None, reason=f"on {times.gpu}: {why}")
    ms, low, high = middle(rounds)
    return replace(trial, outcome=replace(trial.outcome, ms=ms, ms_low=low, ms_high=high))


def read_times(path: Path) -> MeasuredTimes:
    """Read the times that the script wrote.

    Raises:
        InputFileError: the file is damaged, or holds what is not a time.
    """
    try:
        found = _TIMES.validate_python(read_json(path))
    except ValidationError as error:
        raise InputFileError(
            f"is not a file of times: {error.errors()[0]['msg']}",
            fix=f"pass the times.json that {SCRIPT} wrote",
            where=str(path),
        ) from error
    wrong = [ms for rounds in found.rounds.values() for ms in rounds if not (math.isfinite(ms) and ms > 0)]
    if wrong:
        raise InputFileError(
            f"holds {wrong[0]} ms, which is not a valid time", fix=f"run {SCRIPT} again", where=str(path)
        )
    return found


def _written(model: Path, name: str, folder: Path, *, weakly: Sequence[str]) -> Mapping[str, Any]:
    """Write a model, and return its entry. `weakly` are the flags for a trtexec without strong typing."""
    found = load(model)
    write(found, folder / f"{name}.onnx", step="sweep")
    shapes = shapes_of(found)
    text = spelled(shapes) if shapes else ""
    return {"name": name, "file": f"{name}.onnx", "shapes": text, "weakly": list(weakly)}


def _name(trial: Trial) -> str:
    return f"{trial.number:04}"
