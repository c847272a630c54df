"""Dimensions that some exporters (PaddlePaddle, old Keras) write as -1 or "?" become symbols, and so do inputs' unnamed ones."""

from __future__ import annotations

import onnx

from qdqtool.graph.onnx_io.walk import parts

_ANY = "?"


def name_negative(proto: onnx.ModelProto) -> int:
    """Give every negative dimension of an input a symbol, and forget those of other tensors; returns how many.

    Dimensions of inputs that say nothing (spox, or "?") get a symbol of their own each, too: nothing says that they are alike,
    and a builder takes those of one name for equal.

    A dimension of -1 is no number to compute with: onnx's converter and its shape inference carry it on as one, and
    end in negative sizes.
    """
    count = sum(_clear(value, symbols=True) for value in proto.graph.input)
    return count + sum(
        _clear(part, symbols=False) for part in list(parts(proto)) if isinstance(part, onnx.ValueInfoProto)
    )


def _clear(value: onnx.ValueInfoProto, *, symbols: bool) -> int:
    count = 0
    for index, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_value < 0:
            count += 1
            dim.Clear()
        if dim.dim_param == _ANY:
            dim.Clear()
        if symbols and dim.WhichOneof("value") is None:
            dim.dim_param = f"{value.name}_{index}"
    return count
