"""Shapes of dynamic inputs: parsing of trtexec's spelling, and optimization profiles.

    parse_shapes("input:1x3x224x224,tokens:1x128")   {"input": (1, 3, 224, 224), "tokens": (1, 128)}

A scalar is spelled `name:` or `name:scalar`. Names may contain colons and commas, and may be in single quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from qdqtool.core.protocols import InputProfile, Shape
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError

Shapes = Mapping[str, Shape]

_ENTRY = re.compile(r"(?P<name>.+?):(?P<dims>\d+(?:x\d+)*|scalar|)(?:,|$)", re.DOTALL)
_EXAMPLE = "write shapes like those of trtexec: input:1x3x224x224,other:1x8"


def parse_shapes(text: str) -> dict[str, Shape]:
    """Parse the shapes in `text`; empty text means no shapes.

    Raises:
        UsageError: the text is not of the form `name:AxBxC,...`, or names an input twice.
    """
    shapes: dict[str, Shape] = {}
    remaining = text.strip()
    while remaining:
        entry = _ENTRY.match(remaining)
        if entry is None:
            raise UsageError(f"cannot read the shapes at {remaining!r}", fix=_EXAMPLE, where=text)
        name = entry["name"].strip().removeprefix("'").removesuffix("'")
        if name in shapes:
            raise UsageError(f"the input {name!r} has two shapes", fix="pass one shape per input", where=text)
        dims = entry["dims"]
        shapes[name] = tuple(int(dim) for dim in dims.split("x")) if dims[:1].isdigit() else ()
        remaining = remaining[entry.end() :]
    return shapes


def format_shapes(shapes: Shapes) -> str:
    """Format shapes as `parse_shapes` reads them."""
    return ",".join(f"{name}:{_spell(shape)}" for name, shape in shapes.items())


def profiles(
    inputs: tuple[TensorInfo, ...], low: Shapes, opt: Shapes, high: Shapes, sample_shapes: Shapes
) -> tuple[tuple[InputProfile, ...], tuple[str, ...]]:
    """Return the optimization profile of every dynamic input, and a note for each shape that was assumed.

    A missing shape is copied from a given one (the usual shape first). Without any, the samples decide.

    Raises:
        UsageError: an unknown input, a shape that does not fit the model, or no shape at all; all mistakes at once.
    """
    entries: list[InputProfile] = []
    notes: list[str] = []
    mistakes = unknown_inputs(inputs, (low, opt, high))
    for info in inputs:
        limits = [shapes.get(info.name) for shapes in (low, opt, high)]
        stated = [shape for shape in (limits[1], limits[0], limits[2]) if shape is not None]
        if not stated and not info.is_static and info.name in sample_shapes:
            shape = sample_shapes[info.name]
            stated = [shape]
            notes.append(f"input {info.name!r} is dynamic and no shape was given: built for {_spell(shape)}")
        if not stated:
            if not info.is_static:
                mistakes.append(f"input {info.name!r} is dynamic and has no shape")
            continue
        smallest, usual, largest = (shape if shape is not None else stated[0] for shape in limits)
        profile = InputProfile(name=info.name, low=smallest, opt=usual, high=largest)
        mistakes += _misfits(info, profile)
        if not info.is_static:
            entries.append(profile)
    if mistakes:
        raise UsageError("; ".join(mistakes), fix=f"--min-shapes, --opt-shapes, --max-shapes: {_EXAMPLE}")
    return tuple(entries), tuple(notes)


def usual_of(profiles: Iterable[InputProfile]) -> dict[str, Shape]:
    """Return the usual shape of each dynamic input of these profiles."""
    return {profile.name: profile.opt for profile in profiles if not profile.is_value}


_HEIGHT_WIDTH, _TOKENS = 224, 128
"""Usual height and width of images, and usual length of texts, if the model leaves their size open."""
_COLOURS = frozenset({1, 3, 4})


def usual_shapes(
    inputs: tuple[TensorInfo, ...], lengths_of: Mapping[str, int] | None = None
) -> dict[str, Shape]:
    """Propose a shape for every dynamic input of known rank. Equal symbols get equal lengths.

    The batch is 1: the first dimension, and the middle one of a recurrent state. The dynamic height and width of a
    picture (rank 4 with 1, 3 or 4 channels) are 224, every other dynamic dimension is 128. A symbol that is a sum of
    others, such as "past_sequence_length + sequence_length" for the mask of a decoder, is as long as they are
    together. `lengths_of` are lengths of symbols, which take precedence.
    """
    lengths: dict[str, int] = dict(lengths_of or {})
    shapes: dict[str, Shape] = {}
    for info in inputs:
        if info.shape is None or info.is_static:
            continue
        size = _HEIGHT_WIDTH if _is_picture(info.shape) else _TOKENS
        for place, dim in enumerate(info.shape):
            if isinstance(dim, str):
                lengths.setdefault(dim, 1 if place == batch_place(info.shape) else size)
    for symbol in lengths.keys() - (lengths_of or {}).keys():
        parts = [part.strip() for part in symbol.split("+")]
        if len(parts) > 1 and all(part in lengths or part.isdigit() for part in parts):
            lengths[symbol] = sum(int(part) if part.isdigit() else lengths[part] for part in parts)
    for info in inputs:
        if info.shape is not None and not info.is_static:
            shapes[info.name] = tuple(dim if isinstance(dim, int) else lengths[dim] for dim in info.shape)
    return shapes


def spell_shapes(shapes: Shapes) -> str:
    """Format shapes as `parse_shapes` reads them."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def batch_place(shape: Sequence[int | str]) -> int:
    """Return the position of the batch dimension: the first, or the dynamic one of a state [layers, batch, channels]."""
    match tuple(shape):
        case (int(layers), str(), int()) if layers > 1:
            return 1
    return 0


def _is_picture(shape: Sequence[int | str]) -> bool:
    """Return True if a shape is that of images with 1, 3 or 4 channels.

    With 4 channels, at least two other dimensions must be dynamic: a cache of four heads has only one.
    """
    free = sum(isinstance(dim, str) for dim in shape[1:])
    channels = {shape[1], shape[3]} & _COLOURS if len(shape) == 4 else set()
    return bool(channels - {4}) or (bool(channels) and free > 1)


def several_profiles(
    inputs: tuple[TensorInfo, ...],
    low: Sequence[str],
    opt: Sequence[str],
    high: Sequence[str],
    usual: Shapes,
) -> tuple[tuple[InputProfile, ...], tuple[str, ...]]:
    """Return one optimization profile per text: the first of each list is profile 0, the second profile 1, and so on.

    `usual` are the shapes of inputs that a text does not name.

    Raises:
        UsageError: lists of different lengths, and all errors of `profiles`.
    """
    count = max(len(low), len(opt), len(high), 1)
    if {len(low), len(opt), len(high)} - {0, count}:
        raise UsageError(
            f"got {len(low)} smallest, {len(opt)} usual and {count_noun(len(high), 'largest shape')} for {count_noun(count, 'profile')}",
            fix="repeat --min-shapes, --opt-shapes and --max-shapes equally often, once per profile",
        )
    entries: list[InputProfile] = []
    notes: list[str] = []
    for number in range(count):
        first, middle, last = (
            parse_shapes(spelled[number]) if spelled else {} for spelled in (low, opt, high)
        )
        parts, remarks = profiles(inputs, first, middle, last, usual)
        entries += [replace(profile, number=number) for profile in parts]
        notes += remarks
    return tuple(entries), tuple(dict.fromkeys(notes))


def unknown_inputs(inputs: Sequence[TensorInfo], tables: Iterable[Mapping[str, object]]) -> list[str]:
    """Return a problem for each name in `tables` that the model lacks, with similar input names, or all of them."""
    names = [info.name for info in inputs]
    mistakes = []
    for name in sorted({name for entries in tables for name in entries} - set(names)):
        close = get_close_matches(name, names, n=1) or names
        mistakes.append(f"the model has no input {name!r} (it has {', '.join(map(repr, close))})")
    return mistakes


def _misfits(info: TensorInfo, profile: InputProfile) -> list[str]:
    mistakes = [
        f"shape {_spell(shape)} does not match input {info.name!r} with shape {_spell(info.shape or ())}"
        for shape in dict.fromkeys((profile.low, profile.opt, profile.high))
        if not info.fits(shape)
    ]
    if not mistakes:
        rising = zip(profile.low, profile.opt, profile.high, strict=True)
        if not all(smallest <= usual <= largest for smallest, usual, largest in rising):
            mistakes.append(
                f"input {info.name!r}: the shapes must not decrease from min to opt to max: "
                f"{_spell(profile.low)}, {_spell(profile.opt)}, {_spell(profile.high)}"
            )
    return mistakes


def _spell(shape: tuple[int | str, ...]) -> str:
    return "x".join(str(dim) for dim in shape) or "scalar"
