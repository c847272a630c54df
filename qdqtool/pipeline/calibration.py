"""Calibration as a separate task: makes tables of ranges from a model and samples, or from shards of histograms."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from glob import escape, glob
from pathlib import Path

from qdqtool.calibration.collect import Collection, OnProgress
from qdqtool.calibration.histograms import Histograms, Span, merge_files
from qdqtool.calibration.pool import CollectOptions, CollectorPool
from qdqtool.calibration.samples import SampleInput, Samples, no_samples
from qdqtool.calibration.samples.opening import NanPolicy
from qdqtool.calibration.table import Constants, constants, needs_bins
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.findings import Finding
from qdqtool.core.kinds import PLACEMENT
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.recipe import AUTO, Recipe
from qdqtool.core.weights import WeightChanges
from qdqtool.core.wording import count_noun, list_names
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.instrumented.cut import computable
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare, prepare_as_placed
from qdqtool.graph.qdq.changes import with_changes
from qdqtool.graph.view import Model
from qdqtool.pipeline.preparations import input_notes, with_known_inputs
from qdqtool.pipeline.random_shapes import opener, samples_for
from qdqtool.pipeline.ranges.decisions import TableRequest, final_tables
from qdqtool.pipeline.ranges.equalization import channel_findings, equalization_or_note
from qdqtool.pipeline.ranges.reference import FloatPass, float_pass
from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
from qdqtool.pipeline.writing import check_conversion, or_without
from qdqtool.placement.decide import decide
from qdqtool.platform import give_back
from qdqtool.runtime.device import CPU, DeviceUse
from qdqtool.runtime.operators import in_use, use_operators
from qdqtool.runtime.session import computing_on

# One line of a terminal.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationRequest:
    """Parameters of a calibration.

    Attributes:
        model: the float ONNX file.
        recipe: placement, preprocessing and calibration options.
        samples: source of the samples, as typed; "" if only shards are merged.
        placement: a placement.json to use instead of deciding again.
        on_nan: handling of samples and values that are NaN or Inf; None uses the recipe's `samples.nan`.
        threads: processors to use; None takes all.
    """

    model: Path
    recipe: Recipe
    samples: SampleInput = ""
    placement: Path | None = None
    on_nan: NanPolicy | None = None
    threads: int | None = None

    @property
    def nan(self) -> NanPolicy:
        """Policy for samples and values that are NaN or Inf."""
        return self.on_nan or self.recipe.samples.nan


class Calibration:
    """A calibration job; opens the model once.

    Attributes:
        request: the order.
        histograms: of the network that each table of `tables` is for, which may have been equalized, by method.
    """

    def __init__(self, request: CalibrationRequest) -> None:
        use_operators(request.recipe)
        recipe = with_known_inputs(request.recipe, request.samples, request.model)
        recipe = recipe.model_copy(update={"samples": recipe.samples.model_copy(update={"nan": request.nan})})
        self.request = replace(request, recipe=recipe)
        self.histograms: dict[str, Histograms] = {}
        self._float_pass: FloatPass | None = None

    @property
    def input_notes(self) -> tuple[str, ...]:
        """Notes on the preparation of pictures; () for arrays."""
        return input_notes(self.request.recipe)

    @cached_property
    def model(self) -> Model:
        """The prepared model; only a part of it if this machine cannot compute its plug-in operators."""
        if all(decision.kind is SlotKind.WEIGHT for decision in self.placed.quantized):
            return self.whole
        return computable(self.whole, in_use().stand_ins.keys()) if not in_use().libraries else self.whole

    @cached_property
    def placement(self) -> Placement:
        """The decisions about nodes of `model`."""
        if self.model is self.whole:
            return self.placed
        there = self.model.view.by_name
        return replace(
            self.placed, decisions=tuple(entry for entry in self.placed.decisions if entry.slot.node in there)
        )

    @cached_property
    def whole(self) -> Model:
        """The prepared model, including parts that this machine cannot compute."""
        model, options = load(self.request.model), self.request.recipe.preparing
        if self.request.placement is None:
            return prepare(model, options)
        return prepare_as_placed(model, options, self.placed)

    @cached_property
    def placed(self) -> Placement:
        """All decisions about the nodes of `whole`."""
        if self.request.placement is not None:
            return PLACEMENT.read(self.request.placement)
        refuse_unmatched(self.request.recipe, self.whole.view, "place")
        return decide(self.whole.view, self.request.recipe.placing)

    @cached_property
    def constants(self) -> Constants:
        """Ranges of weights, and bounds of values."""
        model = with_changes(self.model, self.changes) if self.changes else self.model
        return constants(self.placement, model.view, self.request.recipe.weight_ranges)

    @property
    def changes(self) -> WeightChanges | None:
        """Changes that equalize channels as the recipe says; None without such a setting, or without samples."""
        return self._equalization[0]

    @property
    def equalization_notes(self) -> tuple[str, ...]:
        """The reasons why channels are not equalized although the recipe requires it."""
        return self._equalization[1]

    @cached_property
    def _equalization(self) -> tuple[WeightChanges | None, tuple[str, ...]]:
        """The changes that equalize channels, and a note if a helper model failed."""
        if not self.request.samples:
            return None, ()
        with self._device():
            return equalization_or_note(self.model, self.placement, self.request.recipe, self.samples)

    @cached_property
    def samples(self) -> Samples:
        """The samples of the request, opened with the inputs and the shapes of `model`."""
        recipe = self.request.recipe
        return samples_for(
            self.request.samples,
            self.model.view.inputs,
            recipe,
            opener(self.model),
            limit=recipe.samples.limit,
            on_nan=self.request.nan,
        )

    def use(self, model: Model, placement: Placement, samples: Samples | None = None) -> None:
        """Use an existing prepared model, placement and opened samples, instead of making them again."""
        self.__dict__.update(whole=model, placed=placement)
        if samples is not None:
            self.__dict__["samples"] = samples

    def use_changes(self, changes: WeightChanges | None, notes: tuple[str, ...] = ()) -> None:
        """Set the equalized channels that the collection of histograms has computed, or its notes on why there are none."""
        self.__dict__["_equalization"] = (changes, notes)

    def collect_options(self, methods: Sequence[str]) -> CollectOptions:
        """Return options that collect histogram bins if at least one of the methods needs them."""
        return CollectOptions(
            bins=any(map(needs_bins, methods)),
            on_nan=self.request.nan,
            threads=self.request.threads,
        )

    def collection(self, options: CollectOptions, *, resumable: bool = True) -> Collection:
        """Return the model and the samples, ready to run.

        Raises:
            Bug: with its raised opset, the model no longer computes what its file does.
        """
        check_conversion(self.model, self.samples)
        return Collection(self._changed, self.placement, self.samples, options=options, resumable=resumable)

    def _device(self) -> AbstractContextManager[DeviceUse]:
        """Return the context in which samples run on the recipe's device."""
        return computing_on(self.request.recipe.compute.device)

    @property
    def _changed(self) -> Model:
        return with_changes(self.model, self.changes) if self.changes else self.model

    def collect(
        self,
        options: CollectOptions,
        kept: Path | None,
        shard: tuple[int, int] = (0, 1),
        on_progress: OnProgress | None = None,
    ) -> Histograms:
        """Collect the histograms of one shard. With `kept`, continue from the files of a run that was interrupted."""
        with self._device():
            collection = self.collection(options, resumable=kept is not None)
            give_back()  # memory for opening the model; large weights stay in its file
            span = Span(shard=shard[0], shards=shard[1], total=len(self.samples))
            if kept is None:
                return collection.run(span, on_progress=on_progress)
            return collection.resume(span, kept, on_progress=on_progress)

    def check(self, histograms: Histograms) -> None:
        """Check that imported histograms belong to this model, and to these samples if there are any.

        Raises:
            InputFileError: they are not.
        """
        identity = histograms.identity
        if not identity:
            return
        if self.request.samples and self.samples.digest != identity["samples"]:
            raise InputFileError(
                "the histograms were collected from other samples",
                fix="pass the samples of the shards, or no samples",
                where=self.samples.description,
            )
        way = self.request.recipe.weights.equalize
        if not self.request.samples and way not in {"none", AUTO}:
            raise InputFileError(
                f"weights.equalize={way} changed the network of the shards with samples, but this command has no samples",
                fix="also pass the samples with --samples, or set weights.equalize=auto",
                where=str(self.request.model),
            )
        tensors = tuple(sorted(histograms.tensors))
        network = self._changed
        computed = {name for node in network.view.nodes for name in node.outputs}
        computed |= {info.name for info in network.view.inputs}
        is_ours = computed.issuperset(tensors)
        if (
            not is_ours
            or CollectorPool(network, tensors, CollectOptions(), identify=True).digest != identity["model"]
        ):
            raise InputFileError(
                "the histograms were collected from another model, or with another recipe.prepare or weights.equalize",
                fix="use the model and the recipe of the shards",
                where=str(self.request.model),
            )

    def tables(
        self, histograms: Histograms, methods: Sequence[str], on_progress: OnProgress | None = None
    ) -> dict[str, CalibrationTable]:
        """Return one table for each calibrator in `methods` (also `auto`), from histograms.

        With samples, `final_tables` may run the network again.
        """
        refuse_unmatched(self.request.recipe, self.whole.view, "calibrate")
        request = TableRequest(
            model=self.model,
            placement=self.placement,
            histograms=histograms,
            constants=self.constants,
            recipe=self.request.recipe,
            changes=self.changes,
            samples=self.samples if self.request.samples else None,
            float_pass=self._float_pass,
        )
        with self._device() as use:
            finals = final_tables(request, methods, on_progress)
        self.histograms = {method: final.histograms for method, final in finals.items()}
        notes = self.equalization_notes
        name = use.provider.name if self.request.samples else CPU.name
        return {
            method: replace(final.table, notes=(*notes, *final.table.notes, *use.notes()), provider=name)
            for method, final in finals.items()
        }

    def table(self, on_progress: OnProgress | None = None) -> CalibrationTable:
        """Return the table for the recipe's method, with findings, from a single pass over the samples.

        The samples that choose ranges run through the float model in the same pass.

        Raises:
            UsageError: there are no samples.
            InputFileError: a sample cannot be read, or does not fit.
        """
        if not self.request.samples:
            raise no_samples(self.model.view.inputs)
        with self._device():
            return self._table(on_progress)

    def _table(self, on_progress: OnProgress | None) -> CalibrationTable:
        check_conversion(self.model, self.samples)
        how = self.request.recipe.calibrate
        options = self.collect_options([how.method])
        is_judged = self.samples.meaningful and how.method == AUTO
        histograms: Histograms | None = None
        notes: tuple[str, ...] = ()
        if (is_judged or how.bias == "correct") and self.request.nan == "error":
            histograms, notes = or_without(
                "measuring outputs and means in the first pass",
                partial(self._watch_pass, options, on_progress),
                lambda: None,
            )
        if histograms is None:
            self._float_pass = None
            plain = Collection(self._changed, self.placement, self.samples, options=options)
            histograms = plain.run(Span(total=len(self.samples)), on_progress=on_progress)
            del plain
        # Otherwise this session, with the activations of one sample per processor, would stay in memory while tables
        # are judged.
        give_back()
        table = self.tables(histograms, [how.method])[how.method]
        return self.with_findings(replace(table, notes=(*notes, *table.notes)))

    def _watch_pass(self, options: CollectOptions, on_progress: OnProgress | None) -> Histograms | None:
        """Collect histograms and float results in a combined pass; None if `float_pass` declines it."""
        corrects = self.request.recipe.calibrate.bias == "correct"
        float_run = float_pass(self._changed, self.placement, self.samples, bias=corrects)
        if float_run is None:
            return None
        model, self._float_pass = float_run
        del float_run
        collection = Collection(
            model, self.placement, self.samples, options=options, watch=self._float_pass.watch
        )
        del model
        return collection.run(Span(total=len(self.samples)), on_progress=on_progress)

    def with_findings(self, table: CalibrationTable) -> CalibrationTable:
        """Return the table with findings about its ranges; if they cannot be computed, with a note."""
        findings, notes = or_without(
            "the check of depthwise channels", lambda: self.findings(table), tuple[Finding, ...]
        )
        return replace(table, findings=findings, notes=(*table.notes, *notes))

    def findings(self, table: CalibrationTable) -> tuple[Finding, ...]:
        """Return findings about ranges that cost accuracy. For depthwise convolutions, run a few samples again."""
        if not self.request.samples:
            return ()
        # The weights of the model that was run, because equalization changes channels.
        peaks = None if self._float_pass is None or self.changes else self._float_pass.watch.peaks
        with self._device():
            return channel_findings(self.model, self.placement, table, self.samples, peaks)


def merge(places: Sequence[str]) -> Histograms:
    """Merge the histograms of all shards in files, folders or glob patterns.

    Raises:
        UsageError: a pattern matches no file.
        InputFileError: parts are missing or do not belong together.
    """
    paths: list[Path] = []
    for place in places:
        exact = escape(place)
        pattern = f"{exact}/*.npz" if Path(place).is_dir() else exact if Path(place).is_file() else place
        files = sorted(Path(match) for match in glob(pattern))  # noqa: PTH207 -- absolute patterns too
        if not files:
            raise UsageError(f"{place!r} matches no file", fix="pass the .npz files that --shard wrote")
        paths += files
    if len(set(paths)) < len(paths):
        raise InputFileError("the same file was passed twice", fix="pass each file once")
    return merge_files(paths)


def doubts(histograms: Histograms) -> tuple[str, ...]:
    """Return notes on tensors that were NaN, infinite or always zero in the samples, one sentence for each problem."""
    tensors = histograms.tensors
    empty = [name for name, histogram in tensors.items() if histogram.total == 0]
    silent = [name for name, histogram in tensors.items() if histogram.total and histogram.amax == 0]
    odd = {
        name: histogram.nan + histogram.inf
        for name, histogram in tensors.items()
        if histogram.nan + histogram.inf
    }
    sentences = (
        ("contained only NaN or Inf", empty),
        ("zero in every sample, so the range is a guess", silent),
        (
            "contained NaN or Inf, which were skipped",
            [f"{name} ({count_noun(count, 'value')})" for name, count in odd.items()],
        ),
    )
    return tuple(
        f"{count_noun(len(names), 'tensor')} {problem}: {list_names(names, _SHOWN)}"
        for problem, names in sentences
        if names
    )
