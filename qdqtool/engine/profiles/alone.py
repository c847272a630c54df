"""Engines with only a profile: the layers by name, and the shares of their time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from qdqtool.core.engine import Engine, EngineLayer, Role
from qdqtool.core.timing import Profile
from qdqtool.core.wording import counted
from qdqtool.engine.fields import MOST_LAYERS, layer
from qdqtool.engine.layer_info import read
from qdqtool.engine.profiles.forms import read_profile
from qdqtool.errors import InputFileError
from qdqtool.trt.names import probable_nodes
from qdqtool.trt.ops import PRODUCTS

ALONE = "profile"
"""Form of an engine that only a profile describes."""
_COPIES = re.compile(r"Reformatt(?:ing|ed)|copy$|\bcopy\b|CopyNode", re.IGNORECASE)
"""Names of layers that only copy or convert."""
_MORE = (
    "a profile holds names and times only: types, formats and costs need the layer information of the same engine "
    "(trtexec --exportLayerInfo, with --profilingVerbosity=detailed); pass it as FILE, and this file as --profile"
)


def read_timed(path: Path) -> tuple[Engine, Profile | None]:
    """Return the layers that a file describes, and their times. The rows of a lone profile become layers without tensors.

    Raises:
        InputFileError: the file holds neither layers nor times of layers.
    """
    try:
        return read(path), None
    except InputFileError as error:
        try:
            profile = read_profile(path)
        except InputFileError:
            raise error from None
        return engine_of(profile), profile


def engine_of(profile: Profile) -> Engine:
    """Return the rows of a profile as layers."""
    return Engine(
        layers=tuple(_layer(row.name) for row in profile.rows[:MOST_LAYERS]),
        form=ALONE,
        notes=(_MORE, *_share(profile)),
    )


def _layer(name: str) -> EngineLayer:
    """Make a layer from its name alone: the builder's words mark copies, the nodes mark compute layers."""
    if _COPIES.search(name):
        return layer({"Name": name, "LayerType": "Reformat"})
    found = layer({"Name": name, "LayerType": ""})
    computes = any(_operator(node) in PRODUCTS for node in probable_nodes(name))
    return replace(found, role=Role.COMPUTE) if computes else found


def _operator(node: str) -> str:
    """Return the operator from an exporter's node name: /model.0/conv/Conv, Conv_12."""
    return node.rpartition("/")[2].partition("_")[0]


def _share(profile: Profile) -> tuple[str, ...]:
    """Return a note on the share of copies and reformats in the whole time; empty if there are none."""
    copies = [row for row in profile.rows if _COPIES.search(row.name)]
    total = sum(row.average_ms for row in profile.rows)
    if not copies or not total:
        return ()
    spent = sum(row.average_ms for row in copies)
    return (
        f"copies and reformats: {len(copies)} of {counted(len(profile.rows), 'layer')}, {spent / total:.1%} of the time",
    )
