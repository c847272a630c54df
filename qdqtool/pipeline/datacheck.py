"""Measures data for the data checks: samples, convergence of ranges, labels, preparations and noisy nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram
from qdqtool.accuracy.compare import compare
from qdqtool.accuracy.parts import with_parts
from qdqtool.calibration.collect import Collection
from qdqtool.calibration.histograms import Span, merge_histograms
from qdqtool.calibration.samples import Samples
from qdqtool.core.calibration import CALIBRATORS
from qdqtool.core.comparison import GIVEN, GUESSED, Comparison, is_lost, sqnr
from qdqtool.core.findings import DataReport
from qdqtool.core.grids import grid_for
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Feeds, Runner, SampleSource
from qdqtool.core.recipe import CompareOptions, Recipe
from qdqtool.core.tensors import INT8
from qdqtool.datachecks import check_data
from qdqtool.datachecks.evidence import (
    CONVERGED,
    DataEvidence,
    FloatCure,
    InputStatistics,
    NarrowLoss,
    SampleSet,
    Spread,
)
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, weight_bytes
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.qdq.kv_caches import with_float_caches
from qdqtool.graph.qdq.unquantize import unquantize
from qdqtool.graph.view import Model
from qdqtool.pipeline.preparation_trials import (
    better_variant,
    compare_preparations,
    from_all_over,
    predictions,
    takes_pictures,
)
from qdqtool.pipeline.suggest import families, fitting
from qdqtool.runtime.runner import open_model
from qdqtool.trt.ops import QDQ

LOOKED_AT: Final = 2048
"""Most samples of a set whose values are compared with the other set; reading pictures takes longest."""
SPLIT: Final = 64
"""Calibration samples that are split into halves; if the ranges of both halves agree, they have converged."""
_GROUPS, _SPLITS = 8, 16
SCORED: Final = 512
"""Labelled samples on which the float model is scored, and the most promising other preprocessings are confirmed.

The loss of a classifier from a wrong order of colours may be within the noise of 64 samples.
"""
TRIED: Final = 64
"""Samples on which all other preprocessings are tried."""
CURED: Final = 8
"""Samples on which the effect of float nodes is measured."""
# Number of nodes whose cost is named.
_WORST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class DataMaterial:
    """The samples, the comparison and the recipe of a run.

    Attributes:
        calibration: the calibration samples.
        evaluation: the evaluation samples; the calibration samples if there are no others.
        comparison: float against quantized model.
        recipe: the method.
        narrow: loss by FP16 or BF16, if it was measured and is large.
    """

    calibration: SampleSource
    evaluation: SampleSource
    comparison: Comparison
    recipe: Recipe
    narrow: NarrowLoss | None = None


def data_report(
    models: tuple[Model, Model], placement: Placement | None, material: DataMaterial
) -> DataReport:
    """Report findings about samples, labels and recipe of a run with this float and this Q/DQ model.

    Without a placement, the ranges came with the model, and the samples only show how good they are.
    """
    evidence = gather(models, placement, material)
    evaluation = evidence.evaluation
    return DataReport(
        findings=check_data(evidence, material.recipe.audit.ignore),
        calibration=evidence.calibration.count,
        evaluation=None if evaluation is None else evaluation.count,
        spread=None if evidence.spread is None else round(evidence.spread.typical, 4),
        spread_samples=0 if evidence.spread is None else evidence.spread.samples,
    )


def gather(models: tuple[Model, Model], placement: Placement | None, material: DataMaterial) -> DataEvidence:
    """Measure everything that the data checks need, as far as possible."""
    calibration, evaluation, recipe = material.calibration, material.evaluation, material.recipe
    evidence = DataEvidence(
        calibration=sample_set(calibration),
        evaluation=sample_set(evaluation) if are_others(calibration, evaluation) else None,
        meaningful=calibration.meaningful and evaluation.meaningful,
        comparison=material.comparison,
        calibrated=placement is not None,
        recipe=recipe.name,
        fitting=fitting(models[0]) if placement is not None and recipe.name in families() else None,
        excluded=recipe.place.exclude,
        wide=recipe.insert.keep_nodes,
    )
    if not evidence.meaningful:
        return evidence
    if recipe.compare.task == "classify":
        evidence = _score_samples(evidence, models[0], material)
    if evidence.predictions is None and not _is_stated(recipe) and takes_pictures(models[0].view.inputs):
        runner = open_model(models[0], description="float model", crowded=True)
        evidence = replace(
            evidence,
            mirrored=compare_preparations(
                runner, evaluation, evidence.evaluation or evidence.calibration, recipe
            ),
        )
    return replace(
        evidence,
        narrow=material.narrow,
        spread=None if placement is None else spread(models[0], placement, calibration),
        cure=cure(models, material.comparison, evaluation, recipe.compare)
        if is_lost(material.comparison)
        else None,
    )


def _is_stated(recipe: Recipe) -> bool:
    """Return True if the preparation of pictures is stated in the model or a file beside it, or was tried already."""
    return recipe.samples.sources.get("scale", GIVEN) not in {GIVEN, GUESSED}


def _score_samples(evidence: DataEvidence, model: Model, material: DataMaterial) -> DataEvidence:
    """Add the accuracy of the float model on labelled samples, with the recipe's and with other preparations."""
    runner = open_model(model, description="float model", crowded=True)
    recipe, sample_set = material.recipe, evidence.evaluation or evidence.calibration
    some, few = (from_all_over(material.evaluation, count) for count in (SCORED, TRIED))
    scored = predictions(runner, some, recipe.compare.output)
    variant = better_variant(runner, (few, some), sample_set, recipe, scored) if scored else None
    return replace(evidence, predictions=scored, variant=variant)


_BESIDE: Final = 64
"""Ratio of sizes from which a smaller input only describes the largest input."""


def are_others(calibration: SampleSource, evaluation: SampleSource) -> bool:
    """Return True if the two sets of samples differ. Other labels or another limit do not count as a difference."""
    return calibration.description != evaluation.description or calibration.digest != evaluation.digest


def sample_set(samples: SampleSource) -> SampleSet:
    """Return facts about a set of samples: digests, constant samples, and statistics of the first samples."""
    digests: list[str] = []
    names: list[str] = []
    constant: list[str] = []
    sums: dict[str, _Moments] = {}
    for sample in islice(iter(samples), LOOKED_AT):
        floats = {
            name: array for name, array in sample.feeds.items() if array.dtype.kind == "f" and array.size
        }
        digests.append(_digest(sample.feeds))
        names.append(sample.name)
        # the sizes and scale factors beside an image may be equal in all samples
        least = max((array.size for array in floats.values()), default=0) / _BESIDE
        if any(array.size >= max(2, least) and array.min() == array.max() for array in floats.values()):
            constant.append(sample.name)
        for name, array in floats.items():
            sums.setdefault(name, _Moments()).add(array)
    skipped = len(samples.skipped) if isinstance(samples, Samples) else 0
    return SampleSet(
        count=len(samples) + skipped,
        digests=tuple(digests),
        names=tuple(names),
        constant=tuple(constant),
        inputs=tuple(moments.statistics(name) for name, moments in sums.items()),
        skipped=skipped,
    )


def _digest(feeds: Feeds) -> str:
    sha = hashlib.sha256()
    for name in sorted(feeds):
        array = np.ascontiguousarray(feeds[name])
        sha.update(f"{name} {array.dtype.str} {array.shape};".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


class _Moments:
    """Statistics of one input, sample by sample."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf
        self._means: list[NDArray[np.float64]] = []
        self._squares: list[NDArray[np.float64]] = []

    def add(self, array: NDArray[Any]) -> None:
        """Add one sample. Channels are those of a picture; everything else counts as one channel."""
        values = array.astype(np.float64)
        axis = _channel_axis(array.shape)
        axes = tuple(dim for dim in range(values.ndim) if dim != axis)
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        self._means.append(np.atleast_1d(values.mean(axis=axes)))
        self._squares.append(np.atleast_1d((values**2).mean(axis=axes)))

    def statistics(self, name: str) -> InputStatistics:
        """Return the statistics of all samples. Samples whose rank differs from the first sample's are not in the means."""
        shape = self._means[0].shape
        means = np.stack([mean for mean in self._means if mean.shape == shape])
        squares = np.stack([square for square in self._squares if square.shape == shape])
        mean = means.mean(axis=0)
        return InputStatistics(
            name=name,
            low=self._low,
            high=self._high,
            means=tuple(map(float, mean)),
            deviations=tuple(map(float, np.sqrt(np.maximum(0.0, squares.mean(axis=0) - mean**2)))),
            tilt=_tilt(means),
        )


def _tilt(means: NDArray[np.float64]) -> float:
    """Return by how many standard errors the mean of the first of three colour channels exceeds the mean of the last."""
    if means.shape[1] != 3 or len(means) < 2:
        return 0.0
    steps = means[:, 0] - means[:, 2]
    error = float(steps.std(ddof=1)) / len(steps) ** 0.5
    return float(steps.mean()) / error if error > 0 else 0.0


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the colour axis in a batch of pictures; None if there is none."""
    if len(shape) != 4:
        return None
    return next((axis for axis in (1, 3) if shape[axis] in {1, 3}), None)


def spread(model: Model, placement: Placement, samples: SampleSource) -> Spread | None:
    """Measure how much the ranges of two random halves of the samples differ; None for fewer than two samples.

    If some answers have not converged, all samples are run, because more samples may help.
    """
    count = min(len(samples), SPLIT)
    if count < 2 or not isinstance(samples, Samples):
        return None
    collection = Collection(model, placement, samples)
    measured = _spread_of(collection, count)
    if measured is not None and measured.typical > CONVERGED and count < len(samples):
        measured = _spread_of(collection, len(samples))
    return measured


def _spread_of(collection: Collection, count: int) -> Spread | None:
    """Measure how much ranges from two halves of the first `count` samples differ.

    The samples run once, in groups whose histograms merge exactly, so that many splits cost no further run.
    """
    groups = min(_GROUPS, count)
    parts = [collection.run(_part(number, groups, count)).tensors for number in range(groups)]
    ranged, grid = CALIBRATORS.load("percentile"), grid_for(INT8)
    differences: dict[str, list[float]] = {}
    for left, right in _halves(parts):
        for name, histogram in left.items():
            pair = sorted((ranged(histogram, grid).amax, ranged(right[name], grid).amax))
            if pair[1] > 0:
                differences.setdefault(name, []).append(1 - pair[0] / pair[1])
    if not differences:
        return None
    means = {name: float(np.mean(values)) for name, values in differences.items()}
    tensor = max(means, key=lambda name: means[name])
    return Spread(
        samples=count, typical=float(np.median(list(means.values()))), worst=means[tensor], tensor=tensor
    )


def _part(number: int, groups: int, count: int) -> Span:
    """Return one group of the samples: every n-th sample, because consecutive files are often similar."""
    return Span(shard=number, shards=groups, total=count)


def _halves(
    parts: list[Mapping[str, Histogram]],
) -> Iterator[tuple[dict[str, Histogram], dict[str, Histogram]]]:
    random = np.random.default_rng(0)
    for _ in range(_SPLITS):
        order = random.permutation(len(parts))
        middle = len(parts) // 2
        yield (
            merge_histograms(parts[index] for index in order[:middle]),
            merge_histograms(parts[index] for index in order[middle : 2 * middle]),
        )


def level_against(
    model: Model, samples: SampleSource, options: CompareOptions
) -> Callable[[Model], float | None]:
    """Return a function that measures the SQNR of a Q/DQ model against a float model on few samples.

    The function returns the SQNR in dB of the noisiest output, or output part.
    """
    few = options.model_copy(update={"limit": CURED, "task": "none", "metrics": ("sqnr_db",)})
    reference: Runner | None = None

    def level(quantized: Model) -> float | None:
        nonlocal reference
        first, second, parts = with_parts(model, with_float_caches(quantized))
        reference = reference or open_model(first, description="float model", crowded=True)
        candidate = open_model(second, description="Q/DQ model", crowded=True)
        return sqnr(compare(reference, candidate, samples, few, parts=parts))

    return level


def cure(
    models: tuple[Model, Model], comparison: Comparison, samples: SampleSource, options: CompareOptions
) -> FloatCure | None:
    """Return the nodes that raise the noise most, and the SQNR without and with them in float."""
    nodes = _costly(models[1], comparison)
    if not nodes or max(map(weight_bytes, models)) >= SINGLE_FILE_LIMIT:
        return FloatCure(nodes=nodes) if nodes else None
    level = level_against(models[0], samples, options)
    before, after = level(models[1]), level(unquantize(models[1], nodes))
    return FloatCure(nodes=nodes, before_db=before, after_db=after, samples=min(CURED, len(samples)))


def _costly(model: Model, comparison: Comparison) -> tuple[str, ...]:
    """Return the quantized nodes that raise the noise most from inputs to outputs, the worst first."""
    levels = {entry.output: value for entry in comparison.tensors if (value := _level(entry)) is not None}
    costs: dict[str, float] = {}
    for node in model.view.nodes:
        if node.op in QDQ or not node.outputs:
            continue
        mine = levels.get(node.outputs[0])
        makers = [model.view.producer(name) for name in node.inputs]
        if mine is None or not any(maker and maker.op == DEQUANTIZE for maker in makers):
            continue
        before = [levels[name] for name in _sources(model, node.inputs) if name in levels]
        costs[node.name] = min(before, default=_CLEAN) - mine
    ranked = sorted(costs, key=lambda name: (-costs[name], name))
    return tuple(name for name in ranked[:_WORST] if costs[name] > 0)


_CLEAN = 60.0
"""SQNR in dB that counts for a tensor without quantization before it."""


def _sources(model: Model, names: Iterable[str]) -> Iterator[str]:
    """Yield the float tensors before the Q/DQ of these tensors."""
    for name in names:
        here = name
        while (maker := model.view.producer(here)) is not None and maker.op in QDQ:
            here = maker.inputs[0]
        yield here


def _level(entry: Any) -> float | None:
    return next((each.value for each in entry.measures if each.metric == "sqnr_db"), None)
