"""Measures candidates in turn: A B, then B A, then A B, so that neither always runs on a warm or a hot machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qdqtool.backends.timing.series import Series


class Clock(Protocol):
    """Something that can be run and timed."""

    @property
    def name(self) -> str:
        """What is timed."""

    @property
    def measures(self) -> str:
        """What the times are, in words."""

    def warm_up(self, milliseconds: float) -> None:
        """Run for about this long without measuring."""

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Milliseconds of each of so many inferences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: how often each candidate has its turn.
        iterations: inferences per turn.
        warm_up_ms: running without measuring before the first turn, in milliseconds.
    """

    rounds: int = 10
    iterations: int = 100
    warm_up_ms: float = 200.0


OnTurn = Callable[[int, int], None]
"""Told after each turn: so many done, of so many."""


def take_turns(clocks: Sequence[Clock], effort: Effort, on_turn: OnTurn | None = None) -> tuple[Series, ...]:
    """Measure every clock in every round; one series per clock, in the order given."""
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
