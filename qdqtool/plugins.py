"""Shelves of plug-ins: a plug-in is a file, its name the file's name, its plug the constant `PLUGIN`.

A shelf is a package. Whoever adds a file to it has added a plug-in; nothing is registered. Other distributions
put theirs on the same shelf through a Python entry point in the group named like the package
(`[project.entry-points."qdqtool.auditing.checks"]`).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from qdqtool.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """The plug-ins of one package, found by name and loaded on use.

    Attributes:
        package: dotted name of the package that is the shelf.
        besides: modules of that package that are not plug-ins.
    """

    package: str
    besides: frozenset[str] = frozenset()

    def names(self) -> tuple[str, ...]:
        """All plug-in names in alphabetical order, found without importing any of them."""
        path = importlib.import_module(self.package).__path__
        own = {module.name for module in pkgutil.iter_modules(path)}
        own = {name for name in own if not name.startswith("_")} - self.besides
        return tuple(sorted(own | set(self._guests())))

    def load(self, name: str) -> Any:
        """The constant `PLUGIN` of the plug-in called `name`.

        Raises:
            UsageError: there is no such plug-in on this shelf, or its file holds no `PLUGIN`.
        """
        return self._attribute(name, "PLUGIN")

    def manual(self, name: str) -> str:
        """The documentation a user reads: the docstring of the plug-in's file."""
        return inspect.cleandoc(self._attribute(name, "__doc__") or "")

    def _attribute(self, name: str, attribute: str) -> Any:
        if name not in self.names():
            close = get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(self.names())}"
            raise UsageError(f"no {self._kind()} is called {name!r}", fix=hint)
        guest = self._guests().get(name)
        module = importlib.import_module(guest.module if guest else f"{self.package}.{name}")
        if not hasattr(module, attribute):
            raise UsageError(
                f"the {self._kind()} {name!r} has no {attribute}",
                fix=f"define the constant {attribute} in {module.__name__}",
            )
        return getattr(module, attribute)

    def _guests(self) -> dict[str, EntryPoint]:
        return _installed(self.package)

    def _kind(self) -> str:
        return self.package.rpartition(".")[2].removesuffix("s")


@lru_cache
def _installed(package: str) -> dict[str, EntryPoint]:
    """Plug-ins of other distributions; looked up once, because every look reads all metadata on the path."""
    return {entry.name: entry for entry in entry_points(group=package)}
