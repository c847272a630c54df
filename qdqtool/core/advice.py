"""Fixes in words: settings that a command takes as they are printed, and several fixes as one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping

_OPTION = "--set "
_LIST_SETTING = re.compile(r"--set '(?P<key>[a-z_]+\.[a-z_]+)=\[(?P<values>[^\]]*)\]'(?P<rest>.*)", re.DOTALL)

_TYPED = re.compile(
    r"`qdqtool |--\w|\b(?:place|insert|prepare|build|calibrate|compare|samples|audit)\.\w|^an edit of the model"
    r"|^(?:nothing to do|leave (?:it|this)|nothing in the model|look |check |compare |pass )|\bbuild (?:for|with|the|it)\b"
)
"""What is in a fix that can be followed as it is printed: a command, an option, a setting, another build, or nothing at all."""
_EDIT = "an edit of the model"


def setting(key: str, value: str | Mapping[str, str] | Iterable[str]) -> str:
    r"""The option that gives `value` to a key of the recipe, as a shell takes it.

    >>> setting("place.skip_rules", ["gemv", "narrow"])
    "--set 'place.skip_rules=[gemv, narrow]'"
    >>> setting("place.first_layer", "int8")
    '--set place.first_layer=int8'
    >>> setting("place.formats", {"stem": "int8"})
    '--set \'place.formats={"stem": "int8"}\''
    """
    if isinstance(value, Mapping):
        value = json.dumps(dict(value), ensure_ascii=False)
    elif not isinstance(value, str):
        value = f"[{', '.join(dict.fromkeys(value))}]"
    return f"--set {shlex.quote(f'{key}={value}')}"


def settings_in(fix: str) -> tuple[str, ...]:
    """The settings that the text of a fix names, as `recipes.load` takes them.

    >>> settings_in("--set 'place.skip_rules=[gemv]' quantizes it all the same; --set place.first_layer=int8")
    ('place.skip_rules=[gemv]', 'place.first_layer=int8')
    """
    return tuple(_first_word(piece) for piece in fix.split(_OPTION)[1:])


def _first_word(text: str) -> str:
    """The first word of a command line, as a shell reads it, without punctuation of the sentence around it."""
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.commenters = True, ""
    return (words.get_token() or "").rstrip(",;")


def told_as_edit(fix: str, at: str = "") -> str:
    """The fix, with a word in front where nothing in it can be typed: it is an edit of the model, which its maker does.

    `at` is the node that it is an edit of, where the text does not name it.

    >>> told_as_edit("store the scale as a scalar, shape []")
    'an edit of the model: store the scale as a scalar, shape []'
    >>> told_as_edit("store the scale as a scalar, shape []", "conv1/Q")
    "an edit of the model, at 'conv1/Q': store the scale as a scalar, shape []"
    >>> told_as_edit("take the pair off; `qdqtool repair` does")
    'take the pair off; `qdqtool repair` does'
    """
    if not fix or _TYPED.search(fix):
        return fix
    return f"{_EDIT}, at {at!r}: {fix}" if at and at not in fix else f"{_EDIT}: {fix}"


def joined(fixes: Iterable[str]) -> str:
    """The fixes in one text, each once; settings of one list become one setting, because the last one would win.

    >>> joined(["--set 'place.skip_rules=[a]' quantizes it", "--set 'place.skip_rules=[b]' quantizes it"])
    "--set 'place.skip_rules=[a, b]' quantizes it"
    """
    lists: dict[str, list[str]] = {}
    rests: dict[str, list[str]] = {}
    texts: list[str] = []
    for fix in dict.fromkeys(fixes):
        match = _LIST_SETTING.fullmatch(fix)
        if match is None:
            texts.append(fix)
            continue
        key = match["key"]
        if key not in lists:
            texts.append(key)
        values = [value.strip() for value in match["values"].split(",") if value.strip()]
        lists[key] = [*lists.get(key, []), *values]
        rests[key] = [*rests.get(key, []), match["rest"]]
    return "; ".join(
        setting(text, lists[text]) + " and".join(dict.fromkeys(rests[text])) if text in lists else text
        for text in texts
    )
