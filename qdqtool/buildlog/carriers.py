r"""Carriers: text that other programs' loggers, containers and launchers add around the builder's messages.

    2024-01-10 21:52:52.123 [V:onnxruntime:TensorrtLogger, provider.h:87 log] [2024-01-10 21:52:52 VERBOSE] Running: ...
    DEBUG: [Torch-TensorRT TensorRT Conversion Context] - Running: ...
    {"log": "[01/10/2024-21:52:52] [V] [TRT] Running: ...\n", "stream": "stderr", "time": "..."}
    "Nov 22, 2026 @ 10:00:00.123",host,"[01/10/2024-21:52:52] [V] [TRT] Running: ..."
    [1,0]<stdout>:[01/10/2024-21:52:52] [V] [TRT] Running: ...

They are learned from the log itself. Patterns of the builder are looked for inside the lines. The text before a
message is divided into time stamps, severities, numbers, words and punctuation. Lines of one form belong to one layer
of the carrier, and text that is constant in all of them is part of the form. Layers are inside each other (a
container around a launcher around a logger). A decoded line has a prefix that the reader knows, with the innermost
time stamp and severity.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from itertools import islice

from qdqtool.buildlog.exports import (
    Document,
    Order,
    Sheet,
    is_header,
    json_of,
    message_member,
    records_of,
    sheet_of,
)
from qdqtool.buildlog.grammar import grammar
from qdqtool.buildlog.prefilter import LogBlock
from qdqtool.buildlog.prefix import SEVERITY_WORDS, native, peel, without_position

SAMPLE = 800
"""Lines of a block that are read to learn its carrier."""
_FIRST, _FEW, _BEGINNING = 1000, 16, 1 << 15
"""Lines sampled from the first block and from each other block, and bytes at the beginning of the other
blocks that are sampled.
"""
_ALIKE = 60
"""Lines of a block with the builder's own prefix after which the search for a carrier stops."""
DEPTH = 5
"""Most nested layers of a carrier."""
_LONGEST = 400
"""Characters at the beginning of a line that are searched for a carrier."""
_ENOUGH = 3
"""Lines needed to accept a form; one is enough if it has a time stamp or a severity."""
_GOES_ON = 10_000
"""Most lines of one cell of a table."""
_TURNED = "the newest line first (lines are numbered from the oldest)"
_ALL = 0.95
"""Share of lines with a number at the beginning above which the number is a rank, and not an error's code."""
_MOST = 24
"""Most forms kept of one layer: loggers print a few, one per place in their source."""

_LINE_END = re.compile(r"[\r\n]+")
_BORDER = re.compile(r"(?:[\]:>|)}\t\"'] ?|- )\"?(?=[^\s\]])|  +(?=\S)| (?=[A-Z\[(=*>-])")
"""Position inside a line at which a message may begin."""
# Number of positions at which a prefix may end that are tried; a line with more is a table.
_BORDERS = 16
_ANYWHERE = frozenset(
    {
        *("node-inputs", "node-outputs", "timed", "kernel-set", "library-version", "tactics-pruned"),
        *("host-decides", "engine-written"),
    }
)
"""Patterns that begin with a name: text before them would be taken for a part of the name."""

_ERRORS = frozenset({"internal-error", "numbered-error"})
"""Patterns of messages with the code of an error."""

_VAGUE = frozenset({"parser-error", "tensorrt-llm-said"})
"""Patterns that accept any text after a word, also another logger's prefix."""

_TIMES = (
    r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?",
    r"\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d",
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: \d{4})?",
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?",
    r"\d{9,10}\.\d{1,9}",
    r"(?<!\d)1\d{12}(?=,)",
    r"(?<=\[) {0,6}\d{1,7}\.\d{6}(?=\])",
)
_GLOG = r"(?<![\w])[IWEFV]\d{4}(?= \d\d:)|(?<![\w])[IWEFV](?=\d{8} )"
_LEVELS = f"(?:(?i:{'|'.join(sorted(SEVERITY_WORDS, key=len, reverse=True))})|[VDIWEFX])"
# A single letter is a severity in brackets, or after a time or number: "12:00:00.123: I tensorflow", "1234 5678 V
# TensorRT".
_SEVERITY = (
    rf"(?<!\w)(?!\w(?!\w))(?=\w){_LEVELS}(?!\w)|(?<=\[)[VDIWEFX](?=[\]:])|(?<=\d[ :])[VDIWEFX](?= )"
    r"|(?<=\d: )[VDIWEFX](?= )"
)
_TOKEN = re.compile(
    f"(?P<time>{'|'.join(_TIMES)})|(?P<glog>{_GLOG})|(?P<severity>{_SEVERITY})|(?P<number>0x[0-9a-fA-F]+|\\d+)"
    r"|(?P<space>\s+)|(?P<word>[^\W\d_][\w./\\@-]*|_[\w./\\@-]*)|(?P<mark>.)",
    re.DOTALL,
)
_CLASSES = {
    "time": f"(?:{'|'.join(_TIMES)})",
    "glog": "[IWEFV]\\d{4,8}",
    "severity": _LEVELS,
    "number": "(?:0x[0-9a-fA-F]+|\\d+)",
    "space": "\\s+",
    # Without colons: a colon ends a logger's name, and messages contain colons too ("Format: ONNX").
    "word": "[^\\s\\[\\](){}<>\"'|,;=:]+",
}
_SHOWN = {
    "time": "<time>",
    "glog": "<severity and date>",
    "severity": "<severity>",
    "number": "<number>",
    "word": "<word>",
}
_QUOTES = "\"'"

_RANKS = tuple(
    re.compile(form)
    for form in (
        # mpirun --tag-output, also with a time stamp before
        r"\[(?P<rank>\d{1,5},\d{1,5})\]<std(?:out|err|diag)>: ?",
        # torchrun --log, torch.distributed.run --tee
        r"\[(?P<rank>(?:rank|default|trainer|worker)_?\d{1,5})\]:? ?",
        # Ray: (Worker pid=123, ip=10.0.0.1)
        r"\((?P<rank>\w{1,60} pid=\d{1,9}(?:, ip=[\d.]{7,15})?)\) ",
        # kubectl logs --prefix
        r"\[(?P<rank>pod/[^\]\s]{1,200})\] ",
        # ros2 launch
        r"\[(?P<rank>\w[\w./-]{0,200}-\d{1,4})\] ",
        # docker compose
        r"(?P<rank>[\w.-]{1,60}) {1,20}\| ",
        # srun --label
        r"(?P<rank>\d{1,5}): ",
        # mpiexec.hydra -prepend-rank
        r"\[(?P<rank>\d{1,5})\] ",
    )
)
"""Prefixes of launchers with the process of a line. The lines of parallel processes are read separately."""
_RANK = re.compile(r"\d{1,5}: ")
"""Prefix that srun prints before a line and the builder before an error; no error begins with another prefix."""
_CODE = re.compile(r"(?<=\S )\d{1,5}: $")
_JSON_TIMES = ("time", "timestamp", "ts", "@timestamp", "asctime", "Timestamp", "observedTimestamp", "0")
_JSON_LEVELS = ("level", "severity", "levelname", "lvl", "SEVERITY", "severity_text", "severityText")

_FRONT_ENDS = (
    ("onnxruntime", "onnxruntime"),
    ("torch-tensorrt", "torch-tensorrt"),
    ("torch_tensorrt", "torch-tensorrt"),
    ("tensorrt-llm", "tensorrt-llm"),
    ("trt-llm", "tensorrt-llm"),
)
_APPLICATIONS = (
    (b"edgellm", "edge-llm"),
    (b"[llmBuilder.cpp:", "edge-llm"),
    (b"[NitrosNode]", "isaac-ros"),
    (b"[NitrosContext]", "isaac-ros"),
    (b" gxf/", "isaac-ros"),
    (b"TRITONBACKEND_", "triton"),
    (b" logging.cc:", "triton"),
    (b" model_lifecycle.cc:", "triton"),
    (b" model_repository_manager.cc:", "triton"),
)
"""Words in the lines of applications, whose loggers do not name them."""


@dataclass(slots=True)
class _CarriedLine:
    """A log line from which prefixes of other programs (timestamps, container names) are being removed."""

    text: str
    number: int
    rank: str = ""
    stamp: str = ""
    severity: str = ""


@dataclass(frozen=True, slots=True)
class _CarrierForm:
    """The form of a prefix that another program prints before builder messages: a pattern, and its groups."""

    pattern: re.Pattern[str]
    says: tuple[str, ...]
    quote: str
    shown: str


class Carrier:
    """The text that other programs print around the lines of one log. It learns new prefixes block by block.

    Attributes:
        shown: its layers in words, outermost first: `<time> [<severity>:onnxruntime] <message>`; "" if there are none.
    """

    def __init__(self) -> None:
        self._layers: list[Callable[[_CarriedLine], bool]] = []
        self._words: list[str] = []
        self._ranked = False
        self._blocks = 0
        self._rank = ""
        self._document = Document(_bears)
        self._order = Order()
        self._application = ""

    @property
    def shown(self) -> str:
        words = " in ".join(reversed(self._words))
        return ", ".join(filter(None, (words, _TURNED if self._order.newest_first else "")))

    @property
    def front_end(self) -> str:
        """The program that the logger belongs to, if its words show it; else ""."""
        words = self.shown.lower()
        return next((name for sign, name in _FRONT_ENDS if sign in words), self._application)

    def unfolded(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the text of a log, the oldest line first. Records of a JSON document become lines."""
        return self._order.oldest_first(self._document.lines(pieces))

    def decode(self, block: LogBlock) -> Iterator[tuple[str, LogBlock]]:
        """Yield the builder's lines of a block by process, without what other programs print around them."""
        if not self._application:
            head = bytes(block.data[:_BEGINNING])
            self._application = next((name for sign, name in _APPLICATIONS if sign in head), "")
        if self._strange(block):
            self._learn_from(block)
        if not self._layers:
            yield "", block
            return
        lines = [
            _CarriedLine(text, number) for text, number in zip(_texts(block.data), block.numbers, strict=True)
        ]
        lines = _decode_layers(self._layers, lines)
        if not self._ranked:
            yield "", _block(lines)
            return
        ranks: dict[str, list[_CarriedLine]] = defaultdict(list)
        self._rank = self._rank or next((line.rank for line in lines if line.rank), "")
        for line in lines:
            # A line without a rank belongs to the process of the line before it.
            self._rank = line.rank or self._rank
            ranks[self._rank].append(line)
        for name, own in ranks.items():
            yield name, _block(own)

    def _strange(self, block: LogBlock) -> bool:
        """Return True if builder messages follow a prefix that is not recognized yet."""
        self._blocks += 1
        first = self._blocks == 1
        texts = [text for text in _texts(block.data if first else block.data[:_BEGINNING]) if text]
        few = texts[:: len(texts) // (_FIRST if first else _FEW) + 1]
        if any(json_of(text) for text in few[:_ALIKE]) or (first and _table_layer(texts[:_ALIKE])):
            return True
        plain = hidden = own = 0
        for line in _decode_layers(self._layers, [_CarriedLine(text, 0) for text in few]):
            prefix = _prefix_of(line.text)
            hidden += bool(prefix)
            plain += prefix == ""
            own += prefix == "" and peel(line.text)[0].severity != ""
            if own >= _ALIKE and not hidden:
                break
        return hidden > 0 and 40 * hidden > plain

    def _learn_from(self, block: LogBlock) -> bool:
        """Find the prefixes that other programs print in this block; return True if the log has any."""
        texts = [text for text in _texts(block.data) if text.strip()]
        beginning = texts[:SAMPLE]
        texts = texts[:: len(texts) // SAMPLE + 1]
        lines = _decode_layers(self._layers, [_CarriedLine(text, 0) for text in texts])
        for _ in range(DEPTH - len(self._layers)):
            layer = (
                _json_layer(lines)
                or (None if self._layers else _table_layer(beginning))
                or self._rank_layer(lines)
                or _prefix_layer(lines)
            )
            if layer is None:
                break
            take, words = layer
            before = [line.text for line in lines]
            lines = _decode_layers([take], lines)
            if before == [line.text for line in lines]:
                break
            self._layers.append(take)
            self._words.append(words)
        return bool(self._layers)

    def _rank_layer(self, lines: list[_CarriedLine]) -> tuple[Callable[[_CarriedLine], bool], str] | None:
        for pattern in _RANKS:
            matches = [_match_rank(pattern, line.text) for line in lines]
            if sum(match is not None for match in matches) < 0.8 * len(lines):
                continue
            inner = [line.text[match.end() :] for line, match in zip(lines, matches, strict=True) if match]
            # In "4: count of 32 weights in bias" the number is an error code, and the message is recognized with or
            # without it. A number before nearly every line, including lines that are not errors, is not a code.
            before_all = len(inner) > _ALL * len(lines) and any(
                native(text) or _is_no_error(text.rstrip()) for text in inner
            )
            if not before_all and _count_understood(inner) < max(
                1, _count_understood(line.text for line in lines)
            ):
                continue
            self._ranked = True

            def take(line: _CarriedLine, pattern: re.Pattern[str] = pattern) -> bool:
                match = _match_rank(pattern, line.text)
                if match is None:
                    return False
                line.rank = f"{line.rank} {match['rank']}".strip()
                line.text = line.text[match.end() :]
                return True

            example = next(match for match in matches if match is not None)
            return take, example[0].replace(example["rank"], "<rank>").strip() + " <message>"
        return None


def _match_rank(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Match a process rank at the beginning of a line; None if the number is an error code of the message.

    An error code occurs again in the line, after "Error Code".
    """
    match = pattern.match(text)
    is_code = match is not None and f"Error Code {match['rank']}:" in text[match.end() : _LONGEST]
    return None if is_code else match


def _decode_layers(
    layers: Sequence[Callable[[_CarriedLine], bool]], lines: list[_CarriedLine]
) -> list[_CarriedLine]:
    """Return the lines without the prefixes of these programs. A JSON message may become several lines."""
    for take in layers:
        out: list[_CarriedLine] = []
        for line in lines:
            take(line)
            if "\n" in line.text or "\r" in line.text:
                pieces = [piece for piece in _LINE_END.split(line.text) if piece.strip()] or [""]
                out += [
                    _CarriedLine(piece, line.number, line.rank, line.stamp, line.severity) for piece in pieces
                ]
            else:
                out.append(line)
        lines = out
    return lines


def _block(lines: list[_CarriedLine]) -> LogBlock:
    """Return decoded lines as a block; removed times and severities become prefixes of the builder."""
    texts = []
    for line in lines:
        text = line.text
        if (line.severity or line.stamp) and text:
            prefix, body = peel(text)
            stamp, severity = prefix.stamp or line.stamp, prefix.severity or line.severity
            # A container stamps every line, including continuation lines of a message.
            if severity and not prefix.stamp:
                text = f"[{stamp}] [{severity}] [TRT] {body}" if stamp else f"[{severity}] [TRT] {body}"
        texts.append(text)
    data = ("\n".join(texts) + "\n").encode("utf-8", "surrogateescape")
    numbers: Sequence[int] = [line.number for line in lines]
    if numbers and len(numbers) == numbers[-1] - numbers[0] + 1:
        numbers = range(numbers[0], numbers[-1] + 1)
    return LogBlock(data, numbers)


def _texts(data: bytes) -> list[str]:
    return data.decode("utf-8", "surrogateescape").split("\n")[:-1]


def _prefix_of(text: str) -> str | None:
    """Return the text before a builder's pattern; "" if the reader understands the whole line, None if there is no pattern."""
    head = text[:_LONGEST]
    rank = _RANK.match(text)
    if rank is not None and (native(text, rank.end()) or _is_no_error(text[rank.end() :].rstrip())):
        return rank[0]
    prefix, body = peel(text)  # read the whole message: a name may be longer than any prefix
    body = body.rstrip()
    if _reads(body):
        return ""
    message_read = grammar().read(body)
    if message_read is not None and message_read[0] not in _VAGUE:
        return "" if prefix.severity else None
    for border in islice(_BORDER.finditer(head), _BORDERS):
        message = _strip_quotes(text[border.end() :].rstrip(), head[: border.end()])
        message = peel(message)[1]
        if _reads(message):
            return head[: border.end()]
    return None if message_read is None else ""


def _count_understood(texts: Iterable[str]) -> int:
    """Count the lines that contain a builder message, at their beginning or after a prefix."""
    return sum(_prefix_of(text) is not None for text in texts)


@lru_cache(maxsize=4096)
def _reads(message: str) -> bool:
    """Return True if only builders print this message."""
    bare = without_position(message)
    if bare is not None and ".py:" in message[: -len(bare)]:
        bare = None  # the builder has no Python code, so this source position belongs to the logger's prefix
    for text in (message, bare):
        parsed = grammar().read(text) if text else None
        if parsed is not None and parsed[0] not in _ANYWHERE | _VAGUE:
            return True
    return False


def _is_no_error(message: str) -> bool:
    """Return True if builders print this message, but never after an error code."""
    parsed = grammar().read(message)
    return parsed is not None and parsed[0] not in _ERRORS | _VAGUE


def _strip_quotes(message: str, prefix: str) -> str:
    quote = prefix[-1:]
    if quote in _QUOTES and quote and message.endswith(quote):
        return message[:-1].replace("\\" + quote, quote)
    return message


# Prefixes


def _prefix_layer(lines: list[_CarriedLine]) -> tuple[Callable[[_CarriedLine], bool], str] | None:
    """Return a function that removes another program's prefixes, and their form as text; None if absent."""
    prefixes = [_prefix_of(line.text) for line in lines]
    carried = [prefix for prefix in prefixes if prefix and _outer(prefix)]
    plain = sum(1 for prefix in prefixes if prefix == "")
    if not carried or 40 * len(carried) < plain:
        return None
    forms = _forms(carried, len(lines), frozenset(_before_own(lines, prefixes)))
    if not forms:
        return None

    def take(line: _CarriedLine) -> bool:
        if native(line.text):
            return False
        for form in forms:
            match = form.pattern.match(line.text)
            if match is not None:
                _take_fields(line, match, form)
                return True
        return False

    return take, forms[0].shown


def _take_fields(line: _CarriedLine, match: re.Match[str], form: _CarrierForm) -> None:
    # Logs print hundreds of lines in a second with the same few prefixes.
    stamp, severity = _stamp_and_severity(form.says, match.groups())
    line.stamp, line.severity = stamp or line.stamp, severity or line.severity
    text = line.text[match.end() :]
    line.text = _strip_quotes(text.rstrip(), form.quote) if form.quote else text


@lru_cache(maxsize=4096)
def _stamp_and_severity(kinds: tuple[str, ...], values: tuple[str, ...]) -> tuple[str, str]:
    """Return the time stamp and the severity in a prefix; "" for each one that is missing."""
    stamp = severity = ""
    for kind, value in zip(kinds, values, strict=True):
        if kind == "time":
            stamp = stamp_of(value) or stamp
        else:
            severity = SEVERITY_WORDS.get(value.lower(), value[0] if value[0] in "VIWEFX" else "V")
    return stamp, severity


def _before_own(lines: list[_CarriedLine], prefixes: Sequence[str | None]) -> Iterator[str]:
    """Yield the prefixes of other programs that stand before the builder's own prefix."""
    for line, prefix in zip(lines, prefixes, strict=True):
        if prefix and (native(line.text, len(prefix)) or native(prefix, len(_outer(prefix)))):
            yield prefix


def _forms(prefixes: list[str], lines: int, own: AbstractSet[str]) -> list[_CarrierForm]:
    """Return the forms of the prefixes found in a block of `lines` lines, the most frequent first.

    A form without time and severity must be before most lines, or always before the builder's own prefix (`own`). If
    a message has several lines, launchers print the form only once.
    """
    groups: dict[tuple[str, ...], list[list[re.Match[str]]]] = defaultdict(list)
    owned: Counter[tuple[str, ...]] = Counter()
    for prefix in prefixes:
        tokens = list(_TOKEN.finditer(_outer(prefix)))
        key = tuple(token[0] if token.lastgroup == "mark" else token.lastgroup or "" for token in tokens)
        groups[key].append(tokens)
        owned[key] += prefix in own
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    forms = []
    for key, members in ordered[:_MOST]:
        telling = any(part in ("time", "severity", "glog") for part in key)
        usual = 2 * len(members) > max(lines, 2 * _ENOUGH) or owned[key] == len(members) >= _ENOUGH
        if telling or (usual and _same_words(key, members)):
            forms.append(_form(key, members))
    return forms


def _outer(prefix: str) -> str:
    """Return a prefix without an error code and without the builder's own prefix at its end."""
    prefix = _CODE.sub("", prefix)
    for at in range(len(prefix)):
        own = native(prefix, at)
        if own and own.end() > at and own.end() >= len(prefix.rstrip(_QUOTES)):
            return prefix[:at]
    return prefix


def _same_words(key: tuple[str, ...], members: list[list[re.Match[str]]]) -> bool:
    """Return True if each word of this form is equal in all lines, so that no word is part of a message."""
    return all(
        len({tokens[at][0] for tokens in members}) == 1 for at, part in enumerate(key) if part == "word"
    )


def _form(key: tuple[str, ...], members: list[list[re.Match[str]]]) -> _CarrierForm:
    pieces, shown, says = [], [], []
    for at, part in enumerate(key):
        texts = {tokens[at][0] for tokens in members}
        if part in ("time", "severity", "glog"):
            pieces.append(f"({_CLASSES[part]})")
            says.append(part)
            shown.append(_SHOWN[part])
        elif part == "number":
            pieces.append(_CLASSES[part])
            shown.append(_SHOWN[part])
        elif part == "word" and (len(texts) > 1 or "." in next(iter(texts))):
            # A source file of the logging program; other messages come from other files.
            pieces.append(_CLASSES[part])
            shown.append(_SHOWN[part])
        elif part == "space":
            pieces.append(_CLASSES[part])
            shown.append(" ")
        else:
            text = next(iter(texts))
            pieces.append(re.escape(text))
            shown.append(text)
    quote = key[-1] if key[-1] in _QUOTES else ""
    return _CarrierForm(
        pattern=re.compile("".join(pieces)),
        says=tuple(says),
        quote=quote,
        shown="".join(shown) + "<message>" + quote,
    )


# JSON and CSV


def _bears(text: str) -> bool:
    """Return True if a text contains a builder message, after any prefix."""
    return _prefix_of(text) is not None


def _json_layer(lines: list[_CarriedLine]) -> tuple[Callable[[_CarriedLine], bool], str] | None:
    """Find the member of JSON lines that holds builder messages; its name differs between collectors of logs."""
    member = message_member((json_of(line.text) for line in lines), _bears)
    if not member:
        return None

    def take(line: _CarriedLine) -> bool:
        value = json_of(line.text)
        records = [record for record in records_of(value) if member in record]
        if not records:
            return False
        line.text = "\n".join(record[member] for record in records)
        # Time and severity are beside the message, or else in the enclosing record.
        for record in [*records_of(value), records[0]]:
            stamp = next((record[name] for name in _JSON_TIMES if name in record), "")
            level = next((record[name] for name in _JSON_LEVELS if name in record), "")
            line.stamp = stamp_of(stamp) or line.stamp
            line.severity = SEVERITY_WORDS.get(level.lower(), line.severity)
        return True

    shown = '[..., "<message>"]' if member.isdigit() else f'{{"{member}": "<message>", ...}}'
    return take, shown


_USUAL = 0.8
"""Share of the rows of a table that have a time."""
_TIME_CELL = re.compile("|".join(_TIMES))
_QUOTED_CELL = re.compile(r"(?:^|[,;\t])\".*\"(?:[,;\t]|$)")


def _table_layer(texts: list[str]) -> tuple[Callable[[_CarriedLine], bool], str] | None:
    """Find the column of a table that holds builder messages."""
    table = sheet_of(texts, _bears)
    if table is None:
        return None
    sheet, rows = table
    messages = [cells[sheet.column] for cells in rows]
    times = Counter(at for cells in rows for at, cell in enumerate(cells) if _TIME_CELL.fullmatch(cell))
    # After the comma in a logger's time, the rest of its prefix follows: "21:52:52,123 - TRT - DEBUG - ...".
    own = sum(_prefix_of(message) == "" for message in messages)
    carried = sum(map(_bears, messages))
    if max(times.values(), default=0) < _USUAL * len(rows) or own < _USUAL * carried:
        # Messages contain commas, so some cells must be quoted. Without quoted cells, the lines are the builder's own.
        quoted = sum(_QUOTED_CELL.search(text) is not None for text in texts)
        plain = sum(_prefix_of(text) == "" for text in texts)
        # A cell with several lines is quoted; all its lines except the first look like the builder's own.
        most = quoted >= _USUAL * len(texts) or len(rows) < _USUAL * len(texts)
        if not quoted or (not most and 40 * plain > carried):
            return None
    return _TableLayer(sheet), sheet.shown()


class _TableLayer:
    """Removes the cells around a builder message in a table. A cell may continue in the next line."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._begun = 0

    def __call__(self, line: _CarriedLine) -> bool:
        if self._begun:
            last = self._sheet.ended(line.text)
            self._begun = 0 if last is not None else (self._begun + 1) % _GOES_ON
            line.text = self._sheet.bare(line.text) if last is None else last
            return True
        cells = self._sheet.cells(line.text)
        if cells is None:
            cells = self._sheet.begun(line.text)
            self._begun = int(cells is not None)
        if cells is None:
            return False
        line.text = "" if line.number == 1 and is_header(cells) else cells[self._sheet.column]
        for cell in cells:
            line.stamp = stamp_of(cell) or line.stamp
            line.severity = SEVERITY_WORDS.get(cell.lower(), line.severity)
        return True


# Time stamps

_DATED = tuple(
    re.compile(form)
    for form in (
        r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d)",
        r"(\d\d)/(\d\d)/(\d{4})-(\d\d:\d\d:\d\d)",
    )
)
_SINCE_1970 = re.compile(r"\d{9,10}\.\d{1,9}|1\d{12}|1\d{18}")
_MONTH = re.compile(r"([A-Z][a-z]{2}) (\d{1,2}), (\d{4}) @ (\d\d:\d\d:\d\d)")
"""Format of Kibana's times."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def stamp_of(text: str) -> str:
    """Convert a time in any usual format to the builder's format; "" for other texts."""
    for form in _DATED:
        match = form.match(text)
        if match:
            first, second, third, clock = match.groups()
            return (
                f"{second}/{third}/{first}-{clock}"
                if len(first) == 4
                else f"{first}/{second}/{third}-{clock}"
            )
    if _SINCE_1970.fullmatch(text):
        # In seconds, milliseconds or nanoseconds.
        seconds = float(text) if "." in text else int(text[:10])
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%m/%d/%Y-%H:%M:%S")
    named = _MONTH.match(text)
    if named and named[1] in _MONTHS:
        return f"{_MONTHS.index(named[1]) + 1:02d}/{int(named[2]):02d}/{named[3]}-{named[4]}"
    return ""
