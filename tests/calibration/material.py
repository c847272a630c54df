"""Small models, placements and samples for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from qdqtool.core.placement import Decision, Placement, QuantSpec, SharedScale, Slot, SlotKind
from qdqtool.core.tensors import TensorInfo
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from tests import models


def opened(proto: onnx.ModelProto, folder: Path) -> Model:
    return load(models.save(proto, folder))


def placed(model: Model, ties: tuple[SharedScale, ...] = ()) -> Placement:
    """Every input of every Conv, Gemm and MatMul, weights per channel where they have one."""
    decisions = []
    for node in model.view.nodes:
        if node.op not in {"Conv", "Gemm", "MatMul"}:
            continue
        for index, tensor in enumerate(node.inputs[:2]):
            is_weight = model.view.is_constant(tensor)
            axis = (0 if node.op == "Conv" or node.attribute("transB") else 1) if is_weight else None
            decisions.append(
                Decision(
                    slot=Slot(node=node.name, index=index),
                    tensor=tensor,
                    op=node.op,
                    kind=SlotKind.WEIGHT if is_weight else SlotKind.ACTIVATION,
                    quantize=True,
                    spec=QuantSpec(axis=axis),
                    opinions=(),
                )
            )
    return Placement(decisions=tuple(decisions), ties=ties)


def images(folder: Path, count: int, shape: tuple[int, ...], name: str = "x") -> Path:
    """An .npz of `count` rows for the input `name`, whose size grows with the row number."""
    random = np.random.default_rng(7)
    rows = random.standard_normal((count, *shape)).astype(np.float32)
    rows *= np.arange(1, count + 1, dtype=np.float32).reshape(-1, *([1] * len(shape)))
    path = folder / f"{count}.npz"
    np.savez(path, **{name: rows})
    return path


def info(name: str, *shape: int | str, dtype: str = "float") -> TensorInfo:
    from qdqtool.core.tensors import DType

    return TensorInfo(name=name, dtype=DType.parse(dtype), shape=shape)
