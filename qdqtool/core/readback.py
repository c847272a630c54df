"""Scales read from a Q/DQ model."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.dtypes import DType
from qdqtool.core.placement import Slot, SlotKind


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadScale:
    """The quantization of one input of one node.

    Attributes:
        slot: the input.
        tensor: its tensor in the float model.
        module: the module of the framework that the node comes from, as "layer1.0.conv1"; "" if no name shows.
        kind: whether the tensor is a constant.
        dtype: type of the integers.
        scale: quantization steps, one or one per channel.
        zero_point: as many integers.
        axis: channel axis; None for one scale per tensor.
    """

    slot: Slot
    tensor: str
    module: str
    kind: SlotKind
    dtype: DType
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBack:
    """All scales of a Q/DQ model.

    Attributes:
        model: file name of the model.
        origin: the tool that quantized it, as far as names show; "" if they do not.
        scales: one entry per quantized input, in graph order.
        table: the same as ranges of the float model's tensors.
        notes: what was left out or widened, one sentence each.
    """

    model: str
    origin: str
    scales: tuple[ReadScale, ...]
    table: CalibrationTable
    notes: tuple[str, ...] = ()
