"""Finds the nodes whose quantization costs most, without any precision API: nodes are switched float one by one.

1. Estimate: every node alone is quantized on a few samples; the noise that reaches the outputs ranks the nodes. Noise
   of different nodes adds up well enough for a ranking, which the notes check.
2. Exact: the most sensitive ones alone, and everything without them, on all samples.
3. Curve: the most sensitive nodes are kept float, one more at a time.
4. Advice: the smallest set that keeps the limit (`accuracy.limit`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from glob import escape

from qdqtool.accuracy.intervals import gained
from qdqtool.accuracy.limit import FloatSearch, Limit, Units
from qdqtool.accuracy.trials import OnRun, SubsetOutcome, TrialRunner
from qdqtool.core.protocols import SampleSource
from qdqtool.core.sensitivity import Cure, FloatSet, NodeSensitivity, Sensitivity
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError, UsageError

_WHOLE = "whole"
_ADDS_UP = (0.5, 2.0)
"""Between these the sum of single noises explains the noise of the whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityOptions:
    """How thorough, and what must be met.

    Attributes:
        quick: samples of the estimate.
        top: nodes that are run exactly and drawn in the curve.
        groups: glob patterns; nodes matching one are switched together.
        limit: what the set of float nodes that is advised must keep.
        causes: say why the nodes that are run exactly are noisy, and measure what helps.
    """

    quick: int = 4
    top: int = 10
    groups: tuple[str, ...] = ()
    limit: Limit = field(default_factory=Limit)
    causes: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The model under study in words.

    Attributes:
        name: its file name.
        ops: operator type of every switchable node.
        compute: all compute nodes of the model.
    """

    name: str
    ops: Mapping[str, str]
    compute: frozenset[str]


def sensitivity(
    bench: TrialRunner,
    subject: Subject,
    samples: SampleSource,
    options: SensitivityOptions,
    on_run: OnRun | None = None,
) -> Sensitivity:
    """How much every node costs, most sensitive first, and which ones to keep float.

    Raises:
        UsageError: the model has no quantized nodes, a group matches none, or a drop is limited of which nothing is
            known.
        InputFileError: there are no samples, or one makes NaN outputs.
    """
    if not len(samples):
        raise InputFileError(
            "there are no samples", fix="give at least one sample", where=samples.description
        )
    units = Units(
        members=_units(bench.nodes, options.groups), compute=subject.compute & frozenset(bench.nodes)
    )
    study = _Study(bench, subject, samples, units, on_run)
    names = list(units.members)
    estimate = study.run({_WHOLE: names, **{_alone(name): [name] for name in names}}, options.quick)
    ranked = sorted(names, key=lambda name: -estimate[_alone(name)].noise)
    top = ranked[: options.top]
    exact = study.run(
        {
            _WHOLE: names,
            **{_alone(name): [name] for name in top},
            **{_without(name): [other for other in names if other != name] for name in top},
            **_ends_float(bench.nodes, units, options),
        }
    )
    options.limit.check(exact[_WHOLE])
    order = [*sorted(top, key=lambda name: exact[_without(name)].noise), *ranked[options.top :]]
    is_limited = options.limit != Limit()
    search = FloatSearch((bench, bench), units, (samples, samples), options.limit, on_run)
    return Sensitivity(
        model=subject.name,
        samples=len(samples),
        meaningful=samples.meaningful,
        whole=study.float_set((), exact[_WHOLE]),
        nodes=tuple(_row(name, estimate, exact, study, options) for name in order),
        curve=study.float_sets([order[: count + 1] for count in range(len(top))]),
        advice=search.run().chosen if is_limited else None,
        notes=_notes(names, estimate, exact, options),
        cures=_ends_cure(bench.nodes, units, exact),
    )


_ENDS = "ends float"


def _ends(nodes: Sequence[str], units: Units) -> tuple[str, ...]:
    """The first and the last compute node; none if these are all there are."""
    compute = [node for node in nodes if node in units.compute]
    return (compute[0], compute[-1]) if len(compute) > 2 else ()


def _ends_float(nodes: Sequence[str], units: Units, options: SensitivityOptions) -> dict[str, list[str]]:
    """The subset of units that are neither at the beginning nor at the end of the network."""
    ends = set(_ends(nodes, units))
    if not options.causes or not ends:
        return {}
    return {_ENDS: [name for name, members in units.members.items() if not ends.intersection(members)]}


def _ends_cure(nodes: Sequence[str], units: Units, exact: Mapping[str, SubsetOutcome]) -> tuple[Cure, ...]:
    found = exact.get(_ENDS)
    ends = _ends(nodes, units)
    return () if found is None else (_float_cure("first and last layer float", ends, exact[_WHOLE], found),)


def _float_cure(what: str, nodes: Sequence[str], whole: SubsetOutcome, without: SubsetOutcome) -> Cure:
    setting = f"place.exclude={json.dumps([escape(name) for name in nodes])}"
    return gained(what, (setting,), whole.shares, without.shares)


def _alone(name: str) -> str:
    return f"alone {name}"


def _without(name: str) -> str:
    return f"without {name}"


@dataclass(frozen=True, slots=True)
class _Study:
    """Runs subsets given as lists of units, which are nodes or groups of nodes."""

    bench: TrialRunner
    subject: Subject
    samples: SampleSource
    units: Units
    on_run: OnRun | None

    def run(self, subsets: Mapping[str, Iterable[str]], limit: int | None = None) -> dict[str, SubsetOutcome]:
        """The outcome of quantizing only these units, over the first `limit` samples."""
        nodes = {name: frozenset(self.units.nodes(units)) for name, units in subsets.items()}
        return self.bench.run(nodes, self.samples, limit, self.on_run)

    def float_sets(self, kept: Sequence[Sequence[str]]) -> tuple[FloatSet, ...]:
        """The results of keeping each of these lists of units float."""
        rest = {
            f"float {len(names)} to {names[-1]}": [name for name in self.units.members if name not in names]
            for names in kept
        }
        outcomes = self.run(rest).values()
        return tuple(self.float_set(names, outcome) for names, outcome in zip(kept, outcomes, strict=True))

    def float_set(self, names: Sequence[str], outcome: SubsetOutcome) -> FloatSet:
        """What keeping these units float gave."""
        return replace(self.units.float_set(names, outcome), total_nodes=len(self.subject.compute))


def _units(nodes: Sequence[str], groups: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What is switched together, by its name; a node belongs to the first group that matches it."""
    if not nodes:
        raise UsageError(
            "the model has no quantized nodes", fix="pass a Q/DQ model, or a float one with a recipe"
        )
    units: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        name = next((pattern for pattern in groups if fnmatchcase(node, pattern)), node)
        units[name] = (*units.get(name, ()), node)
    empty = [pattern for pattern in groups if pattern not in units]
    if empty:
        raise UsageError(
            f"no quantized node matches the group {empty[0]!r}",
            fix=f"use a glob pattern over node names, such as {nodes[0]!r}",
        )
    return units


def _row(
    name: str,
    estimate: Mapping[str, SubsetOutcome],
    exact: Mapping[str, SubsetOutcome],
    study: _Study,
    options: SensitivityOptions,
) -> NodeSensitivity:
    total = sum(estimate[_alone(other)].noise for other in study.units.members)
    alone = exact.get(_alone(name), estimate[_alone(name)])
    without = exact.get(_without(name))
    rest, whole = without.decibel if without else None, exact[_WHOLE].decibel
    members = study.units.members[name]
    ends = (
        alone.decibel_interval if _alone(name) in exact else _estimated_between(alone, _off(estimate, exact))
    )
    return NodeSensitivity(
        node=name,
        op=study.subject.ops[name] if members == (name,) else "group",
        members=members,
        share=estimate[_alone(name)].noise / total if total else 0.0,
        alone_db=alone.decibel,
        without_db=rest,
        gain_db=None if rest is None or whole is None else rest - whole,
        task=without.task if without else None,
        samples=len(study.samples) if without else min(len(study.samples), options.quick),
        exact=without is not None,
        alone_low=None if ends is None else ends[0],
        alone_high=None if ends is None else ends[1],
        cures=(_float_cure("float", members, exact[_WHOLE], without),) if without and options.causes else (),
    )


def _off(estimate: Mapping[str, SubsetOutcome], exact: Mapping[str, SubsetOutcome]) -> list[float]:
    """By how many dB estimates were off, where both were measured."""
    return [
        abs(known.decibel - guess.decibel)
        for name, guess in estimate.items()
        if (known := exact.get(name)) and known.decibel is not None and guess.decibel is not None
    ]


def _estimated_between(guess: SubsetOutcome, off: Sequence[float]) -> tuple[float, float] | None:
    """Where the level of an estimate lies: its interval over samples, and as far off as others were found to be.

    Few samples that are alike say little about the others; nodes of the same network that were run on all of them say
    how much that matters here.
    """
    level, ends = guess.decibel, guess.decibel_interval
    if level is None or (ends is None and not off):
        return None
    low, high = ends or (level, level)
    reach = max(off, default=0.0)
    return min(low, level - reach), max(high, level + reach)


def _notes(
    names: Sequence[str],
    estimate: Mapping[str, SubsetOutcome],
    exact: Mapping[str, SubsetOutcome],
    options: SensitivityOptions,
) -> tuple[str, ...]:
    total = sum(estimate[_alone(name)].noise for name in names)
    whole = estimate[_WHOLE].noise
    notes = []
    if len(names) > options.top:
        notes.append(
            f"nodes beyond the first {options.top} are ranked by an estimate on {options.quick} samples"
        )
        errors = _off(estimate, exact)
        if errors:
            notes.append(
                f"estimates are off by up to {max(errors):.1f} dB where both were measured ({counted(len(errors), 'set')})"
            )
    if whole and not _ADDS_UP[0] <= total / whole <= _ADDS_UP[1]:
        notes.append(
            f"the noises of single nodes add up to {total / whole:.1f} times the noise of the whole: nodes influence "
            "each other here, so trust the exact figures and the curve more than the ranking"
        )
    return tuple(notes)
