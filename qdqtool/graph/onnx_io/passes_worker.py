"""Child process that runs onnx's native passes, and onnxruntime on constants, for `qdqtool.graph.onnx_io.passes`.

Requests come on standard input, answers go to standard output: a line of JSON with the size of what follows it. The
process ends when its standard input does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.io.child import pipes
from qdqtool.platform import lift_limits, limit_further

if TYPE_CHECKING:
    import onnx


def main() -> None:
    """Run ONNX passes on models for the parent process until it sends no more requests."""
    requests, answers = pipes()
    passes = _passes()
    while line := requests.readline():
        request = json.loads(line)
        content = requests.read(request["size"])
        limit_further(memory=request["memory"], seconds=request["seconds"])
        try:
            body, head = passes[request["pass"]](content, **request["arguments"]), {}
        except MemoryError:
            body, head = b"", {"exceeded": "exceeded the memory limit for a model of its size"}
        except Exception as error:  # noqa: BLE001 -- onnx raises a dozen classes; each is a verdict on the model
            body, head = b"", {"refused": str(error).strip() or type(error).__name__}
        lift_limits()
        answers.write(json.dumps({**head, "size": len(body)}).encode() + b"\n" + body)
        answers.flush()
        if "exceeded" in head:
            return


def _passes() -> dict[str, Callable[..., bytes]]:
    import onnx
    from onnx import checker, inliner, shape_inference, version_converter

    def infer(content: bytes) -> bytes:
        return bytes(shape_inference.infer_shapes(content, data_prop=True).SerializeToString())

    def judge(content: bytes) -> bytes:
        shape_inference.infer_shapes(content, check_type=True, strict_mode=True, data_prop=True)
        return b""

    def resolve(content: bytes, opset: int) -> bytes:
        from qdqtool.graph.canonical.symbols import resolve

        values = resolve(onnx.ModelProto.FromString(content), opset)
        return bytes(onnx.GraphProto(value_info=values.values()).SerializeToString())

    def convert(content: bytes, target: int) -> bytes:
        converted = version_converter.convert_version(onnx.ModelProto.FromString(content), target)
        return bytes(converted.SerializeToString())

    def inline(content: bytes) -> bytes:
        from qdqtool.graph.canonical.order import with_defaults

        inlined = inliner.inline_local_functions(with_defaults(onnx.ModelProto.FromString(content)))
        return bytes(inlined.SerializeToString())

    def check(content: bytes) -> bytes:
        checker.check_model(content)
        return b""

    def compute(content: bytes) -> bytes:
        return bytes(_compute_outputs(onnx.ModelProto.FromString(content)).SerializeToString())

    return {
        "infer": infer,
        "judge": judge,
        "resolve": resolve,
        "convert": convert,
        "inline": inline,
        "check": check,
        "compute": compute,
        "transposes": _move_transposes,
    }


def _compute_outputs(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the outputs of a model of constants, as onnxruntime computes them. Outputs that it cannot compute are omitted."""
    import onnx

    outputs = _run_all(model, [], list(model.graph.node))[1]
    return onnx.GraphProto(
        initializer=[onnx.numpy_helper.from_array(value, name) for name, value in outputs.items()]
    )


def _run_all(
    model: onnx.ModelProto, good: list[onnx.NodeProto], nodes: list[onnx.NodeProto]
) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """Return the nodes that onnxruntime can run among `good` and `nodes`, and their outputs.

    The nodes in `good` are known to run.

    Halves a failing group down to one node.
    """
    try:
        return [*good, *nodes], _run(model, [*good, *nodes])
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 -- onnxruntime's exceptions share no class
        if len(nodes) < 2:
            return good, _run(model, good) if good else {}
    middle = len(nodes) // 2
    good, _ = _run_all(model, good, nodes[:middle])
    return _run_all(model, good, nodes[middle:])


def _run(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> dict[str, Any]:
    """Return the model outputs that these nodes make."""
    import onnx

    computed = {name for node in nodes for name in node.output}
    names = [value.name for value in model.graph.output if value.name in computed]
    if not names:
        return {}
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.MergeFrom(onnx.GraphProto(name="part", node=nodes, initializer=model.graph.initializer))
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, _open(part.SerializeToString(), "DISABLE_ALL").run(names, {}), strict=True))


_OTHER_PASSES = [
    "Level1_RuleBasedTransformer",
    "CommonSubexpressionElimination",
    "ConstantFolding",
    "ConstantSharing",
    "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit",
    "FreeDimensionOverrideTransformer",
    "GatherSliceToSplitFusion",
    "GatherToSliceFusion",
    "GeluFusion",
    "LayerNormFusion",
    "MatMulAddFusion",
    "PropagateCastOps",
    "QDQPropagationTransformer",
    "ReshapeFusion",
    "SimplifiedLayerNormFusion",
    "WeightBiasQuantization",
    "WhereDummyDq",
]
"""Passes of onnxruntime's basic level other than the TransposeOptimizer."""


def _move_transposes(content: bytes) -> bytes:
    """Return the model after onnxruntime's TransposeOptimizer."""
    with tempfile.TemporaryDirectory(prefix="qdqtool-") as folder:
        file = Path(folder) / "model.onnx"
        _open(content, "ENABLE_BASIC", disabled=_OTHER_PASSES, result=str(file))
        return file.read_bytes()


def _open(content: bytes, level: str, disabled: Sequence[str] = (), result: str = "") -> Any:
    """Return a session of onnxruntime that optimizes at `level` without the `disabled` passes, and writes the optimized model."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    options.optimized_model_filepath = result
    return onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled)
    )
