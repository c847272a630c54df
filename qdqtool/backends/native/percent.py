"""Computes one rising percentage from a builder's nested phases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class Percent:
    """Progress of a tree of phases, from 0 to 100; it never falls.

    Every step of a phase counts the same share of it, and a phase is one step of its parent.
    """

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._shown = 0

    def start(self, phase: str, parent: str | None, steps: int) -> int:
        """Begin a phase; return the current percentage."""
        self._phases[phase] = _Phase(parent, max(steps, 1))
        return self._now(phase)

    def step(self, phase: str, step: int) -> int:
        """Complete step number `step` (from 0) of a phase; return the current percentage."""
        if phase in self._phases:
            self._phases[phase].done = min(step + 1, self._phases[phase].steps)
        return self._now(phase)

    def finish(self, phase: str) -> int:
        """Complete a phase; return the current percentage."""
        known = self._phases.pop(phase, None)
        if known is None:
            return self._shown
        if known.parent is None:
            self._shown = 100
        return self._shown

    def _now(self, phase: str) -> int:
        share, name, seen = 0.0, phase, set[str]()
        while name in self._phases and name not in seen:
            seen.add(name)
            known = self._phases[name]
            share = (known.done + share) / known.steps
            if known.parent is None:
                break
            name = known.parent
        self._shown = max(self._shown, int(100 * min(share, 1.0)))
        return self._shown
