"""How wrong the estimated engine time is: recorded engines with their recorded profiles.

    python benchmarks/roofline.py [--corpus ../shared/corpus]

Prints measured over estimated time for every recorded pair, and the range over all of them, which is what
`qdqtool.engine.estimate.SPREAD` states. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from qdqtool.engine.devices import find_device
from qdqtool.engine.estimate import estimate
from qdqtool.engine.profiles.read import read_profile
from qdqtool.engine.read import read
from qdqtool.engine.view import view

TREX = "NVIDIA__TensorRT__tools__experimental__trt-engine-explorer__"
RESNET = TREX + "examples__pytorch__resnet__A100__"
PAIRS = (
    # layer information, profile, device
    (
        RESNET + "fp32__resnet.onnx.engine.graph.json",
        RESNET + "fp32__resnet.onnx.engine.profile.json",
        "A100-SXM4-80GB",
    ),
    (
        RESNET + "fp16__resnet.onnx.engine.graph.json",
        RESNET + "fp16__resnet.onnx.engine.profile.json",
        "A100-SXM4-80GB",
    ),
    (
        RESNET + "qat__resnet-qat.onnx.engine.graph.json",
        RESNET + "qat__resnet-qat.onnx.engine.profile.json",
        "A100-SXM4-80GB",
    ),
    (
        RESNET + "qat-residual__resnet-qat-residual.onnx.engine.graph.json",
        RESNET + "qat-residual__resnet-qat-residual.onnx.engine.profile.json",
        "A100-SXM4-80GB",
    ),
    (
        TREX + "tests__inputs__mobilenet.qat.onnx.engine.graph.json",
        TREX + "tests__inputs__mobilenet.qat.onnx.engine.profile.json",
        "RTX 3090",
    ),
)


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "corpus"
    )
    corpus = parser.parse_args().corpus
    ratios = {}
    print(f"{'engine':58} {'estimated ms':>12} {'measured ms':>12} {'ratio':>6}")
    for layers, profile, device in PAIRS:
        shown = view(read(corpus / "layer_info" / layers), profile=read_profile(corpus / "profile" / profile))
        guess = estimate(shown, find_device(device))
        name = layers.removeprefix(TREX).removesuffix(".onnx.engine.graph.json")
        ratios[name] = shown.total_ms / guess.ms
        print(f"{name:58} {guess.ms:12.4f} {shown.total_ms:12.4f} {ratios[name]:6.2f}")
    print(
        json.dumps(
            {"measured_over_estimated": ratios, "low": min(ratios.values()), "high": max(ratios.values())}
        )
    )


if __name__ == "__main__":
    main()
