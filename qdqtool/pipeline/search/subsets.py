"""Executor of searches for float nodes: runs subsets of the quantized nodes of a model, each subset once per sample.

Results of samples are kept in a `RunStore`, in memory or in a file from which a stopped search resumes. The worst
samples of a set that missed a limit stay in memory (`worst_first`), so that a set that misses it too is rejected
early.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from qdqtool.accuracy.detections import NoScores
from qdqtool.accuracy.metric import METRICS, Hit, energy
from qdqtool.accuracy.parts import OutputPart, group_outputs
from qdqtool.accuracy.positions import TASKS, judge_positions
from qdqtool.accuracy.side_by_side import Fed, Pair, comparable, feeds_for
from qdqtool.accuracy.task import (
    HitCount,
    Outputs,
    boxes_of,
    check_label,
    hits_of,
    least_classes,
    own_rows,
    read_pair,
)
from qdqtool.accuracy.tokens import NEXT, SAME, judged_tokens
from qdqtool.core.comparison import BOXES, TaskAccuracy
from qdqtool.core.evidence import Interval, skewed_mean_interval
from qdqtool.core.protocols import Feeds, Sample, SampleSource
from qdqtool.core.recipe import CompareOptions
from qdqtool.errors import InputFileError
from qdqtool.io.files import make_folder

OnRun = Callable[[int, int], None]
Subset = frozenset[str]
"""Nodes that are quantized."""
Subsets = Mapping[str, Subset]
"""Subsets by name."""
_FLOAT = ""
"""Name of the subset without nodes."""
_SECONDS = 2.0
"""Seconds of work that may be lost if the process is killed."""
_ROOM = 128 << 20
"""Bytes for the outputs of the float model that are kept."""
_WORST: Final = (8, 32)
"""Number of worst samples that a subset runs before all others: first 8 samples, then up to 32."""
_WORST_ROOM: Final = 64 << 20
"""Bytes for the worst samples that are kept in memory."""
_TASKS = {"classify": "top1", "agreement": "agreement"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRun:
    """The result of a subset of quantized nodes on one sample.

    Attributes:
        noise: energy of the difference to the float model, per output.
        signal: energy of the float model's output, per output.
        hits: whether the float model and the subset were right; None if no task is scored.
        metric: the metric of `hits` if it is not the requested one: boxes or next tokens.
    """

    noise: tuple[float, ...]
    signal: tuple[float, ...]
    hits: tuple[float, float] | None = None
    metric: str = ""


class RunStore:
    """Results of runs, by sample and by a key that is unique for a set of nodes.

    With a `path`, the results are also in a file, with one line per sample and batch of runs, on disk before `write`
    returns. The first line holds `key`, a digest of everything the runs depend on; with another key the file is
    replaced. An incomplete line is ignored.

    Raises:
        InputFileError: the file cannot be written.
    """

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        self._path = path
        self._shown: dict[int, dict[str, SampleRun]] = defaultdict(dict)
        if path is None:
            return
        first, *lines = _lines(path) or [None]
        if first != {"key": key}:
            make_folder(path.parent)
            path.unlink(missing_ok=True)
            self._append(path, {"key": key})
            return
        for line in lines:
            try:
                entry = _LINE.validate_python(line)
            except ValidationError:
                continue
            self._shown[entry.sample].update(entry.runs)

    def read(self, sample: int) -> dict[str, SampleRun]:
        """Return the stored results on this sample."""
        return dict(self._shown[sample])

    def write(self, sample: int, shown: Mapping[str, SampleRun]) -> None:
        """Store the results of runs on this sample."""
        self._shown[sample].update(shown)
        if self._path is not None:
            runs = {name: asdict(entry) for name, entry in shown.items()}
            self._append(self._path, {"sample": sample, "runs": runs})

    @staticmethod
    def _append(path: Path, line: object) -> None:
        try:
            with path.open("a", encoding="utf-8") as stream:
                # An unfinished line of a killed process must not merge with this line.
                stream.write(("" if stream.tell() == 0 else "\n") + json.dumps(line, sort_keys=True))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise InputFileError(
                f"the file cannot be written: {error.strerror or error}",
                fix="free some space or choose another --out; finished runs are kept",
                where=str(path),
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredLine:
    sample: int
    runs: dict[str, SampleRun]


_LINE = TypeAdapter(_StoredLine)


def _lines(path: Path) -> list[object]:
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    return [_parse_line(line) for line in text.splitlines()]


def _parse_line(line: str) -> object:
    """Return the JSON value of a line; None for an incomplete line."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class SubsetOutcome:
    """The result of a subset of quantized nodes over all samples.

    Attributes:
        noise: energy of the difference to the float model relative to the energy of the float model, averaged over
            the compared outputs and parts of outputs.
        task: accuracy compared with the float model; None if it is not asked for or unknown.
        interval: 95 % interval of `noise` over samples; None if it is not known.
        shares: contribution of each sample to `noise`.
        runs: result of each sample.
    """

    noise: float
    task: TaskAccuracy | None
    interval: Interval | None = None
    shares: tuple[float, ...] = ()
    runs: tuple[SampleRun, ...] = ()

    @property
    def decibel(self) -> float | None:
        """The noise as SQNR in dB; None without noise."""
        return _decibel(self.noise)

    @property
    def decibel_interval(self) -> tuple[float, float] | None:
        """The interval of the noise as SQNR in dB, the lower end first; None if it is not known."""
        ends = None if self.interval is None else (_decibel(self.interval.high), _decibel(self.interval.low))
        return None if ends is None or ends[0] is None or ends[1] is None else (ends[0], ends[1])


def _decibel(noise: float) -> float | None:
    return -10 * math.log10(noise) if noise else None


class SubsetRunner(Fed, Protocol):
    """A model that can run with any subset of its nodes quantized."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that can be switched between quantized and float, in graph order."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""

    def together(self, feeds: Feeds) -> int:
        """Return how many samples of this size can run at the same time."""

    def run(
        self, feeds: Sequence[Feeds], subsets: Subsets
    ) -> Iterator[tuple[str, Sequence[Mapping[str, NDArray[Any]]]]]:
        """Yield the name of each subset and its outputs for each sample, in the order of the subsets."""


class TrialRunner:
    """Runs subsets over samples. Runs with a result in `store` are not repeated.

    If an output has `parts` (`accuracy.parts`), the runner returns them too, and they determine the noise.
    """

    def __init__(
        self,
        runner: SubsetRunner,
        options: CompareOptions,
        *,
        store: RunStore | None = None,
        parts: Sequence[OutputPart] = (),
    ) -> None:
        self._runner = runner
        self._measured = group_outputs(runner.outputs, parts, options.output)
        parted = {name for part in parts for name in part.names}
        self._scored = (
            (options.output,)
            if options.output
            else tuple(name for name in runner.outputs if name not in parted)
        )
        self._kind = options.task
        self._task = (_TASKS | TASKS).get(options.task)
        self._extra = options.extra_columns
        self._store = store or RunStore()
        self._plain: dict[int, Outputs] = {}
        self._worst: list[tuple[int, Sample]] = []
        self._of_worst: tuple[SampleRun, ...] = ()
        self._room = _ROOM

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that can be switched between quantized and float, in graph order."""
        return self._runner.nodes

    def run(
        self, subsets: Subsets, samples: SampleSource, limit: int | None = None, on_run: OnRun | None = None
    ) -> dict[str, SubsetOutcome]:
        """Run every subset over the first `limit` samples. Equal subsets run once.

        `on_run` is called with the number of runs done and of all runs.
        """
        total = len(samples) if limit is None else min(limit, len(samples))
        keys = {name: _key(subset) for name, subset in subsets.items()}
        distinct = {keys[name]: subset for name, subset in subsets.items()}
        shown: dict[str, list[SampleRun]] = {name: [] for name in subsets}
        before = 0
        for group in self._groups(enumerate(islice(iter(samples), total))):
            began = before

            def report_move(done: int, began: int = began) -> None:
                if on_run is not None:
                    on_run(began + done, len(subsets) * total)

            for results in self._of_group(group, distinct, report_move):
                for name, entries in shown.items():
                    entries.append(results[keys[name]])
            before += len(subsets) * len(group)
        return {name: self._outcome(entries) for name, entries in shown.items()}

    def run_worst_first(
        self,
        subset: Subset,
        samples: SampleSource,
        is_out_of_reach: Callable[[Sequence[SampleRun], Sequence[SampleRun]], bool],
        on_run: OnRun | None = None,
    ) -> SubsetOutcome | None:
        """Run a subset on the worst samples first. Return None as soon as it is certain to miss the limit.

        `is_out_of_reach` is called with the results of the subset on these samples, and the results of another subset
        on all samples.
        """
        finished: list[SampleRun] = []
        for first, end in zip((0, *_WORST), _WORST, strict=False):
            for group in self._groups(iter(self._worst[first:end])):
                shown = self._of_group(group, {_key(subset): subset}, lambda _done: None)
                finished += [results[_key(subset)] for results in shown]
            if self._worst and is_out_of_reach(finished, self._of_worst):
                return None
        return self.run({"": subset}, samples, None, on_run)[""]

    def remember_worst(self, outcome: SubsetOutcome, samples: SampleSource) -> None:
        """Keep the worst samples of a subset in memory: as many as fit, but at least 8.

        The number that fits is estimated from the first sample.
        """
        if len(outcome.runs) <= _WORST[0]:
            return
        ranked = sorted(range(len(outcome.runs)), key=lambda number: _badness(outcome, number), reverse=True)
        size = sum(value.nbytes for value in next(iter(samples)).feeds.values())
        worst = ranked[: min(_WORST[-1], max(_WORST[0], _WORST_ROOM // max(1, size)))]
        kept = dict(self._worst)
        missing = frozenset(worst) - kept.keys()
        if missing:
            kept |= {number: sample for number, sample in enumerate(samples) if number in missing}
        self._of_worst = outcome.runs
        self._worst = [(number, kept[number]) for number in worst]

    def _of_group(
        self, group: Sequence[tuple[int, Sample]], subsets: Subsets, moved: Callable[[int], None]
    ) -> list[dict[str, SampleRun]]:
        """Return the results of subsets on a group of samples; stored results are not computed again."""
        results = {number: self._store.read(number) for number, _ in group}
        missing = [
            (number, sample) for number, sample in group if not results[number].keys() >= subsets.keys()
        ]
        lacking = {
            key: subset
            for key, subset in subsets.items()
            if any(key not in results[number] for number, _ in missing)
        }
        done = len(subsets) * len(group) - len(lacking) * len(missing)
        for key, fresh in self._show(missing, lacking):
            for (number, _), entry in zip(missing, fresh, strict=True):
                results[number][key] = entry
            done += len(missing)
            moved(done)
        return [results[number] for number, _ in group]

    def _groups(self, numbered: Iterator[tuple[int, Sample]]) -> Iterator[list[tuple[int, Sample]]]:
        """Yield the samples with their numbers, in groups of the size that the runner takes."""
        first = next(numbered, None)
        if first is None:
            return
        size = self._runner.together(feeds_for(self._runner, first[1]))
        yield [first, *islice(numbered, size - 1)]
        while group := list(islice(numbered, size)):
            yield group

    def _show(
        self, samples: Sequence[tuple[int, Sample]], subsets: Subsets
    ) -> Iterator[tuple[str, list[SampleRun]]]:
        """Run the float model and every subset once, yield the results, and store them every few seconds."""
        if not subsets:
            return
        feeds = [feeds_for(self._runner, sample) for _, sample in samples]
        plain = [self._plain[number] for number, _ in samples if number in self._plain]
        if len(plain) == len(samples):
            runs = self._runner.run(feeds, subsets)
        else:
            runs = self._runner.run(feeds, {_FLOAT: frozenset(), **subsets})
            plain = [self._keep_measured(outputs) for outputs in next(runs)[1]]
            self._remember({number: outputs for (number, _), outputs in zip(samples, plain, strict=True)})
        waiting: dict[str, list[SampleRun]] = {}
        since = time.monotonic()
        for key, outputs in runs:
            waiting[key] = [
                self._compare(sample, left, right)
                for (_, sample), left, right in zip(samples, plain, outputs, strict=True)
            ]
            yield key, waiting[key]
            if time.monotonic() - since > _SECONDS:
                self._write(samples, waiting)
                waiting, since = {}, time.monotonic()
        self._write(samples, waiting)

    def _keep_measured(self, outputs: Outputs) -> Outputs:
        """Return the outputs of the float model that are measured or scored."""
        names_kept = dict.fromkeys((*(name for names in self._measured for name in names), *self._scored))
        return {name: outputs[name] for name in names_kept}

    def _remember(self, outputs_of: Mapping[int, Outputs]) -> None:
        """Keep the float outputs of these samples while memory is left, because every check of a set needs them again."""
        fresh = {number: outputs for number, outputs in outputs_of.items() if number not in self._plain}
        size = sum(array.nbytes for outputs in fresh.values() for array in outputs.values())
        if size <= self._room:
            self._room -= size
            self._plain |= fresh

    def _write(self, samples: Sequence[tuple[int, Sample]], shown: Mapping[str, Sequence[SampleRun]]) -> None:
        for place, (number, _) in enumerate(samples):
            self._store.write(number, {key: entries[place] for key, entries in shown.items()})

    def _compare(
        self, sample: Sample, plain: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> SampleRun:
        noise, signal = [], []
        for names in self._measured:
            pairs = [
                comparable(plain[name], outputs[name], Pair(reference=name, candidate=name), sample)
                for name in names
            ]
            noise.append(sum(energy(right - left) for left, right in pairs))
            signal.append(sum(energy(left) for left, _ in pairs))
        left, right = ({name: side[name] for name in self._scored} for side in (plain, outputs))
        outcome = SampleRun(noise=tuple(noise), signal=tuple(signal))
        return (
            outcome if self._task is None else self._judge_outcome(outcome, self._task, (left, right), sample)
        )

    def _judge_outcome(
        self, outcome: SampleRun, task: str, sides: tuple[Outputs, Outputs], sample: Sample
    ) -> SampleRun:
        """Add whether both models answer right; for detectors of one class, the share of matching boxes."""
        plain, candidate = (own_rows(side, sample, self._extra) for side in sides)
        if self._kind in TASKS:
            return self._judge_positions(outcome, plain, candidate, sample)
        metric: Hit = METRICS.load(task)
        label = sample.label if metric.truth == "label" else None
        tokens = judged_tokens(plain, candidate, sample) if label is None else None
        if tokens is not None:
            if metric.truth == "label" and tokens.is_causal:
                return replace(outcome, hits=tokens.hits, metric=NEXT)
            return replace(outcome, hits=(1.0, tokens.same), metric=SAME)
        scores = read_pair(plain, candidate, least_classes(label))
        if isinstance(scores, NoScores):
            return self._judge_positions(outcome, plain, candidate, sample)
        if label is not None:
            check_label(sample, len(scores.reference))
        boxes = metric.truth == "reference" and len(scores.reference) < metric.classes
        hits = boxes_of(scores) if boxes else hits_of(metric, scores, label)
        return replace(outcome, hits=hits, metric=BOXES if boxes else "")

    def _judge_positions(
        self, outcome: SampleRun, plain: Outputs, candidate: Outputs, sample: Sample
    ) -> SampleRun:
        first = next(iter(plain))
        judged = judge_positions(plain[first], candidate[first], sample, self._kind)
        return outcome if judged is None else replace(outcome, hits=(1.0, judged[1]), metric=judged[0])

    def _outcome(self, entries: Sequence[SampleRun]) -> SubsetOutcome:
        noise = np.array([entry.noise for entry in entries], np.float64)
        signal = np.sum([entry.signal for entry in entries], axis=0)
        has_signal = signal > 0
        # Noise of each sample over the signal of all, so that their sum is the noise of all over the signal of all.
        shares = (
            (noise[:, has_signal] / signal[has_signal]).mean(axis=1)
            if has_signal.any()
            else np.zeros(len(entries))
        )
        metric = next((entry.metric for entry in entries if entry.metric), "")
        count = None if self._task is None else HitCount(metric or self._task)
        for entry in entries:
            if count is not None and entry.hits is not None and entry.metric == metric:
                count.record(*entry.hits)
        return SubsetOutcome(
            noise=float(shares.sum()),
            task=None if count is None else count.result(),
            interval=skewed_mean_interval(shares * len(shares)),
            shares=tuple(float(share) for share in shares),
            runs=tuple(entries),
        )


def _badness(outcome: SubsetOutcome, number: int) -> tuple[float, float]:
    hits = outcome.runs[number].hits
    return 0.0 if hits is None else hits[0] - hits[1], outcome.shares[number]


def _key(subset: frozenset[str]) -> str:
    """Return the key under which results of a subset are stored: a digest of its sorted node names."""
    return hashlib.sha256(repr(sorted(subset)).encode()).hexdigest()[:32]
