"""What the sentences of an audit claim about engines, and whether two engines bear it out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from truth_engine import BEFORE, Kernel, realised

NO_KERNEL = re.compile(
    r"no (?:INT8|FP8|NVFP4|INT4) kernel|computes? (?:it )?in float|stays float whatever|does not run INT8",
    re.IGNORECASE,
)
COSTS = re.compile(
    r"more bytes|moves less|moves more|more kernels|saves nothing|fewer bytes|not pay|cheaper|costs",
    re.IGNORECASE,
)


def is_low(made: Mapping[str, str], node: str) -> bool:
    """Whether a node multiplies few bits, or reads stored weights in its own kernel."""
    return made.get(node, "float") != "float" and BEFORE not in made[node]


def change_said(fix: str) -> int | None:
    """By how many kernels a fix says that the engine grows; None where it says nothing."""
    if "in as many kernels" in fix or "in about as many kernels" in fix:
        return 0
    told = re.search(r"(\d+) kernels? (more|fewer)", fix)
    return int(told[1]) * (1 if told[2] == "more" else -1) if told else None


def agrees(reason: str, nodes: Iterable[str], before: Sequence[Kernel], after: Sequence[Kernel]) -> bool:
    """Whether the engine in which the refusal was skipped leaves the sentence standing.

    A sentence that says there is no kernel falls when one of the nodes runs INT8; one that says that INT8 costs more
    falls when the engine with it moves fewer bytes in no more kernels. Other sentences (accuracy, the user's own
    choice) are no statement about the engine, and stand.
    """
    forced = realised(after)
    if NO_KERNEL.search(reason):
        return not any(is_low(forced, node) for node in nodes)
    if COSTS.search(reason):
        cheaper = sum(k.bytes for k in after) < 0.99 * sum(k.bytes for k in before)
        return not (cheaper and len(after) <= len(before) and any(is_low(forced, node) for node in nodes))
    return True
