"""Reasons why an input is float: one answer per slot, shared by verdicts and checks.

Placement decides about inputs of compute nodes, and about an Add or a pool only if a rule requests it. So an input is
float because a rule refuses it, because no rule requests it, or because no rule covers it. `explanations` covers inputs
that are quantized but run in float.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qdqtool.core.advice import joined
from qdqtool.core.claims import IS_KEPT, Claim
from qdqtool.core.commands import Command
from qdqtool.core.placement import Decision, Opinion, Placement, Slot, Stance
from qdqtool.matching.evidence import Explanation

_SEE = f"print the opinion of each rule with {Command('place', ('MODEL',))}"


def why_float(slot: Slot, placement: Placement) -> Explanation | None:
    """Return why placement left one input float; None if it is quantized."""
    decision = next((each for each in placement.decisions if each.slot == slot), None)
    if decision is None:
        return Explanation(
            reason=f"no placement rule asked for {slot}",
            fix=f"nothing to do by a command: no rule covers {slot}",
        )
    found = tuple(why_decided_float([decision]))
    if not found:
        return None
    return Explanation(
        reason="; ".join(cause.reason for cause in found),
        fix=joined(cause.fix for cause in found),
        claims=tuple(dict.fromkeys(claim for cause in found for claim in cause.claims)),
    )


def why_decided_float(decisions: Iterable[Decision]) -> Iterator[Explanation]:
    """Yield every refusal of these inputs once, then the inputs that no rule asked for."""
    seen = set()
    quiet = []
    for decision in decisions:
        vetoes = [opinion for opinion in decision.opinions if opinion.stance is Stance.VETO]
        if not vetoes and not decision.quantize:
            quiet.append(str(decision.slot))
        for opinion in vetoes:
            if (opinion.rule, opinion.reason) not in seen:
                seen.add((opinion.rule, opinion.reason))
                yield Explanation(
                    reason=f"placement kept it float: {opinion.reason} (rule {opinion.rule})",
                    fix=opinion.fix or f"nothing to do, unless you skip the rule {opinion.rule}",
                    claims=_claims(opinion),
                )
    if quiet:
        yield Explanation(reason=f"no placement rule asked for {', '.join(quiet)}", fix=_SEE)


def _claims(opinion: Opinion) -> tuple[Claim, ...]:
    """Return the claim that a veto makes about engines; the default is `IS_KEPT`."""
    return (opinion.claim or IS_KEPT,)
