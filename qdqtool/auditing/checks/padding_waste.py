"""A vectorized format pads the channels of a tensor by a quarter or more.

INT8 formats store channels in groups of four or thirty-two. A tensor of three channels in a format of thirty-two needs
more than ten times its bytes, and the kernel also reads and multiplies the padding.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.trt.tensor_formats import channel_multiple, padded_bytes

_LEAST = 0.25
"""Smallest share of padding that is reported."""


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per tensor that is padded by a quarter or more, at the kernel that writes it."""
    for layer in context.kernels:
        for tensor in layer.outputs:
            plain, padded = tensor.bytes, padded_bytes(tensor)
            if not plain or padded is None or padded - plain < _LEAST * plain or tensor.shape is None:
                continue
            multiple = channel_multiple(tensor.format)
            yield Draft(
                subject=layer.name,
                reason=f"writes {tensor.shape[1]} channels in groups of {multiple}: {counted(padded, 'byte')} instead of {plain}",
                fix=f"use a multiple of {multiple} channels, or leave the layers around this tensor float",
                layers=(layer.name, *(reader.name for reader in context.wiring.readers(layer))),
                bytes=padded - plain,
                evidence=(context.at_layer(layer.name),),
            )


PLUGIN = Check(code="QDQ211", severity=Severity.INFO, find=find)
