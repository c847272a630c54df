"""Verdicts on number formats for whole networks that nobody tuned for, against what the layer dump of a real build says.

    python benchmarks/format_networks.py [MODEL.onnx ...] [--quick] [--formats NAME ...] [--sm N ...]

Every float model is quantized in every format as `qdqtool quantize` does it, with made-up samples, and built for every
architecture that has the format; for the others the placement must refuse, naming node, target and way out. What the kernels
multiply is read from the dump by the parser of `formats.py`, which shares nothing with qdqtool's. Compared with it, node
by node: what the audit says, what predict says, and whether lint was silent just where the node is as asked. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from formats import records, seen

import qdqtool
from qdqtool.core.findings import Severity
from qdqtool.errors import QdqError

FIRST = {"fp8": 89, "int8-weights": 80, "int4-weights": 80, "nvfp4": 120, "int8": 80}
"""The first architecture that TensorRT for RTX builds a format for, as its reference of builds says; INT8 convolutions."""
DIGITS = Path(__file__).resolve().parents[1] / "recipes" / "examples" / "digits" / "digits.onnx"
SETTINGS = {
    "calibrate.method": "max",
    "weights.rounding": "nearest",
    "insert.types": "fp16",
    "insert.weights": "stored",
    "insert.overflow": "ignore",
}


@dataclass(frozen=True)
class Told:
    """One node in one engine: what the dump says, and what was said of it."""

    node: str
    truth: str
    asked: str
    audit: str
    predicted: str
    linted: bool

    @property
    def right(self) -> tuple[bool, bool, bool]:
        """Whether audit, predict and lint are right of a node whose kernel the dump shows."""
        fallen = "-weights" not in self.asked and self.truth not in {self.asked, "int8", "fp8", "nvfp4"}
        truth = "float" if fallen else self.truth
        audit = self.audit == self.truth or (self.asked == "float" == self.audit == truth)
        return audit, self.predicted == truth, self.linted == (self.asked not in {"float", self.truth})


def judge(path: Path, format_: str, sm: int, quantized: qdqtool.Quantized) -> Iterator[Told]:
    """What is told of every node of a network in a format, beside what an engine does."""
    lint = qdqtool.lint(quantized, target="rtx", sm=str(sm))
    warned = {each.node for each in lint.findings if each.severity is not Severity.INFO}
    predicted = {
        node.node: node.realised for node in qdqtool.predict(quantized, target="rtx", sm=str(sm)).nodes
    }
    with tempfile.TemporaryDirectory() as folder:
        engine = qdqtool.build(quantized, sm=str(sm), out=folder)
        known = tuple(records((Path(folder) / "layers.txt").read_text("utf-8")))
        for verdict in qdqtool.audit(quantized, engine, sm=str(sm)).verdicts:
            truth = seen(known, verdict.node)
            if truth != "unknown":
                yield Told(
                    node=f"{path.stem} {format_} sm{sm} {verdict.op} {verdict.node}",
                    truth=truth,
                    asked=verdict.asked,
                    audit=verdict.realised,
                    predicted=predicted.get(verdict.node, ""),
                    linted=verdict.node in warned,
                )


def refused(path: Path, format_: str, sm: int) -> bool:
    """Whether placement refuses a format that the architecture has not, with place, target and way out."""
    try:
        qdqtool.place(path, settings={"place.format": format_, "build.sm": sm})
    except QdqError as error:
        return bool(error.where) and f"SM{sm}" in error.what and "build.sm" in error.fix
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, default=[DIGITS])
    parser.add_argument("--quick", action="store_true", help="one format on one architecture")
    parser.add_argument("--formats", nargs="*", default=["fp8", "int8-weights", "int4-weights", "nvfp4"])
    parser.add_argument("--sm", nargs="*", type=int, default=[86, 89, 120])
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.formats, chosen.sm = ["fp8"], [89]
    counts: Counter[str] = Counter()
    for path in chosen.models:
        counts["networks"] += 1
        for format_ in chosen.formats:
            _network(path, format_, chosen.sm, counts)
    print(json.dumps(counts))


def _network(path: Path, format_: str, architectures: list[int], counts: Counter[str]) -> None:
    for sm in (sm for sm in architectures if sm < FIRST[format_]):
        counts["refusals"] += 1
        fine = refused(path, format_, sm)
        counts["refusals_right"] += fine
        print(f"{path.stem} {format_} sm{sm} refused{'' if fine else '   WRONG'}", flush=True)
    able = [sm for sm in architectures if sm >= FIRST[format_]]
    if not able:
        return
    settings = {**SETTINGS, "place.format": format_, "build.sm": max(able)}
    try:
        quantized = qdqtool.quantize(path, "random:1", settings=settings)
    except QdqError as error:
        counts["not_quantized"] += 1
        print(f"{path.stem} {format_} not quantized: {error}", flush=True)
        return
    asked = Counter(decision.quantize for decision in quantized.placement.decisions)
    for sm in able:
        counts["engines"] += 1
        try:
            told = tuple(judge(path, format_, sm, quantized))
        except QdqError as error:
            counts["not_built"] += 1
            print(f"{path.stem} {format_} sm{sm} NOT BUILT: {error}", flush=True)
            continue
        found: dict[str, list[str]] = defaultdict(list)
        for node in told:
            rights = node.right
            counts.update(
                nodes=1,
                asked=node.asked != "float",
                as_asked=node.asked != "float" and node.asked == node.truth,
            )
            counts.update(audit_right=rights[0], predict_right=rights[1], lint_right=rights[2])
            wrong = f"{node.asked} -> {node.truth}; audit {node.audit}, predict {node.predicted}, lint {node.linted}"
            if not all(rights):
                found[wrong].append(node.node)
        for wrong, names in found.items():
            print(f"   {len(names)} x {wrong}: {', '.join(names[:3])}")
        print(f"{path.stem} {format_} sm{sm}: {asked[True]} of {sum(asked.values())} slots, nodes", end=" ")
        print(dict(Counter(f"{node.asked} -> {node.truth}" for node in told)), flush=True)


if __name__ == "__main__":
    main()
