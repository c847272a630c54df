"""Writes the origin of the Q/DQ into a model, and reads it back: version, digests of recipe and samples, method.

The entries are metadata of the model. They hold no path and no time, so equal inputs give equal bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

import onnx

from qdqtool._version import __version__
from qdqtool.graph.model import Model

_TOOL: Final = "qdqtool"
_LONGEST: Final = 80
"""Largest number of characters that are read back of an entry; anybody may have written it."""
_SHOWN: Final = 12
"""Digits of a digest that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Origin of the Q/DQ of a model.

    Attributes:
        version: version of this tool.
        recipe: SHA-256 of the settings that the Q/DQ depends on.
        samples: digest of the calibration samples and their preparation; "" if the ranges came from a file.
        method: the calibrators of the activations, separated by commas.
        source: producer of the float model; "" if it names none.
    """

    version: str = __version__
    recipe: str
    samples: str = ""
    method: str = ""
    source: str = ""

    def __str__(self) -> str:
        parts = [f"recipe {self.recipe[:_SHOWN]}"]
        parts += [f"samples {self.samples[:_SHOWN]}"] if self.samples else []
        parts += [f"method {self.method}"] if self.method else []
        parts += [f"exported by {self.source}"] if self.source else []
        return f"{_TOOL} {self.version} ({', '.join(parts)})"


def stamped(model: Model, made: Provenance) -> Model:
    """Return a copy of the model that names its provenance. The producer of the float model is kept in `source`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    source = f"{proto.producer_name} {proto.producer_version}".strip()
    kept = [entry for entry in proto.metadata_props if not entry.key.startswith(f"{_TOOL}.made.")]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    for key, value in asdict(replace(made, source=source)).items():
        if value:
            proto.metadata_props.add(key=f"{_TOOL}.made.{key}", value=value)
    proto.producer_name, proto.producer_version = _TOOL, made.version
    return replace(model, proto=proto)


def provenance(model: Model) -> Provenance | None:
    """Return what the model says about its Q/DQ; None if this tool did not write it."""
    found = model.metadata
    read = {
        key: "".join(filter(str.isprintable, found.get(f"{_TOOL}.made.{key}", "")))[:_LONGEST]
        for key in ("version", "recipe", "samples", "method", "source")
    }
    return Provenance(**read) if read["version"] and read["recipe"] else None
