"""Reasons why inputs and nodes are not in the requested format. The verdicts and the checks use these reasons.

If a rule finds a mistake in the Q/DQ graph, it is the reason for every compute node that the mistake keeps in float.
So `lint`, `predict` and the audit give the same reason. Only facts that an engine alone shows are explained here. If
no explanation applies, the audit says so and invents no reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from qdqtool.core.advice import join_fixes
from qdqtool.core.claims import IS_KEPT, Claim
from qdqtool.core.findings import Severity
from qdqtool.core.placement import Decision, Placement, RequestOrVeto, Slot, SlotStatement
from qdqtool.core.target import Target
from qdqtool.core.wording import Command
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import (
    CLASSIC,
    Explanation,
    NodeEvidence,
    Rule,
    Rulebook,
    Violation,
    refusals,
    violations,
)

# --- why float -------------------------------------------------------------------------------------------------------
# Reasons why an input is float: one answer per slot, shared by verdicts and checks.
#
# Placement decides about the inputs of compute nodes, and about an Add or a pool only if a rule requests its Q/DQ. So
# an input is float for one of three reasons: a rule refuses it, no rule requests it, or no rule covers it.
# `explanations` covers inputs that are quantized but run in float.


_KEPT = "placement kept the node float: "
_SEE = f"{Command('place', ('MODEL',))} prints the reason of each rule"


def why_float(slot: Slot, placement: Placement) -> Explanation | None:
    """Return why placement left one input float; None if it is quantized."""
    decision = next((each for each in placement.decisions if each.slot == slot), None)
    if decision is None:
        return Explanation(
            reason=f"no rule asks to quantize {slot}",
            fix=f"nothing to do by a command: no rule covers {slot}",
        )
    causes = tuple(why_decided_float([decision]))
    if not causes:
        return None
    return Explanation(
        reason=in_one(causes),
        fix=join_fixes(cause.fix for cause in causes),
        claims=tuple(dict.fromkeys(claim for cause in causes for claim in cause.claims)),
    )


def in_one(causes: Iterable[Explanation]) -> str:
    """Join reasons by semicolons; words that begin all reasons appear once."""
    return "; ".join(cause.reason for cause in causes).replace(f"; {_KEPT}", "; ")


def why_decided_float(decisions: Iterable[Decision]) -> Iterator[Explanation]:
    """Yield an explanation for each different veto, then one for inputs that no rule asked to quantize."""
    reasons = set()
    quiet = []
    for decision in decisions:
        vetoes = [opinion for opinion in decision.opinions if opinion.stance is RequestOrVeto.VETO]
        if not vetoes and not decision.quantize:
            quiet.append(str(decision.slot))
        for opinion in vetoes:
            if (opinion.rule, opinion.reason) not in reasons:
                reasons.add((opinion.rule, opinion.reason))
                yield Explanation(
                    reason=f"{_KEPT}{opinion.reason} (rule {opinion.rule})",
                    fix=opinion.fix or f"nothing to do, unless you skip the rule {opinion.rule}",
                    claims=_claims(opinion),
                )
    if quiet:
        yield Explanation(reason=f"no rule asks to quantize {', '.join(quiet)}", fix=_SEE)


def _claims(opinion: SlotStatement) -> tuple[Claim, ...]:
    """Return what a veto claims about the engine, for builds to check; by default `IS_KEPT`."""
    return (opinion.claim or IS_KEPT,)


# --- explanations ----------------------------------------------------------------------------------------------------


def builders(*, rtx: bool, targets: tuple[str, ...]) -> tuple[Target, ...]:
    """Return the builders that may have made an engine. The layers do not show which release of TensorRT it was."""
    words = ("rtx",) if rtx else sorted(CLASSIC, key=int)
    return tuple(Target.parse(word, sm=targets) for word in words)


class RuleExplanations:
    """Explains, by the rules, why nodes of a Q/DQ model are float; `made_by` lists possible builders."""

    def __init__(self, flow: Flow, made_by: tuple[Target, ...], book: Rulebook) -> None:
        self._flow = flow
        self._builders = made_by
        self._book = book

    def of(self, evidence: NodeEvidence) -> Iterator[tuple[str, Explanation]]:
        """Yield every explanation for one node with the code of its rule, in the order of the codes.

        A mistake that does not change the format of the node is the reason only if there is no other reason.
        """
        losses = self._lost.get(evidence.node.name, {})
        explanations = [
            (rule.code, explanation)
            for name, rule in sorted(self._book.rules.items(), key=lambda entry: entry[1].code)
            for explanation in self._of_rule(name, rule, evidence, losses)
        ]
        refusal = self._refused.get(evidence.node.name)
        if refusal is not None and not evidence.decisions and not evidence.any_quantized:
            # The reason comes from placement. The rules know which reasons no build can refute.
            yield (
                refusal.rule,
                _left_float(refusal, no_kernel=any(explanation.no_kernel for _, explanation in explanations)),
            )
        else:
            yield from explanations or self._suspected.get(evidence.node.name, {}).items()

    def _of_rule(
        self, name: str, rule: Rule, evidence: NodeEvidence, losses: Mapping[str, Explanation]
    ) -> Iterator[Explanation]:
        if rule.code in losses:
            yield losses[rule.code]
        if rule.explain is not None:
            yield from self._book.results_of(name, partial(rule.explain, evidence))

    @cached_property
    def _violations(self) -> dict[tuple[str, str], list[tuple[Target, Violation]]]:
        """Rule violations by code and node, each with the builder that it concerns."""
        by_place: dict[tuple[str, str], list[tuple[Target, Violation]]] = defaultdict(list)
        for target in self._builders:
            for code, violation in violations(self._flow, target, self._book):
                for node in violation.products or (violation.node,):
                    by_place[code, node].append((target, violation))
        return by_place

    @cached_property
    def _lost(self) -> dict[str, dict[str, Explanation]]:
        """Explanations of lint findings by which compute nodes lose the low-bit format, by node and code."""
        return self._by_rule(lambda violation: bool(violation.products))

    @cached_property
    def _suspected(self) -> dict[str, dict[str, Explanation]]:
        """Explanations of other lint findings, which may make a node float, by node and code."""
        return self._by_rule(
            lambda violation: not violation.products and violation.severity is not Severity.INFO
        )

    def _by_rule(self, concerns: Callable[[Violation], bool]) -> dict[str, dict[str, Explanation]]:
        explanations: dict[str, dict[str, Explanation]] = defaultdict(dict)
        for (code, node), broken in self._violations.items():
            if concerns(broken[0][1]):
                explanations[node][code] = self._explanation(broken)
        return explanations

    def _explanation(self, broken: Sequence[tuple[Target, Violation]]) -> Explanation:
        violation = broken[0][1]
        releases = dict.fromkeys(target.name for target, _ in broken)
        some = "" if len(releases) == len(self._builders) else f" (TensorRT {' or '.join(releases)})"
        effect = "" if violation.products else f": {violation.effect}"
        return Explanation(
            reason=f"{violation.reason}{effect}{some}",
            fix=violation.fix,
            of_builder=violation.of_builder,
            no_kernel=violation.no_kernel,
        )

    @cached_property
    def _refused(self) -> dict[str, SlotStatement]:
        first, *further = (refusals(self._flow, target, self._book) for target in self._builders)
        return {node: opinion for node, opinion in first.items() if all(node in vetoes for vetoes in further)}


def _left_float(refusal: SlotStatement, *, no_kernel: bool) -> Explanation:
    return Explanation(
        reason=f"the node has no Q/DQ before it; placement would not quantize the node either: {refusal.reason}",
        fix="nothing to do",
        no_kernel=no_kernel,
        claims=() if refusal.claim is None else (refusal.claim,),
    )


def add_explanations(
    nodes: Sequence[NodeEvidence], realised: Callable[[NodeEvidence], bool], explanations: RuleExplanations
) -> tuple[NodeEvidence, ...]:
    """Return every node with the explanations that its engine does not contradict, in the order of the rules' codes.

    A node whose format is `realised` needs no explanation. If a rule makes a claim about the builder, and a node with
    the claimed operator and format runs in that format, the engine contradicts the rule.
    """
    answers = [tuple(explanations.of(evidence)) for evidence in nodes]
    done = [realised(evidence) for evidence in nodes]
    refuted = {
        (code, evidence.node.op, evidence.arithmetic)
        for evidence, answer, runs in zip(nodes, answers, done, strict=True)
        for code, explanation in answer
        if runs and explanation.of_builder
    }
    return tuple(
        replace(evidence, explanations=() if runs else tuple(_standing(evidence, answer, refuted)))
        for evidence, answer, runs in zip(nodes, answers, done, strict=True)
    )


def _standing(
    evidence: NodeEvidence,
    answer: Iterable[tuple[str, Explanation]],
    refuted: Container[tuple[str, str, str]],
) -> Iterator[Explanation]:
    """Yield one explanation of a node for each rule: the first that the engine does not contradict."""
    codes = set()
    for code, explanation in answer:
        contradicted = explanation.of_builder and (code, evidence.node.op, evidence.arithmetic) in refuted
        if not contradicted and code not in codes:
            codes.add(code)
            yield explanation


def reasons(evidence: NodeEvidence) -> tuple[Explanation, ...]:
    """Return the reasons to print for a float node: vetoes of placement, else a missing kernel, else all findings of the rules."""
    never = tuple(explanation for explanation in evidence.explanations if explanation.no_kernel)
    refused = tuple(why_decided_float(evidence.decisions))
    if evidence.request.endswith("-weights"):
        # Its activation is float on purpose, so missing Q/DQ there are the last possible reason.
        return (
            never
            or tuple(explanation for explanation in evidence.explanations if explanation.of_builder)
            or refused
            or evidence.explanations
        )
    return refused or never or evidence.explanations
