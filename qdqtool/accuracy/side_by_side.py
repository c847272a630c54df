"""Runs two models over the samples: in parallel, one after the other, or with stored outputs of one model."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.metric import Floats
from qdqtool.accuracy.stored import Player
from qdqtool.core.protocols import Feeds, Runner, Sample, SampleSource
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import Setting, count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.platform import give_back

# --- pairing ---------------------------------------------------------------------------------------------------------
# Pairs the outputs of two runners, and decides whether two arrays can be compared.


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One output, by its name in the reference and in the candidate."""

    reference: str
    candidate: str


def pair_outputs(reference: Runner, candidate: Runner) -> tuple[Pair, ...]:
    """Pair the outputs of two models, in the order of the reference.

    Outputs with equal names are pairs. If there are none, names are compared with an underscore for every character
    that is not a letter or digit (as in names of dumped files). At last, two single outputs are a pair with any
    names.

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
        f"the two models have no output in common: {_list_names(reference.outputs)} against {_list_names(candidate.outputs)}",
        fix="compare two forms of the same model, or rename the outputs",
    )


def _as_file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name)


def describe_unpaired(reference: Runner, candidate: Runner, pairs: tuple[Pair, ...]) -> tuple[str, ...]:
    """Return a sentence for each side with outputs that the other side lacks."""
    sides = (
        ("the candidate", set(reference.outputs) - {pair.reference for pair in pairs}),
        ("the reference", set(candidate.outputs) - {pair.candidate for pair in pairs}),
    )
    return tuple(
        f"not compared, because {side} lacks them: {_list_names(sorted(names))}"
        for side, names in sides
        if names
    )


class Fed(Protocol):
    """The description and inputs of a model, an engine or stored outputs, which `feeds_for` reads."""

    @property
    def description(self) -> str:
        """Description of this side of the comparison."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs that this side of the comparison needs."""


def feeds_for(runner: Fed, sample: Sample) -> Feeds:
    """Return the arrays of the sample that this runner needs.

    Raises:
        InputFileError: the sample lacks one of the inputs.
    """
    missing = [info.name for info in runner.inputs if info.name not in sample.feeds]
    if missing:
        raise InputFileError(
            f"the sample lacks the input {_list_names(missing)} of {runner.description}; it has {_list_names(sorted(sample.feeds))}",
            fix="pass samples with one array per model input, named like the input",
            where=sample.name,
        )
    return {info.name: sample.feeds[info.name] for info in runner.inputs}


def comparable(
    reference: NDArray[Any], candidate: NDArray[Any], pair: Pair, sample: Sample
) -> tuple[Floats, Floats]:
    """Return two output arrays as float64. Infinities at equal places in both arrays become zero.

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
        return left, right  # an infinite or NaN value makes the sum infinite or NaN
    for side, values in (("reference", left), ("candidate", right)):
        _refuse_nan(side, values, place)
    wild = ~(np.isfinite(left) & np.isfinite(right))
    if wild.any():
        if not np.array_equal(left[wild], right[wild]):
            raise InputFileError(
                "the output is infinite in one of the two runs only",
                fix=f"look for an overflow: a value above 65504 in FP16 (`{Setting('insert.types', 'bf16')}` reaches as far as FP32), a division by "
                "zero, a logarithm of zero",
                where=place,
            )
        left, right = np.where(wild, 0.0, left), np.where(wild, 0.0, right)
    return left, right


def _refuse_nan(side: str, values: Floats, place: str) -> None:
    count = int(np.isnan(values).sum())
    if count:
        raise InputFileError(
            f"{count} of {count_noun(values.size, 'value')} in the output of the {side} are NaN",
            fix="run the model on this sample alone and look for the first NaN: in weights, scales or a division by zero",
            where=place,
        )


def _list_names(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


# --- side by side ----------------------------------------------------------------------------------------------------

Outputs = Mapping[str, NDArray[Any]]
Both = tuple[Outputs, Outputs]
"""The outputs of reference and candidate for one sample."""


def abreast(
    reference: Runner, candidate: Runner, samples: Iterable[Sample]
) -> Iterator[tuple[Sample, Outputs, Outputs]]:
    """Yield every sample with the outputs of both models, run in parallel if both allow it.

    Raises:
        InputFileError: a sample lacks an input, or a model fails on it; the first one in order is reported.
    """
    most = min(reference.at_once, candidate.at_once)
    if most == 1:
        for sample in samples:
            yield sample, *_run(reference, candidate, sample)
        return
    pool = ThreadPoolExecutor(most)
    pending: deque[tuple[Sample, Future[Both]]] = deque()
    try:
        for sample in samples:
            pending.append((sample, pool.submit(_run, reference, candidate, sample)))
            if len(pending) > most:
                yield _await_outputs(*pending.popleft())
        while pending:
            yield _await_outputs(*pending.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _run(reference: Runner, candidate: Runner, sample: Sample) -> Both:
    return (
        reference.run(feeds_for(reference, sample)),
        candidate.run(feeds_for(candidate, sample)),
    )


def _await_outputs(sample: Sample, future: Future[Both]) -> tuple[Sample, Outputs, Outputs]:
    return sample, *future.result()


# --- one after the other ---------------------------------------------------------------------------------------------
# Two large models over the same samples, one after the other: only one of them is in memory at a time.
#
# A session needs as much memory as the float weights, even if the file stores them in few bits, because onnxruntime
# folds them.


class _OnDisk(Sequence[Outputs]):
    """Outputs of samples in files, by the number of the sample."""

    def __init__(self, folder: Path, names: tuple[str, ...], count: int) -> None:
        self._folder, self._names, self._count = folder, names, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Outputs: ...
    @overload
    def __getitem__(self, number: slice) -> list[Outputs]: ...
    def __getitem__(self, number: int | slice) -> Outputs | list[Outputs]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(self._count))]
        if not 0 <= number < self._count:
            raise IndexError(number)
        with np.load(_file(self._folder, number)) as held:
            return dict(
                zip(self._names, (held[str(index)] for index in range(len(self._names))), strict=True)
            )


def record_outputs(
    open_it: Callable[[], Runner], samples: SampleSource, limit: int | None, folder: Path
) -> Runner:
    """Run a model over the samples, store its outputs in `folder`, and close it. Return a runner that replays the outputs in order.

    Raises:
        InputFileError: a sample lacks an input, or the model fails on it.
    """
    runner = open_it()
    count = 0
    for sample in islice(samples, limit):
        results = runner.run(feeds_for(runner, sample))
        arrays: dict[str, NDArray[Any]] = {
            str(index): results[name] for index, name in enumerate(runner.outputs)
        }
        np.savez(_file(folder, count), **arrays)  # type: ignore[arg-type]
        count += 1
    outputs, description = runner.outputs, runner.description
    if not count:
        return runner
    del runner
    give_back()
    return Player(_OnDisk(folder, outputs, count), description)


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.npz"


# --- one remembered --------------------------------------------------------------------------------------------------
# A model that is compared with many candidates on the same samples. It runs each sample once.


class Remembered:
    """A runner that stores outputs under a hash of the inputs, and returns them if equal inputs come again.

    Several threads may use it.

    Args:
        open_it: opens the model.
        room: bytes of outputs to keep; samples whose outputs do not fit run again on request.
    """

    def __init__(self, open_it: Callable[[], Runner], room: int) -> None:
        self._open: Callable[[], Runner] | None = open_it
        self._room = room
        self._kept: dict[bytes, Mapping[str, NDArray[Any]]] = {}
        self._lock = Lock()
        runner = open_it()
        self._runner: Runner | None = runner
        self.description: str = runner.description
        self.inputs: tuple[TensorInfo, ...] = runner.inputs
        self.outputs: tuple[str, ...] = runner.outputs
        self.at_once: int = runner.at_once

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Return the outputs for these inputs, stored or computed.

        Raises:
            InputFileError: the model fails on these feeds.
        """
        key = self._key(feeds)
        remembered = self._kept.get(key)
        if remembered is not None:
            return dict(remembered)
        outputs = self._open_reference().run(feeds)
        size = sum(value.nbytes for value in outputs.values())
        with self._lock:
            if key not in self._kept and size <= self._room:
                self._room -= size
                self._kept[key] = {name: _lasting(value) for name, value in outputs.items()}
        return outputs

    def close(self) -> None:
        """Close the wrapped runner; its stored outputs remain usable."""
        self._runner = self._open = None

    def reopen(self, open_it: Callable[[], Runner]) -> None:
        """After `close`, run inputs without stored outputs in the runner that `open_it` opens."""
        self._open = open_it

    def _open_reference(self) -> Runner:
        with self._lock:
            if self._runner is None:
                assert self._open is not None, "is closed"
                self._runner = self._open()
            return self._runner

    def _key(self, feeds: Feeds) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(info.name for info in self.inputs):
            value = np.ascontiguousarray(feeds[name])
            digest.update(f"{name} {value.dtype} {value.shape} ".encode())
            # arrays of text hold references
            digest.update(
                repr(value.tolist()).encode() if value.dtype.hasobject else value.view(np.uint8).data
            )
        return digest.digest()


def _lasting(value: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy of an output, because the session may reuse its memory."""
    copy = np.array(value)
    copy.flags.writeable = False
    return copy
