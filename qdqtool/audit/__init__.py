"""Says what became of every compute node in an engine, why, and what to do about it."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from qdqtool.audit.context import stage
from qdqtool.audit.counts import counts
from qdqtool.audit.run import audit, examine
from qdqtool.audit.verdicts import verdicts

__all__ = ["audit", "counts", "examine", "stage", "verdicts"]


class _Room(ModuleType):
    """`qdqtool.audit(model, layers)` is `qdqtool.api.audit`, although this package has the name."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return import_module("qdqtool.api").audit(*args, **settings)


sys.modules[__name__].__class__ = _Room
