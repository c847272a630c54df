"""The grammar of TensorRT's layer names.

conv1 + relu1             one after the other in one layer
conv1 || conv2            side by side in one layer
PWN(PWN(sigmoid), mul)    pointwise operations, nested
{ForeignNode[a...b]}      a region from a to b
conv1 [profile 1]         for the second optimization profile
conv1_myl0_3              third kernel of the first Myelin graph
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from qdqtool.core.engine import Certainty, Engine, EngineLayer, Role

# --- metadata --------------------------------------------------------------------------------------------------------
# ONNX node names in the Metadata field of a layer.
#
# Items look like `[ONNX Layer: name]` and are joined by U+001E or U+001F, or directly in some releases. TensorRT for
# RTX writes a node's new form after the bracket: `[ONNX Layer: name]__gemm_from_conv1x1`.


_START = "[ONNX Layer: "
_JOINT = re.compile(r"[\x1e\x1f]|(?<=\])(?=\[ONNX Layer: )")


def onnx_nodes(metadata: str) -> tuple[str, ...]:
    """Return the ONNX node names in a layer's `metadata`, in order and each once."""
    items = (item.strip() for item in _JOINT.split(metadata))
    names = (item[len(_START) : item.rfind("]")] for item in items if item.startswith(_START) and "]" in item)
    return tuple(dict.fromkeys(name for name in names if name))


# --- names -----------------------------------------------------------------------------------------------------------


_PROFILE = re.compile(r" \[profile (\d{1,4})\]")
_KERNEL = re.compile(r"_myl\d+_\d+$")
_MADE_UP = re.compile(
    r"\(Unnamed Layer|Reformatt|reshape_(?:before|after)_|(?:copied_)?(?:un)?squeeze_|\{ForeignNode|__my|_gem[mv]_mha|\[train"
)
_WEIGHT = re.compile(r"(?:^|[._/])(?:weight|bias|kernel|gamma|beta)s?(?:_[a-z0-9]+)?$", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


def profile_of(name: str) -> int | None:
    """Return the optimization profile in a layer name that ends in ` [profile N]`; else None."""
    mark = _PROFILE.search(name)
    return int(mark[1]) if mark else None


def without_mark(name: str) -> str:
    """Return a layer name without ` [profile N]`."""
    return _PROFILE.sub("", name)


def normalize_name(name: str) -> str:
    """Return a layer name without optimization profile, PWN() and double spaces, as all tools would spell it."""
    return _SPACE.sub(" ", _without_pointwise(without_mark(name))).strip()


def stem(name: str) -> str:
    """Return a layer name without the number of its kernel."""
    return _KERNEL.sub("", name)


def parts(name: str) -> tuple[str, ...]:
    """Return the names that a layer name joins, in order."""
    pieces = re.split(r" \+ | \|\| ", normalize_name(stem(name)))
    return tuple(piece.strip() for piece in pieces if piece.strip())


def probable_nodes(name: str) -> tuple[str, ...]:
    """Infer the ONNX nodes of a layer from its name, for layers without metadata.

    Left out are names that the builder made up (reformats, unnamed layers, regions, generated kernels) and weights.
    """
    if _MADE_UP.match(normalize_name(name)):
        return ()
    return tuple(part for part in parts(name) if not _MADE_UP.match(part) and not _WEIGHT.search(part))


def _without_pointwise(name: str) -> str:
    """Replace PWN(...) in a layer name by its content."""
    if "PWN(" not in name:
        return name
    kept: list[str] = []
    opened: list[bool] = []
    at = 0
    while at < len(name):
        pointwise = name.startswith("PWN(", at)
        character = name[at]
        if pointwise or character == "(":
            opened.append(pointwise)
        closes = character == ")" and bool(opened)
        if pointwise:
            at += 4
            continue
        if not (closes and opened.pop()):
            kept.append(" +" if character == "," and opened and opened[-1] else character)
        at += 1
    return "".join(kept)


# --- join ------------------------------------------------------------------------------------------------------------
# Finds the engine layers of each ONNX node.
#
# Metadata names the nodes of nearly every layer, but also of others: the kernel that quantizes a convolution's input
# and the kernel with its bias name the convolution too. So a node belongs to the compute layers among those that name
# it. Without Metadata, the layer's own name is read: `A+B_myl0_3` (TensorRT for RTX), `A + B`, `A || B`, `PWN(A)`.


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMatch:
    """The layers that contain a node.

    Attributes:
        compute: layers that do its arithmetic.
        other: layers with its bias, its activation or its quantization.
        certainty: stated by metadata, or inferred from layer names.
    """

    compute: tuple[EngineLayer, ...] = ()
    other: tuple[EngineLayer, ...] = ()
    certainty: Certainty = Certainty.UNKNOWN


def join(engine: Engine, nodes: frozenset[str]) -> dict[str, LayerMatch]:
    """Return the layers that contain each of `nodes`. A node without a layer gets an empty `LayerMatch`."""
    stated: dict[str, list[EngineLayer]] = defaultdict(list)
    named: dict[str, list[EngineLayer]] = defaultdict(list)
    for layer in engine.layers:
        if layer.certainty is Certainty.STATED:
            for node in layer.onnx_nodes:
                stated[node].append(layer)
        for node in _in_name(layer, nodes):
            named[node].append(layer)
    return {node: _match(stated.get(node, []), named.get(node, [])) for node in sorted(nodes)}


def _match(stated: list[EngineLayer], named: list[EngineLayer]) -> LayerMatch:
    compute = tuple(layer for layer in stated if layer.role is Role.COMPUTE)
    beside = tuple(layer for layer in stated if layer.role is not Role.COMPUTE)
    if compute:
        return LayerMatch(compute=compute, other=beside, certainty=Certainty.STATED)
    inferred = tuple(layer for layer in named if layer.role is Role.COMPUTE)
    certainty = Certainty.INFERRED if inferred else Certainty.STATED if beside else Certainty.UNKNOWN
    return LayerMatch(compute=inferred, other=beside, certainty=certainty)


def _in_name(layer: EngineLayer, nodes: frozenset[str]) -> list[str]:
    whole = stem(layer.name)
    if whole in nodes:
        return [whole]
    # Merged kernels of TensorRT for RTX join their nodes with a bare plus sign.
    pieces = (*parts(layer.name), *whole.split("+"))
    return [name for name in dict.fromkeys(pieces) if name in nodes]
