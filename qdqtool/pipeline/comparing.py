"""Compares two sides on equal samples: float or Q/DQ model, integer emulation, engine, stored outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from qdqtool.accuracy.compare import OnSample, compare
from qdqtool.accuracy.explain import emulations, explain
from qdqtool.accuracy.parts import OutputPart, turns, watch_inside, with_parts
from qdqtool.accuracy.side_by_side import record_outputs
from qdqtool.accuracy.stored import Player, Unfed, open_stored
from qdqtool.backends.engine_runner import open_engine
from qdqtool.calibration.samples import SampleInput
from qdqtool.calibration.samples.labels import BoxLabels, read_labels
from qdqtool.core.comparison import Comparison, OutputComparison
from qdqtool.core.protocols import Runner, SampleSource
from qdqtool.core.recipe import CompareOptions, Recipe
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.engine.layer_info import PLAN_SUFFIXES
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.errors import UsageError
from qdqtool.graph.emulation.emulate_blocks import with_emulated_blocks
from qdqtool.graph.emulation.integer_form import integer_form
from qdqtool.graph.emulation.wide_regions import Regions
from qdqtool.graph.endings import endings
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import weight_bytes
from qdqtool.graph.qdq.kv_caches import with_float_caches
from qdqtool.graph.qdq.unquantize import with_zero_points
from qdqtool.graph.view import Model
from qdqtool.pipeline.preparations import assumptions, with_known_inputs
from qdqtool.pipeline.random_shapes import opener, samples_for
from qdqtool.platform import give_back
from qdqtool.runtime.operators import use_operators
from qdqtool.runtime.runner import OrtRunner, open_model, open_piece, open_runner
from qdqtool.runtime.session import computing_on

# --- float sides -----------------------------------------------------------------------------------------------------
# Runs Q/DQ models on the samples of the float model: caches in low-bit formats get float inputs and outputs again.


LARGE: Final = 256 << 20
"""Bytes of weights from which two models are not kept in memory together."""


@contextmanager
def both_sides(
    reference: Callable[[], Runner],
    candidate: Callable[[], Runner],
    samples: SampleSource,
    limit: int | None,
    *,
    large: bool,
) -> Iterator[tuple[Runner, Runner]]:
    """Yield the runners of reference and candidate, to run both on equal samples.

    If `large`, the outputs of the first runner are stored, so that only one model is open at a time.

    Raises:
        InputFileError: a model cannot be opened, or fails on a sample.
    """
    if not large:
        second = candidate()  # first, because opening it takes the most memory: its weights are folded
        yield reference(), second
        return
    with tempfile.TemporaryDirectory(prefix="qdqtool-outputs-") as folder:
        yield record_outputs(reference, samples, limit, Path(folder)), candidate()


def open_quantized(path: Path, description: str, *, optimized: bool = True) -> OrtRunner:
    """Open the model in onnxruntime, ready for float samples.

    Raises:
        InputFileError: onnxruntime cannot load it.
    """
    runner = open_runner(path, description=description, crowded=True, optimized=optimized)
    if not {info.dtype for info in runner.inputs} & {DType.INT8, DType.FLOAT8}:
        return runner
    return open_model(with_float_caches(load(path)), description=description, crowded=True)


# --- comparing -------------------------------------------------------------------------------------------------------


_EMULATION = "int:"
_FEW = 8
"""Most samples that show at which tensors of a model the noise arises."""
_RUNS = 32
"""Most runs of each side for that. If tensors are so large that few fit into one run, few samples have enough values.
Example: a detector on 800 x 608 pixels, 517 tensors in 18 runs per sample; 144 runs of each model took two minutes.
"""
_ROOM = 32 << 20
"""Bytes of inner tensors that each side returns in one run; more tensors take another run. The process grows
by about four times as much: both sides, in onnxruntime's memory and in NumPy's.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedSides:
    """Two sides of a comparison, and the samples and options for it.

    Attributes:
        reference: an ONNX file, "int:" and a Q/DQ ONNX file for its integer emulation, an engine, or stored outputs.
        candidate: the side to evaluate, of one of these kinds.
        samples: source of the samples, as typed; stored outputs need none.
        labels: file of class indices, or None.
        recipe: preprocessing and metrics.
        inside: also compare the tensors inside two ONNX models.
        explain: also say why the candidate differs from the reference, which must be a Q/DQ model.
        layers: layer information of the candidate's engine, which shows the fused kernels.
        trust: whether engines may be loaded: they hold code.
    """

    reference: str
    candidate: str
    samples: SampleInput | None
    labels: str | None
    recipe: Recipe
    inside: bool = False
    explain: bool = False
    layers: Path | None = None
    trust: bool = False


def compare_match(match: ComparedSides, on_progress: OnSample | None = None) -> Comparison:
    """Measure how much the outputs of two sides of a comparison differ.

    Raises:
        UsageError: files that cannot be compared in this way, wrong options, or labels that do not fit.
        InputFileError: a file is unreadable or does not fit.
        MissingPackage: an engine, but no library or no GPU to run it.
        BuildError: an engine that cannot be loaded or run.
    """
    with computing_on(match.recipe.compute.device) as use:
        match = _prepared(match)
        comparison = _compare_matched(match, on_progress)
        return replace(
            comparison,
            provider=use.provider.name,
            notes=(*comparison.notes, *use.notes()),
            assumptions=assumptions(match.recipe, ()),
        )


def _prepared(match: ComparedSides) -> ComparedSides:
    """Return the comparison with the preparation of pictures that a run would use: stated, or guessed."""
    files = [Path(text.removeprefix(_EMULATION)) for text in (match.reference, match.candidate)]
    models = [file for file in files if file.suffix.lower() == ".onnx"]
    if not models or match.samples is None:
        return match
    recipe = with_known_inputs(match.recipe, match.samples, *models)
    return replace(match, recipe=recipe)


def _compare_matched(match: ComparedSides, on_progress: OnSample | None) -> Comparison:
    use_operators(match.recipe)
    lawful = None
    if match.explain:
        graph = load(Path(match.reference.removeprefix(_EMULATION)))
        lawful = emulations(graph, _run_model, _regions(match.layers))
    if match.inside:
        _refuse_others(match)
    with ExitStack() as open_sides:
        model = _open_reference(match)
        large = _large(match, model)
        has_parts = model is not None and bool(endings(model.view, softmax=False))
        del model
        left, right, parts = _sides(match, open_sides, has_parts=has_parts)
        if large is None:
            first, second = left(), right()
            samples = _samples(match, first, second)
        else:
            samples = _open_samples(match, large.view.inputs, opener(large))
            sides = both_sides(left, right, samples, match.recipe.compare.limit, large=True)
            first, second = open_sides.enter_context(sides)
        comparison = compare(
            first, second, samples, match.recipe.compare, parts=parts, on_progress=on_progress
        )
        del first, second
    if match.inside:
        # Not earlier: beside both sessions, the weights of both models would take most of the memory.
        give_back()
        models = (_model(match.reference), _model(match.candidate))
        comparison = replace(comparison, tensors=_tensors(models, samples, match.recipe.compare))
    if lawful is None:
        return comparison
    with ExitStack() as open_sides:
        candidate = _side(match.candidate, match, open_sides)
        causes = explain(candidate, lawful, samples, match.recipe.compare.limit)
    return replace(comparison, explanations=causes)


def noise_inside(
    models: tuple[Model, Model], samples: SampleSource, options: CompareOptions
) -> tuple[OutputComparison, ...]:
    """Measure the differences of inner tensors that a float and a Q/DQ model share, over a few samples; () if they share none."""
    taken = turns(models, _ROOM)
    if not taken:
        return ()
    few = min(_FEW, options.limit or _FEW, max(1, _RUNS // taken))
    return _tensors(models, samples, options.model_copy(update={"limit": few}))


def _tensors(
    models: tuple[Model, Model], samples: SampleSource, options: CompareOptions
) -> tuple[OutputComparison, ...]:
    """Compare all common inner tensors, a few tensors and one sample at a time, to bound the memory."""
    options = options.model_copy(update={"task": "none"})
    # tensors with a subtracted constant (zero point) would count as noise
    models = with_zero_points(models[0]), with_zero_points(models[1])
    give_back()
    large = weight_bytes(models[0]) >= LARGE
    compared: list[OutputComparison] = []
    with tempfile.TemporaryDirectory(prefix="qdqtool-inside-") as folder:
        for left, right, names in watch_inside(models, Path(folder), room=_ROOM):
            openers = [
                partial(open_piece, side.source, description="inner tensors", packed=not large)
                for side in (left, right)
            ]
            with both_sides(openers[0], openers[1], samples, options.limit, large=large) as (first, second):
                compared += compare(first, second, samples, options, inside=names).tensors
                del first, second  # close both sessions before the next ones are opened
            give_back()
    return tuple(compared)


def _sides(
    match: ComparedSides, open_sides: ExitStack, *, has_parts: bool
) -> tuple[Callable[[], Runner], Callable[[], Runner], tuple[OutputPart, ...]]:
    """Return the functions that open both sides of a comparison, and the output parts that both return."""
    texts = match.reference, match.candidate
    if has_parts:
        first, second, parts = with_parts(_model(texts[0]), _model(texts[1]))
        if parts:
            left, right = (
                partial(_run_model, model, _describe_model(text))
                for model, text in zip((first, second), texts, strict=True)
            )
            return left, right, parts
    left, right = (partial(_side, text, match, open_sides) for text in texts)
    return left, right, ()


def _describe_model(text: str) -> str:
    """Describe a model."""
    name = Path(text.removeprefix(_EMULATION)).name
    return f"integer emulation of {name}" if text.startswith(_EMULATION) else f"{name} on onnxruntime"


def _side(text: str, match: ComparedSides, open_sides: ExitStack) -> Runner:
    """Open one side of a comparison. A TensorRT engine stays open until `open_sides` closes."""
    path = Path(text.removeprefix(_EMULATION))
    if text.startswith(_EMULATION):
        return _run_model(_model(text), _describe_model(text))
    if path.suffix.lower() == ".onnx":
        return open_quantized(path, _describe_model(text))
    if path.suffix.lower() in PLAN_SUFFIXES:
        return open_sides.enter_context(open_engine(path, trust=match.trust))
    return open_stored(path)


def _large(match: ComparedSides, reference: Model | None) -> Model | None:
    """Return the reference, with its weights in files, if both sides are ONNX models that are too large to be open together."""
    plain = all(Path(text).suffix.lower() == ".onnx" for text in (match.reference, match.candidate))
    if reference is None or match.samples is None or not plain or weight_bytes(reference) < LARGE:
        return None
    return with_float_caches(reference)


def _open_reference(match: ComparedSides) -> Model | None:
    """Return the reference if both sides are ONNX models, else None. The weights stay in their files."""
    texts = [text.removeprefix(_EMULATION) for text in (match.reference, match.candidate)]
    return load(Path(texts[0])) if all(Path(text).suffix.lower() == ".onnx" for text in texts) else None


def _refuse_others(match: ComparedSides) -> None:
    """Refuse sides that are not ONNX models, because they do not show their inner tensors."""
    for text in (match.reference, match.candidate):
        if Path(text.removeprefix(_EMULATION)).suffix.lower() != ".onnx":
            raise UsageError("the file is not an ONNX model", fix="pass .onnx files", where=text)


def _model(text: str) -> Model:
    path = Path(text.removeprefix(_EMULATION))
    model = with_float_caches(load(path))
    return integer_form(with_emulated_blocks(model)).model if text.startswith(_EMULATION) else model


def _run_model(model: Model, description: str) -> Runner:
    return open_model(model, description=description, crowded=True)


def _regions(layers: Path | None) -> Regions | None:
    """Return the kernels of an engine as sets of ONNX node names."""
    if layers is None:
        return None
    return tuple(frozenset(layer.onnx_nodes) for layer in read_layers(layers).layers if layer.onnx_nodes)


def _samples(match: ComparedSides, first: Runner, second: Runner) -> SampleSource:
    stored = [side for side in (first, second) if isinstance(side, Player)]
    if len(stored) == 2:
        return _describe_unfed(len(stored[0]), match.labels)
    if match.samples is None:
        raise UsageError("samples are missing", fix="pass --samples: a model needs inputs")
    fed = second if isinstance(first, Player) else first
    samples = _open_samples(match, fed.inputs, lambda: fed)
    for side in stored:
        if len(side) != len(samples) and match.recipe.compare.limit is None:
            raise UsageError(
                f"{count_noun(len(side), 'stored output')} for {count_noun(len(samples), 'sample')}",
                fix="pass the samples that the outputs were computed from, in the same order",
                where=side.description,
            )
    return samples


def _open_samples(
    match: ComparedSides, inputs: tuple[TensorInfo, ...], runner: Callable[[], Runner]
) -> SampleSource:
    """Open the samples for a side with these inputs."""
    assert match.samples is not None
    return samples_for(match.samples, inputs, match.recipe, runner, labels=match.labels)


def _describe_unfed(count: int, labels: str | None) -> Unfed:
    classes = [] if labels is None else read_labels(Path(labels))
    if isinstance(classes, BoxLabels):
        raise UsageError(
            "labels with boxes need pictures, but stored outputs contain none",
            fix="pass two models with --samples, or class indices as labels",
            where=labels,
        )
    if isinstance(classes, Mapping) or (classes and len(classes) != count):
        raise UsageError(
            f"{count_noun(len(classes), 'label')} for {count_noun(count, 'stored output')}",
            fix="pass one label per stored output",
            where=labels,
        )
    return Unfed(count, classes)
