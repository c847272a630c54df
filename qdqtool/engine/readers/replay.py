"""A tactic replay file as `polygraphy inspect tactics` prints it: names, tactics and types, but no shapes.

Layer: conv1 + relu1
Algorithm: (Implementation: 2147483657, Tactic: -480840) | Inputs: (TensorInfo(DataType.FLOAT, (784, 28, 1), -1, 1),) | Outputs: (...)
"""

from __future__ import annotations

import re
from itertools import islice

from qdqtool.core.engine import Engine
from qdqtool.engine.fields import MOST_LAYERS, layer

# Blanks only: `\s` takes line ends too, so that a hundred thousand empty lines would be looked through from each of them.
_ENTRY = re.compile(
    r"^(?:\[\w\] )?[ \t]*Layer: (.*)\n[ \t]*Algorithm: \(Implementation: (-?\d{1,20}), Tactic: (-?\d{1,20})\)"
    r" \| Inputs: (.*?) \| Outputs: (.*)$",
    re.MULTILINE,
)
_TYPE = re.compile(r"DataType\.(\w+)")


def recognizes(text: str) -> bool:
    """Return whether `text` holds at least one entry of a tactic replay file."""
    return _ENTRY.search(text) is not None


def read(text: str) -> Engine:
    """Return the entries as layers. Their strides say nothing certain about shapes."""
    layers = []
    for found in islice(_ENTRY.finditer(text), MOST_LAYERS):
        name, implementation, tactic, inputs, outputs = found.groups()
        fields = {"Name": name, "TacticValue": tactic, "Implementation": implementation}
        sides = {"Inputs": inputs, "Outputs": outputs}
        tensors = {
            side: [{"Name": "", "Format/Datatype": word} for word in _TYPE.findall(words)]
            for side, words in sides.items()
        }
        layers.append(layer({**fields, **tensors}))
    return Engine(layers=tuple(layers), form="tactic-replay")
