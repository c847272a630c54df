"""Whether placement, lint, repair and fixes say one thing: the laws of the rules, counted.

    python benchmarks/consistency.py [--quick] [--shared ../shared]

Every float model is quantized for every builder and number format; lint must have nothing to say about the result and
repair must change nothing. Every command that a finding about a Q/DQ graph prints must silence it, and where it is repair
without --float and --int8, the model must still compute the same within one quantization step. --quick takes the small models of the tests;
without it the networks of the shared folder are quantized, too. What breaks a law is named on stderr; the last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkout import ROOT
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.app import application
from qdqtool.core.advice import repair_commands
from qdqtool.core.findings import LintFinding
from qdqtool.core.target import FAMILIES, Target
from qdqtool.core.tensors import NVFP4, SCHEMES
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from qdqtool.matching.weights import quantize_activations
from qdqtool.matching.weights import tensors_without_range as unmeasured
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import on_request, repair
from tests import models
from tests.placement.building import quantized
from tests.placement.qdq import GRAPHS
from tests.placement.zoo import FLOAT

FORMATS = ("int8", "fp8", "int8-weights", "int4-weights", "nvfp4")
_INT8, _FP4_OF_RTX = 80, 120
"""SM80 has every INT8 kernel; TensorRT for RTX offers FP4 from SM120 on."""
Outputs = dict[str, np.ndarray]
_ASKED_FOR = "nothing to do where place.format"
"""How a finding says that a recipe may ask for just that."""


def main() -> None:
    """Count the laws."""
    options = _options()
    makers = dict(FLOAT)
    if not options.quick:
        makers |= {
            path.parent.name: partial(onnx.load, path)
            for path in sorted(options.shared.glob("models/*/model.onnx"))
        }
    placed = list(_placed(makers))
    counts = {"lint_after_place": 0, "repair_after_place": 0}
    for name, target, model in placed:
        findings = [each for each in lint(model, target).findings if _ASKED_FOR not in each.fix]
        changes = repair(model, target)[1]
        counts["lint_after_place"] += len(findings)
        counts["repair_after_place"] += len(changes)
        for finding in findings:
            _say(name, target, f"lint: {finding.code} {finding.node}: {finding.reason}")
        for change in changes:
            _say(name, target, f"repair: {change.repair} {change.subject}: {change.what}")
    fixes = [held for graph in GRAPHS.items() for held in _fixes(*graph)]
    print(
        json.dumps(
            {
                "models": len(makers),
                "targets": len(FAMILIES),
                "formats": len(FORMATS),
                "placed": len(placed),
                **counts,
                "fixes": len(fixes),
                "fixes_silent": sum(fixes),
            }
        )
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small models of the tests only")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with models/")
    return parser.parse_args()


def _placed(makers: dict[str, Callable[[], onnx.ModelProto]]) -> Iterator[tuple[str, Target, Model]]:
    """Every model quantized for every builder and format that the builder takes."""
    for name, make in makers.items():
        for family in FAMILIES:
            for wanted in FORMATS:
                sm = (str(_first_gpu(wanted)),)
                try:
                    model, _ = quantized(make(), target=family, format=wanted, sm=sm)
                except UsageError:
                    continue  # this builder has no such format
                yield f"{name} in {wanted}", Target.parse(family, sm), model


def _first_gpu(scheme: str) -> int:
    """The oldest GPU whose builders all take a number format."""
    weights = SCHEMES[scheme].weights
    assert weights is not None
    return max(weights.sm, _FP4_OF_RTX if weights is NVFP4 else _INT8)


def _fixes(name: str, make: Callable[[], onnx.ModelProto]) -> Iterator[bool]:
    """For each command that a finding prints: whether the finding is gone, and the model computes the same."""
    with tempfile.TemporaryDirectory() as folder:
        model = load(models.save(make(), Path(folder)))
    for family in FAMILIES:
        target = Target.parse(family)
        said: dict[str, list[LintFinding]] = {}
        for finding in lint(model, target).findings:
            for command in repair_commands(finding.fix):
                said.setdefault(command, []).append(finding)
        for command, findings in said.items():
            after = _followed(command, model, target)
            if after is None:
                continue
            left = {(each.code, each.node) for each in lint(after, target).findings}
            same = "--" in command or _computes_the_same(model.proto, after.proto)
            for each in findings:
                if (each.code, each.node) in left:
                    _say(name, target, f"{each.code} is still found after {command}")
                if not same:
                    _say(name, target, f"{each.code}: the model computes something else after {command}")
                yield (each.code, each.node) not in left and same


def _followed(command: str, model: Model, target: Target) -> Model | None:
    """What a command makes of a model; None where the model contradicts itself, and repair says where."""
    word, *arguments = shlex.split(command)[1:]
    read = (
        application()
        .commands[word]
        .make_context(word, [*arguments, str(model.path), "--out", "out.onnx"])
        .params
    )
    try:
        asked, _ = on_request(model, to_float=read["to_float"] or (), to_int8=read["to_int8"] or ())
        made = repair(asked, target)[0]
    except InputFileError:
        return None
    measured = read["samples"] == "DATA"
    return quantize_activations(made, dict.fromkeys(unmeasured(made), 1.0))[0] if measured else made


def _computes_the_same(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    """Whether no output moves further than when every quantized value moves by one step of its grid.

    True where onnxruntime cannot run the broken model, so that there is nothing to compare with.
    """
    fed = models.feeds(before)
    try:
        was = models.run(before, fed, optimize=False)
    except (Exception, pytest.skip.Exception):  # noqa: BLE001 -- onnxruntime raises types of its own
        return True
    try:
        now, moved = (models.run(proto, fed, optimize=False) for proto in (after, _a_step_off(after)))
    except pytest.skip.Exception:
        return True  # onnxruntime has no kernel for what the fix writes
    # A fix that takes rounding away leaves no grid of its own: then the steps are those of the model before.
    steps = [(now, moved), *_moved_before(before, was, fed)]
    return all(
        _apart(now[key], value) <= 1e-6 + max(_apart(base[key], other[key]) for base, other in steps)
        for key, value in was.items()
        if value.dtype.kind == "f" and key in now
    )


def _moved_before(before: onnx.ModelProto, was: Outputs, fed: Outputs) -> Iterator[tuple[Outputs, Outputs]]:
    """What the broken model gives, and what it gives a step off; nothing where that cannot be run."""
    try:
        yield was, models.run(_a_step_off(before), fed, optimize=False)
    except (Exception, pytest.skip.Exception):  # noqa: BLE001 -- onnxruntime raises types of its own, here of grids that are not INT8
        return


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """The root of the mean square of a difference, where `other` is a number: onnxruntime gives NaN where TensorRT clips."""
    known = np.isfinite(other)
    return (
        float(np.sqrt(np.mean((one[known].astype(np.float64) - other[known]) ** 2))) if known.any() else 0.0
    )


def _a_step_off(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every dequantized value one step away: up where its integer is even, down where it is odd."""
    moved = onnx.ModelProto()
    moved.CopyFrom(proto)
    del moved.graph.node[:]
    for name, value in (("step_two", 2), ("step_one", 1)):
        moved.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int32), name))
    for number, node in enumerate(proto.graph.node):
        kept = moved.graph.node.add()
        kept.CopyFrom(node)
        if node.op_type == "DequantizeLinear":
            kept.output[0] = f"step_{number}_on_the_grid"
            moved.graph.node.extend(_step(node, f"step_{number}", kept.output[0]))
    return moved


def _step(node: onnx.NodeProto, name: str, result: str) -> Iterator[onnx.NodeProto]:
    """The nodes that add one step, with the sign of the integer's parity, to what a DequantizeLinear gives."""
    yield helper.make_node("Cast", [node.input[0]], [f"{name}_wide"], to=TensorProto.INT32)
    yield helper.make_node("Mod", [f"{name}_wide", "step_two"], [f"{name}_odd"])
    yield helper.make_node("Mul", [f"{name}_odd", "step_two"], [f"{name}_twice"])
    yield helper.make_node("Sub", ["step_one", f"{name}_twice"], [f"{name}_sign"])
    yield helper.make_node("Cast", [f"{name}_sign"], [f"{name}_narrow"], to=TensorProto.INT8)
    step = helper.make_node("DequantizeLinear", [f"{name}_narrow", node.input[1]], [f"{name}_step"])
    step.attribute.extend(node.attribute)
    yield step
    yield helper.make_node("Add", [result, f"{name}_step"], [node.output[0]])


def _say(name: str, target: Target, what: str) -> None:
    print(f"{name}, {target.name}: {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
