"""The families of networks that people deploy, drawn with random weights: placement and prediction are measured on them.

ResNet-18/50, MobileNetV2, EfficientNet-B0-like (squeeze-and-excite, SiLU), YOLOv8n-like (C2f, SPPF, nearest upsampling,
decoupled heads), U-Net (ConvTranspose, skip concats), ViT and BERT of four blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import networks
import numpy as np
import onnx
from networks import Drawing
from onnx import TensorProto

_FLOAT = TensorProto.FLOAT


def resnet18() -> onnx.ModelProto:
    d = Drawing()
    x = d.node("Relu", d.conv("x", (3, 64), 7, 2))
    x, inside = d.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for stage, outside in enumerate((64, 128, 256, 512)):
        for number in range(2):
            stride = 2 if stage and not number else 1
            y = d.node("Relu", d.conv(x, (inside, outside), 3, stride))
            y = d.conv(y, (outside, outside), 3)
            shortcut = d.conv(x, (inside, outside), 1, stride) if stride == 2 else x
            x, inside = d.node("Relu", d.node("Add", y, shortcut)), outside
    return classifier(d, x, inside, 224)


def efficientnet_b0() -> onnx.ModelProto:
    """Inverted residuals with squeeze-and-excite and SiLU."""
    d = Drawing()
    x, inside = silu(d, d.conv("x", (3, 32), 3, 2)), 32
    plan = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    )  # fmt: skip
    for expansion, outside, count, first, kernel in plan:
        for number in range(count):
            stride, middle = (1 if number else first), inside * expansion
            y = silu(d, d.conv(x, (inside, middle), 1)) if expansion > 1 else x
            y = silu(d, d.conv(y, (middle, middle), kernel, stride, middle))
            gate = silu(d, d.conv(d.node("GlobalAveragePool", y), (middle, max(1, inside // 4)), 1))
            gate = d.node("Sigmoid", d.conv(gate, (max(1, inside // 4), middle), 1))
            y = d.conv(d.node("Mul", y, gate), (middle, outside), 1)
            x = d.node("Add", y, x) if number else y
            inside = outside
    return classifier(d, silu(d, d.conv(x, (inside, 1280), 1)), 1280, 224)


def yolov8n(side: int = 320) -> onnx.ModelProto:
    """Backbone of C2f blocks, SPPF, a path-aggregating neck, three decoupled heads; decoding is left out."""
    d = Drawing()
    x = _unit(d, _unit(d, "x", (3, 16), 2), (16, 32), 2)
    x = _c2f(d, x, (32, 32), 1, shortcut=True)
    p3 = _c2f(d, _unit(d, x, (32, 64), 2), (64, 64), 2, shortcut=True)
    p4 = _c2f(d, _unit(d, p3, (64, 128), 2), (128, 128), 2, shortcut=True)
    p5 = _sppf(d, _c2f(d, _unit(d, p4, (128, 256), 2), (256, 256), 1, shortcut=True), 256)
    n4 = _c2f(d, joined(d, doubled(d, p5), p4), (384, 128), 1, shortcut=False)
    n3 = _c2f(d, joined(d, doubled(d, n4), p3), (192, 64), 1, shortcut=False)
    n4 = _c2f(d, joined(d, _unit(d, n3, (64, 64), 2), n4), (192, 128), 1, shortcut=False)
    n5 = _c2f(d, joined(d, _unit(d, n4, (128, 128), 2), p5), (384, 256), 1, shortcut=False)
    flat = []
    for x, inside in ((n3, 64), (n4, 128), (n5, 256)):
        boxes = d.conv(_unit(d, _unit(d, x, (inside, 64)), (64, 64)), (64, 64), 1)
        names = d.node("Sigmoid", d.conv(_unit(d, _unit(d, x, (inside, 80)), (80, 80)), (80, 80), 1))
        flat.append(d.node("Reshape", joined(d, boxes, names), d.shape(0, 144, -1)))
    y = d.node("Concat", *flat, axis=2)
    return d.model(("x", [1, 3, side, side], _FLOAT), y)


def unet(side: int = 128) -> onnx.ModelProto:
    d = Drawing()
    x, inside, skips = "x", 3, []
    for outside in (32, 64, 128):
        x = _double(d, x, inside, outside)
        skips.append((x, outside))
        x, inside = d.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), outside
    x, inside = _double(d, x, inside, 256), 256
    for skip, outside in reversed(skips):
        weight = d.weight(inside, outside, 2, 2, fan_in=4 * inside)
        x = d.node("ConvTranspose", x, weight, kernel_shape=[2, 2], strides=[2, 2])
        x, inside = _double(d, joined(d, x, skip), 2 * outside, outside), outside
    return d.model(("x", [1, 3, side, side], _FLOAT), d.conv(x, (inside, 2), 1))


def vit() -> onnx.ModelProto:
    """Four blocks of ViT: width 192, 3 heads, 197 tokens with the class token."""
    d = Drawing()
    x = d.node("Conv", "x", d.weight(192, 3, 16, 16, fan_in=768), kernel_shape=[16, 16], strides=[16, 16])
    x = d.node("Transpose", d.node("Reshape", x, d.shape(0, 192, 196)), perm=[0, 2, 1])
    x = d.node("Concat", d.weight(1, 1, 192, fan_in=1), x, axis=1)
    x = d.node("Add", x, d.weight(1, 197, 192, fan_in=100))
    x = networks.encoder(d, x, 4, 192, 3, 197)
    y = d.dense(d.node("ReduceMean", x, axes=[1], keepdims=0), 192, 1000)
    return d.model(("x", [1, 3, 224, 224], _FLOAT), y)


def bert() -> onnx.ModelProto:
    """Four blocks of BERT: width 256, 4 heads, 128 tokens."""
    d = Drawing()
    x = d.norm(d.node("Gather", d.weight(1000, 256, fan_in=256), "x"), 256)
    x = networks.encoder(d, x, 4, 256, 4, 128)
    return d.model(("x", [1, 128], TensorProto.INT64), d.dense(x, 256, 2))


def silu(d: Drawing, x: str) -> str:
    return d.node("Mul", x, d.node("Sigmoid", x))


def _unit(d: Drawing, x: str, channels: tuple[int, int], stride: int = 1, kernel: int = 3) -> str:
    return silu(d, d.conv(x, channels, kernel, stride))


def _c2f(d: Drawing, x: str, channels: tuple[int, int], count: int, *, shortcut: bool) -> str:
    half = channels[1] // 2
    x = _unit(d, x, channels, kernel=1)
    bounds = (d.shape(0), d.shape(half)), (d.shape(half), d.shape(2 * half))
    pieces = [d.node("Slice", x, *bound, d.shape(1)) for bound in bounds]
    for _ in range(count):
        y = _unit(d, _unit(d, pieces[-1], (half, half)), (half, half))
        pieces.append(d.node("Add", pieces[-1], y) if shortcut else y)
    return _unit(d, joined(d, *pieces), (half * len(pieces), channels[1]), kernel=1)


def _sppf(d: Drawing, x: str, width: int) -> str:
    pieces = [_unit(d, x, (width, width // 2), kernel=1)]
    for _ in range(3):
        pieces.append(d.node("MaxPool", pieces[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    return _unit(d, joined(d, *pieces), (2 * width, width), kernel=1)


def joined(d: Drawing, *pieces: str) -> str:
    return d.node("Concat", *pieces, axis=1)


def doubled(d: Drawing, x: str) -> str:
    factors = d.constant(np.array([1, 1, 2, 2], np.float32))
    return d.node(
        "Resize",
        x,
        "",
        factors,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _double(d: Drawing, x: str, inside: int, outside: int) -> str:
    x = d.node("Relu", d.conv(x, (inside, outside), 3))
    return d.node("Relu", d.conv(x, (outside, outside), 3))


def classifier(d: Drawing, x: str, channels: int, side: int) -> onnx.ModelProto:
    pooled = d.node("Flatten", d.node("GlobalAveragePool", x))
    y = d.node(
        "Gemm", pooled, d.weight(channels, 1000, fan_in=channels), d.constant(np.zeros(1000, np.float32))
    )
    return d.model(("x", [1, 3, side, side], _FLOAT), y)


FAMILIES: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "resnet50": lambda: networks.resnet((3, 4, 6, 3)),
    "mobilenet_v2": networks.mobilenet_v2,
    "efficientnet_b0": efficientnet_b0,
    "yolov8n": yolov8n,
    "unet": unet,
    "vit": vit,
    "bert": bert,
}
