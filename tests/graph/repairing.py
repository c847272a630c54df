"""Writes Q/DQ of any kind, and says how a repaired model differs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from qdqtool.core.fixes import Change
from qdqtool.core.tensors import DType
from qdqtool.graph.qdq.find import find
from qdqtool.graph.view import Model
from qdqtool.placement.repair import repair
from tests import models
from tests.graph.placing import opened

STEP = 0.02


class Sketch(models.Sketch):
    """Writes pairs of any kind."""

    def pair(
        self, x: str, name: str, step: Any = STEP, zero: Any = 0, kind: Any = np.int8, **attributes: Any
    ) -> str:
        scale = self.constant(f"{name}_s", np.asarray(step, np.float32))
        zeros = self.constant(f"{name}_z", np.asarray(zero, kind))
        q = self.node("QuantizeLinear", [x, scale, zeros], f"{name}_q", name=f"{name}/Q", **attributes)
        return self.node("DequantizeLinear", [q, scale, zeros], f"{name}_d", name=f"{name}/DQ", **attributes)

    def integers(self, name: str, *shape: int, kind: Any = np.int8) -> str:
        limits = np.iinfo(kind)
        return self.constant(name, self.random.integers(limits.min, limits.max + 1, shape).astype(kind))

    def dequantize(
        self, x: str, name: str, step: Any, zero: Any = 0, kind: Any = np.int8, **attributes: Any
    ) -> str:
        scale = self.constant(f"{name}_s", np.asarray(step, np.float32))
        zeros = self.constant(f"{name}_z", np.broadcast_to(np.asarray(zero, kind), np.shape(step)))
        return self.node("DequantizeLinear", [x, scale, zeros], f"{name}_d", name=f"{name}/DQ", **attributes)

    def filters(self, name: str = "w", kind: Any = np.int8, zero: Any = 0, channels: int = 4) -> str:
        """Pre-quantized weights of a 3x3 Conv from 4 channels, one scale per output channel."""
        values = self.integers(name, channels, 4, 3, 3, kind=kind)
        return self.dequantize(values, name, np.linspace(0.001, 0.002, channels), zero, kind, axis=0)

    def image(self) -> str:
        return self.input("x", [1, 4, 6, 6])

    def convolved(self, x: str, weight: str, *bias: str, name: str = "conv") -> str:
        return self.node("Conv", [x, weight, *bias], f"{name}_y", name=name, pads=[1, 1, 1, 1])


def repaired(proto: onnx.ModelProto, folder: Path) -> tuple[Model, tuple[Change, ...]]:
    fixed, changes = repair(opened(proto, folder))
    onnx.checker.check_model(fixed.proto, full_check=True)
    assert all(change.what and change.reason and change.subject for change in changes)
    return fixed, changes


def kinds(changes: tuple[Change, ...]) -> dict[str, int]:
    return dict(Counter(change.rule for change in changes))


def apart(proto: onnx.ModelProto, fixed: Model) -> float:
    """Largest difference of any output, as a share of its largest value."""
    feeds = models.feeds(proto)
    after = models.run(fixed.proto, feeds, optimize=False)
    shares = []
    for name, before in models.run(proto, feeds, optimize=False).items():
        assert after[name].dtype == before.dtype
        wide = before.astype(np.float64)
        shares.append(np.abs(after[name] - wide).max() / np.abs(wide).max())
    return float(max(shares))


def legal(fixed: Model) -> bool:
    return all(
        pair.dtype is DType.INT8 and not any(pair.zero_point) and all(scale > 0 for scale in pair.scale)
        for pair in find(fixed)
    )


def dynamic_layer() -> onnx.ModelProto:
    """What onnxruntime's dynamic quantization makes of a MatMul."""
    s = Sketch()
    names = ["q", "q_s", "q_z"]
    s.nodes.append(helper.make_node("DynamicQuantizeLinear", [s.input("x", ["N", 16])], names, name="dql"))
    weight, zero = s.integers("w", 16, 8), s.constant("wz", np.zeros(8, np.int8))
    y = s.node("MatMulInteger", ["q", weight, "q_z", zero], "sum", name="mm")
    y = s.node("Cast", [y], "sum_f", name="cast", to=TensorProto.FLOAT)
    factor = s.node(
        "Mul", ["q_s", s.constant("ws", np.linspace(0.01, 0.02, 8).astype(np.float32))], "f", name="f"
    )
    s.output(s.node("Mul", [y, factor], "y", name="out"))
    return s.model()
