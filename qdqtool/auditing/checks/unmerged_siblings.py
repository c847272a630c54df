"""Convolutions that read the same tensor run one after the other instead of as one kernel.

The builder could merge them (TensorRT writes `A || B`): the input is read once and the GPU is better used. A common
obstacle is a separate quantizer for each layer on the shared input; with a single shared Q/DQ scale they can merge.
TensorRT for RTX makes such choices on the GPU, so its layer information does not show them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.commands import REPAIR
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted

_SHARE = f"give their shared input a single Q/DQ scale, as {REPAIR} does; then the builder can merge them"
_PLACED = "nothing to do: their input has a single scale, but the builder did not merge them"
_Alike = tuple[str, str, tuple[int, ...], tuple[int, ...]]


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per group of kernels with the same input, kernel size, precision and output size."""
    groups: dict[_Alike, list[EngineLayer]] = defaultdict(list)
    for layer in context.kernels:
        key = _alike(layer)
        if key is not None:
            groups[key].append(layer)
    for layers in groups.values():
        if len(layers) > 1:
            size = layers[0].inputs[0].bytes
            yield Draft(
                subject=layers[0].name,
                reason=f"{counted(len(layers), 'convolution of the same size reads', 'convolutions of the same size read')} one tensor and were not merged: "
                + ", ".join(layer.name for layer in layers),
                fix=_PLACED if context.placement else _SHARE,
                bytes=None if size is None else size * (len(layers) - 1),
                evidence=tuple(context.at_layer(layer.name) for layer in layers),
            )


def _alike(layer: EngineLayer) -> _Alike | None:
    """Return the properties that kernels must share to be merged; None if the layer is not a plain convolution."""
    weights = [constant.shape for constant in layer.constants if constant.shape and len(constant.shape) == 4]
    alone = layer.role is Role.COMPUTE and layer.kind != "correlation" and len(layer.inputs) == 1
    if not alone or not weights or not layer.outputs or layer.outputs[0].shape is None:
        return None
    largest = max(weights, key=lambda shape: shape[0] * shape[1] * shape[2] * shape[3])
    if not layer.precision.is_quantized:
        return None  # no scale keeps float convolutions apart
    return layer.inputs[0].name, str(layer.precision), largest[1:], layer.outputs[0].shape[2:]


PLUGIN = Check(code="QDQ213", severity=Severity.INFO, find=find)
