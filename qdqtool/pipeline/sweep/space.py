"""The choices of a sweep: names that a study can store, and settings that a recipe accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from glob import escape
from itertools import product
from math import prod

from qdqtool.core.recipe import FORMATS_OF, Recipe, SweepOptions
from qdqtool.core.sweep import Value
from qdqtool.core.wording import Setting, count_noun
from qdqtool.errors import UsageError
from qdqtool.pipeline import recipes
from qdqtool.pipeline.ranges.calibrators import competing

KEEP = "keep_float"
METHOD = "calibrate.method"
SHRINK = "range into "
"""Prefix of a node's name in a choice: the factor on the range of the activation that the node reads."""
Choice = Mapping[str, Value]


class Space:
    """All choices of a sweep. A choice has one value for each name."""

    def __init__(
        self,
        options: SweepOptions,
        ranking: tuple[str, ...],
        base: Recipe | None = None,
        reads: Mapping[str, str] | None = None,
    ) -> None:
        """Make the choices from the sweep section of the recipe, the quantized nodes (most sensitive first), and the recipe itself.

        `reads` is the quantized activation that a node reads, by the node's name.

        Raises:
            UsageError: there is nothing to choose from, or a recipe has no such key or value; lists all mistakes.
        """
        self._ranking = ranking
        self._base = base or Recipe()
        self._reads = reads or {}
        counts = _counts(options.keep_float, len(ranking))
        self.values: dict[str, tuple[Value, ...]] = {
            **{key: _values(key, values) for key, values in sorted(options.space.items())},
            KEEP: tuple(counts) or (0,),
            **{
                SHRINK + node: tuple(dict.fromkeys(options.factors))
                for node in self._list_tuned(options.tune)
            },
        }
        empty = [key for key, values in self.values.items() if not values]
        if empty or all(len(values) == 1 for values in self.values.values()):
            raise UsageError(
                f"the recipe leaves nothing to search{': no values for ' + ', '.join(empty) if empty else ''}",
                fix="give at least one key two values or more, such as calibrate.method: [max, entropy]",
                where="sweep.space",
            )
        for key, values in self.values.items():
            for value in values if not _is_own(key) else ():
                recipes.load(None, [_write_value(key, value)])

    @property
    def size(self) -> int:
        """Number of choices."""
        return prod(map(len, self.values.values()))

    def grid(self) -> Iterator[dict[str, Value]]:
        """Yield every choice. The calibrator changes fastest, because it changes the accuracy most."""
        names = sorted(self.values, key=lambda name: name == METHOD)
        for values in product(*(self.values[name] for name in names)):
            choice = dict(zip(names, values, strict=True))
            yield {name: choice[name] for name in self.values}

    def holds(self, choice: Choice) -> bool:
        """Return True if the sweep has this choice."""
        return choice.keys() == self.values.keys() and all(
            choice[name] in values for name, values in self.values.items()
        )

    def kept(self, choice: Choice) -> tuple[str, ...]:
        """Return the nodes that stay float under `choice`."""
        return self._ranking[: int(choice[KEEP])]

    def settings(self, choice: Choice) -> tuple[str, ...]:
        """Return `choice` as `--set` accepts it; the order of its names does not matter."""
        choice = {name: choice[name] for name in self.values if name in choice}
        groups = {
            key.removeprefix(FORMATS_OF): value for key, value in choice.items() if key.startswith(FORMATS_OF)
        }
        plain = (key for key in choice if not _is_own(key) and not key.startswith(FORMATS_OF))
        changes = [_setting(key, choice[key]) for key in plain]
        if groups:
            # Patterns of the sweep come first, because the first match wins.
            own_formats = {
                glob: name for glob, name in self._base.place.formats.items() if glob not in groups
            }
            changes.append(_setting("place.formats", {**groups, **own_formats}))
        if self.kept(choice):
            kept = [*self._base.place.exclude, *(escape(name) for name in self.kept(choice))]
            changes.append(_setting("place.exclude", kept))
        factors = self._factors(choice)
        if factors:
            changes.append(
                _setting("calibrate.shrink", {**factors, **_others(self._base.calibrate.shrink, factors)})
            )
        return tuple(changes)

    def _list_tuned(self, most: int) -> list[str]:
        """Return at most `most` nodes whose ranges are searched, the most sensitive first.

        If several nodes read the same tensor, return only the most sensitive of them.
        """
        first = {self._reads[node]: node for node in reversed(self._ranking) if node in self._reads}
        return [node for node in self._ranking if node in first.values()][:most]

    def _factors(self, choice: Choice) -> dict[str, Value]:
        return {
            escape(self._reads[key.removeprefix(SHRINK)]): value
            for key, value in choice.items()
            if key.startswith(SHRINK) and value != 1
        }


def groups_of(options: SweepOptions) -> tuple[str, ...]:
    """Return the globs of nodes for which formats are searched."""
    return tuple(key.removeprefix(FORMATS_OF) for key in options.space if key.startswith(FORMATS_OF))


def _counts(counts_given: tuple[int, ...], nodes: int) -> list[int]:
    """Return the numbers of nodes to keep float that leave at least one of `nodes` quantized, sorted."""
    if not nodes:
        return []
    counts = sorted({count for count in counts_given if count < nodes})
    if not counts:
        raise UsageError(
            f"the setting keeps all {count_noun(nodes, 'quantized node')} float, so nothing is left to quantize",
            fix=f"keep fewer nodes float: {Setting('sweep.keep_float', '[0,1]')}",
            where="sweep.keep_float",
        )
    return counts


def _values(key: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the values of a sweep key without repetitions; "all" means all calibrators that are compared."""
    spelled = [
        spelling
        for value in values
        for spelling in (competing() if key == METHOD and value == "all" else (value,))
    ]
    return tuple(dict.fromkeys(spelled))


def _others(shrink: Mapping[str, float], factors: Mapping[str, Value]) -> dict[str, float]:
    return {pattern: factor for pattern, factor in shrink.items() if pattern not in factors}


def _is_own(key: str) -> bool:
    """Return True if a name is a choice of the sweep itself, not a key of the recipe."""
    return key == KEEP or key.startswith(SHRINK)


def _write_value(key: str, value: object) -> str:
    """Return one value of a sweep key as a setting of the recipe."""
    if key.startswith(FORMATS_OF):
        return _setting(FORMATS_OF.removesuffix("."), {key.removeprefix(FORMATS_OF): value})
    return _setting(key, value)


def _setting(key: str, value: object) -> str:
    return f"{key}={json.dumps(value)}"
