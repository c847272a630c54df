"""Warnings and errors in a log with their causes, unfulfilled requests, and fields of other messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qdqtool.buildlog.collectors.tuning import read_announcement
from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.pattern import Fields
from qdqtool.buildlog.prefilter import Place
from qdqtool.core.buildlog import AccuracyLoss, Failure, Statements
from qdqtool.core.causes import Cause, Situation
from qdqtool.core.events import LogRecord
from qdqtool.core.wording import count_noun, list_names
from qdqtool.trt.causes import UNNAMED, cause_of, diagnosis, names, node_of
from qdqtool.trt.causes.anatomy import dissect
from qdqtool.trt.causes.classes import BUILD_ALONE, FIXED_SHAPES

# --- constraints -----------------------------------------------------------------------------------------------------
# Requests that were not followed: layers that DLA refuses, precision constraints, and the accuracy check of trtexec.


_MOST_CONSTRAINTS = 4000
"""Most layers and tensors kept of each kind."""


class ConstraintsCollector:
    """Keeps layers that DLA refused, ignored precision requests, and reported accuracy losses."""

    def __init__(self) -> None:
        self._refuse_tensor: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._unobeyed: dict[str, None] = {}
        self._overruled: dict[str, None] = {}
        self._losses: dict[tuple[str, str], AccuracyLoss] = {}

    def handlers(self) -> dict[str, Handler]:
        return {
            "dla-refused": lambda _line, layer: self._refuse(layer, "not supported on DLA"),
            "dla-unsupported": lambda _line, layer, kind: self._refuse(layer, f"DLA cannot run {kind}"),
            "dla-invalid": lambda _line, layer: self._refuse(
                layer, "the validation of the layer for DLA failed"
            ),
            "dla-subgraphs": lambda _line, limit, layer: self._refuse(
                layer, f"a DLA core accepts at most {count_noun(limit, 'subgraph')}"
            ),
            "dla-precision": lambda _line, layer: self._refuse(layer, "DLA computes in FP16 and INT8 only"),
            "dla-reason": lambda _line, layer, reason: self._explain(layer, f"DLA {reason}"),
            "dla-lacks": lambda _line, layer, lacking: self._explain(
                layer, f"DLA does not support {lacking}"
            ),
            "dla-kind": lambda _line, layer, kind: self._explain(layer, f"{kind} not supported for DLA"),
            "dla-needs": lambda _line, layer, kind, need: self._explain(
                layer, f"{kind} on DLA requires {need}"
            ),
            "dla-no-scale": lambda _line, layer, _rest: self._refuse(
                layer, "the layer has no scale to run in INT8"
            ),
            "dla-batch": lambda _line, batch, layer, limit: self._explain(
                layer, f"a batch of {batch}, but DLA accepts at most {limit}"
            ),
            "unobeyed": lambda _line, layer, _rest: self._keep(self._unobeyed, layer),
            "overruled": lambda _line, layer, _rest: self._keep(self._overruled, layer),
            "accuracy-loss": self._lose,
            "accuracy-failed": self._lose,
        }

    @property
    def dla_refused(self) -> dict[str, str]:
        """The layers that DLA refused, each with the most exact reason in the log."""
        return {layer: self._reasons.get(layer, reason) for layer, reason in self._refuse_tensor.items()}

    @property
    def unobeyed(self) -> tuple[str, ...]:
        """The layers without a kernel in the requested precision."""
        return tuple(self._unobeyed)

    @property
    def overruled(self) -> tuple[str, ...]:
        """The layers that got a faster kernel of another precision than requested."""
        return tuple(self._overruled)

    @property
    def losses(self) -> tuple[AccuracyLoss, ...]:
        """The last accuracy loss that trtexec reported for each tensor and algorithm."""
        return tuple(self._losses.values())

    def _refuse(self, layer: str, reason: str) -> None:
        if len(self._refuse_tensor) < _MOST_CONSTRAINTS:
            self._refuse_tensor.setdefault(layer, reason)

    def _explain(self, layer: str, reason: str) -> None:
        if len(self._reasons) < _MOST_CONSTRAINTS:
            self._reasons[layer] = reason

    def _keep(self, layers: dict[str, None], layer: str) -> None:
        if len(layers) < _MOST_CONSTRAINTS:
            layers[layer] = None

    def _lose(
        self, _line: int, tensor: str, algorithm: str, loss: float | None, threshold: float | None = None
    ) -> None:
        if len(self._losses) < _MOST_CONSTRAINTS:
            self._losses[tensor, algorithm] = AccuracyLoss(
                tensor=tensor, algorithm=algorithm, loss=loss, failed_threshold=threshold
            )


# --- troubles --------------------------------------------------------------------------------------------------------


_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
_MOST_TROUBLES = 4000
"""Most wordings kept per run and severity."""
# Number of characters of a message that are kept; longer messages print a whole graph.
_LONGEST = 2000
_NO_FAILURE = frozenset({"dla-kind", "engine-missing"})
"""Patterns of errors that do not decide alone: later messages show a fallback to the GPU, or a finished engine."""
_KEPT = frozenset("WEF")
_Key = tuple[str, tuple[str, ...]]


_CHAINS = frozenset({"skipped", "tactic-out-of-memory", "workspace-short"})
"""Patterns of lines with the reason why a kernel of the current layer was skipped."""
_ASSERTIONS = frozenset({"assertion", "bare-assertion"})
"""Patterns of the parser's failed conditions, which end the build, whatever the severity."""
_REASONS = frozenset({"reason", "not-opened", *_ASSERTIONS})
"""Patterns of lines without a severity that hold the reason of the error before or after them."""
_PARSER = frozenset({"in-node", "in-node-old"})
"""Patterns of the parser's errors, which scripts also print without a severity."""
_DECISIONS = frozenset(
    {
        "host-decides",
        "engine-missing",
        "engine-reused",
        "dla-no-scale",
        "dla-none",
        "fp16-not-native",
        "slow-half",
    }
)
"""Patterns of lines in which an application, or DLA, decides the precision."""
_BARE = frozenset({"internal-error", "jetson-failed", "old-error"})
"""Patterns of errors without a severity: of the builder below an error of the parser, or of old programs."""
NOTED = frozenset({*_CHAINS, *_REASONS, *_PARSER, *_DECISIONS, *_BARE, "scale-missing"})
"""Patterns with messages that are kept at any severity."""
_Said = tuple[int, str]
"""A line number and its message."""
_OTHERS = re.compile(
    r"(?i)error|fail|exception|cannot|could not|unable|abort|fault|killed|missing|must |what\(\)|not specified|does not exist|no .{0,30}provided"
    r"|not found|placed on|skipping|calibration thread|building .{0,30}engine|quantized::"
)
"""Words without which a line of another program reports no trouble."""
_MOST_OTHERS = 200
"""Most lines of other programs that are kept."""
_QUOTED = 300
"""Most characters that an answer quotes of another line."""
_READ_BEFORE = "first follow the advice of the earlier line, which may be the cause; if there is none: "
_ALONE = f"find out which program printed this line, and search the issues of that program; to find out whether TensorRT is at fault, {BUILD_ALONE}"
_OF_THE_MODEL = frozenset({"format", "shape", "typing"})
"""Areas of causes in the model."""
_TYPES_SHOWN = 6
"""Most combinations of types that an answer lists."""
_GOES_ON = 8
"""Lines after an error that may continue it: they have no prefix, and no more than one blank line is between them."""
_DONE = re.compile(
    r"(?i)\bengine\b.{0,30}(?:saved|built|build|generat\w+|created|written|export\w*|serializ\w+).{0,20}(?:success|\bto\b)|(?:saved|wrote|built|build|created|serialized)"
    r" .{0,30}\bengine\b.{0,12}(?:\bto\b|success)|export success|\bbuild (?:is )?(?:done|finished|completed?)\b.{0,12}\d"
)
"""Words of programs that have an engine."""
_UNDONE = re.compile(r"(?i)fail|error|\bnot\b|unable|could|trying|going to|onnx:")
_ERROR = re.compile(
    r"(?i:(?<![\w.])(?:fatal )?error\b ?(?:\[\w+\])?:)|^\s*(?:\w+\.)*\w+(?:Error|Exception): "
)
"""Lines of other programs that call themselves an error, not only by a word in a sentence."""
_LEVEL = re.compile(
    r"(?<![\w.])(?P<word>ERROR|FATAL|CRITICAL|WARN(?:ING)?|INFO|DEBUG|TRACE)(?=[\s\]:>)|])|\[(?P<small>error|fatal|critical|warn(?:ing)?|info|debug|trace)\]"
    r"|(?:^|(?<=: ))(?P<letter>[IWEFD])(?=\d{4} | \w+/)|\[(?P<ort>[VIWEF])(?=:onnxruntime)"
)
"""The severity that a line of another program gives itself."""
_LEVELLED = 120
"""Number of first characters of a line that contain its severity."""
_FRAME = re.compile(r"^\s*File \".*?(?:site|dist)-packages[/\\](\w+)")
"""A line of a traceback of Python, with the package of the code."""
_REQUESTED = re.compile(r"\b(\d{6,15})(?: bytes\)|-byte buffer)")
"""Bytes that could not be allocated."""
_RAISED = re.compile(r"\s*(?:\w+\.)*\w*(?:Error|Exception): ")
"""An exception of Python, whatever words follow."""
_ELSEWHERE = ("Traceback", "&&&& ")
"""Beginnings of lines without a prefix that continue no error."""


class TroublesCollector:
    """Keeps warnings and errors of a log by wording, and the lines that lead to an error.

    Args:
        place: knows which layer is being tuned.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._reasons: list[_Said] = []
        self._assertions: list[_Said] = []
        self._decisions: dict[str, tuple[int, Cause]] = {}
        # Lines of other programs that report a trouble, and lines without a prefix right after an error.
        self._others: list[_Said] = []
        self._further: dict[int, str] = {}
        self._broken = 0  # last line of another program's message that may go on in the next line; 0 if none
        self._last_error = -_GOES_ON
        # The reason for which a kernel was skipped, which the next lines may continue, and its last line.
        self._open: tuple[_Said, int] = ((0, ""), -_GOES_ON)
        # The package of the last frame of a traceback of Python, and its line.
        self._frame = (-_GOES_ON, "")
        # The layer that was announced last before an error.
        self._timed: dict[int, str] = {}
        # The last line of each cause for which a kernel was skipped, and the layer that was tuned then.
        self._skipped: dict[str, tuple[int, str, str]] = {}
        self._chain: list[_Said] = []
        # The types in which the layer of the first general error was tried.
        self._tried: tuple[str, ...] = ()
        self._values: tuple[str, ...] = ()
        self._causes: dict[str, Cause | None] = {}
        self._warnings: dict[_Key, LogRecord] = {}
        self._errors: dict[_Key, LogRecord] = {}
        self._counts: Counter[tuple[bool, _Key]] = Counter()
        self._wordings: dict[str, str] = {}
        self.int8_refused: dict[str, str] = {}
        self.refused_at: dict[str, int] = {}
        # The last line in which a program around the builder says that it has an engine; 0 if none does.
        self.done = 0
        # Tensors that the builder warned to have no scale, in the order of the log.
        self.without_scale: dict[str, None] = {}

    def handlers(self) -> dict[str, Handler]:
        return {"int8-rejected": self._refuse_tensor}

    def note(self, line: int, severity: str, text: str, topic: str, names: tuple[str, ...] = ()) -> None:
        """Keep a warning, an error, or a message that states a reason.

        Args:
            line: its line in the log.
            severity: its severity.
            text: the message.
            topic: the name of its pattern, "" when unread.
            names: the tensors and layers it is about: messages about others are kept apart.
        """
        if topic in NOTED:
            self._keep(line, text[:_LONGEST], topic)
        if topic in _PARSER or (topic in _BARE and not severity):
            severity = "E"
        elif topic == "scale-missing":
            severity = severity or "W"
        if severity not in _KEPT:
            return
        if severity != "W" and not self._chain and (cause := self._cause(text[:_LONGEST])) and cause.before:
            self._chain = self._list_skipped_kernels(cause)
            self._tried, self._values = self._place.types_tried(), self._place.values_in_shapes()
        kept = self._warnings if severity == "W" else self._errors
        if severity != "W":
            self._last_error = line
            self._note_layer(line)
        key = (self._wording(text[:_LONGEST]), names)
        if topic == "scale-missing" and len(self.without_scale) < _MOST_TROUBLES:
            self.without_scale.update(dict.fromkeys(names))
        if key in kept:
            self._counts[severity == "W", key] += 1
        elif len(kept) < _MOST_TROUBLES:
            kept[key] = LogRecord(line=line, severity=severity, text=text[:_LONGEST], topic=topic)

    def claim(self, line: int, text: str) -> None:
        """Record a line in which a program around the builder says that it has an engine."""
        if (
            ("ngine" in text or "xport" in text or "uild" in text)
            and _DONE.search(text)
            and not _UNDONE.search(text)
        ):
            self.done = line

    def overhear(self, line: int, text: str) -> None:
        """Keep a line of another program if it continues an error of the builder, or reports an error."""
        text = text[:_LONGEST]
        if self._last_error < line <= self._last_error + _GOES_ON and len(self._further) < _MOST_OTHERS:
            self._further[line] = text
        (begun, words), end = self._open
        if end < line <= min(end + 2, begun + _GOES_ON) and not text.startswith(_ELSEWHERE):
            self._leave_out(begun, f"{words}\n{text}"[:_LONGEST], end=line)
        if frame := _FRAME.search(text):
            self._frame = (line, frame[1])
        if self._broken and line == self._broken + 1 and _is_continued(self._others[-1][1], text):
            begun, words = self._others[-1]
            self._others[-1], self._broken = (begun, f"{words} {text}"[:_LONGEST]), line
            return
        is_full = len(self._others) == _MOST_OTHERS
        if _OTHERS.search(text) and (not is_full or _ERROR.search(text)):
            cause = self._cause(text)
            if cause is not None and cause.effect == "fails" and _is_quiet(text):
                return
            if is_full and not (_stops(cause) and self._forget_other()):
                return
            self._others.append((line, text))
            self._broken = line if "Error Code" in text else 0
            self._note_layer(line)
            if cause is not None and cause.area == "host" and cause.effect != "fails":
                self._decisions.setdefault(cause.name, (line, cause))

    def _forget_other(self) -> bool:
        """Forget the first line of another program that is not known to stop a run; return False if there is none."""
        found_at = [at for at, (_, text) in enumerate(self._others) if not _stops(self._cause(text))][:1]
        for at in found_at:
            del self._others[at]
        return bool(found_at)

    def _keep(self, line: int, text: str, topic: str) -> None:
        cause = self._cause(text)
        if topic in _DECISIONS and cause is not None:
            self._decisions.setdefault(cause.name, (line, cause))
        elif topic in _REASONS and len(self._reasons) < _MOST_TROUBLES:
            self._reasons.append((line, text))
            if topic in _ASSERTIONS:
                self._assertions.append((line, text))
        elif topic in _CHAINS and cause is not None:
            self._leave_out(line, text, end=line)

    def _leave_out(self, line: int, text: str, *, end: int) -> None:
        """Record why a kernel was skipped. The next lines may continue the reason."""
        self._open = ((line, text), end)
        cause = self._cause(text)
        if cause is not None:
            self._skipped[cause.name] = (line, text, self._place.announced())

    def _note_layer(self, line: int) -> None:
        layer = read_announcement(self._place.announced())[0] or self._place.costed()
        if len(self._timed) < _MOST_TROUBLES and layer:
            self._timed[line] = layer

    def _cause(self, text: str) -> Cause | None:
        """Return the cause of an error text, cached by wording."""
        wording = self._wording(text)
        if wording not in self._causes and len(self._causes) < _MOST_TROUBLES:
            self._causes[wording] = cause_of(text)
        return self._causes[wording] if wording in self._causes else cause_of(text)

    def _list_skipped_kernels(self, cause: Cause) -> list[_Said]:
        """Return the log lines that say why kernels of the current layer were skipped.

        A reason in the model counts even if the cause does not expect it, because it explains the missing kernel.
        """
        here = self._place.announced()
        return [
            (line, text)
            for name, (line, text, layer) in self._skipped.items()
            if _layer(layer) == _layer(here)
            and (name in cause.before or ((why := self._cause(text)) and why.area in _OF_THE_MODEL))
        ]

    @property
    def decisions(self) -> tuple[tuple[int, Cause], ...]:
        """Decisions and warnings of programs around the builder, and of DLA, each with its first line."""
        return tuple(self._decisions.values())

    def _wording(self, text: str) -> str:
        """Return a message without its changing numbers, cached."""
        wording = self._wordings.get(text)
        if wording is None:
            wording = _CHANGING.sub("#", text)
            if len(self._wordings) < _MOST_TROUBLES:
                self._wordings[text] = wording
        return wording

    def _refuse_tensor(self, line: int, layer: str, tensor: str, *_fields: object) -> None:
        if len(self.int8_refused) < _MOST_TROUBLES:
            self.int8_refused.setdefault(layer, tensor)
            self.refused_at.setdefault(layer, line)

    @property
    def warnings(self) -> tuple[LogRecord, ...]:
        """The warnings of the log, in the order of their first line."""
        return self._count_records(self._warnings)

    @property
    def errors(self) -> tuple[LogRecord, ...]:
        """The errors of the log, in the order of their first line."""
        return self._count_records(self._errors)

    @property
    def has_failed(self) -> bool:
        """True if the builder or another program has reported an error so far."""
        return bool(self._errors or self._reasons) or any(
            _stops(self._cause(text)) for _, text in self._others
        )

    def _count_records(self, kept: dict[_Key, LogRecord]) -> tuple[LogRecord, ...]:
        quiet = kept is self._warnings
        return tuple(
            replace(record, count=record.count + more) if (more := self._counts[quiet, key]) else record
            for key, record in kept.items()
        )

    def failure(
        self,
        situation: Situation,
        *,
        is_stated: bool = False,
        cut: int = 0,
        built: int = 0,
        steps: Sequence[int] = (),
    ) -> Failure | None:
        """Return the message that explains why the build failed; None without a failure.

        Args:
            situation: facts that choose between the fixes of a cause.
            is_stated: whether the log says that the run failed, so that a reason without a severity is an error too.
            cut: the last line of a log without an end, where an error of another program decides; 0 if the log has an end.
            built: the last line in which the builder has an engine; 0 if none. An error before it did not prevent the engine.
            steps: lines in which the builder begins a new step. An error of another program before a run did not stop
                the run.
        """
        found_errors = [
            record for record in self.errors if record.topic not in _NO_FAILURE and record.line > built
        ]
        # A skipped kernel counts as a reason only if the build failed for the layer that was tuned. The message before
        # "The timing cache will not be used!" is about this cache, not about an engine.
        of_cache = {record.line - 1 for record in found_errors if names("timing-cache", record.text)}
        ending = [
            record for record in found_errors if record.topic not in _CHAINS and record.line not in of_cache
        ]
        errors = [(record.line, record.text) for record in ending] or [
            line_text for line_text in self._assertions if line_text[0] > built
        ]
        foreign = [
            line_text
            for line_text in self._others
            if line_text[0] > built and (cause := self._cause(line_text[1])) and cause.effect == "fails"
        ]
        if all((cause := self._cause(text)) and cause.rank == "echo" for _, text in errors):
            errors = sorted(
                {*errors, *(line_text for line_text in foreign if _states(self._cause(line_text[1])))}
            )
        errors = errors or (self._reasons if is_stated else [])
        if not errors and cut:
            errors = [
                (line, text) for line, text in foreign if line > cut - _GOES_ON and _ERROR.search(text)
            ][-1:]
        if not errors:
            return None
        lines = sorted({*errors, *self._reasons, *self._chain, *self._find_deciding_lines(errors, steps)})
        deciding = diagnosis(
            [self._whole(line_text) for line_text in lines],
            situation,
            timed=[self._timed.get(line, "") for line, _ in lines],
        )
        named = deciding is not None and deciding[1].rank not in UNNAMED
        unknown = next((line_text for line_text in errors if cause_of(line_text[1]) is None), None)
        if (
            unknown is not None
            and not named
            and (deciding is None or _precedes(unknown, lines[deciding[0]], deciding[1]))
        ):
            return self._unknown(unknown, foreign)
        if deciding is None:
            return self._unknown(errors[0], foreign)
        at, cause = deciding
        line, text = lines[at][0], self._whole(lines[at])
        # If a line only says that no kernel was found, the next line, which repeats it, names the node.
        repeated = "" if node_of(text) else cause.name
        ends = [
            line_text
            for line_text in errors
            if line_text[0] > line
            and (end := cause_of(line_text[1]))
            and (cause.name in end.before or (end.before and end.name == repeated))
        ][:1]
        # The parser names the node in the line after the builder's error, or in lines without a prefix before it.
        beside = [
            self._whole((number, words))
            for number, words in errors
            if cause.rank == "exact" and (number == line + 1 or line - _GOES_ON <= number < line)
        ]
        # A message with its own explanation does not need the earlier line of another program.
        is_open = cause.rank != "exact" and not dissect(text).statement
        before, evidence = _before(line, sorted({*foreign, *errors}), cause.name) if is_open else ("", ())
        if cause.rank != "exact" and any(step > line for step in steps):
            before = f"{before}; the builder continued after this line"
        if cause.name == "python-exception" and line - _GOES_ON < self._frame[0] < line:
            before = f"; the package {self._frame[1]} raised it{before}"
        sizes = [int(match[1]) for _, text in self._messages() if (match := _REQUESTED.search(text))]
        if cause.area == "memory" and sizes:
            before = f"{before}; the builder asked for {max(sizes) / 1e9:.3g} GB at once"
        if self._tried and cause.area == "kernel" and cause.before:
            before = f"; the builder tried only these types: {list_names(self._tried, _TYPES_SHOWN)}{before}"
        fix = f"{_READ_BEFORE}{cause.fix}" if evidence else cause.fix
        skipped = [
            (number, words)
            for number, words, layer in self._skipped.values()
            if read_announcement(layer)[0] == self._timed.get(line, "")
        ]
        if skipped and cause.rank != "exact" and cause.area == "kernel" and not self._chain:
            number, words = skipped[-1]
            before = (
                f"{before}; the builder skipped kernels, in line {number}: {words.splitlines()[0][:_QUOTED]}"
            )
            evidence = (*evidence, number)
        if self._values and cause.area == "kernel" and cause.rank != "exact":
            before = f"{before}; the shapes of the layer depend on values that the model computes ({list_names(self._values, _TYPES_SHOWN)})"
            fix = f"{FIXED_SHAPES}; or {fix}"
        return Failure(
            line=line,
            text=lines[at][1],
            meaning=f"{cause.meaning}{before}",
            fix=fix,
            cause=cause.name,
            degree="exact" if cause.rank == "exact" else "general" if cause.rank != "unknown" else "unknown",
            node=next(filter(None, map(node_of, (text, *(words for _, words in ends), *beside))), "")
            if named
            else "",
            evidence=(line, *(number for number, _ in ends), *evidence),
        )

    def _messages(self) -> list[_Said]:
        return [(record.line, record.text) for record in (*self._warnings.values(), *self._errors.values())]

    def _unknown(self, error: _Said, foreign: list[_Said]) -> Failure:
        """Return a failure whose message belongs to no known class."""
        before, evidence = _before(error[0], foreign)
        return Failure(
            line=error[0],
            text=error[1],
            meaning=f"{error[1]}{before}" if before else "",
            fix=f"{_READ_BEFORE}{_ALONE}" if before else _ALONE,
            degree="unknown",
            evidence=(error[0], *evidence),
        )

    def _find_deciding_lines(self, errors: list[_Said], steps: Sequence[int]) -> list[_Said]:
        """Return the earlier log lines that explain the last error.

        If the builder began a new step after a line, the line did not stop it. Such a line decides only if it is
        known to lead to the error.
        """
        leads = {name for _, text in errors if (cause := self._cause(text)) for name in cause.before}
        warned = [(error.line, error.text) for error in self._warnings.values() if error.topic not in _CHAINS]
        return [
            error
            for error in (*self._others, *warned)
            if error[0] < errors[-1][0]
            and (cause := self._cause(error[1]))
            and cause.rank == "exact"
            and (
                cause.name in leads
                or (
                    cause.effect == "fails"
                    and (error in self._others or "Error Code" in error[1])
                    and not any(error[0] < step < errors[-1][0] for step in steps)
                )
            )
        ]

    def _whole(self, error: _Said) -> str:
        """Return an error of the log with the lines that continue it."""
        line, text = error
        last, further = line, [text]
        own = {record.line for record in self._errors.values()}
        for more in range(line + 1, line + 1 + _GOES_ON):
            if more in own:
                break
            words = self._further.get(more)
            if words is None:
                continue
            if more > last + 2 or words.startswith(_ELSEWHERE):
                break
            last, further = more, [*further, words]
        return "\n".join(further)[:_LONGEST]

    @property
    def left_out(self) -> tuple[tuple[int, Cause], ...]:
        """The causes of skipped kernels, each with the last log line that states the cause."""
        causes = ((line, self._cause(text)) for line, text, _ in self._skipped.values())
        return tuple((line, cause) for line, cause in causes if cause is not None)


def _is_continued(message: str, text: str) -> bool:
    """Return True if a line continues a message whose parenthesis is still open, or follows the class of its error."""
    follows = text.startswith("(") and message.endswith(" Error")
    return follows or message.count("(") > message.count(")")


def _states(cause: Cause | None) -> bool:
    """Return True if a line of another program alone shows that a run failed."""
    return cause is not None and cause.rank not in ("unknown", "echo")


def _stops(cause: Cause | None) -> bool:
    """Return True if a line of another program alone shows that it stopped a run."""
    return cause is not None and cause.effect == "fails" and _states(cause)


def _precedes(unknown: _Said, deciding: _Said, cause: Cause) -> bool:
    return cause.rank in ("unknown", "echo") or unknown[0] < deciding[0]


def _is_quiet(text: str) -> bool:
    """Return True if a line of another program states a severity below error, such as "info".

    Old releases of onnxruntime pass TensorRT's errors on as warnings, so the severity that TensorRT prints decides.
    """
    outer = _LEVEL.search(text, 0, _LEVELLED)
    inner = (
        _LEVEL.search(text, outer.end(), outer.end() + _LEVELLED)
        if outer is not None and outer["ort"]
        else None
    )
    level = inner or outer
    return (
        level is not None and level[level.lastgroup or 0][0].upper() not in "EFC" and not _RAISED.match(text)
    )


def _before(line: int, troubles: list[_Said], name: str = "") -> tuple[str, tuple[int, ...]]:
    """Return text and line of the last trouble before a line, without echoes and the cause `name`."""
    earlier = [
        trouble
        for trouble in troubles
        if trouble[0] < line
        and ((cause := cause_of(trouble[1])) is None or (cause.rank != "echo" and cause.name != name))
    ]
    if not earlier:
        return "", ()
    number, text = earlier[-1]
    return f"; before it the log has, in line {number}: {text[:_QUOTED]}", (number,)


def _layer(announced: str) -> str:
    """Return the layer name in an autotuning message, without the kind of kernels in parentheses after it."""
    return announced.rpartition(" (")[0] or announced


# --- statements ------------------------------------------------------------------------------------------------------
# All remaining facts: the fields of every pattern that no other part of the run keeps, as one table per pattern.


HOMES = frozenset(
    {
        # events
        *(
            "attempt",
            "attempt-unnamed",
            "fused",
            "fused-unnamed",
            "quantize-into",
            "swapped",
            "duplicate",
            "removed",
        ),
        *("layer-converted", "layer-swapped", "merged", "layers-original", "layers-after"),
        # network
        *("network-input", "node-begins", "node-inputs", "node-outputs"),
        # engine layers
        *("layer", "layer-record", "layer-name-only"),
        # tactics
        *("tactic", "tactic-named"),
        # options
        *("option", "option-tight", "option-unset"),
        # profile
        *("profile-row", "profile-row-first", "profile-record"),
    }
)
"""Frequent patterns with all their fields kept elsewhere in the run."""


class StatementsCollector:
    """Collects messages with fields, as the log prints them.

    Args:
        columns: names of a pattern's fields.
    """

    def __init__(self, columns: dict[str, tuple[str, ...]]) -> None:
        self._columns = columns
        self._rows: dict[str, list[tuple[str | int | float | None, ...]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, line: int, name: str, fields: Fields) -> None:
        """Keep a log message that has fields."""
        if fields and name not in HOMES:
            self._count += 1
            self._rows.setdefault(name, []).append((line, *fields))

    def finish(self) -> dict[str, Statements]:
        """Return the messages with fields as tables, by the name of their pattern."""
        return {
            name: Statements(columns=("line", *self._columns[name]), rows=tuple(rows))
            for name, rows in sorted(self._rows.items())
        }
