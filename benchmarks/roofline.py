"""How wrong the estimated engine time is: recorded engines with their recorded profiles.

    python benchmarks/roofline.py [--quick] [--corpus ../shared/corpus]

Prints recorded over estimated time of every pair, with the figures of `qdqtool.engine.roofline.ROOF` and with figures
fitted to the other networks only. The range of the latter is what `estimate.SPREAD` states: how far an estimate is off
for a network that nobody fitted. What a choice between two builds of one network needs is their ratio: it is compared for
every two recorded engines of one network (`estimate.RATIO_ERROR`), and how often the faster one is told. Devices are read
from the metadata recorded with the profiles. The last line is JSON.

The fit minimizes squared logarithms: of recorded over estimated time, each network weighing the same, and twice of the
ratios of two builds of one network, which the largest error alone (the fit before) left out of sight.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from math import log
from pathlib import Path
from statistics import fmean, median

import checkout  # noqa: F401 -- puts the checkout on the path

from qdqtool.core.explore import Device, EngineView
from qdqtool.engine.layer_info import read
from qdqtool.engine.profile_forms import read_profile
from qdqtool.engine.roofline import RATIO_ERROR, ROOF, SPREAD, Roof, estimate, find_device
from qdqtool.engine.view import view

DRAW = 0.03
"""Share by which two recorded times may differ by chance."""
TREX = "NVIDIA__TensorRT__tools__experimental__trt-engine-explorer__"
RESNET = TREX + "examples__pytorch__resnet__A100__"
MOBILENET = TREX + "tests__inputs__mobilenet.qat.onnx.engine."
POWER = "fuzzylabs__edge-vision-power-estimation__desktop__"
A100 = "A100-SXM4-80GB"
TITAN = MOBILENET + "profile.metadata.json"
LAPTOP = POWER + "torch_onnx_trtexec__results__alexnet__alexnet_fp16.profile.metadata.json"
RECORDS = (
    # network, precision, layer information, profile, device or its metadata
    *(
        (
            "ResNet-18, A100",
            kind,
            f"{RESNET}{kind}__{name}.onnx.engine.graph.json",
            f"{RESNET}{kind}__{name}.onnx.engine.profile.json",
            A100,
        )
        for kind, name in (
            ("fp32", "resnet"),
            ("fp16", "resnet"),
            ("qat", "resnet-qat"),
            ("qat-residual", "resnet-qat-residual"),
        )
    ),
    ("MobileNet, TITAN RTX", "qat", MOBILENET + "graph.json", MOBILENET + "profile.json", TITAN),
    ("MobileNet, TITAN RTX", "qat 2", MOBILENET + "graph.json.v2", MOBILENET + "profile.json.v2", TITAN),
    (
        "ResNet-18, RTX 3060 Laptop",
        "fp16",
        POWER + "torch_onnx_trtexec__results__resnet18__resnet18_fp16.graph.json",
        POWER + "torch_onnx_trtexec__results__resnet18__resnet18_fp16.profile.json",
        LAPTOP,
    ),
    (
        "AlexNet, RTX 3060 Laptop",
        "fp16",
        POWER + "torch_onnx_trt__results__alexnet__trt_profiling__trt_engine_info.json",
        POWER + "torch_onnx_trt__results__alexnet__trt_profiling__trt_layer_latency.json.v2",
        LAPTOP,
    ),
)
GRID = tuple(
    Roof(start_ms=start / 1000, bandwidth=bandwidth / 10, moving=moving / 20, arithmetic=arithmetic / 20)
    for start, bandwidth, moving, arithmetic in product(
        range(2, 9), range(4, 10), range(4, 17, 2), range(6, 17, 2)
    )
)
RATIOS = 2.0
"""Weight of the ratios of two builds, beside that of times."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """One recorded engine with its recorded time in milliseconds."""

    network: str
    precision: str
    shown: EngineView
    device: Device
    ms: float

    @cache  # noqa: B019 -- eight pairs, which live as long as the process
    def ratio(self, roof: Roof) -> float:
        """Recorded over estimated time."""
        return self.ms / estimate(self.shown, self.device, roof).ms


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "corpus"
    )
    parser.add_argument("--quick", action="store_true", help="fit on every 40th point of the grid")
    options = parser.parse_args()
    grid = GRID[:: 40 if options.quick else 1]
    pairs = list(_pairs(options.corpus))
    networks = dict.fromkeys(pair.network for pair in pairs)
    unseen = {name: _fitted([pair for pair in pairs if pair.network != name], grid) for name in networks}
    print(f"{'engine':40} {'recorded ms':>12} {'estimated ms':>13} {'ratio':>6} {'ratio, left out':>16}")
    for pair in pairs:
        ratio, fair = pair.ratio(ROOF), pair.ratio(unseen[pair.network])
        name = f"{pair.network}, {pair.precision}"
        print(f"{name:40} {pair.ms:12.4f} {pair.ms / ratio:13.4f} {ratio:6.2f} {fair:16.2f}")
    fair = [pair.ratio(unseen[pair.network]) for pair in pairs]
    ranked = [_ranked(one, other, unseen[one.network]) for one, other in _builds(pairs)]
    print(f"\n{'two builds of one network':56} {'recorded ratio':>14} {'estimated':>10} {'told':>6}")
    for name, recorded, estimated in ranked:
        print(
            f"{name:56} {recorded:14.3f} {estimated:10.3f} {'right' if _is_right(recorded, estimated) else 'wrong':>6}"
        )
    errors = [abs(estimated / recorded - 1) for _, recorded, estimated in ranked]
    found = {
        "builds_ranked": len(ranked),
        "builds_right": sum(_is_right(recorded, estimated) for _, recorded, estimated in ranked),
        "ratio_error_median": round(median(errors), 3),
        "ratio_error_largest": round(max(errors), 3),
        "pairs": len(pairs),
        "fitted": [min(p.ratio(ROOF) for p in pairs), max(p.ratio(ROOF) for p in pairs)],
        "left_out": [min(fair), max(fair)],
        "stated": SPREAD,
        "stated_ratio_error": RATIO_ERROR,
        "best_fit": str(_fitted(pairs, grid)),
    }
    print(json.dumps(found, sort_keys=True))


def _builds(pairs: list[Pair]) -> list[tuple[Pair, Pair]]:
    """Every two engines of one network on one device."""
    return [(one, other) for one, other in combinations(pairs, 2) if one.network == other.network]


def _ranked(one: Pair, other: Pair, roof: Roof) -> tuple[str, float, float]:
    """What the two are, and time of the second over that of the first: recorded, and estimated by figures of others."""
    estimated = [estimate(pair.shown, pair.device, roof).ms for pair in (one, other)]
    name = f"{one.network}: {one.precision} to {other.precision}"
    return name, other.ms / one.ms, estimated[1] / estimated[0]


def _is_right(recorded: float, estimated: float) -> bool:
    """Whether the faster of two is told; recorded times within 3 % of each other are a draw that any answer meets."""
    return abs(log(recorded)) < DRAW or (recorded < 1) == (estimated < 1)


def _pairs(corpus: Path) -> Iterable[Pair]:
    for network, precision, layers, profile, words in RECORDS:
        device = find_device(str(corpus / "profile" / words) if words.endswith(".json") else words)
        shown = view(read(corpus / "layer_info" / layers), profile=read_profile(corpus / "profile" / profile))
        assert shown.total_ms is not None
        yield Pair(network=network, precision=precision, shown=shown, device=device, ms=shown.total_ms)


def _fitted(pairs: list[Pair], grid: Sequence[Roof]) -> Roof:
    """The figures with the smallest squared errors of times and of ratios."""
    return min(grid, key=lambda roof: _misfit(pairs, roof))


def _misfit(pairs: list[Pair], roof: Roof) -> float:
    errors = {pair: log(pair.ratio(roof)) for pair in pairs}
    networks = {pair.network for pair in pairs}
    times = sum(
        fmean(error**2 for pair, error in errors.items() if pair.network == name) for name in networks
    )
    ratios = [(errors[one] - errors[other]) ** 2 for one, other in _builds(pairs)]
    return times + RATIOS * (fmean(ratios) if ratios else 0.0)


if __name__ == "__main__":
    main()
