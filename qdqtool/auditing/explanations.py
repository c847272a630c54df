"""Why nodes are not INT8, or what else they were asked for: the placement's own refusals, else what the rules know.

Where nothing applies the audit says so instead of inventing a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from qdqtool.core.placement import Stance
from qdqtool.matching.asked import words_of
from qdqtool.matching.evidence import Claim, Explanation, NodeEvidence
from qdqtool.matching.registry import Rulebook


def explained(
    nodes: Sequence[NodeEvidence], realised: Callable[[NodeEvidence], bool], book: Rulebook
) -> tuple[NodeEvidence, ...]:
    """Every node with the explanations that its engine does not contradict, in the order of the rules' codes.

    A node whose format is `realised` needs none. Where a rule says something of the builder that it says of such a node
    too, of the same operator and format, the engine contradicts it.
    """
    said = [tuple(_said(evidence, book)) for evidence in nodes]
    done = [realised(evidence) for evidence in nodes]
    refuted = {
        (code, evidence.node.op, words_of(evidence))
        for evidence, answers, runs in zip(nodes, said, done, strict=True)
        for code, explanation in answers
        if runs and explanation.claim is not Claim.GRAPH
    }
    return tuple(
        replace(
            evidence,
            explanations=tuple(
                explanation
                for code, explanation in answers
                if not runs
                and (
                    explanation.claim is Claim.GRAPH
                    or (code, evidence.node.op, words_of(evidence)) not in refuted
                )
            ),
        )
        for evidence, answers, runs in zip(nodes, said, done, strict=True)
    )


def reasons(evidence: NodeEvidence) -> tuple[Explanation, ...]:
    """What is printed: the placement's own refusals, else that there is no kernel, else all that the rules found."""
    never = tuple(found for found in evidence.explanations if found.claim is Claim.NO_KERNEL)
    return (*_vetoed(evidence), *_unasked(evidence)) or never or evidence.explanations


def _said(evidence: NodeEvidence, book: Rulebook) -> Iterator[tuple[str, Explanation]]:
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.explain is not None:
            for explanation in book.asked(name, partial(rule.explain, evidence)):
                yield rule.code, explanation


def _vetoed(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Placement refused an input."""
    seen = set()
    for decision in evidence.decisions:
        for opinion in decision.opinions:
            if opinion.stance is Stance.VETO and (opinion.rule, opinion.reason) not in seen:
                seen.add((opinion.rule, opinion.reason))
                yield Explanation(
                    reason=f"placement kept it float: {opinion.reason} (rule {opinion.rule})",
                    fix=opinion.fix or f"nothing to do, unless you skip the rule {opinion.rule}",
                )


def _unasked(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Placement heard no request for an input."""
    quiet = [
        str(decision.slot)
        for decision in evidence.decisions
        if not decision.quantize and not any(opinion.stance is Stance.VETO for opinion in decision.opinions)
    ]
    if quiet:
        yield Explanation(
            reason=f"no placement rule asked for {', '.join(quiet)}",
            fix="see what each rule said with `qdqtool place MODEL`",
        )
