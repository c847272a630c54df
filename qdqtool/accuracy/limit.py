"""The smallest set of float nodes that keeps a limit of accuracy, with what nodes do to each other measured.

1. Every node is left out of the quantized ones by itself: exactly what keeping it float brings, on its own.
2. Nodes become float one by one, each time the one that brings most *beside those that are float already*. What a node
   brings is measured again before it is chosen: noises of nodes cancel and add up, so that the second of two layers may
   bring nothing, or everything, once the first is float. Old figures say which nodes are worth measuring; the best of
   the fresh ones is taken when no old figure is above it (lazy greedy: Leskovec et al., "Cost-effective outbreak
   detection in networks", KDD 2007, section 4.1).
3. When the limit is kept, every node is taken back once where it is kept without it, the least useful first, so that
   no node of the set can be left out by itself.

Noise at the outputs chooses, since it tells nodes apart that flip no answer; the limit is checked on other samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from qdqtool.accuracy.trials import OnRun, SubsetOutcome, TrialRunner
from qdqtool.core.protocols import SampleSource
from qdqtool.core.sensitivity import FloatSet
from qdqtool.errors import UsageError

_AT_A_TIME: Final = 4
"""Nodes that are measured again together: their runs share beginnings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What must be kept.

    Attributes:
        max_drop: points that the task metric may lose; None sets no limit.
        min_sqnr: SQNR in dB that the outputs must keep; None sets no limit.
    """

    max_drop: float | None = None
    min_sqnr: float | None = None

    def is_met(self, found: FloatSet) -> bool:
        """Whether this set of float nodes keeps it."""
        quiet = self.min_sqnr is None or found.sqnr_db is None or found.sqnr_db >= self.min_sqnr
        right = self.max_drop is None or (
            found.task is not None and found.task.reference - found.task.candidate <= self.max_drop
        )
        return quiet and right

    def check(self, whole: SubsetOutcome) -> None:
        """Make sure that what is limited is known.

        Raises:
            UsageError: nothing is known of the task.
        """
        if self.max_drop is not None and whole.task is None:
            raise UsageError(
                "nothing is known of the task, so no drop of it can be limited",
                fix="give --labels, ask for compare.task=agreement, or limit the noise with --min-sqnr",
                where="--max-drop",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """What is switched together, by name, and which nodes count as compute nodes."""

    members: Mapping[str, tuple[str, ...]]
    compute: frozenset[str]

    def nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        """All nodes of these units."""
        return tuple(node for name in names for node in self.members[name])

    def without(self, kept: Iterable[str]) -> frozenset[str]:
        """The nodes that stay quantized."""
        gone = set(kept)
        return frozenset(self.nodes(name for name in self.members if name not in gone))

    def float_set(self, kept: Sequence[str], outcome: SubsetOutcome) -> FloatSet:
        """What keeping these units float gave."""
        return FloatSet(
            kept=self.nodes(kept),
            sqnr_db=outcome.decibel,
            task=outcome.task,
            int8_nodes=len(self.compute & self.without(kept)),
            total_nodes=len(self.compute),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a search came to: see `FloatLimit`."""

    whole: FloatSet
    path: tuple[FloatSet, ...]
    chosen: FloatSet | None
    evaluations: int


class FloatSearch:
    """One search.

    Args:
        trials: runs subsets.
        units: what is switched together.
        choosing: samples on which nodes are told apart.
        checking: samples on which the limit is checked.
        limit: what must be kept.
        on_run: told how many runs of the current measurement are done.
    """

    def __init__(
        self,
        trials: tuple[TrialRunner, TrialRunner],
        units: Units,
        samples: tuple[SampleSource, SampleSource],
        limit: Limit,
        on_run: OnRun | None = None,
    ) -> None:
        """`trials` and `samples` are those that choose, and those that check."""
        self._trials = trials
        self._units = units
        self._choosing, self._checking = samples
        self._limit = limit
        self._on_run = on_run
        self._evaluations = 0

    def run(self, most: int | None = None) -> Found:
        """The smallest set found; at most `most` samples choose.

        Raises:
            UsageError: nothing is known of the task whose drop is limited.
        """
        first = self._outcome(())
        self._limit.check(first)
        whole = self._units.float_set((), first)
        if self._limit.is_met(whole):
            return Found(whole=whole, path=(), chosen=whole, evaluations=self._evaluations)
        path: list[FloatSet] = []
        kept: list[str] = []
        for name in self._order(most):
            kept.append(name)
            path.append(self._checked(kept))
            if self._limit.is_met(path[-1]):
                break
        else:
            return Found(whole=whole, path=tuple(path), chosen=None, evaluations=self._evaluations)
        chosen = path[-1]
        # The last one was needed; of the others the one that came last brought least.
        for name in kept[-2::-1]:
            fewer = [other for other in kept if other != name]
            found = self._checked(fewer)
            if self._limit.is_met(found):
                kept, chosen = fewer, found
                path.append(found)
        return Found(whole=whole, path=tuple(path), chosen=chosen, evaluations=self._evaluations)

    def _order(self, most: int | None) -> Iterable[str]:
        """The units in the order in which they become float, each chosen when it is asked for."""
        kept: list[str] = []
        noise = self._noises({"whole": ()}, most)["whole"]
        alone = self._noises({name: (name,) for name in self._units.members}, most)
        gains = {name: noise - left for name, left in alone.items()}
        fresh = dict(alone)
        while gains:
            name = self._best(gains, fresh, kept, noise, most)
            yield name
            kept.append(name)
            noise = fresh[name]
            del gains[name]
            fresh = {}

    def _best(
        self,
        gains: dict[str, float],
        fresh: dict[str, float],
        kept: Sequence[str],
        noise: float,
        most: int | None,
    ) -> str:
        """The unit that brings most beside `kept`; gains and noises of those that are measured are renewed."""
        while True:
            order = sorted(gains, key=lambda name: -gains[name])
            if order[0] in fresh:
                return order[0]
            stale = [name for name in order if name not in fresh][:_AT_A_TIME]
            found = self._noises({name: (*kept, name) for name in stale}, most)
            fresh.update(found)
            gains.update({name: noise - left for name, left in found.items()})

    def _noises(self, sets: Mapping[str, Sequence[str]], most: int | None) -> dict[str, float]:
        """Noise with each of these sets float, on the choosing samples."""
        self._evaluations += len(sets)
        subsets = {name: self._units.without(kept) for name, kept in sets.items()}
        outcomes = self._trials[0].run(subsets, self._choosing, most, self._on_run)
        return {name: outcome.noise for name, outcome in outcomes.items()}

    def _checked(self, kept: Sequence[str]) -> FloatSet:
        return self._units.float_set(kept, self._outcome(kept))

    def _outcome(self, kept: Sequence[str]) -> SubsetOutcome:
        return self._trials[1].run({"it": self._units.without(kept)}, self._checking, None, self._on_run)[
            "it"
        ]
