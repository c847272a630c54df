"""Reading: blocks of lines in, runs out, in constant memory.

Most lines take the short way: skimmed, read by the one or two sentences that share their first bytes, heard by one
book. The others take the long way: their prefix is peeled, and they are tried against sentences, the open section,
source positions and joined messages, in that order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from qdqtool.buildlog.arrays import TUNED
from qdqtool.buildlog.grammar import Grammar, Hear, grammar
from qdqtool.buildlog.place import Place
from qdqtool.buildlog.prefix import NO_PREFIX, SOME_PREFIX, Prefix, peel, without_position
from qdqtool.buildlog.run import Run, Verdict
from qdqtool.buildlog.sentence import Fields, Section
from qdqtool.buildlog.skim import NOTED, Skimmed, Skimmer
from qdqtool.io.text import TextSource

_JOINT = re.compile(
    # A class of first characters lets the search pass over all others at once.
    r"[\[=&*NTPIHD\"](?:"
    r"(?<=\[)\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] ?\[|(?<==)== [A-Z][\w ]{3,60} ===|(?<=&)&&& |(?<=\*)\*{14} Autotuning"
    r"|(?<=N)ote: The application clock|(?<=T)ensorRT version: |(?<=P)arsing node: |(?<=I)f not already in use, "
    r"|(?<=[HD])2[HD] Latency: the |(?<=\")[^\x00-\x7f])"
)
"""Where messages begin that lost the line end before them; the last is a reader's note in a pasted log."""
_JOINTS = 8
"""Lost line ends looked for in one line."""
_LOUD = frozenset("WEFX")
_PREFIXED = frozenset({"attempt", "layers-original", "node-begins", "timing", "onnx-ir"})
"""Sentences that every front end prints behind a prefix: without one, the log was pasted without its prefixes."""
_SHAPED = 600
"""Characters of a line in which a foreign shape is looked for."""
_INDENT = 1
"""Spaces before a message without a prefix that the skimmer steps over."""
_STARTS = frozenset({"run-begins", "polygraphy-begins", "onnx-file", "layers-original"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the reading is, for a live display: the phase, the layer being tuned and its best kernel so far (ms)."""

    run: int
    lines: int
    phase: str
    layer: str
    best_ms: float | None


Watch = Callable[[Progress], None]


class Reader:
    """Reads one log, or a part of one that begins with a run at `first_line`."""

    def __init__(self, source: TextSource, watch: Watch | None = None, first_line: int = 1) -> None:
        self._source = source
        self._watch = watch
        self._grammar: Grammar = grammar()
        self._skim = Skimmer(self._grammar)
        self._done: list[Run] = []
        self._place = Place()
        self._line = first_line - 1
        self._section: Section | None = None
        self._tried = self._grammar.tried
        self._ears: dict[str, Hear] = {}
        self._hearing: list[Hear | None] = []
        self._run = self._new_run(first_line, 1)

    def runs(self) -> Iterator[Run]:
        """The runs of the log, each as soon as it has ended; ask each for its value before the next."""
        for block in self._source.blocks():
            self._read(block)
            yield from self._done
            self._done.clear()
            if self._watch:
                self._watch(self._progress())
        if self._run.lines or self._run.number == 1:
            yield self._run

    def _progress(self) -> Progress:
        layer, best = self._run.tuning.now
        return Progress(
            run=self._run.number,
            lines=self._line,
            phase=self._run.phases.current,
            layer=layer,
            best_ms=best,
        )

    # Runs

    def _new_run(self, first_line: int, number: int) -> Run:
        self._run = Run(number, first_line, self._place)
        self._bind()
        return self._run

    def _bind(self) -> None:
        """Connect sentences with the books of the current run; in place, so that a running loop sees it."""
        self._ears = self._run.ears()
        ears = {**self._ears, **{name: self._start(name) for name in _STARTS}}
        self._hearing[:] = self._grammar.hearing(ears)

    def _start(self, name: str) -> Hear:
        """The ear of a sentence that may begin a new run."""

        def hear(line: int, *fields: object) -> None:
            if self._begins(name):
                self._end_run(line)
            inner = self._ears.get(name)
            if inner is not None:
                inner(line, *fields)

        return hear

    def _begins(self, name: str) -> bool:
        """Whether this sentence begins another run.

        A banner does after anything, a model after another model, a graph after a finished engine; but trtexec,
        whose runs have banners, may print several graphs in one run (calibration, backend strategies).
        """
        run = self._run
        if name in ("run-begins", "polygraphy-begins"):
            return bool(run.identity.command or run.identity.generated or run.identity.verdict)
        if name == "onnx-file":
            return run.options.onnx is not None and run.options.onnx.file != ""
        return run.identity.generated and not run.identity.command

    def _end_run(self, line: int) -> None:
        """Close the current run before `line`, which belongs to the next."""
        run = self._run
        later = run.lines - (line - run.first_line)
        self._sum_up()
        run.tuning.close()
        blank = self._place.begin_run()
        run.lines -= later
        run.blank -= blank
        self._done.append(run)
        self._new_run(line, run.number + 1)
        self._run.lines = later
        self._run.blank = blank

    def _sum_up(self) -> None:
        """What the lines of the short way, up to here, say together: their prefix and the last time stamp."""
        run = self._run
        run.last_stamp = self._place.last_stamp() or run.last_stamp
        self._is_prefixed()

    def _is_prefixed(self) -> bool:
        """Whether any line of the current run, up to the current one, had a prefix."""
        run = self._run
        if not run.prefixed:
            first = self._place.prefixed_line()
            if first is not None:
                run.prefixed = True
                run.identity.saw_prefix(peel(first)[0])
        return run.prefixed

    # Blocks

    def _read(self, block: bytes) -> None:
        if b"\r" in block:
            self._read_by_hand(block)
            return
        skimmed = self._skim(block)
        self._place.enter(block.decode("latin-1"), skimmed)
        first = self._line + 1
        run = self._run
        run.lines += skimmed.lines
        run.blank += len(skimmed.blank)
        self._line += skimmed.lines
        self._short_way(skimmed, first, ascii_only=block.isascii())
        self._place.leave()
        self._sum_up()
        if self._run.weigh(len(skimmed.number), skimmed.bytes, skimmed.longest):
            self._bind()

    def _short_way(self, skimmed: Skimmed, first: int, *, ascii_only: bool) -> None:
        place, tried, ears = self._place, self._tried, self._hearing
        text = place.text
        rows = zip(skimmed.number, skimmed.code, skimmed.start, skimmed.body, skimmed.end, strict=True)
        for index, (number, code, start, at, end) in enumerate(rows):
            place.index = index
            body = text[at:end] if ascii_only else _utf8(text[at:end])
            for read, ear, section in tried[code]:
                fields = read(body)
                if fields is not None:
                    hear = ears[ear]
                    if hear is not None:
                        hear(first + number, *fields)
                    self._section = section
                    break
            else:
                line = first + number
                if at - start > _INDENT:
                    verdict = self._long_way(line, body, SOME_PREFIX)
                else:
                    verdict = self._by_hand(line, body)
                # Only now: the line may have begun another run.
                self._run.count(verdict)

    def _read_by_hand(self, block: bytes) -> None:
        """A block with lone carriage returns (progress bars): each line is several messages over each other."""
        lines = block.decode("utf-8", "replace").split("\n")[:-1]
        for line in lines:
            self._line += 1
            self._run.lines += 1
            verdicts = [self._piece(piece) for piece in line.split("\r")]
            self._run.count(_together(verdicts))
        if self._run.weigh(len(lines), len(block), len(block)):
            self._bind()

    def _piece(self, text: str) -> Verdict:
        self._place.enter(text, None)
        return self._by_hand(self._line, text)

    # Single lines

    def _by_hand(self, line: int, text: str, *, joined: bool = True) -> Verdict:
        prefix, body = peel(text)
        if prefix is not NO_PREFIX and not self._is_prefixed():
            self._run.prefixed = True
        if prefix is not NO_PREFIX:
            self._run.identity.saw_prefix(prefix)
        return self._long_way(line, body, prefix, joined=joined)

    def _long_way(self, line: int, body: str, prefix: Prefix, *, joined: bool = True) -> Verdict:
        """Hear a message of any kind; `joined` is whether it may be several that lost their line ends."""
        body = body.strip()
        if not body:
            return Verdict.BLANK
        has_prefix = prefix.form >= 0
        # Where line ends are lost, a sentence may swallow the next; behind a prefix, one that fits is trusted.
        swallows = joined and (not has_prefix or "=== " in body) and _JOINT.search(body, 1) is not None
        found = None if swallows else self._recognise(body, has_prefix=has_prefix)
        if found is None:
            pieces = _pieces(body) if joined else []
            if len(pieces) > 1:
                first = self._long_way(line, pieces[0], prefix, joined=False)
                return _together([first, *(self._by_hand(line, piece, joined=False) for piece in pieces[1:])])
            return self._unknown(line, body, prefix)
        name, fields, inside = found
        if prefix.severity in _LOUD:
            self._run.troubles.note(line, prefix.severity, body, name)
        if not has_prefix and name in _PREFIXED:
            self._run.pasted = True
        if name == NOTED:
            self._place.note(body)
        self._hear(line, name, fields)
        if not inside:
            self._section = self._grammar.sections.get(name)
        return Verdict.READ

    def _recognise(self, body: str, *, has_prefix: bool) -> tuple[str, Fields, bool] | None:
        """The sentence a message is, its fields, and whether it is a row of the open section."""
        section = self._section
        if section is not None and section.bare and has_prefix:
            section = self._section = None
        if section is not None and section.first:
            inside = _row(section, body)
            if inside is not None:
                return (*inside, True)
        found = self._grammar.read(body)
        if found is not None:
            return (*found, False)
        if section is not None and not section.first and (not section.bare or self._is_prefixed()):
            inside = _row(section, body)
            if inside is not None:
                return (*inside, True)
        rest = without_position(body)
        found = self._grammar.read(rest) if rest else None
        return (*found, False) if found is not None else None

    def _unknown(self, line: int, body: str, prefix: Prefix) -> Verdict:
        """A message that no sentence fits: perhaps it is not the builder's."""
        self._section = None
        if prefix.severity in _LOUD:
            self._run.troubles.note(line, prefix.severity, body, "")
        bare = self._run.pasted and not self._is_prefixed()
        if prefix.form < 0 and not bare and self._is_foreign(body):
            return Verdict.FOREIGN
        self._run.miss(line, body)
        return Verdict.UNREAD

    def _is_foreign(self, body: str) -> bool:
        return any(shape.read(body[:_SHAPED]) is not None for shape in self._grammar.foreign)

    def _hear(self, line: int, name: str, fields: Fields) -> None:
        if name in TUNED:
            self._place.candidates += 1
        hear = self._start(name) if name in _STARTS else self._ears.get(name)
        if hear is not None:
            hear(line, *fields)


def _pieces(body: str) -> list[str]:
    """The messages of a line that lost line ends."""
    cuts = [found.start() for found in islice(_JOINT.finditer(body, 1), _JOINTS)]
    pieces = [body[begin:end] for begin, end in pairwise([0, *cuts, len(body)])]
    return [piece for piece in pieces if piece.strip()]


def _together(verdicts: list[Verdict]) -> Verdict:
    """The verdict on a line that holds several messages: it counts once."""
    for worst in (Verdict.UNREAD, Verdict.READ, Verdict.FOREIGN):
        if worst in verdicts:
            return worst
    return Verdict.BLANK


def _row(section: Section, body: str) -> tuple[str, Fields] | None:
    for sentence in section.rows:
        fields = sentence.read(body)
        if fields is not None:
            return sentence.name, fields
    return None


def _utf8(latin: str) -> str:
    return latin.encode("latin-1").decode("utf-8", "replace")
