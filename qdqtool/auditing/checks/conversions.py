"""Findings about kernels that convert values, and about tensors that are larger than necessary between kernels.

# entry_conversion
The first thing the engine does is to convert its input.

    input (fp32) -> Quantize -> kernel (INT8)

The kernel reads the whole input in four bytes per element to write it in one. The program that produces the input can
often convert it during preprocessing at no cost, and pass INT8 or FP16 in the layout of the first kernel. No change of
the Q/DQ nodes can remove this part of the engine's time. FP4 and MXFP8 are an exception: this kernel also computes the
scale of each block, which no program can pass. The check reports engines without a model, or with a model without Q and
Cast nodes, as for TensorRT's calibrators. If the model has such nodes, it requested the conversion.

# unfused_qdq
A Q/DQ pair fused with no neighbour and costs a separate kernel.

    kernel -> Quantize -> kernel          the value was not made in INT8
    kernel -> Dequantize -> kernel        the reader cannot take INT8
    kernel -> Quantize, Dequantize -> ..  a fake-quantize before a float operation

At an input of the engine a quantize kernel is needed: the input must become INT8. Float compute nodes, poolings,
reductions and some normalizations cannot write INT8 either, so a layer that reads them in INT8 needs this kernel.

# conversion_chain
Two or more kernels in a row only convert or copy.

    kernel -> reformat -> quantize -> copy -> kernel

Each such kernel reads and writes the whole tensor again. Several in a row show that the kernels at both ends use
different types or layouts, or that a slice or a concatenation prevents fusion.

# needless_conversion
A kernel between two others only casts or reorders.

Such a kernel reads and writes a whole tensor and computes nothing. It is often needed at inputs and outputs of the
engine. Elsewhere two neighbours use different types or memory layouts: one runs in FP16 and the next in FP32, or one
uses channels last and the next channels first. If a Transpose of the model needs the kernel,
`prepare.transposes=move` may move it to where it merges with another kernel.

# float_round_trip
A low-precision kernel writes floats, and the next kernel turns them back.

    conv (INT8) -> FP16 tensor -> Quantize -> conv (INT8)
                       |
                       +-> residual Add in FP16

The tensor is read or written three times in sixteen or thirty-two bits instead of once in eight. The usual cause is a
residual connection whose shortcut has no Q/DQ: the Add needs the float value, so the convolution must write it.

# int8_in_float_out
A low-precision kernel hands floats to another kernel.

Its arithmetic is INT8 (or FP8, FP4), but its result is two or four times larger than necessary, and the next kernel
computes or adds in float. If the next kernel could read the low-bit type, a Q/DQ pair before it lets this kernel write
that type. Outputs of the engine, which should be float, are not reported, nor are kernels that TensorRT for RTX splits
into a MatMul and its epilogue.

# padding_waste
A vectorized format pads the channels of a tensor by a quarter or more.

INT8 formats store channels in groups of four or thirty-two. A tensor of three channels in a format of thirty-two needs
more than ten times its bytes, and the kernel also reads and multiplies the padding.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.context import AuditContext, Check, RawFinding
from qdqtool.core.advice import BY_BUILDER, IN_MODEL, as_float
from qdqtool.core.claims import Assertion, of_fix
from qdqtool.core.engine import Certainty, EngineLayer, Role, dequantizes, quantizes, rounds
from qdqtool.core.findings import Severity
from qdqtool.core.tensors import DType
from qdqtool.core.wording import REPAIR, Command, Setting, count_noun, list_names
from qdqtool.trt.ops import CASTS, MAY_MOVE, QDQ, QUANTIZE
from qdqtool.trt.tensor_formats import channel_multiple, padded_bytes


def _origin(layer: EngineLayer) -> str:
    """Describe where a layer comes from: its Origin field and its ONNX nodes."""
    stated = dict(layer.attributes).get("Origin", "")
    nodes = ", ".join(layer.onnx_nodes[:3]) if layer.certainty is Certainty.STATED else ""
    return " of ".join(part for part in (stated, nodes) if part) or "no ONNX node"


def _is_inside(context: AuditContext, layer: EngineLayer) -> bool:
    """Return True if a quantize or dequantize kernel reads no input and writes no output of the engine."""
    names = {tensor.name for tensor in (*layer.inputs, *layer.outputs)}
    between = bool(context.wiring.writers(layer)) and bool(context.wiring.readers(layer))
    return layer.role is Role.QDQ and bool(layer.inputs) and between and not names & context.border


# --- entry conversion --------------------------------------------------------------------------------------------------


_BLOCKED = frozenset({DType.FLOAT4, DType.FLOAT8_E8M0})
"""Types that kernels write only together with a scale per block."""
_MOST_NAMED = 6
"""Most nodes that a sentence names; the command after it names all of them."""
_DYNAMIC = "nothing to do: the kernel computes a scale per block from each input, and a low-bit input could not carry that scale"


def find_entry_conversion(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each kernel that only converts an input of the engine to another type."""
    for layer in () if _is_asked_for(context) else context.kernels:
        if layer.role is not Role.QDQ or not layer.inputs or context.wiring.writers(layer):
            continue
        source, target = layer.inputs[0], _result(layer)
        if not source.dtype.is_float or target == source.dtype.value or not context.wiring.readers(layer):
            continue
        yield RawFinding(
            subject=layer.name,
            reason=f"turns the input {source.name} from {source.dtype} into {target}",
            fix=_DYNAMIC
            if any(tensor.dtype in _BLOCKED for tensor in layer.outputs)
            else f"nothing to do if preprocessing gives {source.dtype}; if it can give {target}, build with trtexec --inputIOFormats={target}:chw",
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(layer.name),),
        )


def _is_asked_for(context: AuditContext) -> bool:
    """Return True if the model requests conversions: it has QuantizeLinear or Cast nodes, or a placement."""
    if context.view is None:
        return False
    return context.placement is not None or any(node.op in {QUANTIZE, *CASTS} for node in context.view.nodes)


def _result(layer: EngineLayer) -> str:
    return layer.outputs[0].dtype.value if layer.outputs else layer.inputs[0].dtype.value


# --- unfused qdq -------------------------------------------------------------------------------------------------------


def find_unfused_qdq(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each quantize, dequantize or fake-quantize kernel inside the engine.

    All kernels that stay because the kernel before them cannot write the format share one fix.
    """
    unfused = [
        layer
        for layer in context.kernels
        if _is_inside(context, layer) and context.wiring.round_trip_of(layer) is None
    ]
    readers = {layer.name: _float_or_kept(context, layer) for layer in unfused if quantizes(layer)}
    shared = tuple(dict.fromkeys(node for nodes in readers.values() for node in nodes))
    for layer in unfused:
        reason_and_fix = _reason_and_fix(layer)
        if reason_and_fix is None:
            continue
        does, fix = reason_and_fix
        if readers.get(layer.name):
            fix = _keep_or_exclude(context, layer, shared)
        elif quantizes(layer):
            fix = _fix_of_writer(context, layer) or fix
        yield RawFinding(
            subject=layer.name,
            reason=f"a kernel that only {does} ({_origin(layer)}), between {context.wiring.writers(layer)[0].name} and "
            f"{context.wiring.readers(layer)[0].name}",
            fix=fix,
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(layer.name),),
        )


def _reason_and_fix(layer: EngineLayer) -> tuple[str, str] | None:
    if rounds(layer):
        return (
            "rounds to eight bits and converts back to float",
            f"{Command('fix')} tries to remove this pair, and to quantize every input of the operation after it",
        )
    if quantizes(layer):
        return (
            "quantizes",
            f"{Command('fix')} tries to move the Q to the kernel that produces the value, so that the two fuse",
        )
    if dequantizes(layer):
        return (
            "dequantizes",
            f"{Command('fix')} tries to quantize the operation after it too, and to remove the pair",
        )
    return None


def _fix_of_writer(context: AuditContext, layer: EngineLayer) -> str:
    """Return the fix of the float compute node that feeds a quantize kernel; "" if there is none."""
    writer = context.wiring.writers(layer)[0]
    writers = [verdict for verdict in context.verdicts_on(writer) if verdict.precision.is_float]
    return f"{writers[0].fix} ({writers[0].node} computes in float and writes floats)" if writers else ""


def _float_or_kept(context: AuditContext, layer: EngineLayer) -> tuple[str, ...]:
    """Return the compute nodes after a quantize kernel; () if a compute kernel feeds the quantize kernel."""
    is_computed = context.wiring.writers(layer)[0].role is Role.COMPUTE
    return () if is_computed else _up_to_floats(context, layer)


def _keep_or_exclude(context: AuditContext, layer: EngineLayer, nodes: tuple[str, ...]) -> str:
    word = next((t.dtype.value.upper() for t in layer.outputs if t.dtype.is_quantized), "few bits")
    gain = "gains" if len(nodes) == 1 else "gain"
    return (
        f"the kernel before it cannot write {word}: keep it if {list_names(nodes, _MOST_NAMED)} {gain} more from {word}, otherwise "
        f"{as_float(nodes, placed=context.placement is not None)}"
    )


def _up_to_floats(context: AuditContext, layer: EngineLayer) -> tuple[str, ...]:
    """Return the compute nodes after `layer`. Each path ends at the first compute node with a float result.

    If only the first of several nodes became float, the values would be quantized after it. TensorRT for RTX splits a
    compute node into a product and a kernel that finishes it; the result is then that of the second kernel.
    """
    nodes: dict[str, None] = {}
    waiting, visited = list(context.wiring.readers(layer)), {layer.name}
    while waiting:
        reader = waiting.pop(0)
        if reader.name in visited:
            continue
        visited.add(reader.name)
        nodes.update(dict.fromkeys(verdict.node for verdict in context.verdicts_on(reader)))
        if reader.role is not Role.COMPUTE:
            continue
        for last in (reader, *filter(_finishes_one, context.wiring.readers(reader))):
            if any(tensor.dtype.is_quantized for tensor in last.outputs):
                waiting += context.wiring.readers(last)
    return tuple(nodes)


def _finishes_one(layer: EngineLayer) -> bool:
    """Return True if a kernel only finishes one matrix product: the kernel has no other run-time input."""
    return layer.role is Role.OTHER and layer.pointwise and len(layer.inputs) == 1


# --- conversion chain --------------------------------------------------------------------------------------------------


_FIX = f"{Command('fix')} tries Q/DQ across slices and concatenations, so that the kernels at both ends agree on a type"


def find_conversion_chain(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each chain of two or more kernels that only move data. Chains are as long as possible."""
    for layer in context.kernels:
        if not _moves(layer) or any(_moves(writer) for writer in context.wiring.writers(layer)):
            continue
        chain = [layer]
        while (following := _following(context, chain[-1])) is not None and following not in chain:
            chain.append(following)
        if len(chain) < 2:
            continue
        sizes = [context.bytes_of(link) for link in chain]
        known_sizes = [size for size in sizes if size is not None]
        yield RawFinding(
            subject=layer.name,
            reason=f"{count_noun(len(chain), 'kernel in a row only moves', 'kernels in a row only move')} data: "
            + " -> ".join(f"{link.name} ({_origin(link)})" for link in chain),
            fix=_FIX,
            bytes=sum(known_sizes) if len(known_sizes) == len(sizes) else None,
            evidence=tuple(context.at_layer(link.name) for link in chain),
        )


def _moves(layer: EngineLayer) -> bool:
    copies = dict(layer.attributes).get("Origin", "") in {"SLICE", "CONCAT"}
    return layer.role is Role.QDQ or (copies and layer.role is Role.OTHER)


def _following(context: AuditContext, layer: EngineLayer) -> EngineLayer | None:
    readers = context.wiring.readers(layer)
    return readers[0] if len(readers) == 1 and _moves(readers[0]) else None


# --- needless conversion -----------------------------------------------------------------------------------------------


_AGREE = f"{BY_BUILDER} because the types or layouts before and after this kernel differ; in a model with equal types and layouts there the kernel may disappear"
_IN_PLACE = "nothing to do: the model is correct, but the builder found no producer that can write in place"
_MOVED = Setting("prepare.transposes", "move")
_FLOAT_PART = (
    f"{Command('fix')} tries whether Q/DQ on the nodes next to the concatenation saves more than it costs; the copy itself remains, "
    "because the builder found no producer that can write in place"
)


def find_needless_conversion(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each kernel inside the engine that casts or reorders."""
    for layer in context.kernels:
        if not _is_inside(context, layer) or quantizes(layer) or dequantizes(layer) or rounds(layer):
            continue
        change, fix = _action_and_fix(context, layer)
        neighbours = (*context.wiring.writers(layer)[:1], *context.wiring.readers(layer)[:1])
        yield RawFinding(
            subject=layer.name,
            reason=f"a kernel that only {change} ({_origin(layer)}), between "
            f"{' and '.join(neighbour.name for neighbour in neighbours)}",
            fix=fix,
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(layer.name),),
            claims=(of_fix(Assertion.CHANGES_FORM),) if fix == _AGREE else (),
        )


def _action_and_fix(context: AuditContext, layer: EngineLayer) -> tuple[str, str]:
    """Return what a converting kernel does, and the fix."""
    source, target = layer.inputs[0], layer.outputs[0]
    nodes = _model_nodes(context, layer)
    if source.dtype is not target.dtype:
        cast = nodes.get("Cast")
        fix = f"give both sides of the model's {cast} the same type, and remove it" if cast else _AGREE
        return f"casts {source.dtype} to {target.dtype}", fix
    # A merged kernel can write a whole copy and a part of a tensor at once.
    if any(map(context.wiring.in_parts, layer.outputs)):
        beside = target.dtype.is_float and any(kernel.precision.is_quantized for kernel in context.kernels)
        return f"copies its part of a {target.dtype} concatenation", _FLOAT_PART if beside else _IN_PLACE
    mover = next((name for op, name in nodes.items() if op in MAY_MOVE | CASTS), "")
    if mover and mover == nodes.get("Transpose") and context.placement is not None:
        return (
            f"reorders {source.dtype} in memory",
            f"{_MOVED} moves {mover} to where it may merge with another kernel",
        )
    fix = (
        f"{IN_MODEL}: {mover} requires this kernel; remove the node, or move it so that it merges with another node of this type"
        if mover
        else _AGREE
    )
    return f"reorders {source.dtype} in memory", fix


def _model_nodes(context: AuditContext, layer: EngineLayer) -> dict[str, str]:
    """Return the names of the model's nodes in a kernel, by operator."""
    nodes = context.view.by_name if context.view is not None else {}
    return {nodes[name].op: name for name in layer.onnx_nodes if name in nodes}


# --- float round trip --------------------------------------------------------------------------------------------------


def find_float_round_trip(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each kernel that only quantizes the result of a low-precision kernel again."""
    for layer in context.kernels:
        source = context.wiring.round_trip_of(layer)
        if source is None:
            continue
        float_readers = [reader for reader in context.wiring.readers(source) if reader.name != layer.name]
        why = f", which {float_readers[0].name} reads unchanged" if float_readers else ""
        yield RawFinding(
            subject=layer.name,
            reason=f"{source.name} computes in {source.precision.value.upper()} and writes {layer.inputs[0].dtype}{why}; "
            f"this kernel only converts the values back to {layer.outputs[0].dtype.value.upper()}",
            fix=_fix_float_round_trip(context, float_readers),
            layers=(source.name,),
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(source.name), context.at_layer(layer.name)),
        )


def _fix_float_round_trip(context: AuditContext, float_readers: list[EngineLayer]) -> str:
    if not float_readers:
        return "put the Q directly after the operation (and its activation), so that it fuses with the kernel"
    refused = context.refusals(float_readers)
    if refused or context.placement is not None:
        return refused or f"nothing to do: placement kept the shortcut into {float_readers[0].name} float"
    return f"put Q/DQ on the input of {float_readers[0].name} that reads this tensor, as {REPAIR} does for a shortcut"


# --- int8 in float out -------------------------------------------------------------------------------------------------


_GENERATED = frozenset({"kgen", "runtime_fusion"})


def find_int8_in_float_out(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each low-precision kernel whose float result is read by another kernel of the engine."""
    for layer in context.kernels:
        result = layer.outputs[0] if layer.outputs else None
        if layer.role is not Role.COMPUTE or not layer.precision.is_quantized or result is None:
            continue
        readers = _float_readers(context, layer)
        lost = not context.border and not context.wiring.readers(layer) and layer.kind not in _GENERATED
        if not result.dtype.is_float or result.name in context.border or not (readers or lost):
            continue
        smaller = (
            None
            if result.bytes is None or result.dtype.bits is None
            else result.bytes * (layer.precision.bits or 8) // result.dtype.bits
        )
        yield RawFinding(
            subject=layer.name,
            reason=f"computes in {layer.precision.value.upper()} and writes {result.dtype} for {_name_readers(readers)}",
            fix=_fix_int8_in_float_out(context, readers),
            bytes=None if result.bytes is None or smaller is None else 2 * (result.bytes - smaller),
            evidence=(context.at_layer(layer.name),),
        )


def _fix_int8_in_float_out(context: AuditContext, readers: list[EngineLayer]) -> str:
    """Return the fix for a low-precision kernel with a float result, from the nearest readers that compute."""
    if not readers:
        return "nothing to do if this tensor is an output of the engine; otherwise put Q/DQ on the input that reads the tensor"
    waiting, visited = list(readers), set()
    while waiting:
        reader = waiting.pop(0)
        if reader.name in visited:
            continue
        visited.add(reader.name)
        nodes = sorted(name for name in reader.onnx_nodes if _computes(context, name))
        if nodes:
            return context.refusals([reader]) or (
                f"nothing to do by a command, unless node {nodes[0]!r} can read quantized values: then put Q/DQ on its input"
            )
        waiting += context.wiring.readers(reader)
    return "nothing to do: only conversions read this tensor, and their results are outputs of the engine"


def _computes(context: AuditContext, name: str) -> bool:
    """Return True if an ONNX node does more than quantize. Without a model, return True for every node that a layer names."""
    node = context.view.by_name.get(name) if context.view is not None else None
    return context.view is None or (node is not None and node.op not in QDQ)


def _name_readers(readers: list[EngineLayer]) -> str:
    """Return the names of the first three kernels that read a tensor, or a phrase if none is listed."""
    return (
        ", ".join(reader.name for reader in readers[:3]) or "a node that the layer information does not list"
    )


def _float_readers(context: AuditContext, layer: EngineLayer) -> list[EngineLayer]:
    """Return the layers that read a kernel's float result, except generated kernels, which finish the result.

    If a reader only quantizes the result again, return []: `find_float_round_trip` reports this.
    """
    readers = context.wiring.readers(layer)
    if any(context.wiring.round_trip_of(reader) is not None for reader in readers):
        return []
    return [reader for reader in readers if reader.kind not in _GENERATED]


_LEAST = 0.25
"""Smallest share of padding that is reported."""


def find_padding_waste(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each tensor with a quarter or more of padding, at the kernel that writes this tensor."""
    for layer in context.kernels:
        for tensor in layer.outputs:
            plain, padded = tensor.bytes, padded_bytes(tensor)
            if not plain or padded is None or padded - plain < _LEAST * plain or tensor.shape is None:
                continue
            multiple = channel_multiple(tensor.format)
            yield RawFinding(
                subject=layer.name,
                reason=f"writes {tensor.shape[1]} channels in groups of {multiple}: {count_noun(padded, 'byte')} instead of {plain}",
                fix=f"use a multiple of {multiple} channels, or keep the layers that write and read this tensor float",
                layers=(layer.name, *(reader.name for reader in context.wiring.readers(layer))),
                bytes=padded - plain,
                evidence=(context.at_layer(layer.name),),
            )


PLUGIN = {
    "entry_conversion": Check(
        code="QDQ217", severity=Severity.INFO, find=find_entry_conversion, says=Assertion.STANDS_ALONE
    ),
    "unfused_qdq": Check(
        code="QDQ206", severity=Severity.INFO, find=find_unfused_qdq, says=Assertion.STANDS_ALONE
    ),
    "conversion_chain": Check(
        code="QDQ209", severity=Severity.INFO, find=find_conversion_chain, says=Assertion.STANDS_ALONE
    ),
    "needless_conversion": Check(
        code="QDQ203", severity=Severity.INFO, find=find_needless_conversion, says=Assertion.STANDS_ALONE
    ),
    "float_round_trip": Check(
        code="QDQ207", severity=Severity.WARNING, find=find_float_round_trip, says=Assertion.STANDS_ALONE
    ),
    "int8_in_float_out": Check(
        code="QDQ208", severity=Severity.INFO, find=find_int8_in_float_out, says=Assertion.WRITES_FLOAT
    ),
    "padding_waste": Check(code="QDQ211", severity=Severity.INFO, find=find_padding_waste),
}
