"""Proposes sets of float nodes, and finds the smallest set that keeps a limit of accuracy.

1. Measure every node twice: as the only float node, and as the only quantized node. The first is the gain of keeping
   it float today. The second also shows nodes whose noise is hidden by that of others.
2. Two orders follow from that. Of each, find by bisection how many of the first nodes keep the limit: some ten runs over the
   checking samples.
3. Make the smaller of these sets smaller: measure the gain of each of its nodes beside the others, and quantize nodes
  again, the least useful first and several at once, until no more can be quantized. So each node that is left is
  needed.

A third order, in which each node is measured beside the earlier float nodes (lazy greedy), is not tried. In 20
searches on four networks (`docs/decisions/searches.md`) it found no smaller set, and measured up to half as many more
sets on the choosing samples.

Noise at the outputs chooses, since it also ranks nodes that change no answer. The limit is checked on other samples. A set that
misses it on the worst samples of earlier sets is not run on the others.

A set that just keeps the limit on some samples misses it on others in half of all cases or more, since the smallest
of many is taken. So the limit must hold with a `Limit.confidence` for other samples: for the upper end of the noise,
and of the lost answers. (A search with held-out samples that starts again if they miss the limit makes this demand on
fewer samples.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log10, sqrt
from statistics import NormalDist

import numpy as np

from qdqtool.core.comparison import Comparison, exceeds
from qdqtool.core.evidence import largest_loss, largest_loss_of, paired_interval, record_gain
from qdqtool.core.protocols import SampleSource
from qdqtool.core.sensitivity import FloatLimit, FloatSet
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.pipeline.search.subsets import OnRun, SampleRun, SubsetOutcome, TrialRunner
from qdqtool.pipeline.search.switched import Units, losses_of

Say = Callable[[str], None]
"""Function called with words about the current step and its results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A limit of accuracy for a search over float nodes.

    Attributes:
        max_drop: points that the task metric may lose; None sets no limit.
        min_sqnr: SQNR in dB that the outputs must keep; None sets no limit.
        confidence: required confidence (0 to 1) that other samples keep the limit; 0 checks only these samples.
    """

    max_drop: float | None = None
    min_sqnr: float | None = None
    confidence: float = 0.0

    def is_met(self, float_set: FloatSet) -> bool:
        """Return True if the accuracy with this set of float nodes keeps the limit."""
        quiet = self.min_sqnr is None or float_set.sqnr_db is None or float_set.sqnr_db >= self.min_sqnr
        right = self.max_drop is None or (
            float_set.task is not None
            and not exceeds(float_set.task.reference - float_set.task.candidate, self.max_drop)
        )
        return quiet and right and self._is_likely(float_set)

    def _is_likely(self, float_set: FloatSet) -> bool:
        """Return True if unseen samples keep the limit with this confidence.

        n samples cannot confirm a smaller drop than one lost sample among them would cause; a stricter limit needs
        more samples.
        """
        if not self.confidence:
            return True
        if (
            self.min_sqnr is not None
            and float_set.least_db is not None
            and float_set.least_db < self.min_sqnr
        ):
            return False
        if self.max_drop is None or float_set.worst_drop is None or float_set.task is None:
            return True
        least = smallest_confirmable_drop(float_set.task.samples, self.confidence)
        return not exceeds(float_set.worst_drop, max(self.max_drop, least))

    def enough(self, runs: Sequence[SampleRun]) -> int | None:
        """Return the number of samples needed to confirm `max_drop` at this confidence; None if no number is enough."""
        losses = losses_of(runs)
        if self.max_drop is None or not self.confidence or not len(losses):
            return None
        room = self.max_drop / 100 - float(losses.mean())
        if room <= 0:
            return None
        # the number of samples at which `largest_loss` reaches the limit, if samples continue to lose at this rate
        z = NormalDist().inv_cdf(self.confidence)
        spread = z**2 * float((losses**2).mean())
        middle = 2 * room + spread
        return ceil((middle + sqrt(max(0.0, middle**2 - 4 * room**2 * (1 - z**2)))) / (2 * room**2))

    def is_out_of_reach(self, runs: Sequence[SampleRun], all_of: Sequence[SampleRun]) -> bool:
        """Return True if the results in `runs` prove that a set of float nodes misses the limit.

        The results of the remaining samples cannot change this.

        `all_of` has the results of some other set on all samples, whose float outputs are valid for every set.
        """
        if self.min_sqnr is not None:
            signal = [sum(part) for part in zip(*(run.signal for run in all_of), strict=True)]
            noise = [sum(part) for part in zip(*(run.noise for run in runs), strict=True)]
            ratios = [left / right for left, right in zip(noise, signal, strict=True) if right > 0]
            # slightly less than measured, because sums in another order give other last digits
            least = sum(ratios) / len(ratios) * (1 - 1e-9) if ratios else 0.0
            if least > 0 and -10 * log10(least) < self.min_sqnr:
                return True
        hits = [run.hits for run in all_of if run.hits is not None]
        if self.max_drop is None or not hits:
            return False
        hit_counts = [run.hits[1] for run in runs if run.hits is not None]
        least = sum(left for left, _ in hits) - (sum(hit_counts) + len(hits) - len(hit_counts))
        if exceeds(100 * least / len(hits), self.max_drop):
            return True
        if not self.confidence:
            return False
        # gains of other samples would enlarge the sum of squares, so they are excluded
        squares = float((losses_of(runs) ** 2).sum())
        worst = 100 * largest_loss_of(least, squares, len(hits), self.confidence)
        return exceeds(worst, max(self.max_drop, smallest_confirmable_drop(len(hits), self.confidence)))

    def check(self, whole: SubsetOutcome) -> None:
        """Raise an error if the comparison did not measure the limited quantity.

        Raises:
            UsageError: the task accuracy is unknown.
        """
        if self.max_drop is not None and whole.task is None:
            raise UsageError(
                "the task metric is not measured, so --max-drop cannot limit it",
                fix="pass --labels, set compare.task=agreement, or limit the noise with --min-sqnr",
                where="--max-drop",
            )


def add_accuracy(float_set: FloatSet, compared: Comparison | None) -> FloatSet:
    """Return the set of float nodes with SQNR and first task metric of a comparison, None if not measured."""
    return replace(
        float_set,
        sqnr_db=compared.sqnr.sqnr_db if compared and compared.sqnr else None,
        task=compared.task[0] if compared and compared.task else None,
    )


def smallest_confirmable_drop(samples: int, confidence: float) -> float:
    """Return the smallest drop, in points, that this many samples can confirm at this confidence."""
    return 100 * largest_loss(np.eye(1, max(1, samples))[0], confidence)


class FloatSearch:
    """A search for the smallest set of float nodes that keeps a limit.

    Args:
        trials: runs subsets: on the samples that choose, and on those that check.
        units: groups of nodes that are switched together.
        samples: the samples that rank nodes, and the samples that check the limit.
        limit: the limit that must be kept.
        on_run: called with the number of finished runs of the current measurement.
        say: called with a sentence about each step and its result.
    """

    def __init__(
        self,
        trials: tuple[TrialRunner, TrialRunner],
        units: Units,
        samples: tuple[SampleSource, SampleSource],
        limit: Limit,
        on_run: OnRun | None = None,
        say: Say | None = None,
    ) -> None:
        self._trials = trials
        self._units = units
        self._choosing, self._checking = samples
        self._limit = limit
        self._on_run = self._on_check = on_run
        self._say: Say = say or (lambda _words: None)
        self._evaluations = 0
        self._sets: dict[frozenset[str], FloatSet] = {}
        self._missed: set[frozenset[str]] = set()
        self._whole: SubsetOutcome | None = None

    def run(self) -> FloatLimit:
        """Return the smallest set of float nodes that was found to keep the limit.

        Raises:
            UsageError: the drop of a task is limited, but its accuracy is unknown.
        """
        names = tuple(self._units.members)
        first = self._outcome(())
        self._limit.check(first)
        self._whole = first
        whole = self._set((), first)
        if self._limit.is_met(whole):
            return self._build_limit(whole, ())
        self._missed.add(frozenset())
        self._trials[1].remember_worst(first, self._checking)
        if not self._keeps(names):
            # No further node can become float.
            return self._build_limit(whole, None)
        kept = self._without_idle(self._smallest(names))
        return self._build_limit(whole, kept)

    def _set(self, kept: Sequence[str], outcome: SubsetOutcome) -> FloatSet:
        float_set = self._units.float_set(kept, outcome, self._limit.confidence)
        ends = self._gain(outcome) if kept else None
        return float_set if ends is None else replace(float_set, gain_low=ends[0], gain_high=ends[1])

    def _gain(self, outcome: SubsetOutcome) -> tuple[float, float] | None:
        """Return the 95 % interval of the gain over the fully quantized network; None if unknown."""
        whole = self._whole
        if whole is None:
            return None
        if self._limit.max_drop is not None and outcome.task is not None:
            ends = paired_interval(losses_of(whole.runs) - losses_of(outcome.runs))
            return None if ends is None else (100 * ends.low, 100 * ends.high)
        cure = record_gain("", (), whole.shares, outcome.shares)
        return None if cure.gain_low is None or cure.gain_high is None else (cure.gain_low, cure.gain_high)

    def _build_limit(self, whole: FloatSet, kept: Sequence[str] | None) -> FloatLimit:
        chosen = whole if kept is not None and not kept else None
        if kept:
            chosen = self._set(kept, self._outcome(kept))
        return FloatLimit(
            max_drop=self._limit.max_drop,
            min_sqnr=self._limit.min_sqnr,
            confidence=self._limit.confidence,
            samples=len(self._checking),
            whole=whole,
            path=tuple(self._sets.values()),
            chosen=chosen,
            evaluations=self._evaluations,
            enough=None if kept is None else self._limit.enough(self._outcome(kept).runs),
        )

    def _smallest(self, names: tuple[str, ...]) -> list[str]:
        """Order the nodes by gain and by noise; return the shortest beginning of an order that keeps the limit."""
        self._say(
            f"{count_noun(len(names), 'node')} separately, on {count_noun(len(self._choosing), 'sample')}"
        )
        left = self._noises(
            {
                "whole": (),
                **{f"float {name}": (name,) for name in names},
                **{f"alone {name}": [member for member in names if member != name] for name in names},
            }
        )
        noise = left["whole"]
        gains = {name: noise - left[f"float {name}"] for name in names}
        alone = {name: left[f"alone {name}"] for name in names}
        kept = list(names)
        orders = (
            ("with the largest gain when float", sorted(names, key=lambda name: -gains[name])),
            ("with the most noise alone", sorted(names, key=lambda name: -alone[name])),
        )
        for words, order in orders:
            kept = self._beginning(order, kept)
            self._say(f"nodes {words}: {self._describe_kept(kept)}")
        return kept

    def _beginning(self, order: list[str], kept: list[str]) -> list[str]:
        """Return the shortest beginning of `order` that keeps the limit, if it is shorter than `kept`; otherwise `kept`."""
        most = len(kept) - 1
        count = _last(lambda number: not self._keeps(order[:number]), most)
        return kept if count == most else order[: count + 1]

    def _without_idle(self, kept: list[str]) -> list[str]:
        """Return the float nodes that the limit needs: it is missed if any of them is quantized."""
        if len(kept) == 1:
            return kept
        self._say(f"each of {count_noun(len(kept), 'node')} quantized again separately")
        back = self._noises({name: [kept_name for kept_name in kept if kept_name != name] for name in kept})
        self._on_check = None  # from here on the progress counts nodes, not the samples of each node
        while len(fewer := self._put_back(kept, sorted(kept, key=lambda name: back[name]))) < len(kept):
            kept = fewer
            self._say(f"after quantizing again those that may be quantized: {self._describe_kept(kept)}")
        self._say(f"none of {count_noun(len(kept), 'node')} can be quantized again")
        return kept

    def _put_back(self, kept: list[str], waiting: list[str]) -> list[str]:
        """Quantize float nodes again, several at once, if the limit allows it. Return the nodes that stay float."""
        step, total = 1, len(waiting)
        while waiting:
            tried = waiting[:step]
            fewer = [name for name in kept if name not in tried]
            if fewer and self._keeps(fewer):
                kept, waiting, step = fewer, waiting[len(tried) :], 2 * step
            elif len(tried) == 1:
                waiting = waiting[1:]
            else:
                step = len(tried) // 2
            if self._on_run is not None:
                self._on_run(total - len(waiting), total)
        return kept

    def _noises(self, sets: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Return the noise for each of these sets of float nodes, on the samples that choose."""
        self._evaluations += len(sets)
        subsets = {name: self._units.without(kept) for name, kept in sets.items()}
        outcomes = self._trials[0].run(subsets, self._choosing, None, self._on_run)
        return {name: outcome.noise for name, outcome in outcomes.items()}

    def _keeps(self, kept: Sequence[str]) -> bool:
        """Return True if the limit of accuracy holds when the node groups in `kept` are float."""
        key = frozenset(kept)
        if key not in self._missed and key not in self._sets:
            outcome = self._trials[1].run_worst_first(
                self._units.without(kept), self._checking, self._limit.is_out_of_reach, self._on_check
            )
            if outcome is None:
                self._missed.add(key)
                return False
            self._sets[key] = self._set(kept, outcome)
            if not self._limit.is_met(self._sets[key]):
                self._missed.add(key)
                self._trials[1].remember_worst(outcome, self._checking)
        return key not in self._missed

    def _outcome(self, kept: Sequence[str]) -> SubsetOutcome:
        """Measure the network with the node groups in `kept` as float, on samples that check the limit."""
        subsets = {"": self._units.without(kept)}
        return self._trials[1].run(subsets, self._checking, None, self._on_check)[""]

    def _describe_kept(self, kept: Sequence[str]) -> str:
        float_set = self._sets[frozenset(kept)]
        level = "no noise" if float_set.sqnr_db is None else f"{float_set.sqnr_db:.1f} dB"
        task = "" if float_set.task is None else f", {float_set.task.candidate:.2f} {float_set.task.unit}"
        return f"{len(kept)} of {len(self._units.members)} float keep the limit ({level}{task})"


def _last(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest n <= most with holds(n). Assumes that holds is monotonic and that holds(0) is true."""
    low, high, step = 0, most + 1, 1
    while low < most:
        tried = min(low + step, most)
        if not holds(tried):
            high = tried
            break
        low, step = tried, 2 * step
    while low < most and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
