"""Separates rounding, fusion and faults if the outputs of an engine differ from the outputs of its own Q/DQ model.

No two valid implementations of a quantized network agree bit by bit: if a value is next to a rounding border, the
last bit of a float decides, and the flipped step spreads. The size of this effect depends on the network, so it is
measured: a family of valid implementations runs the samples. The family has the unchanged graph, its integer-exact
form, and forms that differ in the last bits. Each member has a nearest relative. If a candidate is about as close to
a member (within 2 dB of the loneliest member), rounding explains it. If it fits only the forms whose kernels keep
their epilogue in FP32, fusion explains it. Anything else is not explained.

The sensitivity depends on the network: an error that moves the outputs less than chance stays hidden, and more
samples do not help. The explanation states the size of chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations, islice

from qdqtool.accuracy.metric import Floats, energy
from qdqtool.accuracy.side_by_side import Pair, comparable, feeds_for, pair_outputs
from qdqtool.core.comparison import MismatchCause, MismatchExplanation
from qdqtool.core.protocols import Runner, Sample, SampleSource
from qdqtool.core.tensors import DType
from qdqtool.errors import UsageError
from qdqtool.graph.emulation.emulate_blocks import with_emulated_blocks
from qdqtool.graph.emulation.integer_form import integer_form
from qdqtool.graph.emulation.wide_regions import Regions
from qdqtool.graph.instrumented.probe import jitter_scales
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.view import Model

# --- explanation -----------------------------------------------------------------------------------------------------

_SLACK = 1.6
"""Energy ratio (2 dB) that a candidate may exceed the largest distance inside the family."""
_FLOAT_NOISE = 1e-11
"""Energy of FP32 rounding relative to the signal; smaller differences count as none."""
_FLIP = 1e-8
"""Energy of the smallest flipped quantization step that counts, relative to the signal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Emulations:
    """Valid ways to compute one Q/DQ model, with names for the report.

    Attributes:
        graph: emulations that round where the graph has Q/DQ; the first one runs the unchanged graph.
        fused: all keep the epilogue of a kernel in FP32; empty if that makes no difference.
        rare: further emulations like `graph`. They are used if no value crossed a rounding border in `graph`, because
            crossings may be rare.
    """

    graph: Mapping[str, Runner]
    fused: Mapping[str, Runner]
    rare: Mapping[str, Runner] = field(default_factory=dict)


def explain(
    candidate: Runner, emulations: Emulations, samples: SampleSource, limit: int | None = None
) -> tuple[MismatchExplanation, ...]:
    """Explain why outputs of `candidate` differ from outputs of the Q/DQ model, over at most `limit` samples.

    Raises:
        UsageError: candidate and model have no output in common.
        InputFileError: outputs of different shapes, or NaN.
    """
    first = next(iter(emulations.graph.values()))
    runners = {**emulations.graph, **emulations.fused, **emulations.rare}
    ledgers = {pair: _Ledger() for pair in pair_outputs(first, candidate)}
    with ThreadPoolExecutor(min(runner.at_once for runner in runners.values())) as pool:
        for sample in islice(iter(samples), limit):
            computed = pool.map(
                lambda runner, sample=sample: runner.run(feeds_for(runner, sample)), runners.values()
            )
            theirs = candidate.run(feeds_for(candidate, sample))
            ours = dict(zip(runners, computed, strict=True))
            for pair, ledger in ledgers.items():
                ledger.add(_values(pair, sample, theirs, ours))
    return tuple(_verdict(pair.reference, ledger, emulations) for pair, ledger in ledgers.items())


_CANDIDATE = ""
"""Name of the candidate beside the emulations."""


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
    """Energies of one output: of the signal, and of the difference between every two runs."""

    def __init__(self) -> None:
        self.signal = 0.0
        self._apart: dict[frozenset[str], float] = {}

    def add(self, values: Mapping[str, Floats]) -> None:
        self.signal += max(map(energy, values.values()))
        for first, second in combinations(values, 2):
            key = frozenset({first, second})
            self._apart[key] = self._apart.get(key, 0.0) + energy(values[first] - values[second])

    def apart(self, first: str, second: str) -> float:
        """Return the energy of the difference between the outputs of two runs."""
        return 0.0 if first == second else self._apart[frozenset({first, second})]

    def nearest(self, name: str, members: Iterable[str]) -> float:
        """Return the smallest energy by which the outputs of the run `name` differ from another run."""
        return min((self.apart(name, member) for member in members if member != name), default=math.inf)

    def loneliness(self, names: Collection[str]) -> float:
        """Return the largest energy by which a run in `names` differs from its nearest other run."""
        return max((self.nearest(name, names) for name in names), default=0.0) if len(names) > 1 else 0.0

    def decibel(self, noise: float) -> float | None:
        """Return signal over noise in dB; None if either is zero."""
        return 10 * math.log10(self.signal / noise) if noise and self.signal else None


def _verdict(output: str, ledger: _Ledger, emulations: Emulations) -> MismatchExplanation:
    graph = next(iter(emulations.graph))
    family = tuple(emulations.graph)
    if ledger.loneliness(family) < _FLIP * ledger.signal:
        family += tuple(emulations.rare)
    names = (*family, *emulations.fused)
    nearest = min(names, key=lambda name: ledger.apart(_CANDIDATE, name))
    distance = ledger.apart(_CANDIDATE, graph)
    if not distance:
        cause = MismatchCause.SAME
    elif _fits(ledger, family):
        cause = MismatchCause.ROUNDING
    else:
        cause = MismatchCause.FUSION if _fits(ledger, tuple(emulations.fused)) else MismatchCause.UNEXPLAINED
    return MismatchExplanation(
        output=output,
        cause=cause,
        sqnr_db=ledger.decibel(distance),
        nearest=nearest,
        nearest_db=ledger.decibel(ledger.apart(_CANDIDATE, nearest)),
        rounding_db=ledger.decibel(ledger.loneliness(family)),
    )


def _fits(ledger: _Ledger, family: Collection[str]) -> bool:
    """Return True if the candidate is about as near to a valid run as valid runs are to each other."""
    reach = max(ledger.loneliness(family), _FLOAT_NOISE * ledger.signal)
    return ledger.nearest(_CANDIDATE, family) <= _SLACK * reach


# --- emulations ------------------------------------------------------------------------------------------------------
# Equivalent ways to compute a Q/DQ model on this machine, made from the model itself.

_LAST_BITS = (3e-7, 3e-7, 1e-6, 1e-6)
"""Relative change of scales: as much as another order of FP32 operations may change a value."""
_MORE_BITS = (3e-6, 3e-6)
"""Relative change of scales: as much as approximations of exponentials, roots and similar functions may change a value."""
Open = Callable[[Model, str], Runner]
"""Makes a runner of a model; the second argument describes the model in words."""


def emulations(model: Model, open_model: Open, regions: Regions | None = None) -> Emulations:
    """Return valid ways to compute a Q/DQ model: as written, with other roundings, with integers, fused for FP16 and BF16.

    `regions` are the kernels of a real engine as sets of ONNX node names; None uses the usual epilogues.

    Raises:
        UsageError: the model has no Q/DQ nodes.
    """
    if not quantized_ops(model):
        raise UsageError(
            "the model has no Q/DQ nodes, so there is nothing to emulate",
            fix="pass the Q/DQ model that the engine was built from",
            where=str(model.path),
        )
    model = with_emulated_blocks(model)
    graph = {
        "the unchanged graph": model,
        "integer sums": integer_form(model, ()).model,
        "integer sums, scaled by reciprocals": integer_form(model, (), reciprocal=True).model,
    }
    graph |= _others(model, _LAST_BITS, "different last bits")
    fused = {
        "fused kernels": integer_form(model, regions).model,
        "fused kernels, scaled by reciprocals": integer_form(model, regions, reciprocal=True).model,
    }
    return Emulations(
        graph={name: open_model(form, name) for name, form in graph.items()},
        fused={name: open_model(form, name) for name, form in fused.items()} if _is_narrow(model) else {},
        rare={
            name: open_model(form, name)
            for name, form in _others(model, _MORE_BITS, "approximations").items()
        },
    )


def _others(model: Model, reaches: Sequence[float], name: str) -> dict[str, Model]:
    forms = [jitter_scales(model, number, reach) for number, reach in enumerate(reaches, start=len(name))]
    return {f"{name} {number}": form for number, form in enumerate(forms, start=1) if form is not None}


def _is_narrow(model: Model) -> bool:
    names = (name for node in model.view.nodes for name in node.outputs)
    return any(model.view.info(name).dtype in {DType.FLOAT16, DType.BFLOAT16} for name in names)
