"""Pairs the outputs of two runners, and decides whether two arrays can be compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.metric import Floats
from qdqtool.core.commands import Setting
from qdqtool.core.protocols import Feeds, Runner, Sample
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One output, by its name in the reference and in the candidate."""

    reference: str
    candidate: str


def pair_outputs(reference: Runner, candidate: Runner) -> tuple[Pair, ...]:
    """Pair the outputs, in the reference's order.

    Those of equal name; where there are none, those of equal name once everything but letters and digits is an
    underscore (as in the names of dumped files); at last two single outputs, whatever their names.

    Raises:
        UsageError: the runners have no output in common.
    """
    for spell in (str, _as_file_name):
        theirs = {spell(name): name for name in candidate.outputs}
        pairs = tuple(
            Pair(reference=name, candidate=theirs[spell(name)])
            for name in reference.outputs
            if spell(name) in theirs
        )
        if pairs:
            return pairs
    if len(reference.outputs) == len(candidate.outputs) == 1:
        return (Pair(reference=reference.outputs[0], candidate=candidate.outputs[0]),)
    raise UsageError(
        f"the two have no output in common: {_listed(reference.outputs)} against {_listed(candidate.outputs)}",
        fix="compare two forms of the same model, or rename the outputs",
    )


def _as_file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name)


def unpaired(reference: Runner, candidate: Runner, pairs: tuple[Pair, ...]) -> tuple[str, ...]:
    """Return a sentence for each side with outputs that the other side lacks."""
    sides = (
        ("the candidate", set(reference.outputs) - {pair.reference for pair in pairs}),
        ("the reference", set(candidate.outputs) - {pair.candidate for pair in pairs}),
    )
    return tuple(
        f"not compared, because {side} lacks them: {_listed(sorted(names))}" for side, names in sides if names
    )


class Fed(Protocol):
    """An object with inputs."""

    @property
    def description(self) -> str:
        """Description in words."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs that it needs."""


def feeds_for(runner: Fed, sample: Sample) -> Feeds:
    """Return the sample's arrays that this runner needs.

    Raises:
        InputFileError: the sample lacks one of the inputs.
    """
    missing = [info.name for info in runner.inputs if info.name not in sample.feeds]
    if missing:
        raise InputFileError(
            f"lacks the input {_listed(missing)} of {runner.description}; it has {_listed(sorted(sample.feeds))}",
            fix="pass samples with one array per model input, named like the input",
            where=sample.name,
        )
    return {info.name: sample.feeds[info.name] for info in runner.inputs}


def comparable(
    reference: NDArray[Any], candidate: NDArray[Any], pair: Pair, sample: Sample
) -> tuple[Floats, Floats]:
    """Return both arrays as float64; equal infinities are replaced by zeros on both sides.

    Raises:
        InputFileError: text, different shapes, NaN, or an infinity on one side only.
    """
    place = f"output {pair.reference!r}, sample {sample.name!r}"
    for side, array in (("reference", reference), ("candidate", candidate)):
        if array.dtype.kind not in "fiub":
            raise InputFileError(
                f"the {side} gives {array.dtype} values, which cannot be compared as numbers",
                fix="remove this output from the model, or compare models whose outputs are numbers",
                where=place,
            )
    if reference.shape != candidate.shape:
        raise InputFileError(
            f"the reference has shape {reference.shape} and the candidate {candidate.shape}",
            fix="compare two forms of the same model on the same samples",
            where=place,
        )
    left, right = reference.astype(np.float64), candidate.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        total = left.sum() + right.sum()
    if np.isfinite(total):
        return left, right  # any infinity or NaN would show in the sum
    for side, values in (("reference", left), ("candidate", right)):
        _refuse_nan(side, values, place)
    wild = ~(np.isfinite(left) & np.isfinite(right))
    if wild.any():
        if not np.array_equal(left[wild], right[wild]):
            raise InputFileError(
                "one side is infinite, the other is not",
                fix=f"look for an overflow: FP16 beyond 65504 (`{Setting('insert.types', 'bf16')}` reaches as far as FP32), a division by "
                "zero, a logarithm of zero",
                where=place,
            )
        left, right = np.where(wild, 0.0, left), np.where(wild, 0.0, right)
    return left, right


def _refuse_nan(side: str, values: Floats, place: str) -> None:
    count = int(np.isnan(values).sum())
    if count:
        raise InputFileError(
            f"{count} of {counted(values.size, 'value')} of the {side} are NaN",
            fix="run the model on this sample alone and look for the first NaN: weights, a division by zero, a scale",
            where=place,
        )


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
