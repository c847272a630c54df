"""Times engines in a child process, because loading an engine can run code from the engine."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool import errors
from qdqtool.backends.building.failures import last_line
from qdqtool.backends.native.logger import logger_of
from qdqtool.backends.plan import MODULES, EnginePlan, child_failure, run_failure
from qdqtool.backends.timing.engine_times import EngineClock
from qdqtool.backends.timing.series import Effort, OnTurn, Series, distinct_names, spell_file, take_turns
from qdqtool.backends.timing.trtexec_times import raw_name
from qdqtool.core.protocols import Shape
from qdqtool.errors import BuildError, QdqError, UsageError
from qdqtool.io import child
from qdqtool.io.child import Tell, meet


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRun:
    """Parameters of the child process that times engines.

    Attributes:
        effort: how much is measured.
        shapes: shapes of dynamic inputs; for all others, the usual shapes of the profile.
        inputs: an .npz file of inputs; random numbers without one.
        profile: whether every layer is timed too, in separate runs.
        save: folder for raw outputs, or None.
        timeout_s: wall-clock limit in seconds.
    """

    effort: Effort
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    inputs: Path | None = None
    profile: bool = False
    save: Path | None = None
    timeout_s: float = 1800.0


Profile = list[tuple[str, list[float]]]
"""Names of layers, each with its milliseconds in every run."""


def time_engines(
    plans: Sequence[EnginePlan], run: EngineRun, on_turn: OnTurn | None = None
) -> tuple[tuple[Series, ...], tuple[Profile, ...]]:
    """Measure these engines alternately in one process; return their times, and layer profiles if requested.

    Raises:
        QdqError: the engines cannot be loaded together, or an engine cannot be run; the message names the part that
            failed.
    """
    makers = {plan.maker for plan in plans}
    if len(makers) > 1:
        raise UsageError(
            "the engines come from different builders",
            fix="time engines of one builder together, others in a separate command",
        )

    def turn(event: dict[str, Any]) -> None:
        if on_turn is not None:
            on_turn(event["done"], event["total"])

    with tempfile.TemporaryDirectory(prefix="qdqtool-time-") as folder:
        log = Path(folder) / "log"
        verdict, ended = child.ask(
            "qdqtool.backends.timing.remote",
            _order(plans, run, MODULES[makers.pop()]),
            on_event={"turn": turn},
            errors=log,
            timeout_s=run.timeout_s,
        )
        if verdict["event"] != "timed":
            raise _failure(verdict, ended, plans[0].path, last_line(log))
    series = tuple(
        Series(name=name, clock=verdict["clock"], rounds=tuple(map(tuple, rounds)))
        for name, rounds in zip(distinct_names([plan.path for plan in plans]), verdict["rounds"], strict=True)
    )
    return series, tuple([(name, times) for name, times in profile] for profile in verdict["profiles"])


def _order(plans: Sequence[EnginePlan], run: EngineRun, module: str) -> dict[str, Any]:
    return {
        "module": module,
        "plans": [str(plan.path.absolute()) for plan in plans],
        "effort": asdict(run.effort),
        "shapes": dict(run.shapes),
        "inputs": str(run.inputs.absolute()) if run.inputs else None,
        "profile": run.profile,
        "save": str(run.save.absolute()) if run.save else None,
    }


def _failure(verdict: dict[str, Any], ended: child.Ended, path: Path, message: str) -> QdqError:
    if verdict["event"] == "failed":
        kind: type[QdqError] = getattr(errors, verdict["kind"], BuildError)
        return kind(verdict["what"], fix=verdict["fix"], where=str(path))
    if ended.timed_out:
        return BuildError(
            f"timing was stopped after {ended.seconds:.0f} s", fix="raise the time limit", where=str(path)
        )
    return run_failure(ended.code, message, path)


# --- worker ----------------------------------------------------------------------------------------------------------
# Child process that loads and times engines: reads one request, writes events; the library's messages go to the log.


def main() -> None:
    """Read a request from standard input, time its engines, and send the times to the parent process."""
    request, tell = meet()
    try:
        tell({"event": "timed", **measure(importlib.import_module(request["module"]), request, tell)})
    except (QdqError, ImportError, OSError) as error:
        failure = error if isinstance(error, QdqError) else child_failure(error)
        tell({"event": "failed", "kind": type(failure).__name__, "what": failure.what, "fix": failure.fix})


def measure(trt: Any, request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Load the engines and measure them alternately; if requested, profile layers and save outputs.

    Raises:
        QdqError: an engine cannot be loaded or run, or the inputs do not fit.
    """
    logger = logger_of(trt)
    feeds = dict(np.load(request["inputs"], allow_pickle=False)) if request["inputs"] else {}
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    clocks = []
    paths = [Path(plan) for plan in request["plans"]]
    for path, name in zip(paths, distinct_names(paths), strict=True):
        clock = EngineClock(trt, logger, path.read_bytes(), shapes, feeds)
        clock.name = name
        clocks.append(clock)
    effort = Effort(**request["effort"])
    series = take_turns(
        clocks, effort, lambda done, total: tell({"event": "turn", "done": done, "total": total})
    )
    profiles = [clock.profile(effort.iterations) for clock in clocks] if request["profile"] else []
    if request["save"]:
        _save(clocks, Path(request["save"]))
    return {"clock": clocks[0].measures, "rounds": [each.rounds for each in series], "profiles": profiles}


def _save(clocks: list[EngineClock], folder: Path) -> None:
    for clock in clocks:
        for name, array in clock.outputs().items():
            (folder / f"{spell_file(clock.name)}.{raw_name(name, 'output', array)}").write_bytes(
                array.tobytes()
            )


if __name__ == "__main__":
    main()
