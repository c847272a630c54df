"""How often `qdqtool advise` is right about INT8 against FP16, on published pairs of times.

    python benchmarks/advice.py [--fit] [--quick]

Reads benchmarks/data/advice_pairs.tsv (times of one network in several precisions on one device, each row with its source) and
advice_networks.tsv (size of each network). Every network, at all its sizes, is left out of the fit in turn, and so, for comparison, is every
family (all YOLO11) and every device. Signs count for pairs that differ by more than 5 %; `told` are those for which the advice
is not "cannot say". `always_faster` is how often the answer "INT8 is faster" alone would be right.
Rank correlations (Spearman) are means over devices with four pairs or more, weighted by their pairs:

- `rank_correlation`: of the ratios INT8 / FP16.
- `rank_of_times`: of all FP16 and INT8 times.
- `rank_ceiling`: of the ratios, for a perfect prediction, if all were published with the noise of ratios published twice.
- `rank_of_facts`: of the ratios, for the best prediction from work, weights, kind and batch. Networks that agree in these facts
  within 10 % on one device (`facts_pairs` of them) show how far such a prediction is off.

`--fit` prints the coefficients for `qdqtool.engine.worth.COEFFICIENTS`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import expm1, log, sqrt
from pathlib import Path
from typing import Any

import checkout  # noqa: F401 -- puts the checkout on the path
import numpy as np

from qdqtool.engine.roofline import find_device
from qdqtool.engine.worth import GENERATIONS, SPREAD, SURE, features, predict_log_ratio

DATA = Path(__file__).resolve().parent / "data"
DIFFERENT = 0.05
"""Share by which the times of a pair must differ for its sign to count."""
CAP = (-1.0, 0.35)
"""Logarithms of ratios beyond these are cut in the fit: mistakes of a build rather than of INT8."""
ALIKE = 0.1
"""Difference of logarithms below which two sizes count as equal."""
PER_IMAGE = ("integrations/tensorrt.md", "images per second", "frames per second")
"""Words of the sources that give times per image, not of the whole batch."""
HELD = {"one": 0.0, "work, volta": 0.5}
"""Ridge by feature; 0.5 for generations and 1 for the rest."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One network in FP16 and INT8 on one device."""

    network: str
    device: str
    found: dict[str, float]
    recorded: float
    peak_ms: float | None
    fp16_ms: float
    """Of the whole batch."""
    facts: tuple[Any, ...]
    """Device, kind, batch, work and weights; () if a size was not published."""

    @property
    def base(self) -> str:
        """The network without the size of its input."""
        return re.sub(r" \d+(x\d+)?$", "", self.network)

    @property
    def family(self) -> str:
        """Networks of one design: YOLO11n and YOLO11x."""
        return re.match(r"YOLOv?\d+|RT-DETR|RF-DETR|[A-Za-z0-9]+", self.network)[0]  # type: ignore[index]


def rows(name: str) -> list[list[str]]:
    lines = (DATA / name).read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def pairs() -> list[Pair]:
    """All pairs with an FP16 and an INT8 time."""
    networks = {row[0]: row for row in rows("advice_networks.tsv")}
    found = []
    for network, batch, name, _release, _fp32, fp16, int8, _fp8, source in rows("advice_pairs.tsv"):
        if "-" in {fp16, int8}:
            continue
        device, facts = find_device(name), networks[network]
        times = int(batch) if any(word in source for word in PER_IMAGE) else 1
        peak = None
        if facts[1] != "-":
            peak = 2 * float(facts[1]) * int(batch) / (device.fp16_tflops or 1.0)
        found.append(
            Pair(
                network=network,
                device=name,
                found=features(GENERATIONS[device.sm], peak, facts[3]),
                recorded=log(float(int8) / float(fp16)),
                peak_ms=peak,
                fp16_ms=float(fp16) * times,
                facts=(name, facts[3], batch, peak, float(facts[2])) if peak and facts[2] != "-" else (),
            )
        )
    return found


def fitted(given: Sequence[Pair]) -> dict[str, float]:
    """Ridge regression of the logarithm of the ratio."""
    names = sorted({name for pair in given for name in pair.found})
    left = np.array([[pair.found.get(name, 0.0) for name in names] for pair in given])
    right = np.clip([pair.recorded for pair in given], *CAP)
    ridge = np.diag([HELD.get(name, 0.5 if name in GENERATIONS.values() else 1.0) for name in names])
    solved = np.linalg.solve(left.T @ left + ridge, left.T @ right)
    return {name: round(float(value), 4) for name, value in zip(names, solved, strict=True)}


def left_out(given: Sequence[Pair], key: Callable[[Pair], str]) -> list[float]:
    """What a fit without the pairs of the same key expects of each."""
    fits = {
        one: fitted([pair for pair in given if key(pair) != one]) for one in {key(pair) for pair in given}
    }
    return [predict_log_ratio(pair.found, fits[key(pair)]) for pair in given]


def signs(given: Sequence[Pair], told: Sequence[float]) -> tuple[int, int, int]:
    """Pairs that differ, those of them with an answer, and those with the right one."""
    differ = [
        (pair, one) for pair, one in zip(given, told, strict=True) if abs(expm1(pair.recorded)) > DIFFERENT
    ]
    answered = [(pair, one) for pair, one in differ if abs(one) >= SURE]
    return len(differ), len(answered), sum((one < 0) == (pair.recorded < 0) for pair, one in answered)


def correlation(given: Sequence[Pair], told: Sequence[float], recorded: Sequence[float]) -> float:
    """Return Spearman's rank correlation within devices of four pairs and more, weighted by their pairs."""
    found, weights = [], []
    for device in sorted({pair.device for pair in given}):
        here = [place for place, pair in enumerate(given) if pair.device == device]
        if len(here) >= 4:
            ranks = [ranked([values[place] for place in here]) for values in (told, recorded)]
            found.append(float(np.corrcoef(*ranks)[0, 1]))
            weights.append(len(here))
    return float(np.average(found, weights=weights))


def ranked(values: Sequence[float]) -> np.ndarray:
    """Return the rank of each value; equal values share their mean rank."""
    all_ = np.asarray(values)
    return np.array([(all_ < one).sum() + ((all_ == one).sum() - 1) / 2 for one in all_])


def ceiling(given: Sequence[Pair], noise: Sequence[float], draws: int = 100) -> float:
    """Return the rank correlation of the recorded ratios with themselves plus noise, drawn from `noise` with a random sign."""
    chance = np.random.default_rng(0)
    recorded = np.array([pair.recorded for pair in given])
    again = (
        recorded + chance.choice(noise, len(given)) * chance.choice([-1, 1], len(given)) for _ in range(draws)
    )
    return float(np.mean([correlation(given, recorded.tolist(), one.tolist()) for one in again]))


def published_noise(given: Sequence[Pair]) -> list[float]:
    """Return how far ratios of one network, batch and device that were published twice or more are from their mean."""
    published: dict[tuple[str, float | None, str], list[float]] = {}
    for pair in given:
        published.setdefault((pair.network, pair.peak_ms, pair.device), []).append(pair.recorded)
    return [
        (ratio - sum(ratios) / len(ratios)) * sqrt(len(ratios) / (len(ratios) - 1))
        for ratios in published.values()
        if len(ratios) > 1
        for ratio in ratios
    ]


def facts_noise(given: Sequence[Pair]) -> list[float]:
    """Return the differences, over the root of 2, of ratios of two networks that agree in all facts within 10 % on one device."""
    return [
        (left.recorded - right.recorded) / sqrt(2)
        for left, right in combinations(given, 2)
        if left.base != right.base
        and left.facts
        and right.facts
        and left.facts[:3] == right.facts[:3]
        and all(abs(log(a / b)) < ALIKE for a, b in zip(left.facts[3:], right.facts[3:], strict=True))
    ]


def of_times(given: Sequence[Pair], told: Sequence[float]) -> float:
    """Return the rank correlation of all FP16 and INT8 times within a device, for networks that no fit has seen.

    The FP16 time is a power of the work, times a factor for the kind of network; a factor of the device moves no rank.
    """
    known = [(pair, one) for pair, one in zip(given, told, strict=True) if pair.peak_ms]
    pairs = [pair for pair, _ in known]
    devices = sorted({pair.device for pair in pairs})
    left = np.array(
        [
            [float(pair.device == device) for device in devices]
            + [
                log(pair.peak_ms or 1.0),
                *(pair.found.get(kind, 0.0) for kind in ("separable", "transformer")),
            ]
            for pair in pairs
        ]
    )
    right = np.log([pair.fp16_ms for pair in pairs])
    expected_ms = np.zeros(len(pairs))
    for base in {pair.base for pair in pairs}:
        out = np.array([pair.base == base for pair in pairs])
        seen = left[~out]
        solved = np.linalg.solve(seen.T @ seen + 0.05 * np.eye(left.shape[1]), seen.T @ right[~out])
        expected_ms[out] = left[out] @ solved
    both = [
        [*half, *(one + ratio for one, ratio in zip(half, ratios, strict=True))]
        for half, ratios in (
            (expected_ms.tolist(), [one for _, one in known]),
            (right.tolist(), [pair.recorded for pair in pairs]),
        )
    ]
    return correlation([*pairs, *pairs], *both)


def _family(pair: Pair) -> str:
    return pair.family


def _device(pair: Pair) -> str:
    return pair.device


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="print the coefficients")
    parser.add_argument("--quick", action="store_true", help="leave out single networks only")
    options = parser.parse_args()
    given = pairs()
    if options.fit:
        for name, value in fitted(given).items():
            print(f'    "{name}": {value},')
    told = left_out(given, lambda pair: pair.base)
    for pair, one in zip(given, told, strict=True):
        wrong = (
            abs(expm1(pair.recorded)) > DIFFERENT and abs(one) >= SURE and (one < 0) != (pair.recorded < 0)
        )
        if wrong:
            print(
                f"wrong: {pair.network} on {pair.device}: recorded {expm1(pair.recorded):+.0%}, expected {expm1(one):+.0%}"
            )
    keys: dict[str, Callable[[Pair], str]] = {} if options.quick else {"family": _family, "device": _device}
    others = {name: left_out(given, key) for name, key in keys.items()}
    for name, values in others.items():
        print(f"every {name} left out: pairs that differ, told, right: {signs(given, values)}")
    same = facts_noise(given)
    misses = np.abs(np.subtract(told, [pair.recorded for pair in given]))
    differ, answered, right = signs(given, told)
    print(
        f"four of five pairs are within a factor of {np.exp(np.quantile(misses, 0.8)):.2f} (stated: {np.exp(SPREAD):.2f})"
    )
    found = {
        "pairs": len(given),
        "devices": len({pair.device for pair in given}),
        "signs_right": right,
        "told": answered,
        "rank_correlation": round(correlation(given, told, [pair.recorded for pair in given]), 3),
        "rank_ceiling": round(ceiling(given, published_noise(given)), 3),
        "rank_of_facts": round(ceiling(given, same), 3),
        "facts_pairs": len(same),
        "rank_of_times": round(of_times(given, told), 3),
        "differ": differ,
        "always_faster": sum(pair.recorded < 0 for pair in given if abs(expm1(pair.recorded)) > DIFFERENT),
        "networks": len({pair.base for pair in given}),
        **{f"by_{name}": signs(given, values)[1:] for name, values in others.items()},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
