"""The Pareto front of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from qdqtool.core.sweep import Outcome, Sweep, Trial
from qdqtool.errors import UsageError
from qdqtool.pipeline.sweep.context import METRIC, OUTCOME
from qdqtool.pipeline.sweep.space import Space
from qdqtool.pipeline.sweep.speed import Speed
from qdqtool.pipeline.sweep.study import choice_of

_OUTCOME = TypeAdapter(Outcome)
_METRIC = TypeAdapter(tuple[str, str, float | None])
_LIMITS = frozenset({"max-drop", "min-accuracy", "min-sqnr", "max-ms"})
_STATES = {"COMPLETE": "complete", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


def front(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the Pareto front of accuracy and time, the fastest first. Of equal trials, keep the one with the lowest number."""
    done = [trial for trial in trials if trial.outcome is not None]
    done.sort(key=lambda trial: (_ms(trial), -_accuracy(trial), trial.number))
    best: list[Trial] = []
    for trial in done:
        if not best or _accuracy(trial) > _accuracy(best[-1]):
            best.append(trial)
    return tuple(best)


def assemble(raw: Sequence[Any], space: Space, model: str, speed: Speed) -> Sweep:
    """Make the result of a sweep from the trials of its study. Lost trials and duplicates of other trials are left out.

    Raises:
        ValueError: a trial is none that this sweep can have left.
    """
    trials = tuple(
        _trial(entry, space)
        for entry in raw
        if entry.state.name in {"COMPLETE", "RUNNING", "WAITING"} or "reason" in entry.user_attrs
    )
    metric, unit, reference = _METRIC.validate_python(
        next((entry.user_attrs[METRIC] for entry in raw if METRIC in entry.user_attrs), ("", "", None))
    )
    return Sweep(
        model=model,
        metric=metric,
        unit=unit,
        reference=reference,
        device=speed.device,
        spread=speed.spread,
        pareto=front(trials),
        trials=trials,
        speed=speed.label,
    )


def pick(sweep: Sweep, words: str) -> Trial:
    """Return the best trial within a user's limit. If the limit is on an objective of the sweep, this is a Pareto point.

    Args:
        sweep: a finished sweep.
        words: "max-drop 0.5": the fastest point that loses at most 0.5 against the float model;
            "min-accuracy 70": the fastest with at least 70; "max-ms 1.5": the most accurate within 1.5 ms;
            "min-sqnr 30": the fastest of all trials with at least that SQNR, which need not be a Pareto point of another metric.

    Raises:
        UsageError: not such a limit, or no point meets it.
    """
    name, limit = limit_of(words)
    if name == "max-ms" and sweep.speed == "not timed":
        raise UsageError(
            "this sweep has no times", fix="set sweep.speed=estimated, engine or measured", where="--pick"
        )
    if name == "min-sqnr":
        fitting = _above_sqnr(sweep, limit)
    elif name == "max-ms":
        fitting = [trial for trial in sweep.pareto if _ms(trial) <= limit][::-1]
    else:
        least = _least(sweep, limit) if name == "max-drop" else limit
        fitting = [trial for trial in sweep.pareto if _accuracy(trial) >= least]
    if not fitting:
        raise UsageError(
            f"no {'trial' if name == 'min-sqnr' else 'Pareto point'} meets {words!r}",
            fix="relax the limit, or run more trials",
            where="--pick",
        )
    return fitting[0]


def limit_of(words: str) -> tuple[str, float]:
    """Return the name and the number of a limit such as "max-drop 0.5".

    Raises:
        UsageError: not such a limit.
    """
    name, _, text = words.strip().partition(" ")
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if math.isnan(limit) or name not in _LIMITS:
        raise UsageError(
            f"cannot read {words!r} as a limit",
            fix="write 'max-drop 0.5', 'min-accuracy 70', 'min-sqnr 30' or 'max-ms 1.5'",
            where="--pick",
        )
    return name, limit


def _above_sqnr(sweep: Sweep, least: float) -> list[Trial]:
    """Return the trials with at least this SQNR, the fastest first; equally fast trials are ordered by SQNR, the best first."""
    levels = [(level, trial) for trial in sweep.trials if (level := _sqnr(sweep, trial)) is not None]
    if not levels and any(trial.outcome is not None for trial in sweep.trials):
        raise UsageError(
            "no trial of this sweep has an SQNR",
            fix="run the sweep again, with another --out",
            where="--pick",
        )
    levels.sort(key=lambda entry: (_ms(entry[1]), -entry[0], entry[1].number))
    return [trial for level, trial in levels if level >= least]


def _sqnr(sweep: Sweep, trial: Trial) -> float | None:
    if trial.outcome is None:
        return None
    return trial.outcome.accuracy if sweep.metric == "sqnr_db" else trial.outcome.sqnr_db


def _least(sweep: Sweep, drop: float) -> float:
    if sweep.reference is None:
        raise UsageError(
            f"the float model has no {sweep.metric} to compare with",
            fix="write 'min-sqnr 30' instead"
            if sweep.metric == "sqnr_db"
            else "write 'min-accuracy 30' instead",
            where="--pick",
        )
    return sweep.reference - drop


def _trial(entry: Any, space: Space) -> Trial:
    outcome = entry.user_attrs.get(OUTCOME) if entry.state.name == "COMPLETE" else None
    return Trial(
        number=entry.number,
        state=_STATES[entry.state.name],
        outcome=None if outcome is None else _outcome(entry, space, outcome),
        reason=str(entry.user_attrs.get("reason", "")),
        settings=_settings(entry, space),
    )


def _settings(entry: Any, space: Space) -> tuple[str, ...]:
    """Return the recipe settings of a trial; () if its choice is incomplete."""
    choice = choice_of(entry)
    return space.settings(choice) if space.holds(choice) else ()


def _outcome(entry: Any, space: Space, stored: object) -> Outcome:
    """Return the stored outcome of a trial together with its settings.

    A recipe is run with the trust that its user gave it, and settings may name functions. So the settings in a
    database are not read.
    """
    choice = choice_of(entry)
    if not space.holds(choice):
        raise ValueError(f"trial {entry.number} is not from this sweep")
    outcome = _OUTCOME.validate_python(stored)
    return replace(outcome, settings=space.settings(choice), kept_float=space.kept(choice))


def _accuracy(trial: Trial) -> float:
    assert trial.outcome is not None
    return trial.outcome.accuracy


def _ms(trial: Trial) -> float:
    assert trial.outcome is not None
    return trial.outcome.ms
