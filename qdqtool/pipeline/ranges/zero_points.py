"""`calibrate.symmetric: auto`: zero points for tensors whose values are all or mostly on one side of 0.

TensorRT takes symmetric INT8, so a tensor after Relu, Gelu, Sigmoid or Swish uses half of its 256 numbers. A zero
point uses all numbers, and `graph.qdq.zero_points` writes it as constants that TensorRT accepts.

1. A group of tensors that share a range gets a zero point if the smaller end of its histogram is less than half of the larger one.
2. Groups that cannot be written leave: a product of two activations would have to read a float. For classic TensorRT,
  for which there are no test builds, only groups that need no extra node are used: the saturation of Q replaces the
  Relu, and no border is padded.
3. With twice as many numbers, a wider range has the least noise. So the larger end is also tried 1.15 times as large,
   and as large as the largest value in the samples. The ranges of the other calibrators are tried too: the calibrator was
   chosen without zero points.
4. If the engine would have more kernels, fewer groups are tried: first without a Sub after a pool, then without any
  extra node.
5. The zero points are kept if the outputs gain, more likely than not, and the engine has no more kernels. If it moves more
   bytes than `calibrate.zero_point_bytes` allows, the gain must exceed 1 dB. If the costs are known, the gain that is expected
   decides, as between calibrators. A proof refused most gains of 1 to 2 dB if few samples hold most of the noise
   (`docs/verified.md`).
6. Without a builder, or for a large model, the costs are unknown. Then the gain must be significant and exceed 0.3 dB, and the report
   says that no engine was built.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from qdqtool.backends import BUILDERS
from qdqtool.calibration.collect import OnProgress
from qdqtool.calibration.table import formats_of, groups
from qdqtool.core.calibration import CalibrationTable, TensorRange, ZeroPoints
from qdqtool.core.evidence import CONFIDENCE, false_alarm_of_choice
from qdqtool.core.findings import KernelCounts
from qdqtool.core.journal import TrialOutcome, TrialRecord
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Builder, SampleSource
from qdqtool.core.recipe import AUTO, Recipe
from qdqtool.core.tensors import INT8
from qdqtool.errors import BuildError, MissingPackage, UsageError
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, weight_bytes
from qdqtool.graph.qdq.insert import insert, insert_for_engine
from qdqtool.graph.qdq.zero_points import Written, with_constants
from qdqtool.graph.view import GraphView, Model
from qdqtool.pipeline.building import build_request, engine_counts, recipe_profiles
from qdqtool.pipeline.ranges.bias import add_shifts, correct_biases
from qdqtool.pipeline.ranges.executor import TrialSession, TriedTable
from qdqtool.pipeline.ranges.reference import Budget, Reference
from qdqtool.pipeline.search.experiment import (
    LeastGain,
    NetworkEdit,
    Records,
    Search,
    mark_replaced,
    with_journal,
)
from qdqtool.trt.ops import POOLS

GAIN_DB: Final = 0.3
"""Least significant gain of the outputs for which zero points are kept if their costs are unknown."""
_FOR_BYTES_DB: Final = 1.0
"""Gain of the outputs from which an engine may move more bytes than `calibrate.zero_point_bytes` allows."""
_FEWEST: Final = 8
"""Number of samples up to which a choice by the outputs would be chance."""
_LOPSIDED: Final = 0.5
"""Largest ratio of the smaller end to the larger end: the step of such a tensor shrinks by at least a quarter, 2.5 dB."""
_WIDER: Final = (1.0, 1.15, math.inf)
"""Factors on the larger end that are tried, as far as values go. Whole ends are exact for inputs that are integers."""
_LARGE: Final = 512 << 20
"""Bytes of weights from which no engine is built to compare: a build takes minutes."""
_MOST_NODES: Final = 600
"""Nodes of a float model up to which most builds take seconds."""
_TIMEOUT_S: Final = 300.0
"""Seconds that one of the two builds may take; most take less than ten."""


class _Form(enum.Enum):
    """Nodes that zero points may add to a network: all, none after pools, or none; tried in this order."""

    ANY = "zero points"
    FUSED = "zero points, except after pools"
    """Without a Sub after a pool, because the kernel of a pool has no epilogue for it. SqueezeNet 1.1: 49 kernels, not 52."""
    FREE = "zero points without any node"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ends:
    """The smallest and largest values in a group of tensors.

    Attributes:
        small: magnitude of the end near 0.
        large: magnitude of the other end, as the calibrator chose it.
        widest: magnitude of the other end in the samples.
        is_negative: whether the larger end is below 0.
    """

    small: float
    large: float
    widest: float
    is_negative: bool

    def zero(self, factor: float) -> int:
        """Return the INT8 zero point that does not clip the smaller end; `factor` widens the larger end."""
        above = math.ceil(255 * self.small / (self.small + self._top(factor)))
        return 127 - above if self.is_negative else above - 128

    def _top(self, factor: float) -> float:
        """Return the larger end's magnitude times `factor`, at most the largest magnitude in the samples."""
        return min(max(self.large, self.widest), self.large * factor)

    def range(self, factor: float) -> float:
        """Return the range that the table stores: 127 quantization steps. `factor` widens the larger end."""
        top, zero = self._top(factor), self.zero(factor)
        zero = -1 - zero if self.is_negative else zero
        steps = [top / (127 - zero)]
        if self.small:
            steps.append(self.small / max(1, 128 + zero))
        return 127 * max(steps)


def with_zero_points(
    network: tuple[Model, Placement],
    table: CalibrationTable,
    samples: SampleSource | None,
    recipe: Recipe,
    reference: Reference | None = None,
    on_progress: OnProgress | None = None,
    rivals: Mapping[str, tuple[TensorRange, ...]] | None = None,
) -> CalibrationTable:
    """Add zero points to the table if the recipe requires them or the outputs gain enough; otherwise return the table unchanged.

    Args:
        network: the float model that `table` is for, and its placement.
        table: symmetric ranges.
        samples: calibration samples; None if there are none.
        recipe: settings of the user.
        reference: outputs of the float model, if they are known already.
        on_progress: called with inferences that were run, of how many.
        rivals: ranges of other calibrators that are tried with zero points, by calibrator.

    Raises:
        UsageError, InputFileError: as `insert` and the runners.
    """
    mode = recipe.calibrate.symmetric
    if mode == "always" or any(entry.zero_point for entry in table.ranges):
        return table
    if mode == AUTO and not _is_judged(network[0], samples, recipe):
        return table
    chosen = _choose_groups(network[1], table)
    forms = tuple(_Form) if recipe.place.builder.is_rtx else (_Form.FREE,)
    chosen, written = _writable(network, table, chosen, recipe, form=forms[0])
    if not chosen:
        return table
    if mode == "never" or samples is None:
        moved = _add_summary(_move_ranges(table, chosen, 1.0), written)[0]
        if samples is None or recipe.calibrate.bias != "correct":
            return moved
        return correct_biases(*network, moved, samples, on_progress)
    alternatives = {name: _with_ranges(network[1], table, ranges) for name, ranges in (rivals or {}).items()}
    proposer = _Proposer(network, (table, alternatives), samples, recipe, reference, on_progress)
    return proposer.run(forms, chosen, written)


def _with_ranges(
    placement: Placement, table: CalibrationTable, ranges: tuple[TensorRange, ...]
) -> CalibrationTable:
    """Return the table with the activation ranges in `ranges`, which name their choice."""
    activations = {name for group in groups(placement) for name in group}
    step = "calibrators with zero points compared by the noise of the outputs"
    taken = {entry.tensor: entry.since(step) for entry in ranges if entry.tensor in activations}
    return replace(table, ranges=tuple(taken.get(entry.tensor, entry) for entry in table.ranges))


def _is_judged(model: Model, samples: SampleSource | None, recipe: Recipe) -> bool:
    if samples is None or not samples.meaningful or len(samples) <= _FEWEST:
        return False
    return recipe.calibrate.method == AUTO and weight_bytes(model) < SINGLE_FILE_LIMIT


def _choose_groups(placement: Placement, table: CalibrationTable) -> dict[tuple[str, ...], _Ends]:
    """Return the groups of INT8 activations whose values reach at most half as far on one side of 0 as on the other."""
    ranges, formats = table.by_tensor(), formats_of(placement)
    chosen: dict[tuple[str, ...], _Ends] = {}
    for group in groups(placement):
        entries = [ranges[name] for name in group if name in ranges]
        lows = [entry.low for entry in entries if entry.low is not None]
        highs = [entry.high for entry in entries if entry.high is not None]
        if len(lows) < len(group) or len(highs) < len(group):
            continue
        if any(formats.get(name, INT8) != INT8 or ranges[name].axis is not None for name in group):
            continue
        below, above = max(0.0, *(-low for low in lows)), max(0.0, *highs)
        ends = _Ends(
            small=min(below, above),
            large=entries[0].amax[0],
            widest=max(below, above),
            is_negative=below > above,
        )
        if ends.widest > 0 and ends.small <= _LOPSIDED * ends.large:
            chosen[group] = ends
    return chosen


def _move_ranges(
    table: CalibrationTable, chosen: Mapping[tuple[str, ...], _Ends], factor: float
) -> CalibrationTable:
    """Add zero points for these groups to the table; multiply the larger end of their values by `factor`."""
    by_name = {name: ends for group, ends in chosen.items() for name in group}

    def move_entry(entry: TensorRange) -> TensorRange:
        ends = by_name.get(entry.tensor)
        if ends is None:
            return entry
        side = f"below {ends.small:.3g}" if ends.is_negative else f"above {-ends.small:.3g}"
        size = f"times {factor:g}, as far as values go" if math.isfinite(factor) else "as large as values go"
        wider = f", the larger end {size}" if factor > 1 else ""
        zero = ends.zero(factor)
        step = f"zero point {zero}: all 256 numbers for values {side}{wider}"
        note = "; ".join(word for word in (entry.note, f"zero point {zero}") if word)
        return entry.since(step, amax=(ends.range(factor),), zero_point=zero, note=note)

    return replace(table, ranges=tuple(map(move_entry, table.ranges)), shifts=())


def _move_rival(rival: CalibrationTable, chosen: Mapping[tuple[str, ...], _Ends]) -> CalibrationTable:
    """Add zero points for these groups to the table of another calibrator, with the larger ends that this calibrator chose."""
    ranges = rival.by_tensor()
    ends = {group: replace(ends, large=ranges[group[0]].amax[0]) for group, ends in chosen.items()}
    return _move_ranges(rival, ends, 1.0)


def _rewrite_choice(records: Records, method: str) -> Records:
    """Return the journal of a choice of calibrators in which `method` is kept, because it has the least noise with zero points."""
    choices = [record for record in records if record.what.split(",")[0] == method]
    why = "least noise with zero points"
    rewritten = mark_replaced(
        tuple(record for record in records if _is_of_calibrator(record)),
        f"{method} has less noise with zero points",
    )
    changed = {record.what: record for record in rewritten}
    changed[choices[-1].what] = replace(choices[-1], outcome=TrialOutcome.KEPT, why=why)
    return tuple(changed.get(record.what, record) for record in records)


def _is_of_calibrator(record: TrialRecord) -> bool:
    return (
        any(setting.startswith("calibrate.method=") for setting in record.settings)
        or "mean of tied" in record.what
    )


def _writable(
    network: tuple[Model, Placement],
    table: CalibrationTable,
    chosen: dict[tuple[str, ...], _Ends],
    recipe: Recipe,
    *,
    form: _Form,
) -> tuple[dict[tuple[str, ...], _Ends], dict[str, Written]]:
    """Return the groups whose zero points need no nodes beyond `form`, and how their tensors are written."""
    view = network[0].view
    while chosen:
        inserted = insert(
            *network, _move_ranges(table, chosen, 1.0), recipe.insert.model_copy(update={"types": "fp32"})
        )
        written = {entry.tensor: entry for entry in with_constants(inserted)[1]}
        kept = {
            group: ends
            for group, ends in chosen.items()
            if all(_is_kept(view, written.get(name), form) for name in group)
        }
        if len(kept) == len(chosen):
            return kept, written
        chosen = kept
    return {}, {}


def _is_kept(view: GraphView, written: Written | None, form: _Form) -> bool:
    if written is None or written.is_lost:
        return False
    if form is _Form.FREE:
        return written.saturates and not written.nodes and not written.borders
    maker = view.producer(written.tensor)
    return form is _Form.ANY or not written.nodes or maker is None or maker.op not in POOLS


def _add_summary(
    table: CalibrationTable,
    written: Mapping[str, Written],
    gain_db: float | None = None,
    costs: Sequence[KernelCounts] = (),
) -> tuple[CalibrationTable, ZeroPoints]:
    """Add a summary of the zero points to the table: their gain, and the costs of engines with and without them."""
    gain = None if gain_db is None else round(gain_db, 2)
    ranges = tuple(
        replace(entry, gain_db=gain) if entry.zero_point and gain is not None else entry
        for entry in table.ranges
    )
    moved = [count.activation_bytes_dumped for count in costs if count.activation_bytes_dumped is not None]
    zero_points = ZeroPoints(
        tensors=sum(bool(entry.zero_point) for entry in ranges),
        saturating=sum(entry.saturates for entry in written.values()),
        gain_db=gain,
        kernels=(costs[0].kernels, costs[1].kernels) if costs else None,
        bytes=(moved[0], moved[1]) if len(moved) == len(costs) == 2 else None,
    )
    return replace(table, ranges=ranges, zero_points=zero_points), zero_points


def _refusal(summary: ZeroPoints, gain_db: float, allowed: float, *, is_proven: bool) -> str | None:
    """Return why zero points cost too much in the engine for their gain; None if they do not.

    `allowed` is the relative growth of the activation bytes that a small gain may cost. Unknown costs need a proven gain.
    """
    if summary.kernels is None:
        return None if is_proven else f"no engine built, and no significant gain of more than {GAIN_DB:g} dB"
    if summary.kernels[1] > summary.kernels[0]:
        return f"{summary.kernels[1]} kernels instead of {summary.kernels[0]}"
    growth = summary.bytes[1] / summary.bytes[0] - 1 if summary.bytes and summary.bytes[0] else 0.0
    if growth > allowed and gain_db <= _FOR_BYTES_DB:
        return f"{growth:.1%} more activation bytes for a gain of no more than {_FOR_BYTES_DB:g} dB"
    return None


class _Proposer:
    """Tries zero points for one calibration table, and for tables with the ranges of other calibrators."""

    def __init__(
        self,
        network: tuple[Model, Placement],
        tables: tuple[CalibrationTable, Mapping[str, CalibrationTable]],
        samples: SampleSource,
        recipe: Recipe,
        reference: Reference | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._network, self._recipe = network, recipe
        self._table, self._rivals = tables
        self._on_progress = on_progress
        self._corrects = recipe.calibrate.bias == "correct"
        budget = Budget(on_progress=on_progress)
        self._reference = reference or Reference(network[0], samples, budget, bias=self._corrects)

    def run(
        self,
        forms: tuple[_Form, ...],
        chosen: dict[tuple[str, ...], _Ends],
        written: Mapping[str, Written],
    ) -> CalibrationTable:
        """Return the table, with zero points if they are kept; its journal has every trial either way.

        `chosen` can be written in the first of the `forms`.
        """
        before = self._judge_tables({"": self._table})[0]
        search = Search()
        kept = self._table
        earlier = kept.journal.trials if kept.journal else ()
        for form in forms:
            if form is not forms[0]:
                fewer, written = _writable(self._network, self._table, chosen, self._recipe, form=form)
                if len(fewer) == len(chosen):
                    continue
                chosen = fewer
            if not chosen:
                break
            tables = {f"{factor:g}": _move_ranges(self._table, chosen, factor) for factor in _WIDER}
            tables |= {name: _move_rival(rival, chosen) for name, rival in self._rivals.items()}
            tried = self._judge_tables(tables)
            best = min(tried, key=lambda candidate: candidate.noise)
            name = form.value
            edit = NetworkEdit(what=name, settings=("calibrate.symmetric=never",))
            if not search.keeps(edit, best, before, LeastGain(gain_db=0.0, is_proven=False)):
                break
            finished, gain = self._finish_table(best), best.decibel - before.decibel
            summarized, summary = _add_summary(finished, written, gain, self._costs(finished))
            by_chance = false_alarm_of_choice(
                tried.index(best), [candidate.roots for candidate in tried], before.roots
            )
            is_proven = gain > GAIN_DB and by_chance < 1 - CONFIDENCE
            refused = _refusal(summary, gain, self._recipe.calibrate.zero_point_bytes, is_proven=is_proven)
            if refused is None:
                built = "no engine built" if summary.kernels is None else "no more kernels"
                search.replaces(name, (TrialOutcome.KEPT, f"{'significant ' * is_proven}gain, {built}"))
                kept = summarized
                earlier = _rewrite_choice(earlier, best.method) if best.method in self._rivals else earlier
                break
            search.replaces(name, (TrialOutcome.REJECTED, refused))
        return with_journal(kept, (*earlier, *search.records))

    def _judge_tables(self, tables: Mapping[str, CalibrationTable]) -> list[TriedTable]:
        """Measure the output noise of tables. Zero points are constants of a session, so each set of them gets its own.

        If biases are corrected, the table with the least noise of each session has its final shifts.
        """
        sessions: dict[tuple[int, ...], dict[str, CalibrationTable]] = {}
        for name, table in tables.items():
            sessions.setdefault(tuple(entry.zero_point for entry in table.ranges), {})[name] = table
        every = list[TriedTable]()
        for alike in sessions.values():
            budget = Budget(most=self._reference.budget.most, on_progress=self._on_progress)
            trial = TrialSession(*self._network, next(iter(alike.values())), self._reference, budget)
            judges = trial.at_once(len(_WIDER))
            tried = trial.candidates(alike, judges)
            if self._corrects:
                least = min(range(len(tried)), key=lambda place: tried[place].noise)
                tried[least] = trial.settled(tried[least], judges)
            trial.close()
            every += tried
        return every

    def _finish_table(self, best: TriedTable) -> CalibrationTable:
        """Return the table with zero points, with corrected biases if the recipe requires them."""
        if not self._corrects:
            return replace(best.table, shifts=self._table.shifts)
        return add_shifts(*self._network, best.table, self._reference, self._on_progress)

    def _costs(self, candidate: CalibrationTable) -> list[KernelCounts]:
        """Count the kernels of engines with and without zero points; [] if no engine is built."""
        builder, model = _builder(self._recipe), self._network[0]
        if builder is None or weight_bytes(model) >= _LARGE or len(model.view.nodes) > _MOST_NODES:
            return []
        usual = {name: value.shape for name, value in self._reference.samples[0].feeds.items()}
        try:
            shapes, _ = recipe_profiles(self._recipe, model.view.inputs, usual)
            configured = build_request(self._recipe, shapes)
            request = replace(configured, timeout_s=min(configured.timeout_s, _TIMEOUT_S))
            both = [
                insert_for_engine(*self._network, table, self._recipe.insert)
                for table in (self._table, candidate)
            ]
            with ThreadPoolExecutor(len(both)) as pool:  # each build has its own process
                return list(pool.map(lambda network: engine_counts(network, builder, request), both))
        except (BuildError, UsageError):
            return []


def _builder(recipe: Recipe) -> Builder | None:
    """Return the builder of the recipe if it is installed and needs no GPU; otherwise None."""
    if recipe.build.builder != "rtx" or not recipe.place.builder.is_rtx:
        return None
    builder: Builder = BUILDERS.load(recipe.build.builder)
    try:
        builder.version()
    except MissingPackage:
        return None
    return builder
