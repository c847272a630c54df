"""The networks that the guides speak of: small, with random weights, of the operators that such networks have."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.models import Sketch


def write_detector(path: str) -> None:
    """Two levels of cells, each with 4 sides of a box, a score and 3 classes; rows of all levels at the output."""
    s = Sketch(3)
    y = s.relu("stem_relu", s.conv("stem", s.input("images", [1, 3, 64, 64]), (3, 16), stride=2))
    rows = []
    for level, channels in enumerate((16, 32)):
        y = s.relu(f"down{level}_relu", s.conv(f"down{level}", y, (channels, 2 * channels), stride=2))
        deep = s.conv(f"depthwise{level}", y, (2 * channels, 2 * channels), group=2 * channels)
        gate = s.node("Sigmoid", [deep], f"gate{level}")
        silu = s.node("Mul", [deep, gate], f"silu{level}")
        head = s.conv(f"head{level}", silu, (2 * channels, 8), kernel=1)
        cells = (16 >> level) ** 2
        flat = s.node("Reshape", [head, s.constant(f"shape{level}", np.array([1, 8, cells]))], f"flat{level}")
        rows.append(s.node("Transpose", [flat], f"rows{level}", perm=[0, 2, 1]))
    s.output(s.node("Concat", rows, "output", axis=1), [1, 320, 8])
    onnx.save(s.model(), path)


def write_pictured(path: str, side: int, **metadata: str) -> None:
    """Two convolutions with large steps that read a picture."""
    s = Sketch(9)
    y = s.relu(
        "stem_relu", s.conv("stem", s.input("image", [1, 3, side, side]), (3, 16), kernel=16, stride=16)
    )
    y = s.conv("head", y, (16, 8), kernel=1)
    s.output(s.node("GlobalAveragePool", [y], "pooled"), [1, 8, 1, 1])
    model = s.model()
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, path)


def write_keywords(path: str) -> None:
    """A depthwise-separable classifier of spectra with 12 classes."""
    s = Sketch(4)
    y = s.relu("stem_relu", s.conv("stem", s.input("spectrum", ["N", 1, 49, 10]), (1, 32), stride=2))
    for number in range(2):
        y = s.relu(f"deep{number}_relu", s.conv(f"deep{number}", y, (32, 32), group=32))
        y = s.relu(f"wide{number}_relu", s.conv(f"wide{number}", y, (32, 32), kernel=1))
    y = s.node("Flatten", [s.node("GlobalAveragePool", [y], "pooled")], "flat")
    s.output(s.node("Gemm", [y, s.weight("head_w", 32, 12), s.weight("head_b", 12)], "words"), ["N", 12])
    onnx.save(s.model(), path)


def write_denoiser(path: str) -> None:
    """Convolutions along time, there and back."""
    s = Sketch(5)
    y = s.input("sound", ["N", 1, 256])
    for name, (given, made) in {"first": (1, 16), "middle": (16, 16), "last": (16, 1)}.items():
        weights = [y, s.weight(f"{name}_w", made, given, 5), s.weight(f"{name}_b", made)]
        y = s.node("Conv", weights, f"{name}_y", name=name, pads=[2, 2])
        y = s.node("Tanh", [y], f"{name}_tanh") if name != "last" else y
    s.output(y, ["N", 1, 256])
    onnx.save(s.model(), path)


def write_recommender(path: str) -> None:
    """Four embedded ids beside dense features, two layers, one score."""
    s = Sketch(6)
    features, ids = s.input("features", ["N", 13]), s.input("ids", ["N", 4], TensorProto.INT64)
    table = s.constant("table", s.random.normal(size=(100, 16)).astype(np.float32))
    picked = s.node("Gather", [table, ids], "picked")
    rows = s.node("Reshape", [picked, s.constant("wide", np.array([-1, 64]))], "rows")
    dense = s.node("Gemm", [features, s.weight("bottom_w", 13, 64), s.weight("bottom_b", 64)], "bottom")
    y = s.node("Concat", [s.node("Relu", [dense], "bottom_relu"), rows], "joined", axis=1)
    y = s.node("Gemm", [y, s.weight("top_w", 128, 64), s.weight("top_b", 64)], "top")
    y = s.node("Gemm", [s.node("Relu", [y], "top_relu"), s.weight("score_w", 64, 1)], "logit")
    s.output(s.node("Sigmoid", [y], "score"), ["N", 1])
    onnx.save(s.model(), path)


def write_segmenter(path: str) -> None:
    """Three convolutions, and the logits of five classes for each pixel."""
    s = Sketch(8)
    y = s.input("picture", ["N", 3, 32, 32])
    for name, (channels, filters) in {"first": (3, 16), "middle": (16, 16), "last": (16, 5)}.items():
        weights = [y, s.weight(f"{name}_w", filters, channels, 3, 3), s.weight(f"{name}_b", filters)]
        y = s.node("Conv", weights, f"{name}_y", name=name, pads=[1, 1, 1, 1])
        y = s.node("Relu", [y], f"{name}_relu") if name != "last" else y
    s.output(y, ["N", 5, 32, 32])
    onnx.save(s.model(), path)
