"""The grammar of layer names.

conv1 + relu1             one after the other in one layer
conv1 || conv2            side by side in one layer
PWN(PWN(sigmoid), mul)    pointwise operations, nested
{ForeignNode[a...b]}      a region from a to b
conv1 [profile 1]         for the second optimization profile
conv1_myl0_3              third kernel of the first Myelin graph
"""

from __future__ import annotations

import re

_PROFILE = re.compile(r" \[profile (\d{1,4})\]")
_KERNEL = re.compile(r"_myl\d+_\d+$")
_MADE_UP = re.compile(
    r"\(Unnamed Layer|Reformatt|reshape_(?:before|after)_|(?:copied_)?(?:un)?squeeze_|\{ForeignNode|__my|_gem[mv]_mha|\[train"
)
_WEIGHT = re.compile(r"(?:^|[._/])(?:weight|bias|kernel|gamma|beta)s?(?:_[a-z0-9]+)?$", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


def profile_of(name: str) -> int | None:
    """The optimization profile that ` [profile N]` in `name` states, or None."""
    mark = _PROFILE.search(name)
    return int(mark[1]) if mark else None


def without_mark(name: str) -> str:
    """`name` without ` [profile N]`."""
    return _PROFILE.sub("", name)


def normalized(name: str) -> str:
    """`name` without optimization profile, PWN() and double spaces: equal for the spellings of different tools."""
    return _SPACE.sub(" ", _without_pointwise(without_mark(name))).strip()


def stem(name: str) -> str:
    """`name` without the number of its kernel."""
    return _KERNEL.sub("", name)


def parts(name: str) -> tuple[str, ...]:
    """The names that a layer's name is made of, in their order."""
    pieces = re.split(r" \+ | \|\| ", normalized(stem(name)))
    return tuple(piece.strip() for piece in pieces if piece.strip())


def probable_nodes(name: str) -> tuple[str, ...]:
    """The ONNX nodes that a layer's name seems to hold: an inference, for layers without metadata.

    Left out are names that the builder made up (reformats, unnamed layers, regions, generated kernels) and weights.
    """
    if _MADE_UP.match(normalized(name)):
        return ()
    return tuple(part for part in parts(name) if not _MADE_UP.match(part) and not _WEIGHT.search(part))


def _without_pointwise(name: str) -> str:
    """PWN(...) replaced by what is inside; other brackets stay."""
    if "PWN(" not in name:
        return name
    kept: list[str] = []
    opened: list[bool] = []
    at = 0
    while at < len(name):
        pointwise = name.startswith("PWN(", at)
        character = name[at]
        if pointwise or character == "(":
            opened.append(pointwise)
        closes = character == ")" and bool(opened)
        if pointwise:
            at += 4
            continue
        if not (closes and opened.pop()):
            kept.append(" +" if character == "," and opened and opened[-1] else character)
        at += 1
    return "".join(kept)
