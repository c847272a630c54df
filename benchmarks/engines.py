"""Q/DQ graphs of all sorts, and what TensorRT for RTX makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import checkout  # noqa: F401 -- for the imports from tests
import onnx
from families import FAMILIES

from tests import models as small
from tests.placement import graphs, qdq
from tests.placement.building import quantized

SHARED = (
    "squeezenet1_1_imagenet",
    "mobilenet_v1_025_imagenet",
    "mobilenet_v2_100_imagenet_ptqw",
    "cifar10_resnet20",
    "vit_cifar10_pgd_2_3_16",
    "kws_dscnn",
    "yolox_nano",
    "mlperf_tiny_resnet8",
    "super_resolution_x3",
)


def quantized_graphs(models: Path, *, quick: bool) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Named Q/DQ graphs: those of the tests as they stand, and float networks quantized by our own placement."""
    for name, make in qdq.GRAPHS.items():
        yield name, make()
    for make in (
        small.attention, small.concat_cnn, small.depthwise_cnn, small.gemms, small.matmuls, small.residual_cnn,
        small.silu_cnn, small.unet, graphs.excite, graphs.pyramid, graphs.strided_shortcut, graphs.inverted,
    ):  # fmt: skip
        for types in ("fp32", "fp16"):
            yield f"{make.__name__} {types}", quantized(make(), types)[0].proto
        yield f"{make.__name__} half excluded", quantized(make(), exclude=("*2", "*w", "k"))[0].proto
    for name, proto in () if quick else float_networks(models):
        for types in ("fp32", "fp16"):
            yield f"{name} {types}", quantized(proto, types)[0].proto


def float_networks(models: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The families of this folder and the real models beside the checkout."""
    for name, make in FAMILIES.items():
        yield name, make()
    for name in SHARED:
        path = models / name / "model.onnx"
        if path.is_file():
            yield name, onnx.load(path)
