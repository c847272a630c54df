"""The float model's results on the samples that choose ranges, with which all trials are compared.

Tables are compared with the outputs of the float model, and biases with the means of its layers. The pass that collects
histograms computes both (`float_pass`), which saves a pass and its session; otherwise `Reference` runs the samples.

For an output of a softmax, the scores before the softmax are compared (`graph.endings`). If the classes are sure, a
few samples would contain all noise of the outputs. For an output with boxes and scores, both are compared with equal
weight. For an output whose rows a TopK or a NonMaxSuppression selected, the input of this node is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.side_by_side import feeds_for
from qdqtool.calibration.collect import OnProgress, activations
from qdqtool.calibration.samples import Samples
from qdqtool.calibration.samples.conform import fixed_batch
from qdqtool.calibration.session import WatchedValues
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.tensors import DType
from qdqtool.errors import InputFileError
from qdqtool.graph.endings import endings, quantities, returning, scores
from qdqtool.graph.instrumented.corrected import Means, channel_means
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, weight_bytes
from qdqtool.graph.qdq.changes import shiftable
from qdqtool.graph.view import GraphView, Model
from qdqtool.pipeline.ranges.channels import SAMPLES, depthwise_inputs
from qdqtool.pipeline.ranges.layer_walk import float_means
from qdqtool.pipeline.ranges.samples import (
    CHOOSING,
    FEWEST,
    TAKEN,
    choosing,
    choosing_and_checking,
    choosing_numbers,
    count_taken,
    has_few_numbers,
    sizes,
    spread_over,
)
from qdqtool.runtime.runner import OrtRunner, open_model
from qdqtool.trt.ops import BLOCKED, LAYOUT, PICKING, PRODUCTS, SOFTMAXES

Values = Mapping[str, NDArray[Any]]

BRANCHING = frozenset({"If", "Loop"})
"""Operators with a condition that selects what is computed, for all samples of a batch together."""

FUSED_EXACTLY = PRODUCTS | BLOCKED | LAYOUT | PICKING | SOFTMAXES | {"Pad", "ReduceMean"}
"""Operators that compute the same bits whether onnxruntime fuses them or not, so further outputs do not change their results.

A written-out or skipped normalization does not belong to them: fused, its last bits are others.
"""

PASSES: Final = 6
"""Limit of the cost of choosing a calibrator: inferences for each sample that is used."""
_ROOM: Final = 64 << 20
"""Bytes for the live tensors of all samples that run at a time."""
_DEAR: Final = 320 << 20
"""Bytes for the live tensors of all samples of a trial, in one batch or not: large tensors take longest."""
_LIVE: Final = 3
"""Tensors of the largest size that are alive at once."""
_FEW: Final = 4
"""Factor of samples over chosen samples above which a separate pass over the chosen samples is cheaper than
means of all samples.
"""


@dataclass(kw_only=True, slots=True)
class Budget:
    """Number of inferences for a choice of ranges: used so far, and allowed.

    Attributes:
        most: limit of the inferences.
        on_progress: called with `spent` and `most`.
        spent: inferences used so far.
    """

    most: int = PASSES * TAKEN
    on_progress: OnProgress | None = None
    spent: int = 0

    def spend(self, count: int) -> None:
        """Count used inferences, and report the progress."""
        self.spent += count
        if self.on_progress is not None:
            self.on_progress(min(self.spent, self.most), self.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatPass:
    """Results of the float model on the samples that choose ranges, kept by the pass that collects histograms.

    Attributes:
        watch: the samples with the float network's outputs, and the outputs of the first two samples as one batch.
        means: the outputs that give the means of layers; empty if the model takes no batches.
    """

    watch: WatchedValues
    means: Means


class Reference:
    """The float model's results on the samples that choose among ranges, and on other samples that check the choice.

    Attributes:
        samples: all samples, in their order.
        choosing: evenly spaced samples that choose.
        checking: an equal number of other samples for a check.
        layers: nodes whose biases can be corrected, in graph order; none if that is not wanted.
        together: whether a batch gives each sample the outputs that it has when it runs alone.
        ends: node inputs to compare instead of an output, by output; see `graph.endings`.
        quantities: names of the compared tensors; tensors that count as one quantity are in one group.
    """

    _by_scores = True

    def __init__(
        self,
        model: Model,
        samples: SampleSource,
        budget: Budget,
        *,
        bias: bool = False,
        count: int | None = None,
        earlier: FloatPass | Reference | None = None,
    ) -> None:
        """Run the float model on the samples that choose ranges: `count` samples, or fewer for large models.

        `bias` says that biases are corrected, for which the means of its layers are needed. `earlier` has the outputs
        of an earlier pass, or the reference of another form of the model. Its outputs are reused if no means are
        needed.
        """
        count = count or count_taken(model.view, len(samples))
        if isinstance(earlier, FloatPass):
            judges = tuple(watched.sample for watched in earlier.watch.samples_run)
        else:
            judges = choosing(samples, count)
        self.samples = judges
        numbers = choosing_numbers(len(samples), count)
        self._numbers = {id(sample): number for number, sample in zip(numbers, judges, strict=False)}
        budget.most = PASSES * len(judges)
        self.choosing, self.checking = choosing_and_checking(judges)
        self.budget = budget
        self.layers = tuple(node.name for node in shiftable(model.view)) if bias else ()
        self._model = model
        self.ends = endings(model.view, softmax=self._by_scores)
        self._scores = scores(model.view, self.ends)
        self.quantities = quantities(model.view, self.ends)
        self._outputs: dict[int, Values] = {}
        self._places = {id(sample): place for place, sample in enumerate(judges)}
        self._means: Values = {}
        self._layer_means: Mapping[str, NDArray[np.float32]] | None = None
        self.together = False
        alike = len({_shapes(sample) for sample in judges}) == 1
        if isinstance(earlier, FloatPass):
            self.together = self._take_values(earlier) and alike and bool(self.layers)
            return
        if earlier is not None and not self.layers and self._took_over(earlier):
            return
        if self.layers and len(judges) >= FEWEST and alike and may_be_batched(model.view, self.layers):
            try:
                self.together = self._measure_outputs(free=True)
            except InputFileError:
                self.together = False
        if not self.together:
            self._measure_outputs(free=False)

    def of(self, model: Model) -> Reference:
        """Return a reference with equal samples for `model`, another float model with equal outputs."""
        count = len(self.samples)
        bias = bool(self.layers)
        return type(self)(model, self.source, self.budget, bias=bias, count=count, earlier=self)

    @property
    def source(self) -> SampleSource:
        """All samples of the reference, as a source to collect from."""
        return _Taken(self.samples)

    def number(self, sample: Sample) -> int:
        """Return the position of a sample in the source from which the reference was made."""
        return self._numbers[id(sample)]

    def outputs(self, sample: Sample) -> Values:
        """Return the compared float values of a sample, by output."""
        return self._outputs[id(sample)]

    def means(self, samples: Sequence[Sample]) -> dict[str, NDArray[np.float32]]:
        """Return the mean output of each channel of each layer for some samples, (samples, channels)."""
        rows = [self._places[id(sample)] for sample in samples]
        return {node: means[rows] for node, means in self._means.items()}

    def layer_means(self, samples: Sequence[Sample]) -> Mapping[str, NDArray[np.float32]]:
        """Return the mean outputs of layers for samples that run one by one, (samples, channels). They are measured once."""
        if self._layer_means is None:
            self.budget.spend(len(samples))
            nodes = [self._model.view.by_name[name] for name in self.layers]
            self._layer_means = float_means(self._model, nodes, [sample.feeds for sample in samples])
        return self._layer_means

    @cached_property
    def fitting(self) -> int:
        """Number of samples whose tensors fit into memory at the same time."""
        return max(FEWEST, _ROOM // self._live)

    def affordable(self, most: int) -> tuple[Sample, ...]:
        """Return at most `most` evenly spaced samples. Large samples reduce the number, but not below 8.

        If the outputs have few numbers, not below 32: on 8 samples with one score each, a change can fit them all.
        """
        least = TAKEN if has_few_numbers(self._model.view) else CHOOSING
        return spread_over(self.samples, min(most, max(least, _DEAR // self._live)))

    @cached_property
    def _live(self) -> int:
        """Bytes of the tensors that are alive at the same time for one sample."""
        feeds = self.samples[0].feeds if self.samples else {}
        shapes = {name: value.shape for name, value in feeds.items()}
        return 4 * _LIVE * max(1, *sizes(self._model.view, shapes))

    def _measure_outputs(self, *, free: bool) -> bool:
        """Run the float model on all samples.

        Return True if `free`, and if a batch of two samples gives the outputs of each sample.
        """
        watched = channel_means(returning(self._model, self._scores), self.layers if free else (), free=free)
        runner = open_model(watched.model, description="float model", crowded=True)
        rows: list[Values] = []

        def run(sample: Sample) -> Values:
            return runner.run(feeds_for(runner, sample))

        with ThreadPoolExecutor(runner.at_once) as pool:
            for sample, values in zip(self.samples, pool.map(run, self.samples), strict=True):
                self.budget.spend(1)
                self._outputs[id(sample)] = self._name_outputs(values)
                rows.append({name: values[name] for name in watched.outputs.values()})
        self._means = watched.of(rows)
        if not free:
            return False
        self.budget.spend(FEWEST)
        return self._is_alike(runner.run(join_samples(runner, self.samples[:FEWEST])))

    def _take_values(self, float_pass: FloatPass) -> bool:
        """Use float results of an earlier pass. Return True if batches give the outputs of single samples."""
        kept = float_pass.watch.samples_run
        self._outputs = {id(watched.sample): self._name_outputs(watched.values) for watched in kept}
        self._means = float_pass.means.of([watched.values for watched in kept])
        self.budget.spend(len(kept))
        if float_pass.watch.pair is None:
            return False
        self.budget.spend(FEWEST)
        return self._is_alike(float_pass.watch.pair)

    def _took_over(self, like: Reference) -> bool:
        """Use the float results of `like`, whose model has equal outputs; return False if they do not fit."""
        if len(like.samples) != len(self.samples) or like.ends.keys() != self.ends.keys():
            return False
        self._outputs = {
            id(mine): like.outputs(its) for mine, its in zip(self.samples, like.samples, strict=True)
        }
        self.budget.spend(len(self.samples))
        return all(outputs.keys() == self._scores.keys() for outputs in self._outputs.values())

    def _name_outputs(self, values: Values) -> Values:
        """Return the compared float values by output."""
        return {name: values[tensor] for name, tensor in self._scores.items() if tensor in values}

    def _is_alike(self, batched: Values) -> bool:
        """Return True if a batch of the first two samples gives the compared values of each sample, up to rounding."""
        both = self._name_outputs(batched)
        single = [self.outputs(sample) for sample in self.samples[:FEWEST]]
        return all(
            all(outputs[name].ndim for outputs in single)
            and both[name].shape[:1] == (sum(len(outputs[name]) for outputs in single),)
            and both[name].shape[1:] == single[0][name].shape[1:]
            and _is_close(both[name], np.concatenate([outputs[name] for outputs in single]))
            for name in single[0]
        )


class OutputReference(Reference):
    """A reference that compares the output of a softmax, not the scores before the softmax."""

    _by_scores = False


def _is_close(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return True if two arrays differ only by rounding errors.

    For values near zero, rounding is relative to the largest value.
    """
    finite = np.abs(left[np.isfinite(left)])
    return bool(np.allclose(left, right, rtol=1e-3, atol=1e-4 * max(1.0, float(finite.max(initial=0.0)))))


@dataclass(frozen=True)
class _Taken:
    """A sample source with samples in memory."""

    samples: tuple[Sample, ...]
    description: str = "samples that choose"
    meaningful: bool = True
    digest: str = ""

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)


def float_pass(
    model: Model, placement: Placement, samples: Samples, *, bias: bool
) -> tuple[Model, FloatPass] | None:
    """Return the model with more outputs, for choosing ranges, and the FloatPass that keeps their values.

    None if a combined pass saves no time.

    `bias` says that biases will be corrected. Only convolutional networks are changed: an additional output may end a
    fusion, which changes the last bits of the counted values (an Add before a LayerNormalization).
    """
    view, whole = model.view, len(samples)
    count = count_taken(view, whole)
    if (
        _FEW * count < whole
        or fixed_batch(view.inputs) not in {None, 1}
        or weight_bytes(model) >= SINGLE_FILE_LIMIT
    ):
        return None
    fed = {info.name for info in view.inputs}
    if not {node.op for node in view.nodes} <= FUSED_EXACTLY:
        return None
    judged = scores(view, endings(view))
    outputs = tuple(dict.fromkeys(judged.values()))
    if any(view.info(name).dtype is DType.UNKNOWN or name in fed for name in outputs):
        return None
    layers = tuple(node.name for node in shiftable(view)) if bias else ()
    free = bool(layers) and may_be_batched(view, layers)
    counted = set(activations(placement)).difference(outputs)
    means = channel_means(model, layers if free else (), free=free, averaged=counted)
    averaged = counted.intersection(means.outputs.values())
    returned = {*outputs, *means.outputs.values()} - averaged
    numbers = choosing_numbers(whole, count)
    peaked = counted.intersection(depthwise_inputs(model, placement))
    watch = WatchedValues(returned, averaged, outputs if free else (), numbers, peaked=peaked, first=SAMPLES)
    return means.model, FloatPass(watch=watch, means=means.without(model))


def may_be_batched(view: GraphView, layers: Sequence[str]) -> bool:
    """Return True if a batch of samples may work: leading dimensions are free or 1, and layers compute in FP32.

    A condition of an If or a Loop applies to a whole batch, so samples of one batch cannot take different branches.
    """
    if any(node.op in BRANCHING for node in view.nodes):
        return False
    shapes = [info.shape or () for info in view.inputs]
    of_floats = all(view.info(view.by_name[node].outputs[0]).dtype is DType.FLOAT32 for node in layers)
    return of_floats and all(shape and (shape[0] == 1 or isinstance(shape[0], str)) for shape in shapes)


def _shapes(sample: Sample) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, np.shape(value)) for name, value in sorted(sample.feeds.items()))


def join_samples(runner: OrtRunner | None, samples: Sequence[Sample]) -> dict[str, NDArray[Any]]:
    """Join samples into one batch of inputs. With a runner, convert them to the inputs of the runner."""
    feeds = [sample.feeds if runner is None else feeds_for(runner, sample) for sample in samples]
    return {name: _rows([feed[name] for feed in feeds]) for name in feeds[0]}


def _rows(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(values) if len(values) > 1 else values[0]
