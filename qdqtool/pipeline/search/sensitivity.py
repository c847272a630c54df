"""Finds the nodes whose quantization costs most: makes them float one by one, without any precision API of a builder.

A float model is placed, calibrated and given its Q/DQ nodes first.

1. Estimate: every node alone is quantized on a few samples; the noise at the outputs ranks the nodes. Noises of different
   nodes add up well enough for a ranking; if they do not, a note says so.
2. Exact: the most sensitive nodes alone, and the network without each of them, on all samples.
3. Curve: the most sensitive nodes are kept float, one more at a time.
4. Advice: the smallest set that keeps the limit (`float_nodes`).
5. Causes of the exactly measured nodes, and cures (`causes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from qdqtool.calibration.histograms import fitting_histograms, load_histograms
from qdqtool.calibration.samples import SampleInput
from qdqtool.core.calibration import NodeShift
from qdqtool.core.kinds import CALIBRATION, PLACEMENT, SENSITIVITY
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import AUTO, Recipe
from qdqtool.core.sensitivity import Cure, NodeSensitivity, Sensitivity
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.changes import undo_rounding
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.qdq.unquantize import with_zero_points
from qdqtool.graph.view import Model
from qdqtool.io.json_files import canonical
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.preparations import input_notes, with_known_inputs
from qdqtool.pipeline.quantization import OnStep
from qdqtool.pipeline.random_shapes import opener, samples_for
from qdqtool.pipeline.search.causes import add_causes
from qdqtool.pipeline.search.experiment import kept_float
from qdqtool.pipeline.search.float_nodes import FloatSearch, Limit
from qdqtool.pipeline.search.proposal import Origin
from qdqtool.pipeline.search.subsets import OnRun, SubsetOutcome, TrialRunner
from qdqtool.pipeline.search.switched import SwitchedNetwork, Units, units_of
from qdqtool.pipeline.writing import or_without
from qdqtool.platform import give_back
from qdqtool.runtime.operators import use_operators
from qdqtool.runtime.session import on_device

_WHOLE = "whole"
_ADDS_UP = (0.5, 2.0)
"""Lower and upper ratio of the sum of single noises to the noise of the whole, between which the sum explains the whole."""
_WIDEST_DB = 60.0
"""Width of an interval, in dB, from which on the samples say nothing: it covers networks without loss and useless ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityOptions:
    """Options of a sensitivity measurement: how thorough it is, and the limit that must be met.

    Attributes:
        quick: samples of the estimate.
        top: nodes that are run exactly and drawn in the curve.
        groups: glob patterns; nodes matching one are switched together.
        limit: the limit that the advised set of float nodes must keep.
        causes: find the cause of the noise of the exactly measured nodes, and measure cures.
    """

    quick: int = 4
    top: int = 10
    groups: tuple[str, ...] = ()
    limit: Limit = field(default_factory=Limit)
    causes: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Names and operator types of the model whose sensitivity is measured.

    Attributes:
        name: its file name.
        ops: operator type of every switchable node.
        compute: all compute nodes of the model.
        excluded: patterns of the nodes that the recipe keeps float; advice repeats them, because a setting replaces them.
    """

    name: str
    ops: Mapping[str, str]
    compute: frozenset[str]
    excluded: tuple[str, ...] = ()


def sensitivity(
    bench: TrialRunner,
    subject: Subject,
    samples: SampleSource,
    options: SensitivityOptions,
    on_run: OnRun | None = None,
) -> Sensitivity:
    """Measure the cost of every node, the most sensitive first, and find the nodes to keep float.

    Raises:
        UsageError: the model has no quantized nodes, a group matches no node, or a drop is limited without a task
            accuracy.
        InputFileError: there are no samples, or one makes NaN outputs.
    """
    if not len(samples):
        raise InputFileError(
            "there are no samples", fix="pass at least one sample", where=samples.description
        )
    units = units_of(bench.nodes, options.groups, subject.compute)
    names = list(units.members)

    def run(subsets: Mapping[str, Iterable[str]], limit: int | None = None) -> dict[str, SubsetOutcome]:
        nodes = {name: frozenset(units.nodes(members)) for name, members in subsets.items()}
        return bench.run(nodes, samples, limit, on_run)

    estimate = run({_WHOLE: names, **{_alone(name): [name] for name in names}}, options.quick)
    ranked = sorted(names, key=lambda name: -estimate[_alone(name)].noise)
    top = ranked[: options.top]
    exact = run(
        {
            _WHOLE: names,
            **{_alone(name): [name] for name in top},
            **{_without(name): [rival for rival in names if rival != name] for name in top},
            **_ends_float(bench.nodes, units, options),
        }
    )
    options.limit.check(exact[_WHOLE])
    order = [*sorted(top, key=lambda name: exact[_without(name)].noise), *ranked[options.top :]]
    curve = [order[: count + 1] for count in range(len(top))]
    shown = run(
        {f"float {len(kept)} to {kept[-1]}": [name for name in names if name not in kept] for kept in curve}
    )
    is_limited = options.limit != Limit()
    search = FloatSearch((bench, bench), units, (samples, samples), options.limit, on_run)
    return Sensitivity(
        model=subject.name,
        samples=len(samples),
        meaningful=samples.meaningful,
        whole=units.float_set((), exact[_WHOLE]),
        nodes=tuple(_row(name, (estimate, exact), (subject, units), len(samples), options) for name in order),
        curve=tuple(
            units.float_set(kept, outcome) for kept, outcome in zip(curve, shown.values(), strict=True)
        ),
        advice=search.run().chosen if is_limited else None,
        notes=_notes(names, estimate, exact, options),
        cures=_ends_cure(bench.nodes, units, exact, subject.excluded),
        excluded=subject.excluded,
    )


_ENDS = "ends float"


def _ends(nodes: Sequence[str], units: Units) -> tuple[str, ...]:
    """Return the first and the last compute node with their groups; () if there are no other compute nodes."""
    compute = [node for node in nodes if node in units.compute]
    ends = {compute[0], compute[-1]} if len(compute) > 2 else set()
    return units.nodes(name for name, members in units.members.items() if ends.intersection(members))


def _ends_float(nodes: Sequence[str], units: Units, options: SensitivityOptions) -> dict[str, list[str]]:
    """Return the node groups that stay quantized if the first and the last compute node are float."""
    ends = set(_ends(nodes, units))
    if not options.causes or not ends:
        return {}
    return {_ENDS: [name for name, members in units.members.items() if not ends.intersection(members)]}


def _ends_cure(
    nodes: Sequence[str], units: Units, exact: Mapping[str, SubsetOutcome], excluded: tuple[str, ...]
) -> tuple[Cure, ...]:
    outcome = exact.get(_ENDS)
    edit = kept_float("first and last layer float", _ends(nodes, units), excluded)
    return () if outcome is None else (edit.gain(exact[_WHOLE].shares, outcome.shares),)


def _alone(name: str) -> str:
    return f"alone {name}"


def _without(name: str) -> str:
    return f"without {name}"


def _row(
    name: str,
    shown: tuple[Mapping[str, SubsetOutcome], Mapping[str, SubsetOutcome]],
    about: tuple[Subject, Units],
    count: int,
    options: SensitivityOptions,
) -> NodeSensitivity:
    (estimate, exact), (subject, units) = shown, about
    total = sum(estimate[_alone(unit)].noise for unit in units.members)
    alone = exact.get(_alone(name), estimate[_alone(name)])
    without = exact.get(_without(name))
    rest_db, whole = without.decibel if without else None, exact[_WHOLE].decibel
    members = units.members[name]
    ends = alone.decibel_interval if _alone(name) in exact else _widen_interval(alone, _off(estimate, exact))
    return NodeSensitivity(
        node=name,
        op=subject.ops[name] if members == (name,) else "group",
        members=members,
        share=estimate[_alone(name)].noise / total if total else 0.0,
        alone_db=alone.decibel,
        without_db=rest_db,
        gain_db=None if rest_db is None or whole is None else rest_db - whole,
        task=without.task if without else None,
        samples=count if without else min(count, options.quick),
        exact=without is not None,
        alone_low=None if ends is None else ends[0],
        alone_high=None if ends is None else ends[1],
        cures=(kept_float("float", members, subject.excluded).gain(exact[_WHOLE].shares, without.shares),)
        if without and options.causes
        else (),
    )


def _off(estimate: Mapping[str, SubsetOutcome], exact: Mapping[str, SubsetOutcome]) -> list[float]:
    """Return the errors of noise estimates, in dB, for sets of nodes that were also measured."""
    return [
        abs(measured.decibel - guess.decibel)
        for name, guess in estimate.items()
        if (measured := exact.get(name)) and measured.decibel is not None and guess.decibel is not None
    ]


def _widen_interval(guess: SubsetOutcome, off: Sequence[float]) -> tuple[float, float] | None:
    """Return an estimate's interval in dB: over its samples, and at least the largest measured error.

    Few equal samples say little about others. Nodes of this network that ran on all samples show the effect. None if
    the interval is unknown, or too wide to be useful.
    """
    level, ends = guess.decibel, guess.decibel_interval
    if level is None or (ends is None and not off):
        return None
    low, high = ends or (level, level)
    reach = max(off, default=0.0)
    low, high = min(low, level - reach), max(high, level + reach)
    return None if high - low > _WIDEST_DB else (low, high)


def _notes(
    names: Sequence[str],
    estimate: Mapping[str, SubsetOutcome],
    exact: Mapping[str, SubsetOutcome],
    options: SensitivityOptions,
) -> tuple[str, ...]:
    total = sum(estimate[_alone(name)].noise for name in names)
    whole = estimate[_WHOLE].noise
    notes = []
    if len(names) > options.top:
        notes.append(
            f"nodes beyond the first {options.top} are ranked by an estimate on {options.quick} samples"
        )
        errors = _off(estimate, exact)
        if errors:
            most = "less than 0.1" if max(errors) < 0.1 else f"up to {max(errors):.1f}"
            notes.append(
                f"estimates are off by {most} dB where both were measured ({count_noun(len(errors), 'set')})"
            )
    if whole and not _ADDS_UP[0] <= total / whole <= _ADDS_UP[1]:
        notes.append(
            f"the noise of single nodes adds up to {total / whole:.1f} times the noise of the whole network: nodes influence "
            "each other, so the measured figures and the curve are more reliable than the ranking"
        )
    return tuple(notes)


# --- the command ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityRequest:
    """Parameters of a study.

    Attributes:
        model: a Q/DQ model, best in its run folder, or a float one.
        recipe: how a float model is quantized; preprocessing and task for both.
        samples: the samples of the study, as typed; a float model is also calibrated on them.
        eval_samples: the samples of the study if they are not `samples`.
        labels: file of class indices of the samples that are run, or None.
        options: how thorough, and the limit.
        out: folder for the journal and sensitivity.json; None writes no files.
        workers: samples that run at the same time; 0 takes one per processor.
    """

    model: Path
    recipe: Recipe
    samples: SampleInput
    eval_samples: SampleInput | None
    labels: str | None
    options: SensitivityOptions
    out: Path | None = None
    workers: int = 0


_STUCK = "the model contains only their integer values; pass the float model with the recipe, or model.qdq.onnx in its run folder"


@on_device(lambda request: request.recipe.compute.device)
def study(request: SensitivityRequest, on_step: OnStep) -> Sensitivity:
    """Measure the sensitivity of every quantized node. With `request.out`, a stopped measurement continues.

    Raises:
        UsageError: no node is quantized, or an option does not fit.
        InputFileError: a file is unreadable or does not fit.
    """
    use_operators(request.recipe)
    recipe = with_known_inputs(request.recipe, request.samples, request.model)
    request = replace(request, recipe=recipe)
    subject = _quantize_model(request, on_step)
    model, plain = subject.model, subject.plain
    network = SwitchedNetwork(
        model, subject.shifts, plain, description=request.model.name, workers=request.workers
    )
    staged = network.staged
    stored = f"the weights of {count_noun(len(staged.stuck), 'node')} cannot be switched"
    if staged.stuck and not staged.nodes:
        problem, _, fix = _STUCK.partition("; ")
        raise UsageError(f"{stored}: {problem}", fix=fix, where=str(request.model))
    samples = samples_for(
        request.eval_samples or request.samples,
        staged.inputs,
        request.recipe,
        opener(model),
        labels=request.labels,
        limit=request.recipe.compare.limit,
    )
    kept = None if request.out is None else request.out / "sensitivity.runs.jsonl"
    bench = network.trials(samples, request.recipe.compare, kept, request.labels)
    ops = {node.name: node.op for node in model.view.nodes}
    study_subject = Subject(
        name=request.model.name,
        ops={node: ops[node] for node in staged.nodes},
        compute=network.compute,
        excluded=recipe.place.exclude,
    )
    result = sensitivity(
        bench, study_subject, samples, request.options, lambda done, total: on_step("run", done, total)
    )
    result = replace(result, notes=(*input_notes(recipe), *result.notes))
    if staged.stuck:
        note = f"{stored}, the first of {staged.stuck[0]!r}: {_STUCK}"
        result = replace(result, notes=(*result.notes, note))
    if request.options.causes:
        before = result
        del bench, network, staged  # their sessions
        give_back()
        result, notes = or_without(
            "looking for causes and fixes of noise",
            lambda: add_causes(
                before,
                model,
                plain,
                subject.origin,
                samples,
                lambda done, total: on_step("try cures", done, total),
            ),
            lambda: before,
        )
        result = replace(result, notes=(*result.notes, *notes))
    if request.out is not None:
        SENSITIVITY.write(
            request.out / "sensitivity.json", result, {"options": canonical(asdict(request.options)).strip()}
        )
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class _Quantized:
    """A Q/DQ model, and its bias shifts, float model and origin if they are known."""

    model: Model
    shifts: tuple[NodeShift, ...] = ()
    plain: Model | None = None
    origin: Origin | None = None


def _quantize_model(request: SensitivityRequest, on_step: OnStep) -> _Quantized:
    """Open a Q/DQ model, with other parts from its run folder; calibrate and quantize a float model."""
    model = with_zero_points(load(request.model))
    if quantized_ops(model):
        is_of_run = (
            request.model.name == "model.qdq.onnx" and request.model.with_name("calibration.json").is_file()
        )
        return _of_run(request, model) if is_of_run else _Quantized(model=model)
    if not request.samples:
        raise UsageError("samples are missing", fix="pass --samples", where=str(request.model))
    calibration = Calibration(
        CalibrationRequest(model=request.model, recipe=request.recipe, samples=request.samples)
    )
    method = request.recipe.calibrate.method
    histograms = calibration.collect(
        # other calibrators are tried as cures, and most of them need histograms
        calibration.collect_options([AUTO if request.options.causes else method]),
        None,
        on_progress=lambda done, total: on_step("calibrate", done, total),
    )
    table = calibration.tables(histograms, [method])[method]
    return _Quantized(
        model=insert(calibration.model, calibration.placement, table, request.recipe.insert),
        shifts=table.shifts,
        plain=undo_rounding(calibration.model, table),
        origin=Origin(
            prepared=calibration.model,
            placement=calibration.placement,
            table=table,
            histograms=calibration.histograms[method],
            recipe=request.recipe,
        ),
    )


def _of_run(request: SensitivityRequest, model: Model) -> _Quantized:
    """Open a Q/DQ model with the other parts from its run folder."""
    folder = request.model.parent
    table = CALIBRATION.read(folder / "calibration.json")
    prepared, placement, histograms = (
        folder / name for name in ("model.prepared.onnx", "placement.json", fitting_histograms(folder).name)
    )
    if not prepared.is_file():
        return _Quantized(model=model, shifts=table.shifts)
    plain = load(prepared)
    origin = None
    if placement.is_file():
        origin = Origin(
            prepared=plain,
            placement=PLACEMENT.read(placement),
            table=table,
            histograms=load_histograms(histograms) if histograms.is_file() else None,
            recipe=request.recipe,
        )
    return _Quantized(model=model, shifts=table.shifts, plain=undo_rounding(plain, table), origin=origin)
