"""Repairs a Q/DQ model, measures the effect, and writes the result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qdqtool.accuracy.compare import compare
from qdqtool.calibration.samples import SampleInput, Samples
from qdqtool.core.advice import nodes_in, with_files
from qdqtool.core.comparison import Comparison
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, Remainder, RepairReport
from qdqtool.core.placement import SlotKind
from qdqtool.core.recipe import Recipe
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import InputFileError, QdqError, UsageError
from qdqtool.graph.instrumented.probe import watching
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save_beside
from qdqtool.graph.provenance import origin
from qdqtool.graph.qdq.find import find, quantized_ops
from qdqtool.graph.qdq.kv_caches import with_float_caches
from qdqtool.graph.qdq.other_tools import OtherQuantizer, other_quantizers
from qdqtool.graph.qdq.slots import slot_changes
from qdqtool.graph.qdq.stored import stored_casts
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.graph.view import Model
from qdqtool.matching.weights import quantize_activations, tensors_without_range
from qdqtool.pipeline.comparing import open_quantized
from qdqtool.pipeline.preparations import with_known_inputs
from qdqtool.pipeline.quantization import QuantizationJob
from qdqtool.pipeline.random_shapes import opener, samples_for
from qdqtool.pipeline.writing import or_without, run_plainly, write
from qdqtool.placement.lint import codes as rule_codes
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import on_request, remaining
from qdqtool.placement.repair import repair as repaired
from qdqtool.runtime.runner import open_model, open_runner
from qdqtool.trt.ops import PACKED_WEIGHTS

OnProgress = Callable[[int, int], None]
_WORTH_TELLING = 1.0
"""Least gain, in dB, for which measuring ranges again is proposed."""
_LARGE = 5000
"""Nodes from which onnxruntime's graph optimizer would take longer than it saves on a few samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairRequest:
    """Parameters of a repair.

    Attributes:
        model: the Q/DQ model.
        out: path of the repaired model.
        samples: source of samples, as for `qdqtool run`; "": accuracy is not measured.
        labels: class indices of the samples.
        recipe: preprocessing, metrics, and the builder whose abilities count.
        to_float: nodes whose Q/DQ is removed before all other changes; a code means all nodes to which `lint` gives this
            advice.
        to_int8: products whose weights are quantized to INT8 before anything else; a code likewise.
    """

    model: Path
    out: Path
    samples: SampleInput
    labels: str | None
    recipe: Recipe
    to_float: tuple[str, ...] = ()
    to_int8: tuple[str, ...] = ()


def repair_file(request: RepairRequest, on_progress: OnProgress | None = None) -> RepairReport:
    """Write the repaired model, and return all changes, the remaining problems, and the change of the outputs.

    Raises:
        UsageError: the model has no Q/DQ at all, or not the nodes that are named.
        InputFileError: the model or the samples cannot be read.
    """
    model = load(request.model)
    packed = any(node.op in PACKED_WEIGHTS for node in model.view.nodes)
    foreign = other_quantizers(model.view)
    _check_convertible(foreign, request.model)
    to_float, to_int8 = _choose_nodes(model, request)
    edited, named = on_request(model, to_float=to_float, to_int8=to_int8)
    result, changes = repaired(edited, request.recipe.place.builder)
    changes = (*named, *changes)
    if not changes and (packed or not (quantized_ops(model) or stored_casts(model.view))):
        raise _nothing(model, request.model)
    samples, doubts = _samples(request, model), tuple[str, ...]()
    if samples is not None and samples.meaningful:
        (result, more), doubts = _calibrated_or_note(result, samples)
        changes += more
    comparison, notes = _difference(request, result, samples, on_progress)
    if samples is not None and samples.meaningful and _is_converted(model):
        notes += _measure_again(request, result, samples)
    # Last, so that a failed repair leaves no files.
    write(result, request.out, step="repair")
    return RepairReport(
        model=request.model.name,
        changes=changes,
        remaining=(*remaining(result), *_list_refused(result, request)),
        comparison=comparison,
        notes=(*result.notes, *doubts, *notes),
        origin=origin(model),
        slots=slot_changes(model, result),
    )


def _choose_nodes(model: Model, request: RepairRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes to make float, and the nodes to make INT8.

    A finding code stands for the nodes that the fixes of its `lint` findings name.

    Advice contradicts itself for some nodes: these become float.

    Raises:
        UsageError: `lint` gives no node this advice.
    """
    unmatched = {*request.to_float, *request.to_int8} - model.view.by_name.keys()
    codes = unmatched & rule_codes().keys()
    if not codes:
        return request.to_float, request.to_int8
    findings = lint(model, request.recipe.place.builder).findings
    advised = {code: nodes_in(finding.fix for finding in findings if finding.code == code) for code in codes}
    matches: list[tuple[str, ...]] = []
    for option, names, place in (("--float", request.to_float, 0), ("--int8", request.to_int8, 1)):
        for code in names:
            if code in codes and not advised[code][place]:
                raise UsageError(
                    f"no finding {code} in this model names nodes for {option}",
                    fix=f"{Command('lint')} prints the findings, and their nodes",
                    where=option,
                )
        nodes = [node for name in names for node in (advised[name][place] if name in codes else (name,))]
        matches.append(tuple(dict.fromkeys(nodes)))
    to_float, to_int8 = matches
    return to_float, tuple(name for name in to_int8 if name in request.to_int8 or name not in to_float)


def _list_refused(result: Model, request: RepairRequest) -> tuple[Remainder, ...]:
    """Return the lint errors that remain on every GPU, one per kind of error, with its first node."""
    findings = lint(result, replace(request.recipe.place.builder, sm=())).findings
    errors = {
        (finding.code, finding.effect): finding
        for finding in reversed(findings)
        if finding.severity is Severity.ERROR
    }
    return tuple(
        Remainder(
            subject=finding.node,
            what=f"{finding.code}: {finding.reason}: {finding.effect}",
            fix=with_files(finding.fix, request.model.name),
            refused=True,
        )
        for finding in reversed(errors.values())
    )


def _check_convertible(foreign: tuple[OtherQuantizer, ...], path: Path) -> None:
    """Refuse quantizers of other tools that Q/DQ nodes cannot reproduce exactly."""
    left = [quantizer for quantizer in foreign if not quantizer.exact]
    if left:
        first = left[0]
        tool = first.tool or "another tool"
        raise InputFileError(
            f"{count_noun(len(left), 'quantizer')} of {tool} cannot be written as Q/DQ exactly, the first is {first.node.op} at {first.node.name!r}",
            fix=first.way,
            where=str(path),
        )


def _nothing(model: Model, path: Path) -> UsageError:
    inside = remaining(model)
    if inside:
        return UsageError(f"{inside[0].subject!r}: {inside[0].what}", fix=inside[0].fix, where=str(path))
    return UsageError(
        "the model has no Q/DQ to repair", fix=f"quantize the model with {Command('run')}", where=str(path)
    )


def _samples(request: RepairRequest, model: Model) -> Samples | None:
    if not request.samples:
        return None
    fed = with_float_caches(model)
    recipe = with_known_inputs(request.recipe, request.samples, request.model, opened=lambda: model)
    return samples_for(request.samples, fed.view.inputs, recipe, opener(fed), labels=request.labels)


def _calibrate_missing(model: Model, samples: Samples) -> tuple[Model, tuple[Change, ...]]:
    """Add Q/DQ pairs for activations that dynamic quantization left without a range; samples measure it."""
    names = tensors_without_range(model)
    if not names:
        return model, ()
    amax = dict.fromkeys(names, 0.0)
    runner = open_model(watching(with_float_caches(model), names), description="probe")
    for sample in samples:
        for name, value in runner.run(sample.feeds).items():
            amax[name] = max(amax[name], float(np.abs(value).max(initial=0.0)))
    return quantize_activations(model, amax)


def _calibrated_or_note(
    model: Model, samples: Samples
) -> tuple[tuple[Model, tuple[Change, ...]], tuple[str, ...]]:
    """Run `_calibrate_missing`. Return a note if the model runs only without inner tensors as outputs."""

    def plainly() -> tuple[Model, tuple[Change, ...]]:
        run_plainly(with_float_caches(model), (sample.feeds for sample in samples))
        return model, ()

    return or_without(
        "quantizing activations without a range", lambda: _calibrate_missing(model, samples), plainly
    )


def _is_converted(model: Model) -> bool:
    """Return True if the original model had zero points or unsigned integers, whose ranges were converted and not measured."""
    return any(
        pair.kind is SlotKind.ACTIVATION and (pair.dtype is DType.UINT8 or any(pair.zero_point))
        for pair in find(model)
    )


def _measure_again(request: RepairRequest, result: Model, samples: Samples) -> tuple[str, ...]:
    """Return the gain of measured ranges over converted ranges, and the commands that use them; () without a gain.

    Both models run after the repaired one, and are compared with the float model on these samples.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain, kept, fresh = (Path(folder) / f"{name}.onnx" for name in ("float", "repaired", "measured"))
        save_beside(float_graph(result), plain)
        save_beside(with_float_caches(result), kept)
        try:
            job = QuantizationJob(plain, request.recipe, request.samples)
            save_beside(job.inserted(job.table(lambda *_: None)), fresh)
            levels = [_level(plain, each, samples, request.recipe) for each in (kept, fresh)]
        except QdqError as error:
            return (f"it is unknown whether measured ranges lose less: {error.what}",)
    converted, measured = levels
    if converted is None or measured is None or measured < converted + _WORTH_TELLING:
        return ()
    data = request.samples if isinstance(request.samples, str) else "DATA"
    plain_name = "float.onnx"
    commands = (
        Command("scales", (str(request.model), "--model", plain_name)),
        Command("quantize", (plain_name, "--samples", data, "--out", str(request.out))),
    )
    note = f"its converted ranges reach {converted:.1f} dB against its float model, ranges measured on these samples reach {measured:.1f} dB (SQNR): {commands[0]}, then {commands[1]}"
    return (note,)


def _level(plain: Path, quantized: Path, samples: Samples, recipe: Recipe) -> float | None:
    """Return the SQNR of a Q/DQ model in dB; None if it has no noise."""
    before, after = (open_runner(path, description=path.stem, crowded=True) for path in (plain, quantized))
    sqnr = compare(before, after, samples, recipe.compare).sqnr
    return None if sqnr is None else sqnr.sqnr_db


def _difference(
    request: RepairRequest, result: Model, samples: Samples | None, on_progress: OnProgress | None
) -> tuple[Comparison | None, tuple[str, ...]]:
    """Compare the outputs before and after the repair; if that fails, return the reason as a note."""
    if samples is None:
        return None, ()
    small = len(result.view.nodes) < _LARGE
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "repaired.onnx"
        save_beside(with_float_caches(result), draft)
        try:
            after = open_runner(draft, description="after the repair", crowded=True, optimized=small)
            before = open_quantized(request.model, "before the repair", optimized=small)
        except InputFileError as error:
            return None, (f"the difference was not measured: {error.what}",)
        try:
            comparison = compare(before, after, samples, request.recipe.compare, on_progress=on_progress)
        except InputFileError as error:
            if samples.meaningful:
                raise
            # The user did not request these samples, and the model may give NaN or fail.
            return None, (f"the difference was not measured: {error.what}",)
        return comparison, ()
