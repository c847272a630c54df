"""Costs from builds: the engine of a run compared with FP16, and with engines with other settings.

A reader who counts INT8 nodes alone may get a slower engine: a gate in INT8 can add a kernel. Without a builder that needs no
GPU, and for large models, only the number of quantized nodes is said, which follows from placement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

import numpy as np

from qdqtool.auditing.full_audit import with_findings
from qdqtool.backends.gpu import gpus
from qdqtool.backends.timing.measure import TimeRequest, measure
from qdqtool.calibration.table import groups
from qdqtool.core.advice import promises, settings_in
from qdqtool.core.calibration import LOST_CHANNELS, CalibrationTable, TensorRange
from qdqtool.core.claims import ADDS_A_KERNEL, IS_KEPT, RUNS_THEN, Assertion, Claim, Part
from qdqtool.core.engine import Engine
from qdqtool.core.explore import Device, EngineView
from qdqtool.core.findings import Audit, Finding, NodeVerdict
from qdqtool.core.kinds import ENGINE
from qdqtool.core.placement import Decision, Placement, SlotKind
from qdqtool.core.protocols import Builder, BuildRequest
from qdqtool.core.recipe import InsertOptions, Recipe
from qdqtool.core.report import Worth
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, Setting, count_noun
from qdqtool.engine.costs import kinds, merge_finishers
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.engine.roofline import (
    LEAST_START_MS,
    RATIO_ERROR,
    ROOF,
    Estimate,
    estimate,
    find_device,
    usual_device,
)
from qdqtool.engine.view import view
from qdqtool.engine.worth import PrecisionAdvice, advise
from qdqtool.errors import BuildError, QdqError, SystemFault, UsageError
from qdqtool.graph.onnx_io.save import weight_bytes
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert_for_engine
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from qdqtool.pipeline.building import build_engine, examine_engine
from qdqtool.pipeline.conversion import reach_for
from qdqtool.pipeline.recipes import change_recipe
from qdqtool.pipeline.request import RunContext
from qdqtool.pipeline.writing import write
from qdqtool.placement.decide import decide
from qdqtool.prediction.predict import predict
from qdqtool.trt.ops import COMPUTE

# --- worth -----------------------------------------------------------------------------------------------------------
# Compares the engine of a run with an FP16 engine of the network, which is built for the comparison.


_LARGE_FOR_FP16: Final = 2 << 30
"""Bytes of weights from which the FP16 engine is not built."""
_MOSTLY: Final = 0.5
"""Share of kernel starts in an estimate from which a note says so."""
_SUBSTITUTE = (
    "both engines were built with TensorRT for RTX, but the builder of the recipe fuses other kernels"
)
_STARTS = "most of the time is kernel launches, which CUDA graphs and fusion on the GPU reduce"
_TIMED: Final = frozenset({"trt", "trtexec"})
"""Builders whose engines `qdqtool time` can run."""


def against_fp16(
    model: Model, recipe: Recipe, builder: Builder | None, request: BuildRequest, layers: Path
) -> Worth:
    """Return the times of the engine of a run and of an FP16 engine: measured if there is a GPU, else estimated.

    If nothing is measured, published times of other networks decide, if there are any (`engine.worth`).

    Args:
        model: the prepared float model.
        recipe: the recipe of the run.
        builder: builds the FP16 engine as `request` says; None if no builder may be asked.
        request: how the engine of the run was built; its folder holds that engine.
        layers: layers.json of the engine.
    """
    device = find_device(usual_device(recipe.build.sm))
    quantized = ENGINE.read(layers)
    worth = _build_and_compare(model, recipe, builder, request, quantized, device)
    advice = _advice(model, device, request)
    if advice is None:
        return worth
    int8 = advice.int8
    if int8.verdict != "cannot say" or not worth.note:  # one reason for an unknown cost is enough
        worth = replace(worth, advice=advice.line)
    if worth.source == "measured" or not _is_int8(view(quantized)) or int8.low is None or int8.high is None:
        return worth
    if int8.verdict == "cannot say":
        return worth
    # four of five networks are between these limits; an engine outside them differs from the published engines
    ratios = (
        1 / int8.high,
        1 / int8.low,
        *([worth.fp16_ms / worth.ms] if worth.ms and worth.fp16_ms else []),
    )
    return replace(worth, device=device.name, low=min(ratios), high=max(ratios), note="")


def _advice(model: Model, device: Device, request: BuildRequest) -> PrecisionAdvice | None:
    """Return the advice on the batch size of the engine; None for a network of unknown work."""
    batch = next((profile.opt[0] for profile in request.profiles if profile.opt and not profile.is_value), 1)
    try:
        return advise(model.view, device, request.model.name, batch)
    except UsageError:
        return None


def _is_int8(engine: EngineView) -> bool:
    """Return True if INT8 layers do most of an engine's multiply-adds, as in published measurements."""
    macs = {True: 0, False: 0}
    for layer in engine.layers:
        macs[layer.precision is DType.INT8] += layer.macs or 0
    return macs[True] > macs[False]


def _build_and_compare(
    model: Model,
    recipe: Recipe,
    builder: Builder | None,
    request: BuildRequest,
    quantized: Engine,
    device: Device,
) -> Worth:
    if builder is None or not recipe.build.fp16:
        return Worth(source="unknown", note="no engine in FP16 was built to compare with")
    if weight_bytes(model) >= _LARGE_FOR_FP16:
        return Worth(source="unknown", note="the network is too large to be built a second time in FP16")
    try:
        narrow, _ = convert(model, InsertOptions(types="fp16"))
        with TemporaryDirectory(prefix="qdqtool-fp16-", ignore_cleanup_errors=True) as place:
            folder = Path(place)
            path = folder / "fp16.onnx"
            write(narrow, path, step="build")
            built, _ = build_engine(builder, replace(request, model=path, folder=folder), most=0)
            if built.layers is None:
                raise BuildError(
                    "the builder wrote no layer information", fix="build with detailed verbosity"
                )
            estimated = _estimate_worth(quantized, read_layers(folder / built.layers), device)
            if recipe.build.builder in _TIMED and gpus() and (request.folder / "engine.plan").is_file():
                return _measure_worth(estimated, folder / built.engine, request.folder / "engine.plan")
            if recipe.build.builder not in _TIMED and not recipe.placing.builder.is_rtx:
                return replace(estimated, low=None, high=None, note=_SUBSTITUTE)
            return estimated
    except SystemFault:
        raise
    except QdqError as error:
        return Worth(source="unknown", note=f"the network could not be built in FP16: {error.what}")


def _estimate_worth(quantized: Engine, half: Engine, device: Device) -> Worth:
    """Estimate the times of the INT8 and FP16 engines, and an interval for their ratio.

    The interval covers what only a GPU can measure.

    Unknown without a GPU are the start time of a kernel, and whether the device computes a low-bit product and the
    kernel that finishes it as one.
    """
    ours, whole, theirs = (
        estimate(view(engine), device) for engine in (quantized, merge_finishers(quantized), half)
    )
    worth = Worth(
        source="estimated",
        device=device.name,
        ms=ours.ms,
        fp16_ms=theirs.ms,
        kernels=(len(quantized.kernels), len(half.kernels)),
        more=_more(quantized, half),
    )
    if ours.blind or theirs.blind:
        return replace(worth, note=f"shapes of {max(ours.blind, theirs.blind)} kernels are unknown")
    ratios = [
        _at(start, theirs, len(half.kernels), error) / _at(start, time, kernels, 1.0)
        for start in (LEAST_START_MS, ROOF.start_ms)
        for time, kernels in (
            (ours, len(quantized.kernels)),
            (whole, len(merge_finishers(quantized).kernels)),
        )
        for error in (1 + RATIO_ERROR[1], 1 / (1 + RATIO_ERROR[1]))
    ]
    return replace(worth, low=min(ratios), high=max(ratios), note=_launches(worth))


def _at(start: float, estimate: Estimate, kernels: int, error: float) -> float:
    """Return the time in ms if each kernel takes `start` ms to launch; `error` multiplies all other time."""
    return start * kernels + (estimate.ms - ROOF.start_ms * kernels) * error


def _launches(worth: Worth) -> str:
    times = zip(worth.kernels or (), (worth.ms, worth.fp16_ms), strict=False)
    shares = [ROOF.start_ms * kernels / (ms or 1.0) for kernels, ms in times]
    return _STARTS if max(shares, default=0.0) > _MOSTLY else ""


def _more(quantized: Engine, half: Engine) -> dict[str, int]:
    """Return how many more kernels of each kind the quantized engine has than the FP16 engine."""
    ours, theirs = kinds(quantized), kinds(half)
    more = {kind: count - theirs.get(kind, 0) for kind, count in sorted(ours.items())}
    return {kind: count for kind, count in more.items() if count > 0}


def _measure_worth(estimated: Worth, half: Path, quantized: Path) -> Worth:
    """Replace the estimated times of both engines by times measured alternately on this GPU.

    Both engines come from this run, so they are trusted.
    """
    timing = measure(TimeRequest(candidates=(half, quantized), trust=True))
    (verdict,) = timing.verdicts
    return replace(
        estimated,
        source="measured",
        device=gpus()[0].name,
        ms=timing.summaries[1].median,
        fp16_ms=timing.summaries[0].median,
        low=verdict.low,
        high=verdict.high,
        note="" if verdict.low is not None else "too few rounds for an interval",
    )


# --- fix costs -------------------------------------------------------------------------------------------------------


_OF_NODES = frozenset({"fallback", "float_island", "unrequested_float"})
"""Checks whose findings are about a node that should run in a low-bit format."""
_LARGE_FOR_FIXES = 512 << 20
"""Bytes of weights from which no cost is reported: each setting quantizes the whole model once more."""
_MOST_NODES = 600
"""Most nodes of a model that is built once more for each setting: most such builds take seconds."""
_MOST_BUILDS = 4
"""Most settings of one audit that are built; all other settings keep an unknown cost."""
_BUILT, _FEWER, _IDLE = "built: ", " fewer", "this setting alone changes nothing"
"""Words that are printed, and that other code reads when it proposes commands."""
_TOO_LARGE = (
    f"cost not computed: the weights take {_LARGE_FOR_FIXES >> 20} MiB or more, and for each setting the model would be "
    f"quantized and built again; {Command('fix')} does this"
)
_PRICED = re.compile(rf"\((?:{_BUILT}|predicted: |{_IDLE}|its cost is unknown|cost not computed)")
"""Words that begin a cost."""
_Entry = TypeVar("_Entry", NodeVerdict, Finding)
_LAST = "insert.types=fp16"
"""The setting that is built after all others: its engine resembles the one in FP16 that a run builds in any case."""
_STEPS = 97.0
"""Made-up ranges are 1 plus multiples of one part in this number."""
_SAME_BYTES = 0.005
"""Share of the activation bytes below which a difference is not mentioned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingCost:
    """The cost of a setting in kernels, bytes and nodes, from a build or a plan.

    Attributes:
        inputs: inputs of nodes that are quantized.
        quantized: compute nodes that are quantized: as built, else as predicted.
        nodes: all compute nodes.
        hidden: compute nodes with Q/DQ whose arithmetic the engine does not show.
        kernels: kernels of the engine; None if none was built.
        bytes: activation bytes that its kernels read and write; None if unknown.
        low: names of the nodes that run in low-bit formats; None if no engine was built.
    """

    inputs: int
    quantized: int
    nodes: int
    hidden: int = 0
    kernels: int | None = None
    bytes: int | None = None
    low: frozenset[str] | None = None


class FixCosts:
    """Compares the engine of a run with engines of other settings: those that the fixes of the audit name.

    Args:
        model: the prepared float model.
        work: the run: its recipe, its float model, and samples that show overflows of a narrow float type.
        table: the ranges of the run; missing ranges are 1.
        builder: builds the other engines; None if there is no builder, or only one that needs a GPU.
        request: how the engine of the run was built.
    """

    def __init__(
        self,
        model: Model,
        work: RunContext,
        table: CalibrationTable,
        builder: Builder | None,
        request: BuildRequest,
    ) -> None:
        self._model, self._recipe, self._table = model, work.recipe, table
        self._request, self._work = request, work
        self._builder = builder if len(model.view.nodes) <= _MOST_NODES else None
        self._builds = 0

    def added_to(self, audit: Audit) -> Audit:
        """Add the cost of each setting to the text of its fix in the audit."""
        fixes = {entry.fix for entry in audit.verdicts} | {entry.fix for entry in audit.findings}
        settings_of = {fix: settings for fix in fixes if (settings := settings_in(fix))}
        if not settings_of:
            return audit
        if weight_bytes(self._model) >= _LARGE_FOR_FIXES:
            return _with_effects(
                audit, {fix: _SettingEffect(_TOO_LARGE, settings) for fix, settings in settings_of.items()}
            )
        plan = self._plan_cost(self._recipe)
        before = replace(
            plan[0],
            quantized=sum(verdict.is_quantized for verdict in audit.verdicts),
            hidden=_count_hidden(audit),
            kernels=audit.counts.kernels,
            bytes=audit.counts.activation_bytes_dumped,
        )
        placed_first = sorted(set(settings_of.values()), key=lambda texts: (_LAST in texts, texts))
        costs = {settings: self._effect_of(plan, before, settings) for settings in placed_first}
        return _with_effects(audit, {fix: costs[settings] for fix, settings in settings_of.items()})

    def _effect_of(
        self, plan: tuple[SettingCost, Model], before: SettingCost, settings: tuple[str, ...]
    ) -> _SettingEffect:
        """Build or plan the model with these `settings`, and describe the change from the run."""
        planned, planned_model = plan
        try:
            recipe = change_recipe(self._recipe, settings)
            after, model = self._plan_cost(recipe)
            # Equal numbers are not enough: a setting may exchange nodes, or change nodes that are not counted.
            if model.proto == planned_model.proto:
                return _SettingEffect(_IDLE, settings, _claims(before, before))
            if self._builder is not None and self._builds < _MOST_BUILDS:
                self._builds += 1
                built = self._build_cost(self._builder, after, model, recipe)
                text = f"{_BUILT}{describe_difference(before, built)}"
                if recipe.insert != self._recipe.insert:  # a run chooses its zero points for this type
                    text = f"{text}, with the ranges of this run; its accuracy is not measured"
                return _SettingEffect(text, settings, _claims(before, built), built.low)
        except SystemFault:
            raise
        except QdqError as error:
            return _SettingEffect(f"its cost is unknown: {error.what}", settings)
        return _SettingEffect(
            f"predicted: {describe_difference(planned, after)}, kernels unknown: {Command('fix')} builds it",
            settings,
            _claims(planned, after),
        )

    def _plan_cost(self, recipe: Recipe) -> tuple[SettingCost, Model]:
        model, table = self._model, self._table
        if recipe.preparing != self._recipe.preparing:
            model = prepare(self._work.request.opened(), recipe.preparing)
            table = _fitting(table, self._model, model)
        placement = decide(model.view, recipe.placing)
        ranges = _complete_ranges(model, placement, table)
        is_narrow = recipe.insert.types != "fp32"
        reach = reach_for(model, recipe.insert, self._work.samples)[0] if is_narrow else None
        quantized = insert_for_engine(model, placement, ranges, recipe.insert, reach)
        nodes = [node for node in predict(quantized, recipe.placing.builder).nodes if node.op in COMPUTE]
        count = sum(node.realised not in {"float", "unknown"} for node in nodes)
        return SettingCost(inputs=len(placement.quantized), quantized=count, nodes=len(nodes)), quantized

    def _build_cost(
        self, builder: Builder, planned: SettingCost, model: Model, recipe: Recipe
    ) -> SettingCost:
        built = examine_engine(model, builder, self._request, retries=recipe.build.retries)
        return replace(
            planned,
            quantized=sum(verdict.is_quantized for verdict in built.audit.verdicts),
            hidden=_count_hidden(built.audit),
            kernels=built.audit.counts.kernels,
            bytes=built.audit.counts.activation_bytes_dumped,
            low=frozenset(verdict.node for verdict in built.audit.verdicts if verdict.is_quantized),
        )


@dataclass(frozen=True, slots=True)
class _SettingEffect:
    """The effect of a setting: text, claims and low-bit nodes; `low` is None if no engine was built."""

    text: str
    settings: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    low: frozenset[str] | None = None

    def of_verdict(self, verdict: NodeVerdict) -> NodeVerdict:
        """Add the cost of a fix to its text; also say so if a build shows that the node stays float."""
        reason, claims_before = self._borne_out(verdict.reason, verdict.claims)
        fix, claims = self._of(verdict.fix, claims_before, verdict.node)
        return replace(verdict, reason=reason, fix=fix, claims=claims)

    def of_finding(self, finding: Finding) -> Finding:
        """Return an audit finding with the cost of its fix added to the text of the fix."""
        subject = finding.subject if finding.check in _OF_NODES else ""
        reason, claims_before = self._borne_out(finding.reason, finding.claims)
        fix, claims = self._of(finding.fix, claims_before, subject)
        return replace(finding, reason=reason, fix=fix, claims=claims)

    def _borne_out(self, reason: str, claims: tuple[Claim, ...]) -> tuple[str, tuple[Claim, ...]]:
        """If a build shows that INT8 adds no kernel, correct a reason that says it adds one."""
        was_built = self.low is not None
        adds_none = was_built and any(
            claim.kernels is not None and claim.kernels <= 0 for claim in self.claims
        )
        if ADDS_A_KERNEL not in claims or not adds_none:
            return reason, claims
        kept = (IS_KEPT if claim == ADDS_A_KERNEL else claim for claim in claims)
        return f"{reason}; this is the general rule, but a build of this network contradicts it", tuple(
            dict.fromkeys(kept)
        )

    def _of(self, fix: str, claims: tuple[Claim, ...], node: str) -> tuple[str, tuple[Claim, ...]]:
        runs = RUNS_THEN in promises(fix, of_finding=False)
        if self.low is None or not node or node in self.low or not runs:
            return f"{fix} ({self.text})", (*claims, *self.claims)
        typed = " ".join(str(Setting.of(text)) for text in self.settings)
        fix = f"nothing to do: {typed} makes this node float too ({self.text})"
        reasons = tuple(claim for claim in claims if claim.part is Part.REASON)
        return fix, (*reasons, *promises(fix, of_finding=False), *self.claims)


def _with_effects(audit: Audit, effects: Mapping[str, _SettingEffect]) -> Audit:
    """Add the effect of its setting to each fix in the audit; `effects` is indexed by the text of the fix."""
    return replace(
        audit,
        verdicts=tuple(
            effects[entry.fix].of_verdict(entry) if entry.fix in effects else entry
            for entry in audit.verdicts
        ),
        findings=tuple(
            effects[entry.fix].of_finding(entry) if entry.fix in effects else entry
            for entry in audit.findings
        ),
    )


def with_recorded(audit: Audit, recorded: Audit, ignore: tuple[str, ...] = ()) -> Audit:
    """Return the audit of a run folder with the costs, and the findings about ranges, that the run recorded."""
    verdicts: dict[object, list[NodeVerdict]] = {}
    findings: dict[object, list[Finding]] = {}
    for verdict in recorded.verdicts:
        verdicts.setdefault(verdict.node, []).append(verdict)
    for finding in recorded.findings:
        findings.setdefault((finding.code, finding.subject), []).append(finding)
    costed = replace(
        audit,
        verdicts=tuple(_recorded(entry, verdicts.get(entry.node, [])) for entry in audit.verdicts),
        findings=tuple(
            _recorded(entry, findings.get((entry.code, entry.subject), [])) for entry in audit.findings
        ),
    )
    ranges = tuple(entry for entry in recorded.findings if entry.code == LOST_CHANNELS[0])
    return with_findings(costed, ranges, ignore)


def _recorded(entry: _Entry, recorded: Sequence[_Entry]) -> _Entry:
    """Return the recorded entry with the settings of this entry, the entry with its reason first; else the entry itself."""
    settings = settings_in(entry.fix)
    alike = [each for each in recorded if settings and settings_in(each.fix) == settings]
    return max(alike, key=lambda each: each.reason.startswith(entry.reason), default=entry)


def lacks_costs(audit: Audit) -> bool:
    """Return True if a setting in a fix has no text about its cost."""
    fixes = [entry.fix for entry in audit.verdicts] + [entry.fix for entry in audit.findings]
    return any(settings_in(fix) and not _PRICED.search(fix) for fix in fixes)


def _claims(before: SettingCost, after: SettingCost) -> tuple[Claim, ...]:
    """Return claims that a build can contradict: the change in nodes, kernels and bytes."""
    claims = [
        Claim(
            part=Part.COST,
            says=Assertion.QUANTIZED,
            nodes=after.quantized - before.quantized,
            hidden=before.hidden + after.hidden,
        )
    ]
    if before.kernels is not None and after.kernels is not None:
        more = after.kernels - before.kernels
        claims.append(Claim(part=Part.COST, says=Assertion.KERNELS, kernels=more))
    # Inputs that the run left float get invented ranges, and unequal scales change the formats of kernels between
    # them.
    if (share := _more_bytes(before, after)) and after.quantized <= before.quantized:
        claims.append(Claim(part=Part.COST, says=Assertion.BYTES, percent=round(100 * share)))
    return tuple(claims)


def _count_hidden(audit: Audit) -> int:
    return sum(verdict.requested and verdict.precision is DType.UNKNOWN for verdict in audit.verdicts)


def _more_bytes(before: SettingCost, after: SettingCost) -> float:
    """Return the growth of activation bytes as a share; 0 if unknown, or too small to mention."""
    share = after.bytes / before.bytes - 1 if before.bytes and after.bytes is not None else 0.0
    return share if abs(share) > _SAME_BYTES else 0.0


def describe_difference(before: SettingCost, after: SettingCost) -> str:
    """Describe the difference between two costs; skip numbers that one of them lacks."""
    lost = before.quantized - after.quantized
    more_float = f" ({lost} more in float)" if lost > 0 else ""
    parts = [
        f"{after.quantized} of {count_noun(after.nodes, 'compute node')} quantized instead of {before.quantized}{more_float}"
    ]
    if after.quantized == before.quantized:
        parts = [f"{count_noun(after.inputs, 'input')} quantized instead of {before.inputs}"]
        if after.inputs == before.inputs:
            parts = [f"{count_noun(after.quantized, 'compute node')} quantized as before"]
    if after.hidden:
        parts.append(f"the engine does not show the type of {after.hidden}")
    if before.kernels is not None and after.kernels is not None:
        more = after.kernels - before.kernels
        word = count_noun(abs(more), "kernel")
        parts.append(
            f"{word} more" if more > 0 else f"{word}{_FEWER}" if more else "in the same number of kernels"
        )
    if share := _more_bytes(before, after):
        parts.append(f"about {abs(share):.0%}{' more' if share > 0 else _FEWER} activation bytes")
    return ", ".join(parts)


def saves_nothing(fix: str) -> bool:
    """Return True if the text of a fix says that it changes nothing, or saves neither kernels nor bytes.

    >>> saves_nothing("--set place.last_layer=int8 (built: 2 of 2 compute nodes quantized instead of 1, in the same number of kernels)")
    True
    >>> saves_nothing("--set place.last_layer=int8"), saves_nothing("(built: ..., 1 kernel fewer)")
    (False, False)
    """
    _, built, words = fix.rpartition(_BUILT)
    return fix.endswith(f"({_IDLE})") or (bool(built) and _FEWER not in words)


def _complete_ranges(model: Model, placement: Placement, table: CalibrationTable) -> CalibrationTable:
    """Add invented ranges to the table for quantized tensors without a range, or with a range along another axis."""
    ranges = table.by_tensor()
    group_of = {name: number for number, names in enumerate(groups(placement)) for name in names}
    for number, decision in enumerate(placement.quantized, start=len(group_of)):
        range_ = ranges.get(decision.tensor)
        if range_ is None or range_.axis != (decision.spec.axis if decision.spec else None):
            ranges[decision.tensor] = _invent_range(model, decision, group_of.get(decision.tensor, number))
    # Zero points count too: the Sub nodes that they add are kernels, or parts of kernels.
    return replace(table, ranges=tuple(ranges[name] for name in sorted(ranges)))


def _fitting(table: CalibrationTable, model: Model, changed: Model) -> CalibrationTable:
    """Return the ranges and bias shifts of a table that stay valid for `changed`, the model prepared again."""

    def weights(model: Model, name: str) -> tuple[int, ...] | None:
        node = model.view.by_name.get(name)
        return model.view.constant_shape(node.inputs[1]) if node and len(node.inputs) > 1 else None

    shifts = (entry for entry in table.shifts if weights(model, entry.node) == weights(changed, entry.node))
    ranges = (entry for entry in table.ranges if entry.axis is None)
    return CalibrationTable(ranges=tuple(ranges), shifts=tuple(shifts))


def _invent_range(model: Model, decision: Decision, number: int) -> TensorRange:
    """Return an invented range that only the tensors of its group have: builders merge equal scales."""
    axis = decision.spec.axis if decision.spec else None
    shape = model.view.constant_shape(decision.tensor) if decision.kind is SlotKind.WEIGHT else None
    count = shape[axis] if shape is not None and axis is not None else 1
    amax = tuple(np.full(count, 1 + number / _STEPS).tolist())
    return TensorRange(
        tensor=decision.tensor, amax=amax, axis=axis, origin=("invented range: only the build is used",)
    )
