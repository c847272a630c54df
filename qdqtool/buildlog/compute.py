"""Finds the precision of each compute node from the Q/DQ history in a log, and why it differs from the request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qdqtool.buildlog.ledger import Row
from qdqtool.buildlog.records import Graph, LoggedLayer, LoggedNames, LoggedNode, types
from qdqtool.core.engine import Role
from qdqtool.core.events import FLOAT_OUT, ComputeNode, End
from qdqtool.core.tensors import FLOAT, INT8, NAMES, DType, describe_request
from qdqtool.engine.roles import judge_layer
from qdqtool.trt.ops import DEQUANTIZE, PRODUCTS


class Precisions:
    """Finds the precision of each compute node of one run, from the log."""

    def __init__(
        self, graph: Graph, ledger: Iterable[Row], layers: tuple[LoggedLayer, ...], names: LoggedNames
    ) -> None:
        self._graph = graph
        self._rows: dict[str, Row] = {}
        self._fused: dict[str, list[Row]] = {}
        for row in ledger:
            self._rows[row.node] = row
            if row.end in (End.INPUT, End.WEIGHT, End.OUTPUT):
                for part in names.parts(row.into):
                    self._fused.setdefault(part, []).append(row)
        self._layers: dict[str, LoggedLayer] = {}
        for layer in layers:
            for part in (*layer.onnx_nodes, *names.parts(layer.name)):
                if part not in self._layers or layer.kind in _CORES:
                    self._layers[part] = layer

    def all(self) -> tuple[ComputeNode, ...]:
        """Return a verdict on every compute node of the model, in graph order."""
        return tuple(self._judge(node) for node in self._graph.nodes if node.op in PRODUCTS)

    def _judge(self, node: LoggedNode) -> ComputeNode:
        rows = self._fused.get(node.name, [])
        ends = {row.end for row in rows}
        layer = self._layers.get(node.name)
        if ends & {End.INPUT, End.WEIGHT} and any(row.kind == "DQ" for row in rows):
            word = self._fused_type(node).value
            precision = word if End.OUTPUT in ends else f"{word}{FLOAT_OUT}"
            reason = self._fused_reason(node, rows)
        else:
            precision, reason = self._explain_unfused(node, layer)
        return ComputeNode(
            node=node.name,
            op=node.op,
            precision=precision,
            asked=self._requested_format(node),
            reason=reason,
            lines=tuple(
                sorted({line for row in rows for line in row.lines} | ({layer.line} if layer else set()))
            ),
            layer=layer.name if layer else "",
            contradiction=_contradiction(precision, layer) if rows else "",
        )

    def _dequantizers(self, node: LoggedNode) -> list[LoggedNode | None]:
        """Return, for each of the first two inputs of a compute node, the DQ that writes the input, or None."""
        makers = [self._graph.maker(tensor) for tensor in node.inputs[:2]]
        return [maker if maker is not None and maker.op == DEQUANTIZE else None for maker in makers]

    def _fused_type(self, node: LoggedNode) -> DType:
        """Return the type of the Q/DQ that was fused into a node. Logs older than FP8 mean INT8."""
        held = [self._stored_type(maker) for maker in self._dequantizers(node) if maker is not None]
        return next((dtype for dtype in held if dtype.is_quantized), DType.INT8)

    def _stored_type(self, dequantizer: LoggedNode) -> DType:
        """Return the type that a DQ reads; INT8 if the log does not show it."""
        return self._graph.types.get(next(iter(dequantizer.inputs), ""), DType.INT8)

    def _requested_format(self, node: LoggedNode) -> str:
        """Return the format that the Q/DQ before a node requests; "" if the log does not show it."""
        requests: dict[bool, set[str]] = {True: set(), False: set()}
        for maker in self._dequantizers(node):
            is_weight = maker is not None and bool(self._graph.is_weight(maker.name))
            dtype = self._stored_type(maker) if maker is not None else None
            requests[is_weight].add(FLOAT if dtype is None else NAMES.get(dtype, INT8.name))
        return describe_request(requests[True], requests[False]) if node.inputs else ""

    def _fused_reason(self, node: LoggedNode, rows: list[Row]) -> str:
        output = next((row.node for row in rows if row.end is End.OUTPUT), "")
        if output:
            return f"the DQ nodes of its inputs and its output {output} were fused into the node"
        after = sorted({reader.op for reader in self._graph.readers(node.name)})
        behind = (
            f"the readers of the node are {', '.join(after)}"
            if after
            else "the node produces an output of the model"
        )
        return (
            f"the DQ nodes of its inputs were fused into the node, but no Q was fused as its output: {behind}"
        )

    def _explain_unfused(self, node: LoggedNode, layer: LoggedLayer | None) -> tuple[str, str]:
        makers = self._dequantizers(node)
        feeding = [maker for maker in makers if maker is not None]
        if not node.inputs:
            return "unknown", "the log does not show its inputs"
        if not feeding:
            return "float", "none of its inputs comes from a DequantizeLinear"
        if len(feeding) < 2:
            pairs = zip(node.inputs, makers, strict=False)
            bare = [tensor for tensor, maker in pairs if maker is None]
            if not bare:
                return "unknown", "the log shows only one of its inputs"
            held = self._requested_format(node).removesuffix("-weights")
            inside = (
                f"; its {held.upper()} weights are dequantized"
                if self._requested_format(node) != held
                else ""
            )
            return "float", f"its input {bare[0]} does not come from a DequantizeLinear{inside}"
        dispositions = [self._rows[maker.name].end for maker in feeding if maker.name in self._rows]
        if all(disposition is End.KERNEL for disposition in dispositions) and layer is not None:
            return _by_layer(layer)
        words = ", ".join(sorted({disposition.value for disposition in dispositions}))
        return (
            "unknown",
            f"the log does not show that the DQ nodes of its inputs were fused into the node (they are {words})",
        )


_CORES = frozenset({"correlation", "gemm", "deconv", "CaskConvolution", "CaskGemmConvolution"})


def layer_verdicts(
    layers: Iterable[LoggedLayer], refused: Mapping[str, tuple[str, int]], names: LoggedNames
) -> tuple[ComputeNode, ...]:
    """Return a verdict on every compute layer of an engine from a model without Q/DQ.

    Args:
        layers: the engine's layers.
        refused: layers whose INT8 kernels were refused -> the tensor without a scale and the line that says so.
        names: takes the names of fused layers apart.
    """
    verdicts = []
    for layer in layers:
        value = judge_layer(layer.value)
        if value.role is not Role.COMPUTE:
            continue
        precision, reason = _by_type(layer, value.precision)
        lines = {layer.line}
        for part in (layer.name, *names.parts(layer.name)):
            if part in refused and precision != "int8":
                tensor, line = refused[part]
                reason = f"its INT8 kernels were refused: tensor {tensor} has no scale"
                lines.add(line)
        verdicts.append(
            ComputeNode(
                node=layer.name,
                op=layer.kind,
                precision=precision,
                asked=FLOAT,
                reason=reason,
                lines=tuple(sorted(lines)),
                layer=layer.name,
            )
        )
    return tuple(verdicts)


def _by_layer(layer: LoggedLayer) -> tuple[str, str]:
    """Return the verdict on a compute node from the tensors of its engine layer."""
    precision, reason = _by_type(layer, judge_layer(layer.value).precision)
    return precision, reason.replace("its kernel", f"its kernel {layer.name}", 1)


def _by_type(layer: LoggedLayer, precision: DType) -> tuple[str, str]:
    word = precision.value.upper()
    if precision is DType.UNKNOWN:
        return "unknown", "its kernel lists no tensors of known types"
    if not precision.is_quantized:
        return "float", f"its kernel computes in {word}"
    if any(tensor.dtype is precision for tensor in layer.outputs):
        return precision.value, f"its kernel reads and writes {word}"
    writes = _list_types(types(layer.outputs)) or "another type"
    return f"{precision.value}{FLOAT_OUT}", f"its kernel reads {word} and writes {writes}"


def _contradiction(precision: str, layer: LoggedLayer | None) -> str:
    """Describe how the layer's tensors contradict the Q/DQ history; "" if they agree or are not printed."""
    if layer is None:
        return ""
    reads, writes = types(layer.inputs), types(layer.outputs)
    if not reads or not writes or DType.UNKNOWN in reads or DType.UNKNOWN in writes:
        return ""
    word = precision.removesuffix(FLOAT_OUT)
    dtype = DType.parse(word)
    if not dtype.is_quantized:
        return ""
    if dtype not in reads + types(layer.constants):
        return f"the Q/DQ lines show {word.upper()} inputs, but its layer reads {_list_types(reads)}"
    if precision == word and dtype not in writes:
        return f"the Q/DQ lines show {word.upper()} outputs, but its layer writes {_list_types(writes)}"
    if precision != word and not any(kind.is_float and not kind.is_quantized for kind in writes):
        return f"the Q/DQ lines show float outputs, but its layer writes {_list_types(writes)}"
    return ""


def _list_types(types: list[DType]) -> str:
    return ", ".join(sorted({str(dtype).upper() for dtype in types})) or "nothing"
