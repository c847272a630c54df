"""Verdicts on number formats against what the layer dump of a real build says.

    python benchmarks/formats.py [--quick] [--only NAME ...]

Small graphs are written in every format, some so that TensorRT for RTX silently computes them in float. Each is built
for its architecture; what its kernels multiply is read from the dump by the parser in this file, which shares nothing
with qdqtool's. Compared with it are the audit's words for what was asked and what was realised; lint, which must warn where
the two differ and nowhere else, with an error where nothing is built; and predict. `--quick` builds every 16th graph for one
architecture instead of all that are listed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path

import onnx
from expert_cases import EXPERT_CASES
from format_cases import CASES as PLAIN_CASES
from format_cases import OTHER_NUMBERS

from qdqtool.auditing.full_audit import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.findings import LintFinding, NodeVerdict, Severity
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.target import Target
from qdqtool.engine import read
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint
from qdqtool.prediction.predict import predict

CASES = PLAIN_CASES | EXPERT_CASES
_WORDS = {"Int8": "int8", "Int4": "int4", "FP8": "fp8", "FP4E2M1": "nvfp4"}


@dataclass(frozen=True)
class Record:
    """One line of the dump: names and (type, shape) of its tensors."""

    name: str
    kind: str
    nodes: tuple[str, ...]
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    constants: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]


def records(text: str) -> Iterator[Record]:
    """The layers of a dump, by its plain words."""
    for line in text.splitlines():
        head = re.match(r"Name: (.*?), LayerType: (\w+), ", line)
        if head is None:
            continue
        parts = re.split(r", (?=(?:Inputs|Constants|Outputs|TacticName|Metadata): )", line)
        fields = {part.partition(": ")[0]: part.partition(": ")[2] for part in parts}
        yield Record(
            name=head[1],
            kind=head[2],
            nodes=tuple(re.findall(r"\[ONNX Layer: (.*?)\]", fields.get("Metadata", ""))),
            inputs=tuple(_tensors(fields.get("Inputs", ""))),
            constants=tuple(_tensors(fields.get("Constants", ""))),
            outputs=tuple(name for name, _, _ in _tensors(fields.get("Outputs", ""))),
        )


def _tensors(text: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for name, dims, word in re.findall(r"Name: (\S+?), .*?Dimensions: \[([^\]]*)\].*?Datatype: (\w+)", text):
        yield name, word, tuple(int(size) for size in dims.split(",") if size)


def truth(text: str, node: str, asked: str = "") -> str:
    """What the kernel of `node` multiplies; a dump calls the values of MXFP8 what they are by themselves, E4M3."""
    found = seen(tuple(records(text)), node)
    return found.replace("fp8-weights", "mxfp8-weights") if asked.startswith("mxfp8") else found


def seen(known: Sequence[Record], node: str) -> str:
    """What the kernel of `node` multiplies, by the layers of a dump; "unknown" where none is its own."""
    cores = [record for record in known if node in record.nodes and _is_core(record)]
    if not cores:
        return "unknown"
    core = cores[0]
    stored = [(prod(shape), word) for _, word, shape in core.constants if _is_weight(word, shape)]
    stored = [entry for entry in stored if entry[1] == "FP4E2M1"] or stored
    factors = [word for _, word, shape in core.inputs if len(shape) > 1]
    if factors[:2] == ["FP4E2M1", "FP4E2M1"]:
        stored = []  # what is stored are scales
    second = max(stored)[1] if stored else [*factors, "", ""][1]
    if (
        factors
        and factors[0] in _WORDS
        and factors[0] == second
        and core.kind != "runtime_fusion"
        and "MulSum" not in core.name
    ):
        return _WORDS[second]
    if stored:
        return f"{_WORDS[max(stored)[1]]}-weights"
    read_ = {name for name, _, _ in core.inputs}
    for record in known:
        held = [(prod(shape), word) for _, word, shape in record.constants if _is_weight(word, shape)]
        if not record.inputs and held and read_ & set(record.outputs):
            return f"{_WORDS[max(held)[1]]}-weights dequantized before the kernel"
    return "float"


def _is_core(record: Record) -> bool:
    words = re.sub(r"_myl\d+_\d+$", "", record.name)
    return (
        record.kind in {"correlation", "gemm", "deconv"}
        or "_gemm_mha" in words
        or "_gemv_mha" in words
        or words.endswith(("Fc", "ReshMulSum"))
        or (record.kind == "runtime_fusion" and "Fc" in words)
    )


def _is_weight(word: str, shape: tuple[int, ...]) -> bool:
    return word in _WORDS and sum(size != 1 for size in shape) > 1


@dataclass(frozen=True)
class Judged:
    """One graph built for one architecture.

    Attributes:
        realised: what the dump says, or "refused".
        told: the audit's verdict; None where the build was refused.
        lint: findings of lint that are no mere information.
        foreseen: what predict says is realised.
        why: the error of a refused build.
    """

    realised: str
    told: NodeVerdict | None
    lint: tuple[LintFinding, ...]
    foreseen: str
    why: str = ""


def judge(name: str, sm: str) -> Judged:
    """The dump's truth beside what audit, lint and predict say."""
    make, asked, _ = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / "model.onnx"
        onnx.save(make(), path)
        model, target = load(path), Target.parse("rtx", (sm,))
        found = tuple(each for each in lint(model, target).findings if each.severity is not Severity.INFO)
        foreseen = next((node.realised for node in predict(model, target).nodes if node.node == "core"), "")
        request = BuildRequest(model=path, folder=folder, targets=(f"sm{sm}",), timeout_s=300)
        try:
            result, _ = RTX.build(request)
        except QdqError as error:
            return Judged("refused", None, found, foreseen, error.what)
        assert result.layers is not None
        dump = folder / result.layers
        verdicts = audit(model, read(dump), targets=(f"sm{sm}",)).verdicts
        told = next(each for each in verdicts if each.node == "core")
        return Judged(truth(dump.read_text("utf-8"), "core", asked), told, found, foreseen)


def audited_right(name: str, found: Judged) -> bool:
    """Whether the audit's words are those of the dump."""
    told = found.told
    return told is None or (told.asked, told.realised) == (CASES[name][1], found.realised)


def linted_right(name: str, found: Judged) -> bool:
    """Whether lint warns just where something else is realised or numbers change, with an error where nothing is built."""
    errors = any(each.severity is Severity.ERROR for each in found.lint)
    if name in OTHER_NUMBERS:
        return bool(found.lint)
    if found.realised == "refused":
        return errors
    return bool(found.lint) == (found.realised != CASES[name][1]) and not errors


def foreseen_right(name: str, found: Judged) -> bool:
    """Whether predict says what is realised; arithmetic that falls back it calls float, wherever weights are made so."""
    asked = CASES[name][1]
    if found.realised == "refused":
        return True
    fallen = "-weights" not in asked and found.realised not in {asked, *_WORDS.values()}
    return found.foreseen == ("float" if fallen else found.realised)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=())
    chosen = parser.parse_args()
    counts = {"cases": 0, "verdicts_right": 0, "lint_right": 0, "predictions_right": 0}
    formats: dict[str, dict[str, int]] = defaultdict(lambda: {"cases": 0, "right": 0})
    for name, (_, asked, targets) in islice(CASES.items(), 0, None, 16 if chosen.quick else 1):
        if chosen.only and name not in chosen.only:
            continue
        for sm in targets[-1:] if chosen.quick else targets:
            found = judge(name, sm)
            right = audited_right(name, found)
            wrong = [
                word
                for word, fine in (
                    (f"audit says {found.told and (found.told.asked, found.told.realised)}", right),
                    (f"lint says {[each.code for each in found.lint]}", linted_right(name, found)),
                    (f"predict says {found.foreseen}", foreseen_right(name, found)),
                )
                if not fine
            ]
            counts["cases"] += 1
            counts["verdicts_right"] += right
            counts["lint_right"] += linted_right(name, found)
            counts["predictions_right"] += foreseen_right(name, found)
            formats[asked]["cases"] += 1
            formats[asked]["right"] += right
            print(f"{name:40} sm{sm:4} {asked} -> {found.realised}", *wrong, sep="   WRONG: ")
            for each in found.lint[:1]:
                print(f"{'':46} {each.code}: {each.reason}; fix: {each.fix}")
    print(json.dumps({**counts, "formats": dict(sorted(formats.items()))}))


if __name__ == "__main__":
    main()
