"""Chooses one range per tensor from histograms and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, partial, reduce
from typing import TYPE_CHECKING, Final, TypeVar

from calibrators.calibrator import CalibrationDataError, Calibrator, Grid, Range
from calibrators.histogram import Histogram, empty, merge
from calibrators.weights import channel_max, channel_mse
from qdqtool.calibration.histograms import Histograms
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, TensorRange
from qdqtool.core.grids import grid_for
from qdqtool.core.placement import Decision, Placement, QuantSpec, SlotKind, classes
from qdqtool.core.recipe import AUTO, CalibrationOptions
from qdqtool.core.tensors import INT8, QuantFormat
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.platform import processors
from qdqtool.trt.ops import carried_inputs, carried_outputs, hard_bound

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node


# --- bounds ----------------------------------------------------------------------------------------------------------
# Finds tensors whose values are within a known interval for every sample.


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Largest magnitude that a tensor can have, known from the operator that produces it.

    Attributes:
        amax: that magnitude.
        op: the operator that sees to it.
        saturates: whether values near the bound carry the meaning (a probability of 1), so that none may be clipped.
    """

    amax: float
    op: str
    saturates: bool


def bounds(view: GraphView) -> dict[str, Bound]:
    """Return the tensors with a known bound of magnitude. Operators that move values pass it on; a Concat takes the largest."""
    bounded: dict[str, Bound] = {}
    for node in view.nodes:
        bound = _find_passed_bound(view, node, bounded) or _own(view, node)
        if bound is not None:
            bounded |= dict.fromkeys(carried_outputs(node), bound)
    return bounded


def _find_passed_bound(view: GraphView, node: Node, bounded: dict[str, Bound]) -> Bound | None:
    """Return the largest bound of the inputs whose values `node` passes on; None if one of them has no bound."""
    limits = [bounded.get(node.inputs[index]) for index in carried_inputs(view, node)]
    bounds = [bound for bound in limits if bound is not None]
    if not bounds or len(bounds) < len(limits):
        return None
    largest = max(bounds, key=lambda bound: bound.amax)
    return Bound(amax=largest.amax, op=largest.op, saturates=any(bound.saturates for bound in bounds))


def _own(view: GraphView, node: Node) -> Bound | None:
    limit = hard_bound(view, node)
    return None if limit is None else Bound(amax=limit[0], op=node.op, saturates=limit[1])


# --- weights ---------------------------------------------------------------------------------------------------------
# Ranges of constants, computed from their values.


NEVER_FIRED: Final = 1.0
"""Range of a tensor that holds only zeros, which any range represents exactly."""


def weight_range(decision: Decision, view: GraphView, method: str) -> TensorRange:
    """Compute the range of a constant by "max" or "mse", per channel if the placement requests it.

    Raises:
        InputFileError: not a constant, or it holds NaN or Inf.
    """
    values = view.constant(decision.tensor)
    if values is None:
        raise InputFileError(
            f"weight {decision.tensor!r} is not a constant",
            fix="pass the prepared model (model.prepared.onnx), in which constants are folded",
        )
    spec = decision.spec or QuantSpec()
    # The scales of blocks are computed or searched from the values when they are written.
    axis = spec.axis if spec.block is None else None
    search = method == "mse" and spec.block is None
    try:
        amax = channel_mse(values, axis, grid_for(spec.format)) if search else channel_max(values, axis)
    except CalibrationDataError as error:
        raise InputFileError(
            f"cannot quantize the weight {decision.tensor!r}: {error}",
            fix="repair or export the model again",
            where=decision.slot.node,
        ) from error
    dead = int((amax == 0).sum())
    filler = float(amax.max()) or NEVER_FIRED
    return TensorRange(
        tensor=decision.tensor,
        amax=tuple(float(value) or filler for value in amax),
        axis=axis,
        format=spec.format,
        block=spec.block,
        low=float(values.min()),
        high=float(values.max()),
        method=method,
        origin=(_step(axis, spec, search=search),),
        note=f"{dead} of {count_noun(amax.size, 'channel')} hold zeros only" if dead else "",
    )


def _step(axis: int | None, spec: QuantSpec, *, search: bool) -> str:
    if spec.block is not None:
        return f"largest magnitude; each block of {spec.block} gets its scale from its values when they are written"
    rule = "least squared error" if search else "largest magnitude"
    return f"{rule} of the whole tensor" if axis is None else f"{rule} of each channel along axis {axis}"


# --- table -----------------------------------------------------------------------------------------------------------


Given = TypeVar("Given")
Made = TypeVar("Made")
_WITHOUT_NETWORK = "best"
"""Calibrator that `auto` uses if no network can be run, for example when merging shards without samples."""
Choose = Callable[[Histogram, Grid], Range]


def make_table(
    histograms: Histograms, placement: Placement, view: GraphView, options: CalibrationOptions
) -> CalibrationTable:
    """Choose one range per quantized tensor: activations from histograms, weights from their values.

    Tensors that share a scale get the range of their common histogram. A tensor with a hard bound (sigmoid, softmax,
    a clip) never gets a range beyond the bound. If many values are at the bound, the range is never below the largest
    collected value.

    Raises:
        UsageError: no such calibrator, or a parameter it cannot take.
        InputFileError: a tensor was not collected, or weights hold NaN or Inf.
    """
    return make_tables(histograms, placement, constants(placement, view, options.weights), (options,))[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """The parts of a calibration table that do not depend on samples.

    Attributes:
        weights: the ranges of all quantized weights.
        bounds: tensors that cannot leave a known interval.
    """

    weights: tuple[TensorRange, ...]
    bounds: Mapping[str, Bound]


def constants(placement: Placement, view: GraphView, method: str) -> Constants:
    """Compute the ranges of all quantized weights by "max" or "mse", and find the bounded tensors.

    Raises:
        InputFileError: weights hold NaN or Inf.
    """
    # If a weight is read in two ways, ranges per channel serve both: scales of blocks need no ranges.
    decisions = {
        entry.tensor: entry
        for entry in sorted(placement.quantized, key=_has_blocks, reverse=True)
        if entry.kind is SlotKind.WEIGHT
    }
    weights = _share_out(partial(weight_range, view=view, method=method), tuple(decisions.values()))
    return Constants(weights=tuple(weights), bounds=bounds(view))


def make_tables(
    histograms: Histograms, placement: Placement, fixed: Constants, choices: Sequence[CalibrationOptions]
) -> tuple[CalibrationTable, ...]:
    """Make a calibration table from histograms for each set of calibration options. The model itself is not needed.

    Raises:
        UsageError: no such calibrator, or a parameter it cannot take.
        InputFileError: a tensor was not collected, or not all samples were run.
    """
    if not histograms.span.is_complete or histograms.span.shards > 1:
        raise InputFileError(
            f"the histograms do not cover all samples: {histograms.span}",
            fix="run the interrupted collection again, or merge all shards",
        )
    if histograms.samples == 0:
        raise InputFileError(
            "no sample was used: all samples were skipped", fix="repair the samples that contain NaN or Inf"
        )
    formats = formats_of(placement)
    choosers = [Chooser(options, histograms.tensors, fixed.bounds, formats) for options in choices]

    def choose_ranges(group: tuple[str, ...]) -> list[list[TensorRange]]:
        return [chooser.choose(group) for chooser in choosers]

    rows = _share_out(choose_ranges, groups(placement))
    return tuple(
        _table(histograms, (*fixed.weights, *(entry for row in rows for entry in row[number])))
        for number in range(len(choosers))
    )


def _table(histograms: Histograms, ranges: Iterable[TensorRange]) -> CalibrationTable:
    by_name = {entry.tensor: entry for entry in ranges}
    return CalibrationTable(
        ranges=tuple(by_name[name] for name in sorted(by_name)),
        samples=histograms.samples,
        meaningful=histograms.meaningful,
        source=histograms.source,
    )


def _share_out(function: Callable[[Given], Made], work: Sequence[Given]) -> list[Made]:
    """Apply `function` to every item in parallel; return the results in any order.

    Each processor gets one equal share, because single tasks are too small.
    """
    count = processors()
    shares = [work[number::count] for number in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return [
            result
            for share in pool.map(lambda part: [function(item) for item in part], shares)
            for result in share
        ]


def _has_blocks(decision: Decision) -> bool:
    return decision.spec is not None and decision.spec.block is not None


def formats_of(placement: Placement) -> dict[str, QuantFormat]:
    """Return the format of every quantized activation.

    If a tensor is read in several formats, the one with even steps is used.
    """
    formats: dict[str, QuantFormat] = {}
    for decision in placement.quantized:
        if decision.kind is SlotKind.ACTIVATION and decision.spec is not None:
            earlier = formats.get(decision.tensor)
            if earlier is None or not earlier.is_integer:
                formats[decision.tensor] = decision.spec.format
    return formats


def groups(placement: Placement) -> tuple[tuple[str, ...], ...]:
    """Return the quantized activations in groups that must share a range, sorted."""
    activations = {entry.tensor for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION}
    shared = classes([*((name,) for name in activations), *(tie.tensors for tie in placement.ties)])
    return tuple(sorted(tuple(sorted(group)) for group in shared if group & activations))


@dataclass(frozen=True)
class Chooser:
    """Chooses the ranges of activations from histograms."""

    options: CalibrationOptions
    histograms: Mapping[str, Histogram]
    bounds: Mapping[str, Bound]
    formats: Mapping[str, QuantFormat] = field(default_factory=dict)

    def choose(self, group: tuple[str, ...]) -> list[TensorRange]:
        """Choose the range of a group of tensors that share one range.

        Raises:
            UsageError: their calibrators cannot be found.
            InputFileError: a tensor was not collected, or only its extremes were.
        """
        missing = [name for name in group if name not in self.histograms]
        if missing:
            raise InputFileError(
                f"no histogram was collected for tensor {missing[0]!r}",
                fix="run the calibration again: the placement changed after the histograms were collected",
            )
        common = reduce(merge, (self.histograms[name] for name in group))
        method = method_of(group, self.options)
        if not common.has_bins and needs_bins(method):
            raise InputFileError(
                f"only the extremes of tensor {group[0]!r} were collected, and {method!r} needs a histogram",
                fix="run the calibration again without --method max, or keep --method max",
            )
        range_, note = self._bound_range(group, common, calibrator(method)(common, self._grid(group)))
        steps = [note or f"calibrator {range_.method}"]
        factor = factor_of(group, self.options)
        if factor != 1:
            range_ = Range(amax=range_.amax * factor, method=range_.method)
            note = "; ".join(word for word in (note, f"times {factor:g}") if word)
            steps.append(f"times {factor:g}, as calibrate.shrink says")
        return [self._entry(name, group, range_, note).since(*steps) for name in group]

    def _grid(self, group: tuple[str, ...]) -> Grid:
        return grid_for(next((self.formats[name] for name in group if name in self.formats), INT8))

    def _bound_range(self, group: tuple[str, ...], common: Histogram, range_: Range) -> tuple[Range, str]:
        limits = [self.bounds.get(name) for name in group]
        if common.amax == 0:
            why = (
                "zero in every sample, so the range is a guess"
                if common.total
                else "contained only NaN or Inf"
            )
            return Range(amax=NEVER_FIRED, method=range_.method), why
        # No value exceeds its bound, so the largest value of the samples is a safe range; a smaller range would clip.
        bounds = [limit for limit in limits if limit is not None]
        if len(bounds) == len(limits) and any(limit.saturates for limit in bounds):
            return Range(amax=common.amax, method="max"), f"bounded by {bounds[0].op}"
        return range_, ""

    def _entry(self, name: str, group: tuple[str, ...], range_: Range, note: str) -> TensorRange:
        histogram = self.histograms[name]
        partners = [partner for partner in group if partner != name]
        words = [note] if note else []
        words += [f"shares its range with {', '.join(partners)}"] if partners else []
        ignored = histogram.nan + histogram.inf
        words += [f"{ignored} NaN or Inf values ignored"] if ignored else []
        return TensorRange(
            tensor=name,
            amax=(range_.amax,),
            low=histogram.low,
            high=histogram.high,
            method=range_.method,
            note="; ".join(words),
            format=self.formats.get(name, INT8),
            origin=(*([f"tied to {', '.join(partners)}"] if partners else []), *self._override(group)),
        )

    def _override(self, group: tuple[str, ...]) -> tuple[str, ...]:
        """Return a note on the pattern of `calibrate.overrides` that matches the group; () if none does."""
        pattern = override_of(group, self.options)
        return () if pattern is None else (f"calibrate.overrides names {pattern!r}",)


def method_of(group: tuple[str, ...], options: CalibrationOptions) -> str:
    """Return the calibrator of a group: the first override that matches one of its tensors; without one, the recipe's."""
    pattern = override_of(group, options)
    if pattern is not None:
        return options.overrides[pattern]
    if options.method == AUTO:
        return _WITHOUT_NETWORK
    if options.method == "percentile":
        return f"percentile:{options.percentile}"
    return options.method


def override_of(group: tuple[str, ...], options: CalibrationOptions) -> str | None:
    """Return the first pattern of `calibrate.overrides` that matches a tensor of the group; None if none does."""
    return next(
        (pattern for pattern in options.overrides if any(fnmatchcase(name, pattern) for name in group)), None
    )


def factor_of(group: tuple[str, ...], options: CalibrationOptions) -> float:
    """Return the recipe's factor for the range of a group of tensors: of the first glob that matches one; else 1."""
    return next(
        (
            factor
            for pattern, factor in options.shrink.items()
            if any(fnmatchcase(name, pattern) for name in group)
        ),
        1.0,
    )


def needs_bins(words: str) -> bool:
    """Return True if a calibrator, named as in a recipe, needs histograms and not only the largest values."""
    if words == AUTO:
        return True
    plugin = CALIBRATORS.load(words.partition(":")[0])
    return not isinstance(plugin, Calibrator) or plugin.needs_bins


def working_methods() -> tuple[str, ...]:
    """Return the names of all calibrators. A third-party calibrator that fails is left out with a warning."""
    nothing, grid = empty(), grid_for(INT8)
    return tuple(
        name
        for name in CALIBRATORS.usable()
        if CALIBRATORS.survives(name, lambda plugin: plugin(nothing, grid))
    )


@lru_cache(maxsize=32)
def calibrator(words: str) -> Choose:
    """Return a calibrator by name, with an optional parameter: "entropy", "percentile:99.9".

    Raises:
        UsageError: no such calibrator, or not a parameter it can take.
        MissingPackage: it belongs to another distribution and fails.
    """
    name, colon, parameter = words.partition(":")
    plugin = CALIBRATORS.load(name)
    try:
        numbers = (float(parameter),) if colon else ()
        if colon:
            plugin(empty(), grid_for(INT8), *numbers)
    except (ValueError, TypeError, CalibrationDataError) as error:
        raise UsageError(
            f"{words!r}: {error}",
            fix=f"write {name}, or {name}:99.9 if the calibrator takes a number; {Command('explain', (name,))} describes the calibrator",
        ) from error

    def choose(histogram: Histogram, grid: Grid) -> Range:
        with CALIBRATORS.running(name):
            range_: Range = plugin(histogram, grid, *numbers)
            if not 0 <= range_.amax < math.inf:
                raise ValueError(f"it chose the range {range_.amax}")
        return range_

    return choose
