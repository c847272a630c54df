"""Counts broken preparations of pictures that are found without labels, and right ones that are called broken.

    python benchmarks/preparations.py [--quick] [--draws N] [--only NETWORK ...]

Needs the trained networks and pictures of the shared material beside the checkout. Each network is fed its own
preparation and nine others, on disjoint draws of 96 pictures. A row is "error", "warning" or "-" for each draw, with the
agreement in nats on the first draw.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from qdqtool.calibration.samples import open_samples, sample_objects
from qdqtool.core.recipe import PRESETS, Preprocess, Recipe
from qdqtool.datachecks import DataEvidence, check_data
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.datacheck import sample_set
from qdqtool.pipeline.preparation_trials import ROUNDS, compare_preparations
from qdqtool.runtime.runner import open_model

SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"
VALUES = {name: values for name, values in PRESETS.items() if name != "clip"} | {"raw": {"scale": 1.0}}
NETWORKS = {
    "squeezenet1_1_imagenet": (224, "caffe", "bgr"),
    "mobilenet_v1_025_imagenet": (224, "imagenet-inception", "rgb"),
    "mobilenet_v2_100_imagenet_ptqw": (224, "imagenet-inception", "rgb"),
    "yolox_nano": (416, "raw", "bgr"),
    "mlperf_tiny_resnet8": (32, "raw", "rgb"),
    "cifar10_resnet20": (32, "imagenet", "rgb"),
    "vit_cifar10_pgd_2_3_16": (32, "imagenet", "rgb"),
}
"""Side of the input, scale and order of colours of each network's training."""


SHUFFLED = np.random.default_rng(0)


def pictures(side: int, count: int) -> NDArray[np.uint8]:
    """Return `count` pictures (count x side x side x 3), from all over the data set."""
    if side == 32:
        return np.load(SHARED / "data_cifar10" / "test2000_jpeg.npz")["x"][SHUFFLED.permutation(2000)[:count]]
    files = sorted((SHARED / "imagenet500").glob("*.JPEG"))
    files = [file for first in range(5) for file in files[first::5]]  # each draw is from all classes
    found = []
    for file in files[:count]:
        picture = Image.open(file).convert("RGB")
        edge = min(picture.size)
        left, top = (picture.width - edge) // 2, (picture.height - edge) // 2
        found.append(np.asarray(picture.crop((left, top, left + edge, top + edge)).resize((side, side))))
    return np.stack(found)


def fed(layout: str) -> Iterator[tuple[str, str, Preprocess]]:
    """Yield every preparation that networks are fed: its scale, its order, and its values."""
    for name, values in VALUES.items():
        for colour in ("rgb", "bgr"):
            mean = tuple(values.get("mean", (0.0,)))  # type: ignore[call-overload]
            fitting = mean if name != "caffe" or colour == "bgr" else mean[::-1]
            yield (
                name,
                colour,
                Preprocess.model_validate(
                    {**values, "mean": fitting, "colour": colour, "arrays": True, "layout": layout}
                ),
            )


def main(draws: int, networks: list[str]) -> None:
    """Print a row for each network and preparation, and the counts."""
    counts: Counter[tuple[str, str]] = Counter()
    for network, (side, scale, order) in NETWORKS.items():
        if networks and network not in networks:
            continue
        runner = open_model(load(SHARED / network / "model.onnx"), description="float model")
        whole = pictures(side, draws * ROUNDS[-1])
        layout = "nhwc" if (runner.inputs[0].shape or ())[-1:] == (3,) else "nchw"
        for name, colour, given in fed(layout):
            said, levels = [], ""
            for draw in range(draws):
                some = whole[draw * ROUNDS[-1] : (draw + 1) * ROUNDS[-1]]
                samples = open_samples(sample_objects({runner.inputs[0].name: some}), runner.inputs, given)
                recipe = Recipe.model_validate({"name": "mine", "samples": {"preprocess": given}})
                seen = sample_set(samples)
                found = compare_preparations(runner, samples, seen, recipe)
                evidence = DataEvidence(calibration=seen, evaluation=seen, mirrored=found)
                codes = [each for each in check_data(evidence) if each.code == "DAT104"]
                said.append(codes[0].severity.value if codes else "-")
                if found is not None and not levels:
                    levels = f"{found.asis:.2f} {found.best:.2f} {found.name}"
            kind = (
                "right"
                if (name, colour) == (scale, order)
                else "other order"
                if name == scale
                else "other scale"
            )
            counts.update((kind, word) for word in said)
            print(f"{network:32} {name:20} {colour} {kind:12} {' '.join(said):24} {levels}", flush=True)
    for key in sorted(counts):
        print(*key, counts[key])


def options() -> argparse.Namespace:
    """Return the arguments; --quick takes one draw for one small network."""
    parser = argparse.ArgumentParser(description="Count broken preparations that are found without labels.")
    parser.add_argument("--quick", action="store_true", help="one draw, one small network")
    parser.add_argument("--draws", type=int, default=1, help="disjoint draws of pictures")
    parser.add_argument("--only", nargs="+", default=[], metavar="NETWORK", help="these networks only")
    return parser.parse_args()


if __name__ == "__main__":
    asked = options()
    if asked.quick:
        main(1, ["mlperf_tiny_resnet8"])
    else:
        main(asked.draws, asked.only)
