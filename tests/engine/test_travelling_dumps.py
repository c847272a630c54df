"""Real layer information of TensorRT 8.2 to 10 and of TensorRT for RTX, read without material beside the checkout."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from qdqtool.core.engine import Engine
from qdqtool.core.explore import EngineView
from qdqtool.core.tensors import DType
from qdqtool.engine import read
from qdqtool.engine.view import view
from tests import golden

DUMPS = golden.names("layers")


def figures(engine: Engine, seen: EngineView) -> dict[str, object]:
    """What a change of a reader must not change unseen."""
    return {
        "form": engine.form,
        "layers": len(engine.layers),
        "unread": engine.unread,
        "unknown_formats": len(engine.unknown_formats),
        "roles": dict(sorted(Counter(layer.role.value for layer in engine.layers).items())),
        "precisions": dict(sorted(Counter(layer.precision.value for layer in engine.layers).items())),
        "certainties": dict(sorted(Counter(layer.certainty.value for layer in engine.layers).items())),
        "bytes": sum(layer.bytes or 0 for layer in seen.layers),
        "bytes_unknown": sum(layer.bytes is None for layer in seen.layers),
        "macs": sum(layer.macs or 0 for layer in seen.layers),
        "bindings": [tensor.name for tensor in engine.bindings],
        "nodes": sum(len(layer.onnx_nodes) for layer in engine.layers),
    }


@pytest.mark.parametrize("name", DUMPS)
def test_real_layer_information_tells_what_is_known_of_it(name: str):
    engine = read(golden.path_of("layers", name))
    found = figures(engine, view(engine))
    assert json.loads(json.dumps(found)) == golden.expected("layers", name, found)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("fp8conv", DType.FLOAT8), ("int8conv", DType.INT8), ("int4", DType.FLOAT32)],
    ids=["fp8", "int8", "weights of four bits"],
)
def test_what_was_built_multiplies_in_the_type_that_was_asked_for(name: str, precision: DType):
    seen = view(read(golden.path_of("layers", f"rtx-1.7.1-{name}")))
    (compute,) = [layer for layer in seen.layers if layer.role.value == "compute"]
    assert compute.precision is precision
    assert compute.macs
    assert compute.bytes


def test_the_notice_names_every_file_that_is_not_our_own():
    notice = (golden.DATA / "NOTICE").read_text("utf-8")
    for kind in ("logs", "layers"):
        for name in golden.names(kind):
            assert name.startswith("rtx-1.7.1-") or f"{kind}/{name}.xz" in notice
