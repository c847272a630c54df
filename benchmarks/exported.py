"""Q/DQ graphs as PyTorch once exported quantization-aware models: the nodes of recorded engines, number by number.

The recorded engines name their layers after nodes such as `Conv_22` and `Add_36`. The exporter numbered every node,
constants included, in the order of the traced program, so a program of the same shape gives the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass
class Export:
    """Writes nodes with running numbers.

    Attributes:
        weight_constants: constants in front of a weight's QuantizeLinear and its DequantizeLinear.
    """

    weight_constants: tuple[int, int]
    number: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op}_{self.number}"
        self.number += 1
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_y"], name=name, **attributes))
        return f"{name}_y"

    def constant(self, values: object) -> str:
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(np.zeros(shape, np.float32))

    def pair(self, x: str) -> str:
        """An activation's pair: two constants in front of each half."""
        step, zero = self.constant(np.float32(1)), self.constant(np.int8(0))
        self.number += 2
        x = self.node("QuantizeLinear", x, step, zero)
        self.number += 2
        return self.node("DequantizeLinear", x, step, zero)

    def weights(self, *shape: int) -> str:
        """A weight's pair, one scale per output channel."""
        step, zero = self.constant(np.ones(shape[0], np.float32)), self.constant(np.zeros(shape[0], np.int8))
        self.number += self.weight_constants[0]
        x = self.node("QuantizeLinear", self.weight(*shape), step, zero, axis=0)
        self.number += self.weight_constants[1]
        return self.node("DequantizeLinear", x, step, zero, axis=0)

    def conv(self, x: str, inside: int, outside: int, kernel: int, group: int = 1) -> str:
        """Quantized Conv and the BatchNormalization behind it."""
        x = self.pair(x)
        y = self.node("Conv", x, self.weights(outside, inside // group, kernel, kernel), group=group)
        parameters = [self.weight(outside) for _ in range(4)]
        return self.node("BatchNormalization", y, *parameters)

    def model(self, x: str, y: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "exported",
            [helper.make_tensor_value_info(x, 1, [1, 3, 224, 224])],
            [helper.make_tensor_value_info(y, 1, None)],
            initializer=self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def resnet18(*, residual_pairs: bool) -> onnx.ModelProto:
    """ResNet-18 with quantized layers; with `residual_pairs` the shortcut of every Add has a pair too."""
    e = Export(weight_constants=(1, 0))
    x = e.node("Relu", e.conv("input.1", 3, 64, 7))
    x, inside = e.node("MaxPool", x, kernel_shape=[3, 3]), 64
    for stage, outside in enumerate((64, 128, 256, 512)):
        for number in range(2):
            y = e.node("Relu", e.conv(x, inside, outside, 3))
            y = e.conv(y, outside, outside, 3)
            shortcut = e.conv(x, inside, outside, 1) if stage and not number else x
            shortcut = e.pair(shortcut) if residual_pairs else shortcut
            x, inside = e.node("Relu", e.node("Add", y, shortcut)), outside
    return _classified(e, x, inside, reshaping=1)


def mobilenet_v2() -> onnx.ModelProto:
    """MobileNetV2 with quantized layers; its Clips and weight pairs have two constants each."""
    e = Export(weight_constants=(2, 2))

    def unit(x: str, inside: int, outside: int, kernel: int, group: int = 1) -> str:
        y = e.conv(x, inside, outside, kernel, group)
        low, high = e.constant(np.float32(0)), e.constant(np.float32(6))
        e.number += 2
        return e.node("Clip", y, low, high)

    plan: Sequence[tuple[int, int, int]] = (
        (1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1),
    )  # fmt: skip
    x, inside = unit("input.1", 3, 32, 3), 32
    for expansion, outside, count in plan:
        for number in range(count):
            y, middle = x, inside * expansion
            y = unit(y, inside, middle, 1) if expansion > 1 else y
            y = e.conv(unit(y, middle, middle, 3, middle), middle, outside, 1)
            x = e.node("Add", x, y) if number else y
            inside = outside
    return _classified(e, unit(x, inside, 1280, 1), 1280, reshaping=8)


def _classified(e: Export, x: str, channels: int, reshaping: int) -> onnx.ModelProto:
    """Pool, flatten (which took `reshaping` nodes) and a quantized Gemm."""
    x = e.node("GlobalAveragePool", x)
    e.number += reshaping - 1
    x = e.pair(e.node("Flatten", x))
    y = e.node("Gemm", x, e.weights(1000, channels), e.weight(1000), transB=1)
    return e.model("input.1", y)
