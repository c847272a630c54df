"""Makes the final calibration table from histograms: the decisions of `pipeline.ranges`, in order.

With `weights.rounding: auto` and `calibrate.method: auto` the calibrator is chosen for weights that are rounded to the nearest.
If these weights make most of the noise (`noise_shares`: low-bit formats, weights alone, thin layers), `gptq` rounds them. The result
is kept if the outputs gain more than 0.3 dB on the samples that choose, and significantly on samples that its moments did not come from.
The same holds if weights make a tenth of the noise and nearly all layers are matrix products, whose moments cost little, or if
the network is so small that rounding takes a second or two. In other networks even exact weights would hardly gain that much, and
rounding costs as much as all other steps.

`adaround` is not tried. With one calibrator, its gain at the outputs was statistically tied with the gain of `gptq`
on all measured networks: three convolutional classifiers, two MobileNets, a ViT, a super-resolution network. A
descent from the result of `gptq` lowers the errors of layers a little, but not the errors of the outputs.
`benchmarks/accuracy.py --every-way` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from qdqtool.calibration.collect import OnProgress, collect
from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.moments import SAMPLES, multiplications
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.rounding import GPTQ, WeightRounding, layers_of, round_weights, weight_share
from qdqtool.calibration.table import Constants, constants, groups, make_tables
from qdqtool.core.calibration import CalibrationTable, Equalized, TensorRange
from qdqtool.core.journal import TrialOutcome
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import AUTO, CalibrationOptions, Recipe
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.equalize import Scalable
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, weight_bytes
from qdqtool.graph.qdq.changes import undo_rounding, with_changes
from qdqtool.graph.rotation import rotate_streams
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.bias import add_shifts, correct_biases
from qdqtool.pipeline.ranges.calibrators import Judged, choose
from qdqtool.pipeline.ranges.channels import SAMPLES as FEW
from qdqtool.pipeline.ranges.equalization import (
    DEPTHWISE,
    OUTLIER_SAMPLES,
    ROTATE,
    equalization,
    equalize_if_predicted,
    likely_uneven,
    relieve_channels,
    scalable_by_mul,
    suspects,
)
from qdqtool.pipeline.ranges.equalization import SAMPLES as SPREAD
from qdqtool.pipeline.ranges.executor import TrialSession, TriedTable
from qdqtool.pipeline.ranges.extremes import doubtful_ranges, refuse_extremes, smallest_ranges
from qdqtool.pipeline.ranges.few_samples import choose_for_others, parts_of
from qdqtool.pipeline.ranges.reference import Budget, FloatPass, Reference
from qdqtool.pipeline.ranges.samples import fitting_numbers, fitting_samples, spread_over
from qdqtool.pipeline.ranges.zero_points import with_zero_points
from qdqtool.pipeline.search.experiment import (
    LeastGain,
    NetworkEdit,
    Records,
    Search,
    mark_replaced,
    with_journal,
)
from qdqtool.pipeline.writing import or_without

GAIN_DB: Final = 0.3
"""Least gain at the outputs, in dB, for which rounding or equalizing is kept: both fit weights to the
samples, and less may be chance.
"""
_HIDDEN_DB: Final = 3.0
"""Gain of rounded weights, in dB, from which ranges are chosen again: before it, weights made half of the noise or more."""
_UNSEEN_DB: Final = 3.0
"""Least gain, in dB, for ways that add a Mul to the network, if no build has shown that the builder fuses it
into another kernel.
"""
_NAMED: Final = ("cross-layer", "smooth")
"""Ways that a recipe can name; they are also tried if there are outlier channels."""
_FEWEST: Final = 8
"""Number of samples up to which a choice by the outputs would be chance."""

_MOST_OF_IT: Final = 0.5
"""Share of the noise that weights must make before rounding is tried."""
_SOME_OF_IT: Final = 0.1
"""Share of the noise that weights must make if nearly all layers are matrix products, or the network is small. Below
this share, even exact weights gain almost nothing.
"""
_SECTION: Final = 1024
"""Inputs of a layer in one section of rounding, if its weights make less than most of the noise. Errors
compensate each other within a section. Layers of 3072 inputs gain in sections nearly what they gain as a
whole, in a quarter of the time (`docs/verified.md`).
"""
_CHEAP: Final = 20 * 10**9
"""Multiplications of a rounding that takes a second or two: users accept this time, and weights may make a tenth of the noise."""
_FEW_OF_THEM: Final = 0.1
"""Largest share of convolutions among the layers with which nearly all layers count as matrix products."""

_ROUNDED: Final = "weights rounded by gptq"


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRequest:
    """The parameters of calibration tables.

    Attributes:
        model: the float model, prepared.
        placement: the placement.
        histograms: of the model with `changes`.
        constants: ranges of weights with `changes`, and bounds.
        recipe: methods and rounding.
        changes: equalization by the way that the recipe names; None if it names none.
        samples: calibration samples; None if histograms were merged without any.
        float_pass: values of the evaluating samples that the collection kept; None if it kept none.
        spread: inputs of depthwise layers whose channels probably differ much in size.
    """

    model: Model
    placement: Placement
    histograms: Histograms
    constants: Constants
    recipe: Recipe
    changes: WeightChanges | None = None
    samples: SampleSource | None = None
    float_pass: FloatPass | None = None
    spread: tuple[Scalable, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalTable:
    """A calibration table, and the histograms from which it was made.

    If `auto` equalized channels, these are new histograms. `rivals` are ranges of the calibrators that were not chosen, for this
    network.
    """

    table: CalibrationTable
    histograms: Histograms
    rivals: Mapping[str, tuple[TensorRange, ...]] = field(default_factory=dict)


def final_tables(
    request: TableRequest, methods: Sequence[str], on_progress: OnProgress | None = None
) -> dict[str, FinalTable]:
    """Make one table per calibrator or `auto`. The recipe says whether weights are rounded, biases corrected and channels equalized.

    Without samples weights are rounded to the nearest, biases stay, and `auto` takes each tensor's own best calibrator, as
    it does on random samples.

    Raises:
        UsageError, InputFileError: as `make_tables` and the runners.
    """
    if request.changes:
        request = replace(request, model=with_changes(request.model, request.changes))
    elif request.recipe.weights.equalize == AUTO and request.samples is not None:
        everywhere = request.recipe.place.builder.is_rtx
        spread = likely_uneven(request.model, request.placement, everywhere=everywhere)
        request = replace(request, spread=spread)
    return {method: _final(request, method, on_progress) for method in methods}


def _final(request: TableRequest, method: str, on_progress: OnProgress | None) -> FinalTable:
    options = request.recipe.calibrate.model_copy(update={"method": method})
    way = request.recipe.weights.equalize
    if request.samples is None:
        table = _Maker(request, options, on_progress).plain()
        changed = _with_changes(table, request.changes, way) if request.changes else table
        tensors, samples = request.histograms.tensors, request.histograms.samples
        doubts = doubtful_ranges(undo_rounding(request.model, changed), changed, tensors, samples)
        changed = replace(changed, notes=(*changed.notes, *doubts))
        return FinalTable(table=changed, histograms=request.histograms)
    # A damaged sample is refused before the network runs with ranges from it.
    widest = _Maker(request, options.model_copy(update={"method": "max", "overrides": {}}), None).plain()
    tensors = request.histograms.tensors
    early = refuse_extremes(request.model, smallest_ranges(widest, tensors), tensors, request.samples)
    maker, table, notes = _table(request, options, on_progress)
    notes = (*early, *notes)
    final = plain = FinalTable(table=table, histograms=request.histograms, rivals=maker.rivals)
    if way == AUTO and not request.changes:
        final, more = or_without(
            "equalization",
            lambda: _equalized_if_better(request, plain, maker, on_progress),
            lambda: plain,
        )
        notes += more
    network, before = (request.model, request.placement), final.table
    floats = request.model if request.changes else undo_rounding(request.model, before)

    def moved_table() -> CalibrationTable:
        # Biases are corrected to the means of layers, and equalization changes these means.
        reference = maker.reference.of(floats) if maker.reference and before.equalized else maker.reference
        changed = _with(request.recipe, maker.options)
        return with_zero_points(
            network, before, request.samples, changed, reference, on_progress, final.rivals
        )

    moved, more = or_without("zero points", moved_table, lambda: before)
    notes += more
    if request.changes:
        moved = _with_changes(moved, request.changes, way)
    final = replace(final, table=moved)
    notes += refuse_extremes(floats, final.table, final.histograms.tensors, request.samples)
    return replace(final, table=replace(final.table, notes=tuple(dict.fromkeys(notes))))


def _table(
    request: TableRequest, options: CalibrationOptions, on_progress: OnProgress | None
) -> tuple[_Maker, CalibrationTable, tuple[str, ...]]:
    """Make the calibration table. If a helper model fails, leave out bias correction, or the choice by the outputs."""
    samples = request.samples
    assert samples is not None

    def table_of(chosen: CalibrationOptions) -> tuple[_Maker, CalibrationTable]:
        maker = _Maker(request, chosen, on_progress)
        return maker, maker.table(samples)

    def plain() -> tuple[_Maker, CalibrationTable]:
        maker = _Maker(request, kept, on_progress)
        return maker, maker.plain()

    kept = options.model_copy(update={"bias": "keep"})
    notes: tuple[str, ...] = ()

    def without_bias() -> tuple[_Maker, CalibrationTable]:
        nonlocal notes
        result, notes = or_without("the choice of ranges by the outputs", lambda: table_of(kept), plain)
        return result

    if options.bias == "correct":
        (maker, table), first = or_without("bias correction", lambda: table_of(options), without_bias)

        def harm_of_shifts() -> Records:
            return _harm_of_shifts(request, maker, table, on_progress)

        harm, more = or_without("the check of corrected biases", harm_of_shifts, lambda: ())
        first += more
        if harm:
            maker, table = without_bias()
            table = with_journal(table, (*(table.journal.trials if table.journal else ()), *harm))
        return maker, table, (*first, *notes)
    maker, table = without_bias()
    return maker, table, notes


def _harm_of_shifts(
    request: TableRequest, maker: _Maker, table: CalibrationTable, on_progress: OnProgress | None
) -> Records:
    """Return the journal row that keeps the biases, if corrected biases make the outputs significantly noisier; else ().

    Layers with equal means can have noisier outputs: a global MaxPool reads the largest values of a layer, not their mean.
    """
    reference = maker.reference
    if reference is None or not table.shifts:
        return ()
    network = (request.model, request.placement)
    count, budget = len(reference.samples), Budget(on_progress=on_progress)
    plain = Reference(network[0], reference.source, budget, count=count, earlier=reference)
    judges = plain.affordable(count)

    def tried(shifted: CalibrationTable) -> TriedTable:
        trial = TrialSession(*network, shifted, plain, budget)
        result = trial.candidate("", shifted, judges)
        trial.close()
        return result

    search = Search()
    edit = NetworkEdit(what="biases as they are", settings=("calibrate.bias=keep",))
    least = LeastGain(gain_db=GAIN_DB)
    is_harm = search.keeps(edit, tried(replace(table, shifts=())), tried(table), least)
    return search.records if is_harm else ()


def _with(recipe: Recipe, options: CalibrationOptions) -> Recipe:
    return recipe.model_copy(update={"calibrate": options})


def _with_changes(
    table: CalibrationTable, changes: WeightChanges, way: str, gain_db: float | None = None
) -> CalibrationTable:
    """Turn the table for an equalized network into a table for the original network."""
    names = (*changes.values, *(scaled.tensor for scaled in changes.scaled))
    equalized = Equalized(
        way=way, constants=tuple(sorted(names)), gain_db=None if gain_db is None else round(gain_db, 2)
    )
    rounded = table.weights.rounded if table.weights else {}
    step = f"network equalized by {way}"
    ranges = tuple(replace(entry, origin=(step, *entry.origin)) for entry in table.ranges)
    return replace(table, ranges=ranges, weights=changes.rounding(rounded), equalized=equalized)


def _equalized_if_better(
    request: TableRequest,
    kept: FinalTable,
    maker: _Maker,
    on_progress: OnProgress | None,
) -> FinalTable:
    """Return the table of the network with equalized channels, if a gain is predicted and the outputs gain enough.

    An equalization that may cost kernels must gain more.

    If the network has outlier channels, also try the equalizations that a recipe can name, and take the one with the
    least noise. All tables are compared on the samples that choose calibrators, and the gain must be significant for
    all of them together.
    """
    plain = kept.table
    model, placement, samples = request.model, request.placement, request.samples
    assert samples is not None
    if not samples.meaningful or len(samples) <= _FEWEST or weight_bytes(model) >= SINGLE_FILE_LIMIT:
        return kept
    ways = _predict_equalizations(request, plain, samples)
    if not ways:
        return kept
    budget = Budget(on_progress=on_progress)
    options = maker.options
    reference = maker.reference or Reference(model, samples, budget, bias=options.bias == "correct")
    trial = TrialSession(model, placement, plain, reference, budget)
    judges = trial.at_once()
    before = best = trial.candidate("", plain, judges)
    search = Search()
    chosen = None
    for way, found_changes in ways.items():
        changes = found_changes or _by_name(request, way, samples)
        if not changes:
            search.leaves(NetworkEdit(what=_describe_equalization(way)), "equalization changes no channel")
            continue
        after = _change_request(request, changes, samples)
        again = _Maker(after, options, on_progress, like=reference)
        table = again.table(samples)
        floats = again.reference or reference.of(after.model)
        judge = TrialSession(after.model, placement, table, floats, Budget())
        tried = judge.candidate("", table, spread_over(floats.samples, len(judges)))
        is_seen = not changes.scaled or request.recipe.place.builder.is_rtx
        least = LeastGain(gain_db=GAIN_DB if is_seen else _UNSEEN_DB, candidates=len(ways))
        edit = NetworkEdit(what=_describe_equalization(way), settings=(f"weights.equalize={way}",))
        if not search.keeps(edit, tried, before, least):
            continue
        is_best = tried.noise < best.noise
        if is_best:
            best, gain = tried, tried.decibel - before.decibel
            changed = _with_changes(table, changes, way, gain)
            kept = FinalTable(table=changed, histograms=after.histograms, rivals=again.rivals)
        beaten, chosen = (chosen, edit) if is_best else (edit, chosen)
        if beaten is not None:
            search.replaces(beaten.what, (TrialOutcome.REJECTED, "another equalization has less noise"))
    return replace(kept, table=_record_trials(plain, kept.table, search.records))


def _describe_equalization(way: str) -> str:
    return f"network equalized by {'its outlier channels' if way == AUTO else way}"


def _record_trials(plain: CalibrationTable, kept: CalibrationTable, records: Records) -> CalibrationTable:
    """Add to the journal of `kept`: calibrators before and after equalization, and the equalizations."""
    before = plain.journal.trials if plain.journal else ()
    if kept is plain or kept.equalized is None:
        return with_journal(kept, (*before, *records))
    way = kept.equalized.way
    after = kept.journal.trials if kept.journal else ()
    return with_journal(
        kept,
        (
            *mark_replaced(before, f"chosen again for the network equalized by {way}"),
            *records,
            *(replace(record, what=f"{record.what}, equalized") for record in after),
        ),
    )


def _predict_equalizations(
    request: TableRequest, plain: CalibrationTable, samples: SampleSource
) -> dict[str, WeightChanges | None]:
    """Return the equalizations that are worth calibrating, by method, with their weight changes.

    The changes are None if they are not computed yet.
    """
    model, placement = request.model, request.placement
    ways: dict[str, WeightChanges | None] = {}
    if request.spread:
        peaks = {} if request.float_pass is None else request.float_pass.watch.peaks
        some = fitting_samples(model.view, samples, SPREAD)
        changes = equalize_if_predicted((model, placement), request.spread, some, plain, peaks)
        ways |= {DEPTHWISE: changes} if changes else {}
    folded = suspects(model, placement, plain, request.histograms)
    by_mul = _promising_by_mul(request, plain, samples)
    if folded or by_mul:
        some = fitting_samples(model.view, samples, OUTLIER_SAMPLES)
        changes = relieve_channels(model, folded, plain, some, by_mul)
        named = dict.fromkeys(_NAMED) if folded else {}
        ways |= {AUTO: changes, **named} if changes else {}
        turned = rotate_streams(model.view)
        # On the trained decoder of benchmarks/trained.py, smooth gains more than rotate, although no single tensor
        # predicts a gain.
        ways |= {ROTATE: turned, "smooth": None} if turned else {}
    return ways


def _promising_by_mul(
    request: TableRequest, plain: CalibrationTable, samples: SampleSource
) -> tuple[Scalable, ...]:
    """Return what `scalable_by_mul` finds, if a few samples predict much less noise for one tensor; else ().

    The samples must run, because constants do not show how large the channels after a Gelu are.
    """
    if not request.recipe.place.builder.is_rtx:
        return ()
    chosen = scalable_by_mul(request.model, request.placement)
    few = fitting_samples(request.model.view, samples, FEW) if chosen else ()
    return chosen if chosen and relieve_channels(request.model, chosen, plain, few) else ()


def _by_name(request: TableRequest, way: str, samples: SampleSource) -> WeightChanges | None:
    weights = request.recipe.weights.model_copy(update={"equalize": way})
    named = request.recipe.model_copy(update={"weights": weights})
    return equalization(request.model, request.placement, named, samples)


def _change_request(request: TableRequest, changes: WeightChanges, samples: SampleSource) -> TableRequest:
    """Return the request for the equalized network; its histograms are collected again."""
    changed = with_changes(request.model, changes)
    options = CollectOptions(on_nan=request.recipe.samples.nan)
    return replace(
        request,
        model=changed,
        histograms=collect(changed, request.placement, samples, options=options),
        constants=constants(request.placement, changed.view, request.recipe.weight_ranges),
        float_pass=None,
    )


class _Maker:
    """Makes calibration tables (ranges, rounded weights, corrected biases) with one calibrator or with `auto`.

    Attributes:
        options: the calibrator's.
        reference: outputs of the float model, if calibrators were judged; taken from `like`, another form of the model, if possible.
        rivals: ranges of calibrators that were judged and not chosen.
    """

    def __init__(
        self,
        request: TableRequest,
        options: CalibrationOptions,
        on_progress: OnProgress | None,
        *,
        like: Reference | None = None,
    ) -> None:
        self._request = request
        self.options = options
        self._on_progress = on_progress
        self._like = like
        self.reference: Reference | None = None
        self.rivals: Mapping[str, tuple[TensorRange, ...]] = {}

    def plain(self, constants: Constants | None = None) -> CalibrationTable:
        """Make the table from histograms only, without running the network."""
        request = self._request
        tables = make_tables(
            request.histograms, request.placement, constants or request.constants, (self.options,)
        )
        return tables[0]

    def table(self, samples: SampleSource) -> CalibrationTable:
        """Make the table by the recipe's method and rounding."""
        model, placement, rounding = (
            self._request.model,
            self._request.placement,
            self._request.recipe.weights.rounding,
        )
        if not placement.quantized:
            return self.plain()
        corrects = self.options.bias == "correct"
        rounded = (
            self._round_table(rounding, samples) if self._request.recipe.weights.rounds_by_outputs else None
        )
        # outputs of random samples do not show which calibrator is better
        judged = (
            self.options.method == AUTO and samples.meaningful and weight_bytes(model) < SINGLE_FILE_LIMIT
        )
        tried = rounding == AUTO and judged and len(samples) > _FEWEST
        if not judged or not (tried or groups(placement)):
            table = rounded or self.plain()
            if not corrects:
                return table
            return correct_biases(
                model, placement, table, samples, self._on_progress, self._request.float_pass
            )
        budget = Budget(on_progress=self._on_progress)
        reference = Reference(
            model, samples, budget, bias=corrects, earlier=self._like or self._request.float_pass
        )
        self.reference = reference
        parts = parts_of(model, placement, reference, self.options, len(samples))
        chosen = self._choose_table(reference, rounded, parts, int(tried))
        best = chosen.trial.settled(chosen.best, chosen.samples)
        chosen.trial.close()
        records = chosen.records
        if tried:
            after, rounding_records = self._rounded_if_better(chosen, samples)
            again, more = self._choose_again(reference, chosen, after, parts, samples)
            best = best if again is chosen else again.trial.settled(again.best, again.samples)
            chosen, records = again, (*records, *rounding_records, *more)
        self.rivals = chosen.rivals
        table = with_journal(chosen.table, records)
        if not corrects:
            return table
        table = replace(table, shifts=best.table.shifts)
        return add_shifts(model, placement, table, reference, self._on_progress)

    def _rounded_if_better(self, nearest: Judged, samples: SampleSource) -> tuple[Judged, Records]:
        """Return the chosen ranges with weights rounded by `gptq` if this gains enough; else unchanged."""
        request, before, search = self._request, nearest.trial, Search()
        layers = layers_of(request.model, request.placement, nearest.table, request.recipe.insert)
        share = weight_share(request.model.view, layers, request.placement, nearest.table, request.histograms)
        # The moments of a matrix product cost about as much as the product, those of a convolution several times as much.
        convolutions = sum(bool(layer.product.reading.kernel) for layer in layers)
        is_cheap = sum(multiplications(layer.product) for layer in layers) <= _CHEAP
        least = _SOME_OF_IT if is_cheap or convolutions <= _FEW_OF_THEM * len(layers) else _MOST_OF_IT
        widest = None if share >= _MOST_OF_IT else _SECTION
        table = self._round_table(GPTQ, samples, nearest.table, widest) if share >= least else None
        if table is None:
            why = f"weights make {share:.0%} of the noise; tried from {least:.0%}"
            search.leaves(
                NetworkEdit(what=_ROUNDED),
                why if share < least else "this method can round no weight of the network",
            )
            return nearest, search.records
        trial = TrialSession(request.model, request.placement, table, before.reference, before.budget)
        best = trial.candidate(GPTQ, table, nearest.samples)
        fitted = fitting_numbers(request.model.view, len(samples))
        unseen = [
            place
            for place, sample in enumerate(nearest.samples)
            if before.reference.number(sample) not in fitted
        ]
        edit = NetworkEdit(what=_ROUNDED, settings=("weights.rounding=gptq",))
        if not search.keeps(edit, best, nearest.best, LeastGain(gain_db=GAIN_DB, unseen=unseen)):
            return nearest, search.records
        gain = best.decibel - nearest.best.decibel
        return replace(nearest, table=_with_gain(table, gain), best=best, trial=trial), search.records

    def _choose_again(
        self,
        reference: Reference,
        nearest: Judged,
        rounded: Judged,
        parts: tuple[Histograms, ...],
        samples: SampleSource,
    ) -> tuple[Judged, Records]:
        """If rounding weights to nearest made most of the noise, round by `gptq` and choose the ranges again.

        The noise of the weights hid the differences between calibrators. The first choice stays, unless the second is
        significantly better.
        """
        if rounded is nearest or rounded.best.decibel - nearest.best.decibel < _HIDDEN_DB:
            return rounded, ()
        table = self._round_table(GPTQ, samples, nearest.table)
        # the first choice has used up its inferences
        reference.budget.most += reference.budget.spent
        again = self._choose_table(reference, table, parts, 0)
        before = rounded.trial.candidate(GPTQ, rounded.table, again.samples)
        search = Search()
        edit = NetworkEdit(what="whole layers rounded by gptq, and ranges chosen again")
        is_kept = search.keeps(edit, again.best, before, LeastGain(gain_db=0.0))
        (rounded if is_kept else again).trial.close()
        return (again if is_kept else rounded), search.records

    def _round_table(
        self,
        method: str,
        samples: SampleSource,
        table: CalibrationTable | None = None,
        widest: int | None = None,
    ) -> CalibrationTable | None:
        """Round the weights of `table` by a method. Return None if no weight can be rounded.

        The default for `table` is the table from histograms alone.
        """
        request = self._request
        rounded = round_weights(
            request.model,
            request.placement,
            table or self.plain(),
            WeightRounding(method=method, widest=widest),
            request.recipe.insert,
            fitting_samples(request.model.view, samples, SAMPLES),
            self._on_progress,
        )
        if not rounded.weights:
            return None
        step = f"values rounded by {method}, with this range"
        ranges = (
            entry.since(step) if entry.tensor in rounded.weights.rounded else entry
            for entry in rounded.ranges
        )
        return replace(rounded, ranges=tuple(ranges))

    def _choose_table(
        self,
        reference: Reference,
        rounded: CalibrationTable | None,
        parts: tuple[Histograms, ...],
        more: int,
    ) -> Judged:
        request = self._request
        constants, weights = request.constants, None
        if rounded is not None:
            ranges = rounded.by_tensor()
            constants = replace(constants, weights=tuple(ranges[entry.tensor] for entry in constants.weights))
            weights = rounded.weights
        model, placement, collected = request.model, request.placement, (request.histograms, constants)
        if parts:
            return choose_for_others(model, placement, collected, self.options, reference, parts, weights)
        return choose(model, placement, collected, self.options, reference, weights, more)


def _with_gain(table: CalibrationTable, gain: float) -> CalibrationTable:
    """Record the gain of weight rounding in each range of a rounded weight."""
    rounded = table.weights.rounded if table.weights else {}
    return replace(
        table,
        ranges=tuple(
            replace(entry, gain_db=round(gain, 2)) if entry.tensor in rounded else entry
            for entry in table.ranges
        ),
    )
