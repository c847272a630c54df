"""Judges the claims of printed sentences by the engine that was built and by one that an experiment builds.

A claim is typed where its sentence is made (`qdqtool/core/claims.py`), so no word is read here. A sentence without a claim is
untested, and so is one whose experiment does not build or whose node the dump parser does not know.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from truth_engine import BEFORE, Kernel, is_core, realised

PROVEN, CONTRADICTED, UNTESTED = "proven", "contradicted", "untested"
REASON, FIX, COST = "reason", "fix", "cost"
_HALF = frozenset({"Half", "BFloat16"})
_FLOAT = frozenset({"Float", *_HALF})
_SAME_BYTES = 0.005
"""Share of the bytes that a change must save to count as a saving: the tool mentions no less."""
OF_ENGINE = frozenset(
    {
        "is_float",
        "stands_alone",
        "finishes",
        "from_constants",
        "writes_float",
        "reads_float",
        "changes_form",
        "no_half",
        "random",
    }
)
"""Claims about the engine that the sentence is about: no other is built."""


@dataclass(frozen=True)
class Built:
    """An engine, the formats that its model asks for by node, its compute nodes, the findings of its audit, and more.

    `noise` is the smallest SQNR of an output in dB, None if it is not known or there is no noise; `answered` tells whether a
    command ended without an error, `tried` what `qdqtool fix` tried.
    """

    kernels: Sequence[Kernel]
    asked: Mapping[str, str] = field(default_factory=dict)
    computes: tuple[str, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    quantizers: int | None = None
    noise: float | None = None
    random: bool | None = None
    answered: bool | None = None
    tried: int | None = None

    @property
    def bytes(self) -> int:
        """Sum the bytes that all kernels read and write; each part of a tensor counts, up to the size of the tensor."""
        whole = {tensor.name: tensor.bytes for kernel in self.kernels for tensor in kernel.outputs}
        total = 0.0
        for kernel in self.kernels:
            parts: dict[str, list[float]] = defaultdict(list)
            for tensor in kernel.inputs:
                parts[tensor.name].append(tensor.bytes)
            total += sum(min(sum(sizes), max(whole.get(name, 0), *sizes)) for name, sizes in parts.items())
            total += sum(tensor.bytes for tensor in kernel.outputs)
        return int(total)

    def is_low(self, node: str) -> bool | None:
        """Whether a node multiplies low-bit values or reads stored weights in its kernel; None if that is not known."""
        made = realised(self.kernels).get(node)
        return None if made is None else made != "float" and BEFORE not in made

    def asks(self, node: str) -> bool:
        """Whether Q/DQ feeds the node."""
        return self.asked.get(node, "float") != "float"

    def of(self, subject: str) -> list[Kernel]:
        """The kernels of that name, or that hold the node of that name."""
        return [kernel for kernel in self.kernels if kernel.name == subject or subject in kernel.nodes]


def judged(claim: Mapping[str, Any], subject: tuple[str, str], before: Built, after: Built | None) -> str:
    """Whether the experiment bears out the claim.

    Args:
        claim: as an artefact has it.
        subject: the code of the finding, "" for a verdict, and what it is about.
        before: the engine that the sentence is about.
        after: the engine with the node quantized (claims of reasons) or with the fix applied; None if it does not build.
    """
    if claim["says"] in OF_ENGINE:
        after = before
    if after is None:
        return UNTESTED
    return _of(_STATES[claim["says"]](claim, subject[1], subject[0], before, after))


def _of(true: bool | None) -> str:
    return UNTESTED if true is None else PROVEN if true else CONTRADICTED


_Claim = Mapping[str, Any]


def _is_float(_: _Claim, subject: str, __: str, before: Built, ___: Built) -> bool | None:
    """A node that no kernel of its own computes is merged into others, which multiply floats if they do not read few bits."""
    low = before.is_low(subject)
    if low is not None:
        return not low
    held = before.of(subject)
    return not any(kind not in _FLOAT for one in held for kind in one.operands) if held else None


def _stands_alone(_: _Claim, subject: str, __: str, before: Built, ___: Built) -> bool | None:
    held = [kernel for kernel in before.kernels if kernel.name == subject]
    return bool(held) and not any(map(is_core, held))


def _finishes(_: _Claim, __: str, ___: str, before: Built, ____: Built) -> bool | None:
    """Kernels that compute nothing themselves and read the floats of a kernel that multiplies few bits."""
    unfinished = {
        tensor.name
        for one in before.kernels
        if is_core(one) and set(one.operands) - _FLOAT
        for tensor in one.outputs
        if tensor.kind in _FLOAT
    }
    working = [one for one in before.kernels if one.outputs]
    last = [
        one for one in working if not is_core(one) and unfinished & {tensor.name for tensor in one.inputs}
    ]
    return len(last) >= len(working) / 10


def _from_constants(_: _Claim, subject: str, __: str, before: Built, ___: Built) -> bool | None:
    known = {tensor.name for one in before.kernels if not one.inputs for tensor in one.outputs}
    held = [kernel for kernel in before.kernels if kernel.name == subject]
    return bool(held) and all(tensor.name in known for one in held for tensor in one.inputs)


def _writes_float(_: _Claim, subject: str, __: str, before: Built, ___: Built) -> bool | None:
    held = [kernel for kernel in before.kernels if kernel.name == subject]
    return bool(held) and all(any(tensor.kind in _FLOAT for tensor in one.outputs) for one in held)


def _reads_float(_: _Claim, subject: str, __: str, before: Built, ___: Built) -> bool | None:
    held = before.of(subject)
    if not held:
        return None
    return any(tensor.kind in _FLOAT for one in held for tensor in (*one.inputs, *one.outputs))


def _changes_form(_: _Claim, subject: str, __: str, before: Built, ___: Built) -> bool | None:
    forms = [
        (
            {(t.kind, t.shape, t.layout) for t in one.inputs},
            {(t.kind, t.shape, t.layout) for t in one.outputs},
        )
        for one in before.kernels
        if one.name == subject
    ]
    return bool(forms) and all(read and written and not read & written for read, written in forms)


def _no_half(_: _Claim, __: str, ___: str, before: Built, ____: Built) -> bool | None:
    floats = any(t.kind in _FLOAT for kernel in before.kernels for t in (*kernel.inputs, *kernel.outputs))
    return floats and not _has_half(before)


def _has_half(one: Built) -> bool:
    return any(t.kind in _HALF for kernel in one.kernels for t in (*kernel.inputs, *kernel.outputs))


def _random(_: _Claim, __: str, ___: str, before: Built, ____: Built) -> bool | None:
    return before.random


def _is_kept(_: _Claim, subject: str, __: str, ___: Built, after: Built) -> bool | None:
    return after.asks(subject)


def _quantizes_more(_: _Claim, subject: str, __: str, before: Built, after: Built) -> bool | None:
    if before.quantizers is None or after.quantizers is None or not after.asks(subject):
        return None
    return after.quantizers > before.quantizers


def _loses(_: _Claim, subject: str, __: str, before: Built, after: Built) -> bool | None:
    if before.noise is None or after.noise is None or not after.asks(subject):
        return None
    return after.noise < before.noise


def _more_kernels(_: _Claim, subject: str, __: str, before: Built, after: Built) -> bool | None:
    """More kernels bear it out; no more contradict it only if the node runs in few bits then."""
    more = len(after.kernels) > len(before.kernels)
    return more if after.asks(subject) and (more or after.is_low(subject)) else None


def _more_bytes(_: _Claim, subject: str, __: str, before: Built, after: Built) -> bool | None:
    """More bytes bear it out; no more contradict it unless the node is known to be float all the same."""
    if before.asks(subject) or not after.asks(subject) or not before.bytes:
        return None
    more = after.bytes > before.bytes
    return more if more or after.is_low(subject) is not False else None


def _no_kernel(_: _Claim, subject: str, __: str, before: Built, after: Built) -> bool | None:
    """A node that no kernel names, such as an unrolled recurrence: then no kernel more may multiply few bits."""
    low = after.is_low(subject)
    if low is None and after.asks(subject):
        held = after.of(subject)
        low = _in_few_bits(held) > 0 if held else _in_few_bits(after.kernels) > _in_few_bits(before.kernels)
    return None if low is None or not after.asks(subject) else not low


def _in_few_bits(kernels: Sequence[Kernel]) -> int:
    return sum(is_core(one) and any(kind not in _FLOAT for kind in one.operands) for one in kernels)


def _runs(_: _Claim, subject: str, __: str, ___: Built, after: Built) -> bool | None:
    return after.is_low(subject)


def _stays(claim: _Claim, subject: str, code: str, _: Built, after: Built) -> bool | None:
    return _is_float(claim, subject, code, after, after)


def _half_then(_: _Claim, __: str, ___: str, ____: Built, after: Built) -> bool | None:
    return _has_half(after)


_NUMBER = re.compile(r"_myl\d+_\d+$")
"""The number of a kernel at the end of its name."""


def _gone(_: _Claim, subject: str, code: str, before: Built, after: Built) -> bool | None:
    """Layers get new numbers in every build, and may get new names, so the number of findings of the code must shrink too."""
    had, has = (Counter(word for word, _ in one.findings)[code] for one in (before, after))
    alike, left = (
        sum(word == code and _NUMBER.sub("", name) == _NUMBER.sub("", subject) for word, name in one.findings)
        for one in (before, after)
    )
    return left < alike and has < had


def _is_tried(_: _Claim, __: str, ___: str, ____: Built, after: Built) -> bool | None:
    return None if after.tried is None else after.tried > 0


def _answers(_: _Claim, __: str, ___: str, ____: Built, after: Built) -> bool | None:
    return after.answered


def _nothing_helps(_: _Claim, subject: str, __: str, before: Built, after: Built) -> bool | None:
    """An edit helps if it saves bytes without a kernel more, or kernels without a byte more.

    A dump shows the kernels of a loop once, however often they run: fewer kernels show nothing if the edit changed a loop.
    """
    more = len(after.kernels) - len(before.kernels)
    bytes_ = after.bytes / before.bytes - 1 if before.bytes else 0.0
    had, has = (
        Counter(one.operands for one in each.kernels if "Loop*" in one.name) for each in (before, after)
    )
    helps = (bytes_ < -_SAME_BYTES and more <= 0) or (more < 0 and bytes_ <= _SAME_BYTES and had == has)
    return not (helps and (after.is_low(subject) is not False or not after.asks(subject)))


_SOFTMAX = re.compile("SubExpSum|[Ss]oftmax")
"""Names of kernels that compute a softmax."""


def _stays_apart(_: _Claim, __: str, ___: str, before: Built, after: Built) -> bool | None:
    had, has = (
        sum(_SOFTMAX.search(kernel.name) is not None and not is_core(kernel) for kernel in one.kernels)
        for one in (before, after)
    )
    return has >= had if had else None


def _kernels(claim: _Claim, _: str, __: str, before: Built, after: Built) -> bool | None:
    return bool(len(after.kernels) - len(before.kernels) == claim["kernels"])


def _quantized(claim: _Claim, _: str, __: str, before: Built, after: Built) -> bool | None:
    """The number as far as the dumps show it, within the bounds that the claim gives.

    A node without Q/DQ multiplies floats. A node in a kernel that reads few bits and does not say what it multiplies counts as unknown.
    """
    low = _few(after, unknown=False) - _few(before, unknown=True)
    high = _few(after, unknown=True) - _few(before, unknown=False)
    claimed = (claim["nodes"] - claim.get("hidden", 0), claim["nodes"] + claim.get("hidden", 0))
    if high < claimed[0] or low > claimed[1]:
        return False
    return True if claimed[0] <= low and high <= claimed[1] else None


def _few(one: Built, *, unknown: bool) -> int:
    """The compute nodes in few bits; `unknown` says how to count those that the dump does not show."""
    count = 0
    for node in one.computes:
        low = one.is_low(node) if one.asks(node) else False
        if low is None:
            held = one.of(node)
            floats = bool(held) and all(kind in _FLOAT for each in held for kind in each.operands)
            low = unknown and not floats
        count += low
    return count


def _bytes(claim: _Claim, _: str, __: str, before: Built, after: Built) -> bool | None:
    """About, within the points that the claim says: ranges that the run did not measure are made up for the cost."""
    return abs(100 * (after.bytes / before.bytes - 1) - claim["percent"]) <= 5 if before.bytes else None


_STATES = {
    "is_float": _is_float,
    "stands_alone": _stands_alone,
    "finishes": _finishes,
    "from_constants": _from_constants,
    "writes_float": _writes_float,
    "reads_float": _reads_float,
    "changes_form": _changes_form,
    "no_half": _no_half,
    "random": _random,
    "is_kept": _is_kept,
    "quantizes_more": _quantizes_more,
    "loses_accuracy": _loses,
    "more_kernels": _more_kernels,
    "more_bytes": _more_bytes,
    "no_kernel": _no_kernel,
    "runs_quantized": _runs,
    "stays_float": _stays,
    "half_then": _half_then,
    "finding_gone": _gone,
    "is_tried": _is_tried,
    "answers": _answers,
    "stays_apart": _stays_apart,
    "nothing_helps": _nothing_helps,
    "quantized": _quantized,
    "kernels": _kernels,
    "bytes": _bytes,
}


def together(states: Iterable[str]) -> str:
    """The state of a sentence with several claims: contradicted if one is, proven if all are, else untested."""
    found = set(states)
    if CONTRADICTED in found:
        return CONTRADICTED
    return PROVEN if found == {PROVEN} else UNTESTED
