"""Reads the lines of a log and yields the runs in it, in constant memory.

Every line is processed in one order: its prefix is removed, then its message is tried against the open section, all
patterns, source positions and joined messages. Results that depend only on the words of a message are cached, because
logs repeat their messages.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise

from qdqtool.buildlog.carriers import Carrier
from qdqtool.buildlog.collectors.troubles import NOTED as REASONS
from qdqtool.buildlog.grammar import TUNED, Grammar, Handler, grammar
from qdqtool.buildlog.log_run import LineVerdict, Run
from qdqtool.buildlog.pattern import Fields, LogSection
from qdqtool.buildlog.prefilter import NOTED, BlockPrefilter, LogBlock, Place, Prefilter, blocks_of
from qdqtool.buildlog.prefix import NO_PREFIX, SHORT, Prefix, may_go_on, peel, without_position
from qdqtool.io.text import TextSource

_JOINT = re.compile(
    # A class of first characters lets the search skip all other characters quickly.
    r"[\[=&*NTPIHD\"](?:"
    r"(?<=\[)\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] ?\[|(?<==)(?<!==)== [A-Z][\w ]{3,60} ===|(?<=&)&&& |(?<=\*)\*{14} Autotuning"
    r"|(?<=N)ote: The application clock|(?<=T)ensorRT version: |(?<=P)arsing node: |(?<=I)f not already in use, "
    r"|(?<=[HD])2[HD] Latency: the |(?<=\")[^\x00-\x7f])"
)
"""Beginnings of messages that lost the line end before them; the last is a person's note in a pasted log."""
_JOINTS = 8
"""Most lost line ends that are searched in one line."""
_LOUD = frozenset("WEF")
"""Severities of warnings and errors; X is Polygraphy's extra verbose."""
_PREFIXED = frozenset({"attempt", "layers-original", "node-begins", "timing", "onnx-ir"})
"""Patterns that every front end prints after a prefix: without a prefix, the log was pasted without its prefixes."""
_SHAPED = 600
"""Characters of a line that are compared with the shapes of other programs' lines."""
_HEADS = (32, 26, 4)
"""Lengths of the prefixes that are remembered: the usual ones, with a time stamp and without."""
_QUIET = Prefix(form=SHORT)
"""A quiet prefix that the prefilter found and that was not parsed."""
_REMEMBERED, _MEMORABLE = 1 << 14, 400
"""Largest number of remembered messages, and largest number of characters of one message."""
_BARE_ERROR = "parser-error"
"""Pattern of lines that begin with the word ERROR: the parser's, or those of a program around the builder."""
_BANNERS = frozenset({"run-begins", "polygraphy-begins"})
_STARTS = _BANNERS | {"onnx-file", "layers-original"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingProgress:
    """Progress of the reading for a live display: phase, layer being tuned, and its best kernel so far (ms)."""

    run: int
    lines: int
    phase: str
    layer: str
    best_ms: float | None


Watch = Callable[[ReadingProgress], None]


@dataclass(frozen=True, slots=True)
class _Message:
    """The parsed words of a log message, without its position.

    Attributes:
        name, fields: its pattern; "" if none fits.
        plain: whether the pattern fits without taking a source position off.
        joint: whether it may be several messages that lost their line ends.
        foreign: whether it looks like a line of another program.
        direct: whether, after a quiet prefix, it only gives its fields to the collectors and opens `section`.
        section: the section whose heading it is.
    """

    name: str
    fields: Fields
    plain: bool
    joint: bool
    foreign: bool
    direct: bool
    section: LogSection | None


class LogReader:
    """Reads one log, or the part of a log that begins at `first_line` with a new run.

    Args:
        source: its blocks.
        watch: called after each block.
        first_line: number of its first line.
        whole: whether each message is handled; otherwise light ones are counted without taking them apart.
        prefilter: returns a function that finds the lines of a block that must be read.
    """

    def __init__(
        self,
        source: TextSource,
        watch: Watch | None = None,
        first_line: int = 1,
        *,
        whole: bool = False,
        prefilter: Callable[[], Prefilter] | None = None,
    ) -> None:
        self._source = source
        self._watch = watch
        self._first = first_line
        self._whole = whole
        self._prefilter = prefilter or (lambda: BlockPrefilter(grammar(), skip=not whole))
        self._carrier = Carrier()
        self._processes: dict[str, _Process] = {}
        self._numbers = count(1)

    def runs(self) -> Iterator[Run]:
        """Yield each run of the log as soon as it has ended. A run is only valid until the next one."""
        for block in blocks_of(self._source, self._first, self._carrier.unfolded):
            for name, lines in self._carrier.decode(block):
                process = self._process(name, lines.numbers[0])
                process.read(lines)
                yield from self._carry_runs(process.finished())
            if self._watch:
                self._watch(self._progress())
        last = [process.run for process in self._processes.values() if process.run.lines]
        readable = [run for run in last if run.recognised] or last[:1]
        yield from self._carry_runs(readable or [self._process("", self._first).run])

    def _process(self, name: str, first_line: int) -> _Process:
        """Return the reader of one process in this log; most logs have one process."""
        process = self._processes.get(name)
        if process is None:
            first_line = first_line if self._processes else self._first
            process = _Process(name, first_line, self._prefilter(), self._numbers, whole=self._whole)
            self._processes[name] = process
        return process

    def _carry_runs(self, runs: list[Run]) -> list[Run]:
        for run in runs:
            run.carrier = self._carrier.shown
            run.identity.carried_by = self._carrier.front_end
        return runs

    def _progress(self) -> ReadingProgress:
        process = list(self._processes.values())[-1]
        layer, best = process.run.tuning.now
        return ReadingProgress(
            run=process.run.number,
            lines=process.line,
            phase=process.run.phases.current,
            layer=layer,
            best_ms=best,
        )


class _Process:
    """Reads the log lines of one process; a log may mix the lines of several.

    Args:
        name: its name in the launcher's prefix; "" if the log has one process.
        first_line: number of its first line.
        prefilter: finds the lines of a block that must be read.
        numbers: numbers of runs, over all processes.
        whole: whether each message is handled.
    """

    def __init__(
        self, name: str, first_line: int, prefilter: Prefilter, numbers: Iterator[int], *, whole: bool
    ) -> None:
        self._name = name
        self._whole = whole
        self._grammar: Grammar = grammar()
        self._prefilter = prefilter
        self._run_numbers = numbers
        self._known: dict[str, _Message] = {}
        self._direct: dict[str, _Message] = {}
        self._rows: dict[tuple[str, str], tuple[str, Fields] | None] = {}
        self._done: list[Run] = []
        self._place = Place()
        self.line = first_line - 1
        self._numbers: Sequence[int] = ()
        self._verdicts: list[tuple[int, LineVerdict]] = []
        self._blank: list[int] = []
        self._blanks_counted = 0
        self._inert: set[str] = set()
        self._prefixes: dict[str, Prefix] = {}
        self._section: LogSection | None = None
        self._handlers: dict[str, Handler] = {}
        self._run = self._new_run(first_line)

    @property
    def run(self) -> Run:
        """The builder run to which the current line belongs."""
        return self._run

    def finished(self) -> list[Run]:
        """Return the runs that have ended since the last call."""
        done, self._done = self._done, []
        return done

    # Runs

    def _new_run(self, first_line: int, before: Run | None = None) -> Run:
        self._run = Run(next(self._run_numbers), first_line, self._place, whole=self._whole, before=before)
        self._run.process = self._name
        self._bind()
        return self._run

    def _bind(self) -> None:
        """Connect message patterns with the collectors of the current run."""
        handlers = self._run.handlers()
        self._handlers = {**handlers, **{name: self._start(name, handlers.get(name)) for name in _STARTS}}

    def _start(self, name: str, inner: Handler | None) -> Handler:
        """Return a handler for a message that can begin a new run; `inner` handles it within the current run."""

        def handle(line: int, *fields: object) -> None:
            if self._begins(name):
                self._end_run(line, goes_on=name not in _BANNERS)
                self._handlers[name](line, *fields)
            elif inner is not None:
                inner(line, *fields)

        return handle

    def _begins(self, name: str) -> bool:
        """Return True if this message begins another run.

        A run begins with a banner after a run that ended or failed, with a model after another model, or with a graph
        after a finished engine. But trtexec, whose runs have banners, may print several graphs in one run
        (calibration, backend strategies).
        """
        run = self._run
        if name in _BANNERS:
            identity = run.identity
            return bool(identity.command or identity.generated or identity.verdict or run.troubles.has_failed)
        if name == "onnx-file":
            return run.options.onnx is not None and run.options.onnx.file != ""
        return run.identity.generated > 0 and not run.identity.command

    def _end_run(self, line: int, *, goes_on: bool) -> None:
        """End the current run. The next one begins at `line`, maybe in the same process."""
        run = self._run
        later = _lines_of(self._numbers[self._place.number :])
        self._sum_up()
        self._tally()
        run.tuning.close()
        self._place.begin_run()
        run.lines -= later
        self._done.append(run)
        self._new_run(line, run if goes_on else None)
        self._run.lines = later

    def _sum_up(self) -> None:
        """Record whether the run's lines have a prefix, and the last time stamp."""
        run = self._run
        run.last_stamp = self._place.last_stamp() or run.last_stamp
        self._is_prefixed()

    def _is_prefixed(self) -> bool:
        """Return whether any line of the current run, up to the current one, had a prefix."""
        run = self._run
        if not run.prefixed:
            first = self._place.prefixed_line()
            if first is not None:
                run.prefixed = True
                run.identity.saw_prefix(peel(first)[0])
        return run.prefixed

    # Blocks

    def read(self, block: LogBlock) -> None:
        """Read the next log lines of the process."""
        filtered = self._prefilter(block.data)
        place, direct, numbers = self._place, self._direct, block.numbers
        place.enter(block.data.decode("latin-1"), filtered, numbers)
        self._numbers = numbers
        run = self._run
        run.lines += _lines_of(numbers)
        self.line = numbers[-1]
        whole = isinstance(numbers, range)
        self._blank, self._blanks_counted = filtered.blank_number.tolist(), 0
        self._verdicts = []
        ascii_only = block.data.isascii()
        text, skipped, inert = place.text, 0, self._inert
        for index, number in enumerate(filtered.number):
            place.index, place.number = index, number
            if filtered.skipped[index] != skipped:
                # A skipped line was in between; reading it would have closed the section.
                skipped, self._section = filtered.skipped[index], None
            if filtered.prefixed[index]:
                body = text[filtered.body[index] : filtered.end[index]]
                met, section = direct.get(body), self._section
                if met is not None and (section is None or section.bare or not section.first):
                    self._dispatch(numbers[number], met.name, met.fields)
                    self._section = met.section
                    continue
                verdict = self._handle_known(numbers[number], body, ascii_only=ascii_only)
            else:
                body = text[filtered.start[index] : filtered.end[index]]
                if body in inert and self._section is None and not self._run.pasted:
                    verdict = LineVerdict.FOREIGN
                else:
                    verdict = self._handle_line(numbers[number], body if ascii_only else _utf8(body))
                    if verdict is LineVerdict.FOREIGN and _is_inert(body):
                        inert.add(body)
            if verdict is not LineVerdict.READ:
                # Only now: the line may have begun another run.
                if whole:
                    self._run.count(verdict)
                else:
                    self._verdicts.append((number, verdict))
        place.leave()
        self._sum_up()
        self._tally()
        for memory in (self._known, direct, self._rows, inert, self._prefixes):
            if len(memory) > _REMEMBERED:
                memory.clear()
        if self._run.full:
            place.tuned()
        else:
            self._run.tuning.close()
        if self._run.weigh(len(filtered.number), filtered.bytes, filtered.longest):
            self._bind()

    def _tally(self) -> None:
        """Count the lines so far that were not read. The pieces of a line count as one."""
        here = self._place.number
        counted, self._blanks_counted = self._blanks_counted, bisect_left(self._blank, here)
        if isinstance(self._numbers, range):
            self._run.count(LineVerdict.BLANK, self._blanks_counted - counted)
            return
        mine = [(number, LineVerdict.BLANK) for number in self._blank[counted : self._blanks_counted]]
        mine += [(number, verdict) for number, verdict in self._verdicts if number < here]
        self._verdicts = [(number, verdict) for number, verdict in self._verdicts if number >= here]
        pieces: dict[int, list[LineVerdict]] = defaultdict(list)
        for number, verdict in mine:
            pieces[self._numbers[number]].append(verdict)
        for line, verdicts in pieces.items():
            at = bisect_left(self._numbers, line)
            read = len(verdicts) < bisect_right(self._numbers, line, at) - at
            self._run.count(_together([*verdicts, LineVerdict.READ] if read else verdicts))

    # Single lines

    def _handle_known(self, line: int, text: str, *, ascii_only: bool) -> LineVerdict:
        """Handle a message after a well-known prefix. Messages with a constant effect are cached."""
        body = text.lstrip()
        body = body if ascii_only else _utf8(body)
        verdict = self._handle_message(line, body, _QUIET)
        message = self._known.get(body)
        if message is not None and message.direct:
            self._direct[text] = message
        return verdict

    def _dispatch(self, line: int, name: str, fields: Fields) -> None:
        """Pass the fields of a message to the handlers of its pattern."""
        handle = self._handlers.get(name)
        if handle is not None:
            handle(line, *fields)
        # Only now: the line may have begun another run.
        if self._run.whole:
            self._run.statements.take(line, name, fields)

    def _handle_line(self, line: int, text: str, *, joined: bool = True) -> LineVerdict:
        prefix, body = self._peel(text.rstrip())
        if prefix is not NO_PREFIX:
            if not self._is_prefixed():
                self._run.prefixed = True
            self._run.identity.saw_prefix(prefix)
            if prefix.stamp:
                self._place.saw_stamp(prefix.stamp)
        return self._handle_message(line, body, prefix, joined=joined)

    def _peel(self, line: str) -> tuple[Prefix, str]:
        """Split a log line into prefix and message, with a cache.

        Prefixes of one second are equal, and so are prefixes without a time stamp.
        """
        for length in _HEADS:
            cached = self._prefixes.get(line[:length])
            if cached is not None and not may_go_on(line, length):
                return cached, line[length:]
        prefix, body = peel(line)
        head = len(line) - len(body)
        if head in _HEADS and prefix is not NO_PREFIX:
            self._prefixes[line[:head]] = prefix
        return prefix, body

    def _handle_message(self, line: int, body: str, prefix: Prefix, *, joined: bool = True) -> LineVerdict:
        """Handle any log message. `joined` says that it may be several messages without line ends."""
        if not body:
            return LineVerdict.BLANK
        message = self._known.get(body) or self._look_at(body)
        has_prefix = prefix.form >= 0
        # If line ends are lost, a pattern may also match the next message. After a prefix, a matching pattern is
        # trusted.
        swallows = joined and message.joint and (not has_prefix or "=== " in body)
        recognised = None if swallows else self._recognise(message, body, has_prefix=has_prefix)
        if recognised is None:
            pieces = _pieces(body) if joined and message.joint else []
            if len(pieces) > 1:
                first = self._handle_message(line, pieces[0].rstrip(), prefix, joined=False)
                return _together(
                    [first, *(self._handle_line(line, piece, joined=False) for piece in pieces[1:])]
                )
            return self._unknown(line, body, prefix, message)
        name, fields, inside = recognised
        if prefix.severity in _LOUD or name in REASONS:
            self._run.troubles.note(line, prefix.severity, body, name, self._grammar.named(name, fields))
        elif name == _BARE_ERROR:
            self._run.troubles.overhear(line, body)
        if not has_prefix and name in _PREFIXED:
            self._run.pasted = True
        if name in TUNED:
            self._place.timed()
        elif name == NOTED:
            self._place.announce(body, line)
        self._dispatch(line, name, fields)
        if not inside:
            self._section = message.section
        return LineVerdict.READ

    def _look_at(self, body: str) -> _Message:
        """Parse the words of a log message, with a cache for short ones."""
        parsed, plain = self._grammar.read(body), True
        if parsed is None:
            bare = without_position(body)
            parsed, plain = (self._grammar.read(bare) if bare else None), False
        name, fields = parsed or ("", ())
        joint = _JOINT.search(body, 1) is not None
        message = _Message(
            name=name,
            fields=fields,
            plain=plain,
            joint=joint,
            foreign=parsed is None and self._grammar.is_foreign(body[:_SHAPED]),
            direct=parsed is not None
            and plain
            and not joint
            and name not in TUNED
            and name not in REASONS
            and name != NOTED,
            section=self._grammar.sections.get(name),
        )
        if len(body) <= _MEMORABLE:
            self._known[body] = message
        return message

    def _recognise(
        self, message: _Message, body: str, *, has_prefix: bool
    ) -> tuple[str, Fields, bool] | None:
        """Return the pattern and fields of a message, and whether it is a row below the last heading."""
        section = self._section
        if section is not None:
            if section.bare and has_prefix:
                section = self._section = None
            else:
                early = section.first or not (message.name and message.plain)
                if early and (not section.bare or section.first or self._is_prefixed()):
                    inside = self._row(section, body)
                    if inside is not None:
                        return (*inside, True)
        return (message.name, message.fields, False) if message.name else None

    def _row(self, section: LogSection, body: str) -> tuple[str, Fields] | None:
        """Parse a log message as a row of a section, with a cache for short ones."""
        key = section.opens, body
        if key in self._rows:
            return self._rows[key]
        row = _row(section, body)
        if len(body) <= _MEMORABLE:
            self._rows[key] = row
        return row

    def _unknown(self, line: int, body: str, prefix: Prefix, message: _Message) -> LineVerdict:
        """Handle a message without a pattern, which may come from another program."""
        self._section = None
        self._run.troubles.claim(line, body[:_MEMORABLE])
        if prefix.severity in _LOUD:
            self._run.troubles.note(line, prefix.severity, body, "")
        elif not prefix.severity:
            self._run.troubles.overhear(line, body)
        bare = self._run.pasted and not self._is_prefixed()
        if prefix.form < 0 and not bare and message.foreign:
            return LineVerdict.FOREIGN
        self._run.miss(line, body)
        return LineVerdict.UNREAD


def _is_inert(line: str) -> bool:
    """Return True if a line of another program has only words, without a prefix or a second message."""
    return len(line) <= _MEMORABLE and _JOINT.search(line, 1) is None and peel(line)[0] is NO_PREFIX


def _lines_of(numbers: Sequence[int]) -> int:
    """Return the number of log lines; the pieces of one line have one number."""
    if isinstance(numbers, range):
        return len(numbers)
    return sum(1 for at, number in enumerate(numbers) if not at or numbers[at - 1] != number)


def _pieces(body: str) -> list[str]:
    """Split a log line that lost its line ends into messages."""
    cuts = [joint.start() for joint in islice(_JOINT.finditer(body, 1), _JOINTS)]
    pieces = [body[begin:end] for begin, end in pairwise([0, *cuts, len(body)])]
    return [piece for piece in pieces if piece.strip()]


def _together(verdicts: list[LineVerdict]) -> LineVerdict:
    """Return the kind of a log line with several messages.

    The kind is not understood if one message is; else read, from another program, or blank, in this order.
    """
    for worst in (LineVerdict.UNREAD, LineVerdict.READ, LineVerdict.FOREIGN):
        if worst in verdicts:
            return worst
    return LineVerdict.BLANK


def _row(section: LogSection, body: str) -> tuple[str, Fields] | None:
    for pattern in section.rows:
        fields = pattern.read(body)
        if fields is not None:
            return pattern.name, fields
    return None


def _utf8(latin: str) -> str:
    return latin.encode("latin-1").decode("utf-8", "replace")
