"""From the ledger to the compute nodes: which convolutions and matrix products run in INT8, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qdqtool.buildlog.graph import Graph, Node
from qdqtool.buildlog.ledger import Row
from qdqtool.buildlog.names import Names
from qdqtool.buildlog.records import Layer, types
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Role
from qdqtool.core.events import ComputeNode, End
from qdqtool.engine.precision import judged
from qdqtool.trt.ops import PRODUCTS


class Precisions:
    """Verdicts on the compute nodes of one run."""

    def __init__(self, graph: Graph, ledger: Iterable[Row], layers: tuple[Layer, ...], names: Names) -> None:
        self._graph = graph
        self._rows: dict[str, Row] = {}
        self._fused: dict[str, list[Row]] = {}
        for row in ledger:
            self._rows[row.node] = row
            if row.end in (End.INPUT, End.WEIGHT, End.OUTPUT):
                for part in names.parts(row.into):
                    self._fused.setdefault(part, []).append(row)
        self._layers: dict[str, Layer] = {}
        for layer in layers:
            for part in (*layer.onnx_nodes, *names.parts(layer.name)):
                if part not in self._layers or layer.kind in _CORES:
                    self._layers[part] = layer

    def all(self) -> tuple[ComputeNode, ...]:
        """A verdict for every compute node of the model, in its order."""
        return tuple(self._judge(node) for node in self._graph.nodes if node.op in PRODUCTS)

    def _judge(self, node: Node) -> ComputeNode:
        rows = self._fused.get(node.name, [])
        ends = {row.end for row in rows}
        layer = self._layers.get(node.name)
        if ends & {End.INPUT, End.WEIGHT} and any(row.kind == "DQ" for row in rows):
            precision = "int8" if End.OUTPUT in ends else "int8-in"
            reason = self._fused_reason(node, rows)
        else:
            precision, reason = self._unfused(node, layer)
        return ComputeNode(
            node=node.name,
            op=node.op,
            precision=precision,
            reason=reason,
            lines=tuple(
                sorted({line for row in rows for line in row.lines} | ({layer.line} if layer else set()))
            ),
            layer=layer.name if layer else "",
            contradiction=_contradiction(precision, layer) if rows else "",
        )

    def _fused_reason(self, node: Node, rows: list[Row]) -> str:
        output = next((row.node for row in rows if row.end is End.OUTPUT), "")
        if output:
            return f"its DQ inputs and its output {output} were fused into it"
        after = sorted({reader.op for reader in self._graph.readers(node.name)})
        behind = f"its readers are {', '.join(after)}" if after else "it makes an output of the model"
        return f"its DQ inputs were fused into it, but no Q was fused as its output: {behind}"

    def _unfused(self, node: Node, layer: Layer | None) -> tuple[str, str]:
        makers = [self._graph.maker(tensor) for tensor in node.inputs[:2]]
        feeding = [maker for maker in makers if maker is not None and maker.op == "DequantizeLinear"]
        if not node.inputs:
            return "unknown", "the log does not show its inputs"
        if not feeding:
            return "float", "none of its inputs comes from a DequantizeLinear"
        if len(feeding) < 2:
            pairs = zip(node.inputs, makers, strict=False)
            bare = [tensor for tensor, maker in pairs if maker not in feeding]
            if not bare:
                return "unknown", "the log shows only one of its inputs"
            return "float", f"its input {bare[0]} does not come from a DequantizeLinear"
        dispositions = [self._rows[maker.name].end for maker in feeding if maker.name in self._rows]
        if all(disposition is End.KERNEL for disposition in dispositions) and layer is not None:
            return _by_tensors(layer)
        words = ", ".join(sorted({disposition.value for disposition in dispositions}))
        return "unknown", f"the log does not say that its DQ inputs were fused into it (they are {words})"


_CORES = frozenset({"correlation", "gemm", "deconv", "CaskConvolution", "CaskGemmConvolution"})
_FLOATS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


def layer_verdicts(
    layers: Iterable[Layer], refused: Mapping[str, tuple[str, int]], names: Names
) -> tuple[ComputeNode, ...]:
    """A verdict for every compute layer of an engine whose model has no Q and DQ nodes.

    Args:
        layers: the engine's layers.
        refused: layers whose INT8 kernels were refused -> the tensor without a scale and the line that says so.
        names: takes the names of fused layers apart.
    """
    found = []
    for layer in layers:
        value = judged(layer.value)
        if value.role is not Role.COMPUTE:
            continue
        precision, reason = _by_type(layer, value.precision)
        lines = {layer.line}
        for part in (layer.name, *names.parts(layer.name)):
            if part in refused and precision != "int8":
                tensor, line = refused[part]
                reason = f"its INT8 kernels were refused: tensor {tensor} has no scale"
                lines.add(line)
        found.append(
            ComputeNode(
                node=layer.name,
                op=layer.kind,
                precision=precision,
                reason=reason,
                lines=tuple(sorted(lines)),
                layer=layer.name,
            )
        )
    return tuple(found)


def _by_type(layer: Layer, precision: DType) -> tuple[str, str]:
    if precision is DType.UNKNOWN:
        return "unknown", "the log does not print its types"
    if precision is not DType.INT8:
        return "float", f"its kernel computes in {precision.value}"
    if any(tensor.dtype is DType.INT8 for tensor in layer.outputs):
        return "int8", "its kernel reads and writes INT8"
    return "int8-in", f"its kernel reads INT8 and writes {_listed(types(layer.outputs)) or 'another type'}"


def _by_tensors(layer: Layer) -> tuple[str, str]:
    """The verdict that a kernel's own tensors give: INT8 needs two INT8 operands of rank 2 or more."""
    operands = [tensor for tensor in (*layer.inputs, *layer.constants) if len(tensor.shape or ()) >= 2]
    quantized = [tensor for tensor in operands if tensor.dtype is DType.INT8]
    if not operands:
        return "unknown", f"its kernel {layer.name} lists no tensors"
    if len(quantized) < 2:
        return "float", f"its kernel {layer.name} reads {len(quantized)} INT8 tensor(s) of {len(operands)}"
    if any(tensor.dtype is DType.INT8 for tensor in layer.outputs):
        return "int8", f"its kernel {layer.name} reads and writes INT8"
    return "int8-in", f"its kernel {layer.name} reads INT8 and writes {_listed(types(layer.outputs))}"


def _contradiction(precision: str, layer: Layer | None) -> str:
    """How the engine layer's tensors disagree with the ledger; "" where they agree or are not printed."""
    if layer is None:
        return ""
    reads, writes = types(layer.inputs), types(layer.outputs)
    if not reads or not writes or DType.UNKNOWN in reads or DType.UNKNOWN in writes:
        return ""
    if precision in ("int8", "int8-in") and DType.INT8 not in reads + types(layer.constants):
        return f"the ledger says INT8 in, its layer reads {_listed(reads)}"
    if precision == "int8" and DType.INT8 not in writes:
        return f"the ledger says INT8 out, its layer writes {_listed(writes)}"
    if precision == "int8-in" and not _FLOATS & set(writes):
        return f"the ledger says float out, its layer writes {_listed(writes)}"
    return ""


def _listed(types: list[DType]) -> str:
    return ", ".join(sorted({str(dtype) for dtype in types})) or "nothing"
