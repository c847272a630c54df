"""Verdicts on number formats against what the layer dump of a real build says.

    python benchmarks/formats.py [--quick] [--only NAME ...]

Small graphs are written in every format, some so that TensorRT for RTX silently computes them in float. Each is built
for its architecture; what its kernels multiply is read from the dump by the parser in this file, which shares nothing
with qdqtool's; and the audit's words for what was asked and what was realised are compared with it. `--quick` builds
every graph for one architecture instead of all that take it. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from format_cases import CASES

from qdqtool.auditing.run import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.build import BuildRequest
from qdqtool.core.findings import NodeVerdict
from qdqtool.engine import read
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.load import load

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
    seen = _seen(text, node)
    return seen.replace("fp8-weights", "mxfp8-weights") if asked.startswith("mxfp8") else seen


def _seen(text: str, node: str) -> str:
    known = list(records(text))
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
        or words.endswith(("Fc", "ReshMulSum"))
        or (record.kind == "runtime_fusion" and "Fc" in words)
    )


def _is_weight(word: str, shape: tuple[int, ...]) -> bool:
    return word in _WORDS and sum(size != 1 for size in shape) > 1


def judge(name: str, sm: str) -> tuple[str, NodeVerdict, str] | str:
    """The dump's truth beside the audit's verdict; words where the build failed."""
    make, asked, _ = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / "model.onnx"
        onnx.save(make(), path)
        try:
            result, _ = RTX.build(
                BuildRequest(model=path, folder=folder, targets=(f"sm{sm}",), timeout_s=300)
            )
        except QdqError as error:
            return error.what
        assert result.layers is not None
        dump = folder / result.layers
        found = {
            told.node: told for told in audit(load(path).view, read(dump), targets=(f"sm{sm}",)).verdicts
        }
        return truth(dump.read_text("utf-8"), "core", asked), found["core"], sm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=())
    chosen = parser.parse_args()
    right, cases, formats = 0, 0, defaultdict(lambda: {"cases": 0, "right": 0})
    for name, (_, asked, targets) in CASES.items():
        if chosen.only and name not in chosen.only:
            continue
        for sm in targets[-1:] if chosen.quick else targets:
            cases += 1
            formats[asked]["cases"] += 1
            found = judge(name, sm)
            if isinstance(found, str):
                print(f"{name:36} sm{sm:4} not built: {found}")
                continue
            wanted, told, _ = found
            good = (told.asked, told.realised) == (asked, wanted)
            right += good
            formats[asked]["right"] += good
            mark = "" if good else f"   WRONG: audit says {told.asked} -> {told.realised}"
            print(f"{name:36} sm{sm:4} {asked} -> {wanted}{mark}")
            if told.reason and wanted != asked:
                print(f"{'':42} {told.reason}; fix: {told.fix}")
    print(json.dumps({"cases": cases, "verdicts_right": right, "formats": dict(sorted(formats.items()))}))


if __name__ == "__main__":
    main()
