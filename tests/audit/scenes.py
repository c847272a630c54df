"""Engines made by hand, for audits without a builder."""

from __future__ import annotations

from pathlib import Path

import onnx

from qdqtool.core.engine import Certainty, Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.tensors import DType
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from tests.models import save


def model_of(proto: onnx.ModelProto, folder: Path) -> Model:
    return load(save(proto, folder))


def tensor(
    name: str, dtype: DType = DType.INT8, shape: tuple[int, ...] | None = (1, 8, 16, 16)
) -> EngineTensor:
    return EngineTensor(name=name, shape=shape, dtype=dtype)


def kernel(name: str, *nodes: str, precision: DType = DType.INT8, role: Role = Role.COMPUTE) -> EngineLayer:
    return EngineLayer(
        name=name,
        kind="correlation",
        inputs=(tensor(f"{name}_in", precision),),
        outputs=(tensor(f"{name}_out", DType.FLOAT32),),
        onnx_nodes=nodes,
        certainty=Certainty.STATED,
        role=role,
        precision=precision,
        precision_certainty=Certainty.STATED,
    )


def engine(*layers: EngineLayer) -> Engine:
    return Engine(layers=layers, form="layers-dump")
