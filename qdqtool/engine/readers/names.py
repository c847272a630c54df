"""Text that lists only the names of layers, as builds without detailed profiling verbosity print it.

Layers:
conv1 + relu1
pool1

Bindings:
input
"""

from __future__ import annotations

import re

from qdqtool.core.engine import Engine, EngineTensor
from qdqtool.engine.fields import MOST_LAYERS, layer

NAMES_ONLY = "the layer information holds names only; types, shapes and formats need a build with --profilingVerbosity=detailed"
_LAYERS = re.compile(r"^(?:\[[^\]\n]*\] )*Layers:\n((?:[^\[\n][^\n]*\n)+)", re.MULTILINE)
_BINDINGS = re.compile(r"^Bindings:\n((?:[^\[\n][^\n]*\n)+)", re.MULTILINE)


def recognizes(text: str) -> bool:
    """Return whether `text` holds a list of layer names."""
    return _LAYERS.search(text + "\n") is not None


def read(text: str) -> Engine:
    """Return the names of the last list in `text` as layers without tensors."""
    *_, found = _LAYERS.finditer(text + "\n")
    names = [name for name in found[1].splitlines() if name.strip()][:MOST_LAYERS]
    bindings = _BINDINGS.search(text + "\n", found.end())
    return Engine(
        layers=tuple(layer({"Name": name}) for name in names),
        bindings=tuple(EngineTensor(name=name) for name in (bindings[1].splitlines() if bindings else ())),
        form="names-only",
        notes=(NAMES_ONLY,),
    )
