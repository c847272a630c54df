"""Registries of plug-ins, and user functions by name. A plug-in is a file in a package, named like the file.

Every file in such a package is a plug-in; there is no registration and no list. Code that plug-ins share is beside
the package, not inside it. A plug-in's value is the constant `PLUGIN`, its documentation the docstring of its file.

In the packages of `_SEVERAL`, a file may define all plug-ins about one fact: `PLUGIN` is then a dict by name, and the
docstring has a heading `# name` for each. Entry points of another distribution may name such a file too, once for
each plug-in.

Other distributions add plug-ins through Python entry points, in the group `qdqtool.` and the last word of the
package, as `[project.entry-points."qdqtool.rules"]`, or in the group that `_GROUPS` names. Their code comes from
other people. So their names are found without imports of their files, and a shipped plug-in is never replaced. A
failure inside a third-party plug-in is an error that names its distribution, raised only in commands that use this
plug-in. Commands that use every plug-in of a registry omit a broken one with a warning.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from qdqtool.errors import MissingPackage, QdqError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PAGE: Final = re.compile(r"(?m)^# (\w+)\n")
"""Heading of a plug-in in the docstring of a file with several."""
LOG: Final = logging.getLogger("qdqtool.plugins")
_SLOW_SECONDS: Final = 1.0
"""Seconds of import after which a third-party plug-in is named, because users could not see why a command is slow."""

_GROUPS: Final = {
    "calibrators.methods": "qdqtool.calibrators",
    "qdqtool.datachecks.checks": "qdqtool.datachecks",
    "qdqtool.report.sections": "qdqtool.report.sections",
}
"""Entry-point groups that are not named after the last word of the package, because two packages would share `qdqtool.checks`."""

_SEVERAL: Final = frozenset(
    {
        "qdqtool.auditing.checks",
        "qdqtool.buildlog.patterns",
        "qdqtool.datachecks.checks",
        "qdqtool.report.sections",
        "qdqtool.rules",
    }
)
"""Packages whose files may contain several plug-ins. Their names need an import; users of these packages need
all plug-ins anyway.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """The plug-ins of one package, found by name and loaded when used.

    Attributes:
        package: dotted name of the package that holds them.
    """

    package: str

    @property
    def entry_point_group(self) -> str:
        """Entry-point group for plug-ins of other distributions: "qdqtool.rules" for the package "qdqtool.rules"."""
        return _GROUPS.get(self.package, f"qdqtool.{self.package.rpartition('.')[2]}")

    @property
    def kind(self) -> str:
        """Noun for one plug-in in messages, such as "rule"."""
        return self.entry_point_group.rpartition(".")[2].removesuffix("s").replace("_", " ")

    @property
    def _folders(self) -> tuple[str, ...]:
        return tuple(importlib.import_module(self.package).__path__)

    def shipped(self) -> tuple[str, ...]:
        """Names of the shipped plug-ins, sorted. Imports only files that may define several plug-ins."""
        return tuple(_homes(self.package, self._folders))

    def names(self) -> tuple[str, ...]:
        """Return all plug-in names in alphabetical order, without importing third-party files."""
        return tuple(sorted({*self.shipped(), *self._third_party()}))

    def usable(self) -> tuple[str, ...]:
        """Return the names of all plug-ins that can be loaded. Skips a broken third-party plug-in with a warning."""
        third_party = self._third_party()
        return tuple(name for name in self.names() if name not in third_party or self.survives(name, bool))

    def coded(self) -> dict[str, str]:
        """Return the names of all plug-ins that can be loaded, in the order of the codes of their findings.

        A third-party plug-in whose code is taken is left out with a warning.

        Raises:
            UsageError: two shipped plug-ins have the same code.
        """
        names: dict[str, str] = {}
        shipped = set(self.shipped())
        for name in sorted(self.usable(), key=lambda name: (name not in shipped, name)):
            code = getattr(self.load(name), "code", None)
            if not isinstance(code, str):
                _warn_once(f"the {self.kind} {name!r} ({self.place(name)}) has no code and is skipped")
                continue
            holder = names.setdefault(code, name)
            if holder == name:
                continue
            problem = f"the {self.kind} {name!r} ({self.place(name)}) has the code {code}, like {holder!r} ({self.place(holder)})"
            if name in shipped:
                raise UsageError(problem, fix=f"use another code, such as {_next(code, names)}")
            _warn_once(f"{problem}; it is skipped")
        return dict(sorted(names.items()))

    def place(self, name: str) -> str:
        """Return the file of a plug-in, and the distribution if it is third-party."""
        owner = self.owner(name)
        file = self._module(name).__file__ or self._module(name).__name__
        return file if owner is None else f"{owner}, {file}"

    def load(self, name: str) -> Any:
        """Return the constant `PLUGIN` of the plug-in called `name`.

        Raises:
            UsageError: there is no such plug-in, or its file holds no `PLUGIN`, or none of this name.
            MissingPackage: it belongs to another distribution and cannot be imported.
        """
        plugin = self._attribute(name, "PLUGIN")
        if not isinstance(plugin, dict):
            return plugin
        if name not in plugin:
            raise UsageError(
                f"the dict PLUGIN of the module {self._module(name).__name__} has no {self.kind} {name!r}",
                fix=f"give the entry point one of the names {', '.join(plugin)}",
            )
        return plugin[name]

    def manual(self, name: str) -> str:
        """Return the documentation for users: the docstring of the plug-in's file, or its part under the heading `# name`.

        Raises:
            UsageError, MissingPackage: as `load`.
        """
        whole = inspect.cleandoc(self._attribute(name, "__doc__") or "")
        pages = _PAGE.split(whole)
        return dict(zip(pages[1::2], pages[2::2], strict=True)).get(name, whole).strip("\n")

    def owner(self, name: str) -> str | None:
        """Return the distribution of a third-party plug-in, as "its-name 1.0"; None for shipped plug-ins."""
        entry = self._third_party().get(name)
        return None if entry is None else _distribution(entry)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Run the plug-in in this block; errors of a third-party plug-in are reported as faults of that plug-in.

        Raises:
            MissingPackage: the plug-in belongs to another distribution and failed.
        """
        try:
            yield
        except QdqError:
            raise
        except Exception as error:
            owner = self.owner(name)
            if owner is None:
                raise
            raise self._broken(name, owner, error) from error

    def survives(self, name: str, trial: Callable[[Any], object]) -> bool:
        """Return True if a trial call of the plug-in raises nothing; warn if a third-party plug-in raises."""
        try:
            with self.running(name):
                trial(self.load(name))
        except QdqError as error:
            _warn_once(f"{error.what}; it is skipped")
            return False
        return True

    def _attribute(self, name: str, attribute: str) -> Any:
        rivals = _find_offered_twice(self.entry_point_group).get(name)
        if rivals and name not in self.shipped():
            raise UsageError(
                f"the {self.kind} {name!r} is offered by {' and by '.join(rivals)}",
                fix=f"keep only one of these packages: pip uninstall {rivals[-1].split(maxsplit=1)[0]}",
            )
        if name not in self.names():
            close = get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(self.names())}"
            raise UsageError(f"unknown {self.kind} {name!r}", fix=hint)
        module = self._module(name)
        if not hasattr(module, attribute):
            raise UsageError(
                f"the module of the {self.kind} {name!r} has no {attribute}",
                fix=f"define {attribute} in the Python module {module.__name__}",
            )
        return getattr(module, attribute)

    def _module(self, name: str) -> ModuleType:
        entry = self._third_party().get(name)
        if entry is None:
            return importlib.import_module(_homes(self.package, self._folders)[name])
        began = time.perf_counter()
        try:
            module = importlib.import_module(entry.module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a foreign module may even call sys.exit()
            raise self._broken(name, _distribution(entry), error) from error
        if (seconds := time.perf_counter() - began) > _SLOW_SECONDS:
            _warn_once(f"the {self.kind} {name!r} of {_distribution(entry)} took {seconds:.1f} s to import")
        return module

    def _broken(self, name: str, owner: str, error: BaseException) -> MissingPackage:
        return MissingPackage(
            f"the {self.kind} {name!r} of the installed package {owner} fails: {type(error).__name__}: {error}",
            fix=f"update that package, or remove it: pip uninstall {owner.split(maxsplit=1)[0]}",
        )

    def _third_party(self) -> dict[str, EntryPoint]:
        entries = _find_installed(self.entry_point_group)
        shipped = set(self.shipped()) if entries else set()
        for name in shipped & set(entries):
            _warn_once(
                f"{_distribution(entries[name])} offers the {self.kind} {name!r} too: the shipped one is used"
            )
        return {name: entry for name, entry in entries.items() if name not in shipped}


@cache
def _homes(package: str, folders: tuple[str, ...]) -> dict[str, str]:
    """Return the module of each plug-in in the folders of a package, in alphabetical order of the plug-ins."""
    homes: dict[str, str] = {}
    for file in _modules(folders):
        module = f"{package}.{file}"
        plugin = getattr(importlib.import_module(module), "PLUGIN", None) if package in _SEVERAL else None
        for name in plugin if isinstance(plugin, dict) else (file,):
            if name in homes:
                raise UsageError(
                    f"the modules {homes[name]} and {module} both contain a plug-in {name!r}",
                    fix="rename one of the two plug-ins",
                )
            homes[name] = module
    return dict(sorted(homes.items()))


@cache
def _modules(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the public modules in these folders, sorted; cached, because a run asks often."""
    return tuple(
        sorted(module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_"))
    )


@cache
def _find_installed(group: str) -> dict[str, EntryPoint]:
    """Return plug-ins of other distributions. Skips a name that two distributions offer, with a warning."""
    entries = {entry.name: entry for entry in all_entry_points().select(group=group)}
    for name, rivals in _find_offered_twice(group).items():
        del entries[name]
        _warn_once(f"{' and '.join(rivals)} both offer {name!r} in {group}; neither is used")
    return entries


@cache
def _find_offered_twice(group: str) -> dict[str, tuple[str, ...]]:
    """Return the names for which distributions offer different modules, with the place of each."""
    places: dict[str, dict[str, str]] = {}
    for entry in all_entry_points().select(group=group):
        places.setdefault(entry.name, {}).setdefault(entry.value, f"{_distribution(entry)} ({entry.value})")
    return {
        name: tuple(sorted(places_of_name.values()))
        for name, places_of_name in places.items()
        if len(places_of_name) > 1
    }


@cache
def all_entry_points() -> Any:
    """Return the entry points of installed distributions. Cached, because every call reads all metadata on the path.

    Its class is another one since Python 3.12.
    """
    from importlib.metadata import entry_points  # a child process that builds needs no plug-ins of qdqtool

    return entry_points()


def _next(code: str, taken: Collection[str]) -> str:
    """Return the next free finding code: one more than the largest taken code of the same hundred."""
    numbers = [int(taken_code[3:]) for taken_code in taken if taken_code[:4] == code[:4]]
    return f"{code[:3]}{max(numbers) + 1}"


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module


@cache
def _warn_once(text: str) -> None:
    LOG.warning("%s", text)


# --- functions -------------------------------------------------------------------------------------------------------
# Functions of the user that a recipe or an option names as "module:function" or "file.py:function".


def resolve(text: str, beside: Path, key: str) -> Callable[..., Any]:
    """Return the function that `text` names. A relative .py file is looked up in `beside`, then in the current folder.

    Raises:
        UsageError: no such module or function; `key` says which value of the recipe is wrong.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UsageError(
            f"{text!r} does not name a function", fix="write module:function or file.py:function", where=key
        )
    function: Callable[..., Any] | None = getattr(_module(place, beside, key), name, None)
    if not callable(function):
        raise UsageError(f"{place} has no function {name!r}", fix="write module:function", where=key)
    return function


def _module(place: str, beside: Path, key: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except Exception as error:
            fix = "check the name and PYTHONPATH, or write file.py:function"
            raise UsageError(f"{place} cannot be imported: {error}", fix=fix, where=key) from error
    path = next((candidate for candidate in (beside / place, Path(place)) if candidate.is_file()), None)
    if path is None:
        raise UsageError(
            f"the file {place} does not exist",
            fix="write the path relative to the recipe's folder",
            where=key,
        )
    return _from_file(path.resolve(), key)


def _from_file(path: Path, key: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            f"{path.name} cannot be imported: {error}", fix="correct the file", where=key
        ) from error
    return module
