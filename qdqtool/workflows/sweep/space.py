"""What a sweep may choose, as names that a study can store and settings that a recipe understands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from glob import escape
from itertools import product
from math import prod

from qdqtool.core.recipe import SweepOptions
from qdqtool.core.sweep import Value
from qdqtool.errors import UsageError
from qdqtool.workflows import recipes

KEEP = "keep_float"
Choice = Mapping[str, Value]


class Space:
    """All choices of a sweep; a choice has one value for every name."""

    def __init__(
        self, options: SweepOptions, ranking: tuple[str, ...], excluded: tuple[str, ...] = ()
    ) -> None:
        """Take the recipe's section, the quantized nodes, most sensitive first, and what is float anyway.

        Raises:
            UsageError: nothing to choose from, or a key or value that no recipe knows; all mistakes at once.
        """
        self._ranking = ranking
        self._excluded = excluded
        counts = sorted({min(count, len(ranking)) for count in options.keep_float})
        self.values: dict[str, tuple[Value, ...]] = {
            **{key: tuple(dict.fromkeys(values)) for key, values in sorted(options.space.items())},
            KEEP: tuple(counts) or (0,),
        }
        empty = [key for key, values in self.values.items() if not values]
        if empty or all(len(values) == 1 for values in self.values.values()):
            raise UsageError(
                f"leaves nothing to search{': no values for ' + ', '.join(empty) if empty else ''}",
                fix="give at least one key two values, such as calibrate.method: [max, entropy]",
                where="sweep.space",
            )
        for key, values in self.values.items():
            for value in values if key != KEEP else ():
                recipes.load(None, [_setting(key, value)])

    @property
    def size(self) -> int:
        """How many choices there are."""
        return prod(map(len, self.values.values()))

    def grid(self) -> Iterator[dict[str, Value]]:
        """Every choice, the last name changing fastest."""
        for values in product(*self.values.values()):
            yield dict(zip(self.values, values, strict=True))

    def kept(self, choice: Choice) -> tuple[str, ...]:
        """The nodes that stay float under `choice`."""
        return self._ranking[: int(choice[KEEP])]

    def settings(self, choice: Choice) -> tuple[str, ...]:
        """`choice` as `--set` takes it."""
        changes = [_setting(key, value) for key, value in choice.items() if key != KEEP]
        kept = [*self._excluded, *(escape(name) for name in self.kept(choice))]
        return (*changes, *([f"place.exclude={json.dumps(kept)}"] if self.kept(choice) else []))


def _setting(key: str, value: Value) -> str:
    return f"{key}={json.dumps(value)}"
