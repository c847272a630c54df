"""Contents of other files of trtexec and of NVIDIA's explorer: times, profile, outputs, options, device.

--exportTimes      [{"computeMs": ..., "latencyMs": ...}, ...]
--exportOutput     [{"name": "y", "dimensions": "1x10", "values": [...]}, ...]
--exportProfile    [{"count": 1410}, {"name": "conv1", "averageMs": ...}, ...]
*.metadata.json    {"model_options": {...}, "build_options": {...}, "performance_summary": {...}, ...}
device metadata    [{"Name": "NVIDIA A100 80GB PCIe", "ComputeCapability": [8, 0], ...}]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

from qdqtool.core.explore import TimeSpread
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError
from qdqtool.io.json_files import number, parse_json
from qdqtool.io.text import text_of

# --- facts of a file -------------------------------------------------------------------------------------------------

_SLOWEST = 5
"""Most layers of a profile that are listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One fact about a file that trtexec exported: heading, subject, and value in words."""

    heading: str
    name: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Facts about a file that trtexec exported: times, outputs or options.

    Attributes:
        form: "times", "outputs", "profile", "options" or "device".
        facts: in the order of the file.
    """

    form: str
    facts: tuple[Fact, ...]


def about(path: Path) -> About:
    """Describe the contents of the file at `path`.

    Raises:
        InputFileError: unreadable, or in none of the known forms.
    """
    try:
        value = parse_json(text_of(path), str(path))
    except (ValueError, RecursionError) as error:
        raise _unknown(path) from error
    for form, read in _FORMS.items():
        facts = tuple(read(value))
        if facts:
            return About(form=form, facts=facts)
    raise _unknown(path)


def _times(value: Any) -> Iterator[Fact]:
    for span in spans_of(value):
        text = f"mean {span.mean:.6g}, median {span.median:.6g}, p99 {span.p99:.6g}, {span.low:.6g} to {span.high:.6g} ms"
        yield Fact(
            heading="times", name=span.name, value=f"{text} over {count_noun(span.count, 'inference')}"
        )


def _outputs(value: Any) -> Iterator[Fact]:
    for name, values in outputs_of(value).items():
        stated = [value for value in values if isinstance(value, (int, float))]
        numbers = list(filter(isfinite, stated))
        spread = f", {min(numbers):.6g} to {max(numbers):.6g}" if numbers else ""
        spread += f", {len(stated) - len(numbers)} not finite" if len(numbers) < len(stated) else ""
        yield Fact(heading="outputs", name=name, value=f"{count_noun(len(values), 'value')}{spread}")


def _options(value: Any) -> Iterator[Fact]:
    for heading, entries in value.items() if isinstance(value, Mapping) else ():
        for name, entry in entries.items() if isinstance(entries, Mapping) else ():
            yield Fact(heading=heading, name=name, value=_words(entry))


def _profile(value: Any) -> Iterator[Fact]:
    rows = value if isinstance(value, list) else ()
    times = [
        (str(row["name"]), float(row["averageMs"]))
        for row in rows
        if isinstance(row, Mapping) and "name" in row and isinstance(row.get("averageMs"), (int, float))
    ]
    whole = sum(ms for _, ms in times)
    if whole:
        yield Fact(heading="profile", name="layers", value=f"{len(times)}, {whole:.6g} ms together")
    for name, ms in sorted(times, key=lambda row: -row[1])[:_SLOWEST] if whole else ():
        yield Fact(heading="profile", name=name, value=f"{ms:.6g} ms, {ms / whole:.1%}")


def _device(value: Any) -> Iterator[Fact]:
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, Mapping) and "ComputeCapability" in entry:
            for name, figure in entry.items():
                yield Fact(heading="device", name=name, value=_words(figure))


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_FORMS: dict[str, Callable[[Any], Iterator[Fact]]] = {
    "times": _times,
    "outputs": _outputs,
    "profile": _profile,
    "device": _device,
    "options": _options,
}


def _unknown(path: Path) -> InputFileError:
    return InputFileError(
        "the file contains no times, profile, outputs, options or device",
        fix="pass a JSON file of trtexec --exportTimes, --exportProfile or --exportOutput, or a metadata file",
        where=str(path),
    )


# --- times of whole inferences ---------------------------------------------------------------------------------------
# Times of whole inferences: the JSON of trtexec --exportTimes.
#
# [{"startEnqMs": 4.1, ..., "h2dMs": 0, "computeMs": 0.909, "d2hMs": 0, "latencyMs": 0.909}, ...]
#
# Releases up to 8.0 call the transfers by other names and add a time from one to the next:
#
# [{"startInMs": 1.0, ..., "inMs": 0.1, "computeMs": 1.0, "outMs": 0.1, "latencyMs": 1.2, "endToEndMs": 1.3}, ...]

_QUANTITIES = {
    "latency": ("latencyMs",),
    "compute": ("computeMs",),
    "h2d": ("h2dMs", "inMs"),
    "d2h": ("d2hMs", "outMs"),
    "end to end": ("endToEndMs",),
}
"""Measured quantities, with their names in each release."""


def spans_of(value: Any) -> tuple[TimeSpread, ...]:
    """Return statistics of the measured times (in ms) that are available, in the order of `_QUANTITIES`."""
    records = [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    spans = (_span(name, spellings, records) for name, spellings in _QUANTITIES.items())
    return tuple(span for span in spans if span is not None)


def _span(name: str, spellings: tuple[str, ...], records: list[Mapping[str, Any]]) -> TimeSpread | None:
    numbers = (number(record.get(spelling)) for record in records for spelling in spellings)
    values = sorted(value for value in numbers if value is not None)
    if not values:
        return None
    return TimeSpread(
        name=name,
        count=len(values),
        low=values[0],
        high=values[-1],
        mean=fmean(values),
        median=median(values),
        p99=values[min(len(values) - 1, round(0.99 * (len(values) - 1)))],
    )


# --- outputs of one inference ----------------------------------------------------------------------------------------
# Outputs of one inference: the JSON of trtexec --exportOutput.
#
# [{"name": "y", "dimensions": "1x10", "values": [0.1, ...]}, ...]

Values = dict[str, list[object]]


def same_outputs(first: Path, second: Path) -> bool:
    """Return True if two files have the same tensors with the same values, to the last printed digit.

    Raises:
        InputFileError: a file is unreadable or holds no outputs.
    """
    ours, theirs = (
        {name: list(map(repr, values)) for name, values in read_outputs(path).items()}
        for path in (first, second)
    )
    return ours == theirs


def read_outputs(path: Path) -> Values:
    """Return the values of every network output in a file, flattened, by name.

    Raises:
        InputFileError: unreadable, or no list of outputs.
    """
    try:
        entries = parse_json(text_of(path), str(path))
    except (ValueError, RecursionError) as error:
        raise _not_outputs(path) from error
    outputs = outputs_of(entries)
    if not outputs:
        raise _not_outputs(path)
    return outputs


def outputs_of(value: Any) -> Values:
    """Return the values of every network output in parsed JSON; empty if there are none."""
    outputs: Values = {}
    for entry in value if isinstance(value, list) else []:
        name, values = (
            (entry.get("name"), entry.get("values")) if isinstance(entry, Mapping) else (None, None)
        )
        if isinstance(name, str) and isinstance(values, list):
            outputs[name] = values
    return outputs


def _not_outputs(path: Path) -> InputFileError:
    return InputFileError(
        "the file holds no outputs", fix="pass the file of trtexec --exportOutput", where=str(path)
    )
