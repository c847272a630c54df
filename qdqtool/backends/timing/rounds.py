"""Measures candidates in alternating order (A B, then B A), so that neither always runs on a warmer machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qdqtool.backends.timing.series import Series


class Clock(Protocol):
    """A candidate that can be run and timed."""

    @property
    def name(self) -> str:
        """Name of the candidate."""

    @property
    def measures(self) -> str:
        """Description of the measured quantity."""

    def warm_up(self, milliseconds: float) -> None:
        """Run for about this long without measuring."""

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Measure the milliseconds of each of `iterations` inferences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Amount of measurement.

    Attributes:
        rounds: how often each candidate has its turn.
        iterations: inferences per turn.
        warm_up_ms: running without measuring before the first turn, in milliseconds.
    """

    rounds: int = 10
    iterations: int = 100
    warm_up_ms: float = 200.0


OnTurn = Callable[[int, int], None]
"""Function that is called after each turn with the turns done and the total."""


def take_turns(clocks: Sequence[Clock], effort: Effort, on_turn: OnTurn | None = None) -> tuple[Series, ...]:
    """Measure every clock in every round; return one series per clock, in the order given."""
    for clock in clocks:
        clock.warm_up(effort.warm_up_ms)
    times: list[list[tuple[float, ...]]] = [[] for _ in clocks]
    total = effort.rounds * len(clocks)
    done = 0
    for number in range(effort.rounds):
        order = range(len(clocks)) if number % 2 == 0 else reversed(range(len(clocks)))
        for index in order:
            times[index].append(clocks[index].measure(effort.iterations))
            done += 1
            if on_turn is not None:
                on_turn(done, total)
    return tuple(
        Series(name=clock.name, clock=clock.measures, rounds=tuple(rounds))
        for clock, rounds in zip(clocks, times, strict=True)
    )
