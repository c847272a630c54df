"""Compares our ranges with those of a calibration cache that TensorRT wrote, tensor by tensor.

    python benchmarks/cache_scales.py [--model MODEL.onnx] [--cache CACHE] [--samples SAMPLES] [--all] [--quick]

By default the only public cache that lies beside its ONNX model: a U-Net that finds text in pages (lannyyip/share,
TensorRT 8.0.1, EntropyCalibration2), in `../shared/corpus` beside the checkout. The pages that TensorRT saw are not
public; without --samples pages of random words are drawn. So scales cannot be equal, and what is compared is how they
follow each other over the tensors. Entries under the names of another export are paired by order; what a Concat joins
shares one range, as it does in the cache. `--all` prints every tensor and not the farthest ten only.

Measured with the drawn pages, 76 tensors: entropy follows the cache best (median ratio 0.97, 75 % within a factor of 2,
correlation of the logarithms 0.70), max lies 43 % above it; the farthest tensors are the first two, which see the paper
and the ink themselves.

The last line is one JSON object: for each method the share of tensors within 25 % and within a factor of 2 of the
cache, the median ratio, and the correlation of the logarithms.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import statistics
import string
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
CORPUS = HERE.parent.parent / "shared" / "corpus"
MODEL = CORPUS / "onnx" / "lannyyip__share__my_model.onnx.xz"
CACHE = CORPUS / "calib_cache" / "lannyyip__share__calibration.cache"


def main() -> int:
    """Calibrate with every method and print how far each is from the cache."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model
        if path.suffix == ".xz":
            path = Path(folder) / "model.onnx"
            path.write_bytes(lzma.decompress(options.model.read_bytes()))
        ours, theirs = _scales(path, options.cache, options.samples)
    summary = {}
    for method, scales in ours.items():
        ratios = {name: scales[name] / theirs[name] for name in scales}
        summary[method] = _summary(scales, theirs, list(ratios.values()))
        farthest = sorted(ratios, key=lambda name: -abs(math.log(ratios[name])))
        print(f"\n{method}: {summary[method]}")
        for name in farthest if options.all else farthest[:10]:
            print(f"  {name:<40}{scales[name]:>12.5g}{theirs[name]:>12.5g}{ratios[name]:>8.2f}")
    print(json.dumps(summary, sort_keys=True))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare our ranges with a cache of TensorRT.")
    parser.add_argument("--model", type=Path, default=MODEL, help="float ONNX model, or .onnx.xz")
    parser.add_argument("--cache", type=Path, default=CACHE, help="its calibration cache")
    parser.add_argument("--samples", default=f"{__file__}:pages", help="samples as qdqtool takes them")
    parser.add_argument("--all", action="store_true", help="print every tensor")
    parser.add_argument("--quick", action="store_true", help="draw two pages only")
    options = parser.parse_args()
    if options.quick:
        options.samples = f"{__file__}:two_pages"
    return options


def two_pages() -> Iterator[np.ndarray[Any, Any]]:
    """The first two of `pages`."""
    return pages(2)


def pages(count: int = 12) -> Iterator[np.ndarray[Any, Any]]:
    """Pages of random words, black on white or the other way round, values 0 (paper) to 1."""
    from PIL import Image, ImageDraw, ImageFont

    for number in range(count):
        chance = random.Random(number)
        paper = 0 if number % 4 == 3 else chance.choice([255, 245])
        page = Image.new("L", (500, 1024), paper)
        pen, y = ImageDraw.Draw(page), 10.0
        while y < 1000:
            size = chance.choice([12, 16, 20, 28])
            words = "".join(chance.choice(string.ascii_letters + "   ") for _ in range(chance.randint(5, 60)))
            pen.text((chance.randint(5, 60), y), words, fill=255 - paper, font=ImageFont.load_default(size))
            y += size * chance.uniform(1.2, 2.5)
        yield (1 - np.asarray(page, np.float32) / 255)[None, None]


def _scales(model: Path, cache: Path, samples: str) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Our scales by method and tensor, and those of the cache."""
    import calibrators
    from qdqtool.calibration.caches import read_cache
    from qdqtool.calibration.caches.converting import is_shifted, rename_entries
    from qdqtool.calibration.collect import collect
    from qdqtool.calibration.samples import open_samples
    from qdqtool.calibration.table import make_table
    from qdqtool.core.placement import Decision, Placement, QuantSpec, SharedScale, Slot, SlotKind
    from qdqtool.core.recipe import CalibrationOptions, Preprocess
    from qdqtool.graph.onnx_io.load import load

    opened, found = load(model), read_cache(cache)
    view = opened.view
    found = rename_entries(found, view) if is_shifted(found, view) else found
    names = {name for node in view.nodes for name in node.outputs} | {info.name for info in view.inputs}
    theirs = {
        entry.tensor: entry.scale for entry in found.entries if entry.is_usable and entry.tensor in names
    }
    decisions = tuple(
        Decision(
            slot=Slot(node="any", index=index),
            tensor=name,
            op="Any",
            kind=SlotKind.ACTIVATION,
            quantize=True,
            spec=QuantSpec(),
            opinions=(),
        )
        for index, name in enumerate(theirs)
    )
    joined = [node for node in view.nodes if node.op == "Concat" and node.outputs[0] in theirs]
    ties = tuple(
        SharedScale(tensors=(*node.inputs, *node.outputs), rule="concat", reason="") for node in joined
    )
    placement = Placement(decisions=decisions, ties=ties)
    histograms = collect(opened, placement, open_samples(samples, view.inputs, Preprocess()))
    tables = {
        method: make_table(histograms, placement, view, CalibrationOptions(method=method)).by_tensor()
        for method in calibrators.names()
        if calibrators.load(method).competes
    }
    ours = {
        method: {name: table[name].scales[0] for name in theirs if name in table}
        for method, table in tables.items()
    }
    return ours, theirs


def _summary(ours: dict[str, float], theirs: dict[str, float], ratios: list[float]) -> dict[str, float]:
    logs = np.log([[ours[name], theirs[name]] for name in ours]).T
    return {
        "tensors": len(ratios),
        "within_25_percent": round(sum(0.8 <= ratio <= 1.25 for ratio in ratios) / len(ratios), 3),
        "within_factor_2": round(sum(0.5 <= ratio <= 2 for ratio in ratios) / len(ratios), 3),
        "median_ratio": round(statistics.median(ratios), 3),
        "correlation": round(float(np.corrcoef(logs)[0, 1]), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
