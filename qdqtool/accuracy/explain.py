"""Tells rounding from fusion from a bug, when an engine's outputs differ from those of its own Q/DQ model.

No two lawful implementations of a quantized network agree bit by bit: where a value lies next to a rounding border,
the last bit of a float decides, and the flipped step spreads. How far that goes is a property of the network, so it
is measured: the graph as it stands, its integer-exact form, and the same with another lawful rounding are run on the
same samples. A candidate that is no further from the nearest of them than they are from each other (times two in
amplitude) is explained by rounding. One that fits only the form whose kernels keep their epilogue in FP32 is explained
by fusion. Anything else is not explained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, islice

from qdqtool.accuracy.metric import Floats, energy
from qdqtool.accuracy.pairing import Pair, comparable, feeds_for, pair_outputs
from qdqtool.core.comparison import Cause, Explanation
from qdqtool.core.protocols import Runner, Sample, SampleSource

_SLACK = 4.0
"""Energy ratio (6 dB): other roundings than ours may be a little further away."""
_FLOAT_NOISE = 1e-11
"""Energy of FP32 rounding relative to the signal; below it nothing has happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Emulations:
    """Lawful ways to compute one Q/DQ model, under names that a reader understands.

    Attributes:
        graph: the first one runs the graph as it stands; all round where the graph says.
        fused: all keep the epilogue of a kernel in FP32; empty where that makes no difference.
    """

    graph: Mapping[str, Runner]
    fused: Mapping[str, Runner]


def explain(
    candidate: Runner, emulations: Emulations, samples: SampleSource, limit: int | None = None
) -> tuple[Explanation, ...]:
    """Why each output of `candidate` differs from the Q/DQ model's, over at most `limit` samples.

    Raises:
        UsageError: candidate and model have no output in common.
        InputFileError: outputs of different shapes, or NaN.
    """
    first = next(iter(emulations.graph.values()))
    runners = {**emulations.graph, **emulations.fused}
    ledgers = {pair: _Ledger() for pair in pair_outputs(first, candidate)}
    for sample in islice(iter(samples), limit):
        theirs = candidate.run(feeds_for(candidate, sample))
        ours = {name: runner.run(feeds_for(runner, sample)) for name, runner in runners.items()}
        for pair, ledger in ledgers.items():
            ledger.add(_values(pair, sample, theirs, ours))
    return tuple(_verdict(pair.reference, ledger, emulations) for pair, ledger in ledgers.items())


_CANDIDATE = ""
"""Name of the candidate among the emulations."""


def _values(
    pair: Pair, sample: Sample, theirs: Mapping[str, Floats], ours: Mapping[str, Mapping[str, Floats]]
) -> dict[str, Floats]:
    values = {}
    for name, outputs in ours.items():
        values[name], values[_CANDIDATE] = comparable(
            outputs[pair.reference], theirs[pair.candidate], pair, sample
        )
    return values


class _Ledger:
    """Energies of one output: of the signal, and of every difference."""

    def __init__(self) -> None:
        self.signal = 0.0
        self._apart: dict[frozenset[str], float] = {}

    def add(self, values: Mapping[str, Floats]) -> None:
        self.signal += max(map(energy, values.values()))
        for first, second in combinations(values, 2):
            key = frozenset({first, second})
            self._apart[key] = self._apart.get(key, 0.0) + energy(values[first] - values[second])

    def apart(self, first: str, second: str) -> float:
        """Energy of the difference of two, 0 where both are the same one."""
        return 0.0 if first == second else self._apart[frozenset({first, second})]

    def spread(self, names: Iterable[str]) -> float:
        """Largest difference within a family."""
        return max((self.apart(a, b) for a, b in combinations(names, 2)), default=0.0)

    def decibel(self, noise: float) -> float | None:
        """The signal over this noise; None where there is no noise, or no signal."""
        return 10 * math.log10(self.signal / noise) if noise and self.signal else None


def _verdict(output: str, ledger: _Ledger, emulations: Emulations) -> Explanation:
    graph = next(iter(emulations.graph))
    names = (*emulations.graph, *emulations.fused)
    nearest = min(names, key=lambda name: ledger.apart(_CANDIDATE, name))
    distance = ledger.apart(_CANDIDATE, graph)
    if not distance:
        cause = Cause.SAME
    elif _fits(ledger, emulations.graph):
        cause = Cause.ROUNDING
    else:
        cause = Cause.FUSION if _fits(ledger, emulations.fused) else Cause.UNEXPLAINED
    return Explanation(
        output=output,
        cause=cause,
        sqnr_db=ledger.decibel(distance),
        nearest=nearest,
        nearest_db=ledger.decibel(ledger.apart(_CANDIDATE, nearest)),
        rounding_db=ledger.decibel(ledger.spread(emulations.graph)),
    )


def _fits(ledger: _Ledger, family: Mapping[str, Runner]) -> bool:
    """Whether the candidate is no further from the nearest of the family than they are from each other."""
    nearest = min((ledger.apart(_CANDIDATE, name) for name in family), default=math.inf)
    return nearest <= _SLACK * max(ledger.spread(family), _FLOAT_NOISE * ledger.signal)
