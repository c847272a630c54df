"""The option `--target` of every command that asks for a builder, and its older spellings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqtool.core.target import Target

TARGET_HELP = "Builder: rtx, 8, 10, 11, or a release such as 8.6.1, 10.13 or rtx-1.7.1."


def asked_target(target: str, old: str | None, spelled: str, sm: Sequence[str] = ()) -> Target:
    """The builder that was asked for; `old` is what stood behind the older option `spelled`.

    Raises:
        UsageError: no such builder or GPU architecture.
    """
    from qdqtool.cli.screen import stderr
    from qdqtool.core.target import Target

    if old is None:
        return Target.parse(target, sm)
    word = _FORMER.get(old, old)
    stderr().print(f"note: {spelled} is --target now: --target {word}", markup=False, highlight=False)
    return Target.parse(word, sm)


def comma_words(given: Sequence[str] | None) -> list[str]:
    """Words out of an option that may be repeated and hold commas: `--sm 86,89 --sm 120`."""
    return [word.strip() for entry in given or () for word in entry.split(",") if word.strip()]


_FORMER = {"classic": "10"}
"""Words of older options; all releases of TensorRT were predicted as one."""
