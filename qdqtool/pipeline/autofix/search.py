"""Tries candidates for a better engine in groups: a group that helps is kept after one build; other groups are split.

Candidates come from all rules, from settings with which placement would quantize a float node, and from static fixes.
"""

from __future__ import annotations

import shlex
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import isinf
from pathlib import Path
from time import monotonic

from qdqtool.auditing.context import ENGINE, AuditContext
from qdqtool.core.advice import is_worth_trying, settings_in
from qdqtool.core.comparison import exceeds
from qdqtool.core.findings import Audit, Finding
from qdqtool.core.fixes import FixOutcome, FixTrial, SlotEdit, TimeGain
from qdqtool.core.placement import Slot
from qdqtool.core.wording import Setting, actions
from qdqtool.errors import BuildError, QdqError, SystemFault
from qdqtool.graph.qdq.find import find
from qdqtool.graph.view import Model
from qdqtool.matching.rule import BuiltGraph, Candidate, Goal, Rulebook, rulebook
from qdqtool.pipeline.autofix.builder import BuiltModel, CandidateBuilder, score
from qdqtool.pipeline.autofix.clock import HostClock
from qdqtool.pipeline.autofix.drafts import DraftModel, Edits, Ranges, merge_edits
from qdqtool.pipeline.search.experiment import LeastGain, OutputNoise
from qdqtool.pipeline.search.patterns import pattern_of
from qdqtool.placement.repair import gaining_fixes

OnBuild = Callable[[int, int], None]
"""Function called with the number of builds done and of builds allowed."""
_CHECKS = frozenset(
    {
        "attention_not_fused",
        "fallback",
        "float_island",
        "runtime_weights",
        "unfused_qdq",
        "needless_conversion",
        "conversion_chain",
        "float_round_trip",
        "fp16_off",
    }
)
"""Checks whose findings this search reports on."""
_CLOSER = LeastGain(gain_db=0.1)
"""Gain of the outputs for which an edit counts as closer to the float model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Limits of a search for fixes.

    Attributes:
        builds: engines that may be built for trials.
        seconds: seconds after which no further trial begins; None does not watch the clock.
        max_drop: how far accuracy may fall, in points of the task metric or in dB.
    """

    builds: int
    seconds: float | None
    max_drop: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attempt:
    candidate: Candidate
    edits: tuple[SlotEdit, ...]
    guessed: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """The recipe settings that the candidate changes; () if it edits node inputs instead."""
        return () if self.edits else self.candidate.settings


class FixSearch:
    """Improves an engine in steps that reach their goal, keep accuracy, and with a clock take less time.

    Attributes:
        best: the best model so far.
        accuracy: its metric's value.
        metric: the metric's name.
        trials: the trials so far.
    """

    def __init__(
        self, builder: CandidateBuilder, folder: Path, bounds: Bounds, clock: HostClock | None = None
    ) -> None:
        self._builder = builder
        self._clock = clock
        self._folder = folder
        self._bounds = bounds
        self._began = monotonic()
        self._ranges = Ranges(
            builder.draft.reference, builder.samples, guesses=builder.draft.has_meaningful_ranges
        )
        self._answered: set[tuple[str, str]] = set()
        self._halves: deque[tuple[_Attempt, ...]] = deque()
        self._tried_together: dict[tuple[str, str], str] = {}
        self._paired: tuple[BuiltModel | None, frozenset[Slot]] = (None, frozenset())
        self._on_build: OnBuild = lambda _done, _total: None
        self.trials: list[FixTrial] = []
        # The search starts from the first engine; only later builds are trials.
        self.first = self.best = builder.make({}, folder / "first", bounds.builds + 1)
        self._attempts = 0
        self._tell_given_up(self.best)
        comparison, self._noise = builder.compare(self.first.model)
        self.metric, self.accuracy = score(comparison)
        self.first_accuracy = self.accuracy

    @property
    def builds(self) -> int:
        """Number of engines that were built for trials."""
        return self._builder.builds - 1

    def run(self, on_build: OnBuild) -> None:
        """Try candidates until all are tried or the budget is used up."""
        self._on_build = on_build
        while group := self._next():
            self._try(group)
        self.trials += self._open()

    @property
    def _measures(self) -> bool:
        """True if accuracy is measured on meaningful samples."""
        samples = self._builder.samples
        return samples is not None and samples.meaningful and bool(self.metric)

    def _next(self) -> Sequence[_Attempt]:
        """Return the next group of untried candidates, at most one per subject.

        Candidates for INT8 come before those that save kernels.

        Groups that did not help as a whole are split after every other candidate was built.
        """
        goals = set(Goal) if self._measures else set(Goal) - {Goal.CLOSER}
        halved = {attempt.candidate.key for half in self._halves for attempt in half}
        waiting = [
            candidate
            for candidate in candidates(
                self.best.qdq, self.best.context, self.best.audit, self._builder.draft, self.best.edits
            )
            if candidate.goal in goals and candidate.key not in self._answered | halved
        ]
        groups = (self._group(waiting, goal) for goal in Goal)
        return next(filter(None, groups), ()) or (self._halves.popleft() if self._halves else ())

    def _group(self, waiting: Sequence[Candidate], goal: Goal) -> list[_Attempt]:
        """Return candidates with one goal whose subjects and inputs are all different.

        Candidates whose gain shows only in the whole engine must be from one rule, because others might hide the
        gain.
        """
        group: list[_Attempt] = []
        subjects: set[str] = set()
        slots: set[Slot] = set()
        for candidate in waiting:
            if candidate.goal is not goal or candidate.subject in subjects:
                continue
            if goal is not Goal.INT8 and group and candidate.rule != group[0].candidate.rule:
                continue
            if not candidate.edits:
                # A recipe value changes the whole engine, so it is tried alone.
                if not group:
                    return [_Attempt(candidate=candidate, edits=())]
                continue
            resolved = self._ranges.resolve(candidate.edits)
            if isinstance(resolved, str):
                self._close(_Attempt(candidate=candidate, edits=()), FixOutcome.NOT_TRIED, resolved)
                continue
            if not resolved.edits or all(self.best.edits.get(edit.slot) == edit for edit in resolved.edits):
                self._answered.add(candidate.key)
                continue
            touched = {edit.slot for edit in resolved.edits}
            if touched & slots:
                continue
            if slower := self._recall(resolved.edits):
                self._close(_Attempt(candidate=candidate, edits=resolved.edits), FixOutcome.NOT_TRIED, slower)
                continue
            subjects.add(candidate.subject)
            slots |= touched
            group.append(_Attempt(candidate=candidate, edits=resolved.edits, guessed=resolved.guessed))
        return group

    def _recall(self, edits: tuple[SlotEdit, ...]) -> str:
        """Return why an edit is known to be slower on the timing machine; "" if that is unknown."""
        return "" if self._clock is None else self._clock.patterns.recall(self._pattern(edits))

    def _pattern(self, edits: tuple[SlotEdit, ...]) -> tuple[str, ...]:
        if self._paired[0] is not self.best:
            slots = frozenset(slot for pair in find(self.best.qdq) for slot in pair.slots)
            self._paired = (self.best, slots)
        return pattern_of(self._builder.draft.reference.view, edits, self._paired[1])

    def _try(self, group: Sequence[_Attempt]) -> None:
        """Keep the whole group if it helps; otherwise find out which of its candidates help."""
        spent = self._describe_spent()
        if spent:
            for attempt in group:
                together = self._tried_together.get(attempt.candidate.key, "")
                self._close(
                    attempt,
                    FixOutcome.NOT_TRIED,
                    f"{together}not tried separately: {spent}" if together else spent,
                )
            return
        built = self._make(group)
        if isinstance(built, str):
            self._split(group, built)
            return
        self._judge(group, built)
        if self.best is not built:
            shutil.rmtree(built.folder, ignore_errors=True)

    def _describe_spent(self) -> str:
        """Return a sentence about the budget if it is used up; else ""."""
        bounds = self._bounds
        if self.builds >= bounds.builds:
            return f"the budget of {bounds.builds} builds is used up"
        if bounds.seconds is not None and monotonic() - self._began >= bounds.seconds:
            return f"the {bounds.seconds:g} seconds of --time-budget are used up"
        return ""

    def _judge(self, group: Sequence[_Attempt], built: BuiltModel) -> None:
        missed = [attempt for attempt in group if not self._is_reached(attempt, built)]
        before, now = self.best.formats, built.formats
        made_float = {
            attempt.candidate.subject
            for attempt in group
            if not any(edit.measured_scales for edit in attempt.edits)
        }
        lost = sorted(
            node for node, format_ in before.items() if node not in made_float and now.get(node) != format_
        )
        if missed and len(missed) < len(group):
            self._keep_apart(group, missed, built)
        elif missed:
            self._split(group, self._shortfall(missed[0].candidate, built), built)
        elif lost:
            self._split(group, f"{', '.join(lost[:3])} was quantized before and runs in float now", built)
        elif any(attempt.guessed for attempt in group):
            self._ask_for_samples(group, built)
        else:
            self._weigh(group, built)

    def _ask_for_samples(self, group: Sequence[_Attempt], built: BuiltModel) -> None:
        """Reject an edit that helps with ranges from random samples, and ask the user for real samples."""
        tensors = [tensor for attempt in group for tensor in attempt.guessed]
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        helps = "" if self._clock else f"{built.cost} instead of {self.best.cost}: this edit helps, but "
        for attempt in group:
            self._close(
                attempt,
                FixOutcome.UNDONE,
                f"{helps}the range of {tensors[0]!r}{more} was measured on random samples; pass --samples DATA to keep this fix",
                built,
            )

    def _make(self, group: Sequence[_Attempt]) -> BuiltModel | str:
        """Build the engine with the edits of a group of candidates; if the build fails, return the reason."""
        self._attempts += 1
        edits = merge_edits(self.best.edits, (edit for attempt in group for edit in attempt.edits))
        settings = (*self.best.settings, *(value for attempt in group for value in attempt.values))
        try:
            return self._builder.make(
                edits, self._folder / str(self._attempts), self._bounds.builds - self.builds, settings
            )
        except SystemFault:
            # A full disk shows nothing about the edits: another search could still keep them.
            raise
        except QdqError as error:
            if not isinstance(error, BuildError) and len(group) == 1:
                return f"cannot be applied: {error.what}"
            return f"the builder refused it: {error.what}"
        finally:
            self._on_build(self.builds, self._bounds.builds)

    def _is_reached(self, attempt: _Attempt, built: BuiltModel) -> bool:
        if attempt.candidate.goal is Goal.INT8:
            return attempt.candidate.subject in built.quantized
        if attempt.candidate.goal is Goal.ALLOWED:
            is_cheap = self._clock is not None or not self.best.costs_less_than(built)
            return _quantizes(attempt.candidate, built) and is_cheap
        if self._clock is not None:
            return True
        if attempt.candidate.goal is Goal.CLOSER:
            return built.costs_no_more_than(self.best)
        return built.costs_less_than(self.best)

    def _shortfall(self, candidate: Candidate, built: BuiltModel) -> str:
        is_quantized = candidate.goal is Goal.ALLOWED and _quantizes(candidate, built)
        if candidate.goal in {Goal.INT8, Goal.ALLOWED} and not is_quantized:
            verdict = next((entry for entry in built.audit.verdicts if entry.node == candidate.subject), None)
            return (
                "the node is still not quantized"
                if verdict is None
                else f"still {verdict.precision}: {verdict.reason}"
            )
        gain = "the edit saves nothing" if candidate.goal is Goal.CHEAPER else "the engine costs more"
        return f"{built.cost} instead of {self.best.cost}: {gain}"

    def _keep_apart(self, group: Sequence[_Attempt], missed: list[_Attempt], built: BuiltModel) -> None:
        """Retry the candidates that reached their goal, then each of the rest alone unless its goal is INT8."""
        self._try([attempt for attempt in group if attempt not in missed])
        for attempt in missed:
            if attempt.candidate.goal is Goal.INT8:
                self._close(attempt, FixOutcome.UNDONE, self._shortfall(attempt.candidate, built), built)
            else:
                self._try([attempt])

    def _split(
        self,
        group: Sequence[_Attempt],
        why: str,
        built: BuiltModel | None = None,
        time: TimeGain | None = None,
    ) -> None:
        """Split a group of candidates into halves: try them at once for INT8 goals, else after all other candidates."""
        if len(group) == 1:
            self._close(group[0], FixOutcome.UNDONE, why, built, time=time)
            return
        if group[0].candidate.goal is Goal.INT8:
            middle = len(group) // 2
            for half in (group[:middle], group[middle:]):
                self._try(half)
            return
        for attempt in group:
            self._tried_together[attempt.candidate.key] = f"in one engine with {len(group) - 1} more: {why}; "
        middle = len(group) // 2
        self._halves.extend((tuple(group[:middle]), tuple(group[middle:])))

    def _weigh(self, group: Sequence[_Attempt], built: BuiltModel) -> None:
        """Keep a group of candidates that reached its goals if accuracy stays, and with a clock if the engine is faster."""
        comparison, noise = self._builder.compare(built.model)
        _, value = score(comparison)
        drop = 0.0 if isinf(value) else self.first_accuracy - value
        if exceeds(drop, self._bounds.max_drop):
            loss = f"{self.metric} would fall from {self.first_accuracy:.4g} to {value:.4g}"
            self._split(group, f"{loss}, allowed: {self._bounds.max_drop:g}", built)
            return
        time, faster = None, ""
        if self._clock is not None:
            pattern = self._pattern(group[0].edits) if len(group) == 1 else ()
            time, is_faster, words = self._clock.compare(self.best.model, built.model, pattern)
            if not is_faster:
                self._split(group, words, built, time)
                return
            faster = f"{words}; "
        elif group[0].candidate.goal is Goal.CLOSER and not self._is_closer(noise, built):
            why = f"no significant gain of more than {_CLOSER.gain_db:g} dB"
            self._split(group, f"{self.metric} {value:.4g} instead of {self.accuracy:.4g}: {why}", built)
            return
        gained = f"{self.metric} {value:.4g} instead of {self.accuracy:.4g}"
        before, self.best, self.accuracy, self._noise = self.best, built, value, noise
        self._tell_given_up(built)
        shutil.rmtree(before.folder, ignore_errors=True)
        for attempt in group:
            closer = attempt.candidate.goal is Goal.CLOSER
            why = f"{gained}; {built.cost}" if closer else self._success(attempt.candidate, before, built)
            self._close(attempt, FixOutcome.KEPT, f"{faster}{why}", built, before, time)

    def _is_closer(self, noise: OutputNoise, built: BuiltModel) -> bool:
        """Return True if the outputs have significantly less noise, or the engine has fewer kernels."""
        both = len(noise.shares) == len(self._noise.shares)
        is_closer = both and _CLOSER.is_met(noise, self._noise)
        return is_closer or built.audit.counts.kernels < self.best.audit.counts.kernels

    def _success(self, candidate: Candidate, before: BuiltModel, built: BuiltModel) -> str:
        accuracy = "accuracy not measured" if not self.metric else f"{self.metric} {self.accuracy:.4g}"
        if candidate.goal in {Goal.INT8, Goal.ALLOWED}:
            format_ = next(built.formats[node] for node in candidate.nodes if node in built.formats)
            return (
                f"runs {format_.upper()} in the new engine; {built.cost} instead of {before.cost}; {accuracy}"
            )
        return f"{built.cost} instead of {before.cost}; {accuracy}"

    def _close(
        self,
        attempt: _Attempt,
        outcome: FixOutcome,
        why: str,
        built: BuiltModel | None = None,
        before: BuiltModel | None = None,
        time: TimeGain | None = None,
    ) -> None:
        """Record the outcome of a trial, with the figures of its engine and of the previous engine."""
        self._answered.add(attempt.candidate.key)
        kept = outcome is FixOutcome.KEPT and not isinf(self.accuracy)
        self.trials.append(
            FixTrial(
                subject=attempt.candidate.subject,
                edit=attempt.candidate.text,
                outcome=outcome,
                why=why,
                edits=attempt.edits,
                rule=attempt.candidate.rule,
                settings=attempt.candidate.settings,
                also=attempt.candidate.also,
                before=None if built is None else (before or self.best).standing(None),
                after=None if built is None else built.standing(self.accuracy if kept else None),
                time=time,
            )
        )

    def _tell_given_up(self, piece: BuiltModel) -> None:
        """Record nodes whose Q/DQ the builder refused as trials: the build has proven that this Q/DQ must go."""
        by_node: dict[str, list[SlotEdit]] = {}
        for edit in piece.given_up:
            by_node.setdefault(edit.slot.node, []).append(edit)
        for node, edits in by_node.items():
            self.trials.append(
                FixTrial(
                    subject=node,
                    edit="remove the Q/DQ from its inputs",
                    outcome=FixOutcome.KEPT,
                    why="with these Q/DQ the builder finds no implementation; without them the build succeeds",
                    edits=tuple(edits),
                )
            )

    def _open(self) -> list[FixTrial]:
        """Return the remaining findings that no trial is about."""
        subjects = {name for trial in self.trials for name in (trial.subject, *trial.also)}
        return [
            FixTrial(
                subject=finding.subject,
                edit="",
                outcome=FixOutcome.NOT_TRIED,
                why=f"not changed: {finding.reason}; {finding.fix}",
            )
            for finding in _find_unanswered(self.best.audit.findings, subjects, self.best)
        ]


def _quantizes(candidate: Candidate, built: BuiltModel) -> bool:
    """Return True if one of the candidate's nodes runs quantized in an engine."""
    return any(node in built.quantized for node in candidate.nodes)


def _find_unanswered(findings: Iterable[Finding], answered: set[str], piece: BuiltModel) -> list[Finding]:
    nodes = {layer.name: ", ".join(sorted(layer.onnx_nodes)) for layer in piece.context.kernels}
    return [
        finding
        for finding in findings
        if finding.check in _CHECKS
        and is_worth_trying(finding.fix)
        and finding.subject not in answered
        and nodes.get(finding.subject, "") not in answered
    ]


# --- candidates of an engine ------------------------------------------------------------------------------------------

_FLOAT_PART = "fp16_off"
_FP16 = "insert.types=fp16"
"""The setting with the effect of `qdqtool convert`."""
_PLACE = "place."
_BY_NAME = ("place.exclude=", "place.exclude_ops=", "place.kept_float=", "place.only=")
"""Settings with which a recipe names nodes: these nodes are float on purpose."""


def candidates(
    model: Model, context: AuditContext, audit: Audit, draft: DraftModel, edits: Edits
) -> tuple[Candidate, ...]:
    """Return every candidate for an engine, by goal, then in the order of the rules' codes; static fixes come last.

    Candidates cost little; a build proves them. `edits` are the edits of `draft` in this engine.
    """
    built = BuiltGraph(
        model=model,
        placement=context.placement,
        engine=context.engine,
        wiring=context.wiring,
        nodes=tuple(zip(context.cases, context.verdicts, strict=True)),
        findings=audit.findings,
    )
    order = list(Goal)
    return tuple(
        sorted(
            (
                *_recipe_values(audit),
                *_propose_candidates(built, rulebook()),
                *_propose_allowed(audit, draft, edits),
                *_static(model),
            ),
            key=lambda candidate: order.index(candidate.goal),
        )
    )


def _propose_candidates(built: BuiltGraph, book: Rulebook) -> Iterator[Candidate]:
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.candidates is not None:
            for candidate in book.results_of(name, partial(rule.candidates, built)):
                yield replace(candidate, rule=name)


def _propose_allowed(audit: Audit, draft: DraftModel, edits: Edits) -> Iterator[Candidate]:
    """Yield settings that the audit names: with them, placement would quantize a node that it kept float."""
    nodes: dict[tuple[str, ...], list[str]] = {}
    for verdict in audit.verdicts:
        settings = () if verdict.is_quantized else settings_in(verdict.fix)
        if settings and all(
            setting.startswith(_PLACE) and not setting.startswith(_BY_NAME) for setting in settings
        ):
            nodes.setdefault(settings, []).append(verdict.node)
    for settings, names in nodes.items():
        more = draft.allowed_by(settings, edits)
        edited = {edit.slot.node for edit in more}
        there = [name for name in names if name in edited]
        if there:
            yield Candidate(
                subject=there[0],
                goal=Goal.ALLOWED,
                text=_format_settings(settings),
                edits=more,
                settings=settings,
                also=tuple(there[1:]),
            )


def _recipe_values(audit: Audit) -> Iterator[Candidate]:
    """Yield the type of the float part that the audit recommends: a setting, or a command for a model without a recipe."""
    fixes = [finding.fix for finding in audit.findings if finding.check == _FLOAT_PART]
    for action in chain.from_iterable(map(actions, fixes)):
        settings = (action.text if isinstance(action, Setting) else _FP16,)
        yield Candidate(
            subject=ENGINE,
            goal=Goal.CHEAPER,
            text=_format_settings(settings) if isinstance(action, Setting) else str(action),
            edits=(),
            settings=settings,
        )


def _format_settings(settings: Sequence[str]) -> str:
    return " ".join(f"--set {shlex.quote(setting)}" for setting in settings)


def _static(model: Model) -> Iterator[Candidate]:
    """Yield each fix of `qdqtool repair` as a separate candidate."""
    for change in gaining_fixes(model):
        yield Candidate(
            subject=change.subject, goal=Goal.CHEAPER, text=change.what, edits=change.edits, rule=change.rule
        )
