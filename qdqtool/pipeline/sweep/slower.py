"""Records which edits between trials of a sweep are slower on the timing machine, as `fix --on` does.

If two trials differ only in the formats of node inputs, the difference is an edit. The edit may be recorded
as slower on the GPU. If the trial after the edit is also not more accurate, it cannot be on the Pareto front,
so it is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Placement, Slot
from qdqtool.core.recipe import FORMATS_OF
from qdqtool.core.sweep import Sweep, Trial
from qdqtool.core.tensors import INT8, NamedFormat
from qdqtool.graph.view import GraphView
from qdqtool.pipeline.search.patterns import SlowerPatterns, pattern_of
from qdqtool.pipeline.sweep.elsewhere import Host, MeasuredTimes, compare_times, name_of

_PLACED: Final = ("place.exclude=", f"{FORMATS_OF.removesuffix('.')}=")
"""Settings in which the two trials of an edit may differ."""
Pattern = tuple[str, ...]
Slots = Mapping[Slot, NamedFormat]
PatternsOf = Callable[[Trial], SlowerPatterns]
"""Returns the patterns of the machine for the builder flags of a trial."""


class TrialEdits:
    """Pairs of finished trials that differ only in the formats of node inputs, and the edit of each pair.

    Args:
        trials: with an outcome.
        placements: of each trial, by its number.
        view: the prepared float model.
    """

    def __init__(
        self, trials: Collection[Trial], placements: Mapping[int, Placement], view: GraphView
    ) -> None:
        slots = {
            number: {decision.slot: decision.spec.format for decision in placement.quantized if decision.spec}
            for number, placement in placements.items()
        }
        self._edits = tuple(
            (before, after, pattern)
            for pair in _list_nearest(trials, slots)
            for before, after in (pair, pair[::-1])
            if (pattern := _pattern(view, slots[before.number], slots[after.number]))
        )

    def drop_slower(self, sweep: Sweep, patterns_of: PatternsOf) -> Sweep:
        """Return the sweep in which a trial fails if a slower edit leads to it and gains no accuracy."""
        dropped: dict[int, str] = {}
        for before, after, pattern in self._edits:
            slower = patterns_of(after).recall(pattern)
            if slower and before.number not in dropped and _accuracy(after) <= _accuracy(before):
                dropped[after.number] = f"not timed: trial {before.number} is as accurate; {slower}"
        return replace(
            sweep,
            trials=tuple(
                replace(trial, state="failed", outcome=None, reason=dropped[trial.number])
                if trial.number in dropped
                else trial
                for trial in sweep.trials
            ),
        )

    def record(self, times: MeasuredTimes, host: Host, patterns_of: PatternsOf) -> None:
        """Record the edits that made an engine slower on the machine.

        Raises:
            SystemFault: the folder of finished builds cannot be written.
        """
        for before, after, pattern in self._edits:
            names = [name_of(before), name_of(after)]
            if all(times.rounds.get(name) for name in names):
                timing = compare_times(host, {name: Path(name) for name in names}, times)
                patterns_of(after).weigh(timing, pattern, host.word)
                patterns_of(after).save()


def _list_nearest(trials: Collection[Trial], slots: Mapping[int, Slots]) -> Iterator[tuple[Trial, Trial]]:
    """Yield each trial after the trial that is nearest to it.

    The nearest trial differs only in the formats of node inputs, and in the fewest of them.
    """
    for trial in trials:
        placed = slots[trial.number]
        alike = [
            rival
            for rival in trials
            if slots[rival.number] != placed and _other_settings(rival) == _other_settings(trial)
        ]
        if alike:
            yield min(alike, key=lambda rival: len(_differ(slots[rival.number], placed))), trial


def _other_settings(trial: Trial) -> tuple[str, ...]:
    return tuple(setting for setting in trial.settings if not setting.startswith(_PLACED))


def _differ(before: Slots, after: Slots) -> tuple[Slot, ...]:
    return tuple(slot for slot in {**before, **after} if before.get(slot) != after.get(slot))


def _pattern(view: GraphView, before: Slots, after: Slots) -> Pattern:
    edits = (
        SlotEdit(slot=slot, scales=None if slot in after else (), format=after.get(slot, INT8))
        for slot in _differ(before, after)
    )
    return pattern_of(view, edits, before)


def _accuracy(trial: Trial) -> float:
    assert trial.outcome is not None
    return trial.outcome.accuracy
