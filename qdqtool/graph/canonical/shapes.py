"""Shape inference over the whole graph, at any model size, and dynamic dimensions that the weights settle."""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError, QdqError
from qdqtool.graph.onnx_io.deferred import byte_size
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.read import default_opset
from qdqtool.graph.onnx_io.walk import bodies, copy_message, skeleton
from qdqtool.graph.view import Model
from qdqtool.trt.ops import RECURRENT, SOFTMAXES

# --- settled ---------------------------------------------------------------------------------------------------------
# Dynamic input dimensions that can have only a single length, because of the model's weights.
#
# Exporters may leave a dimension dynamic although the network multiplies it by a matrix with a fixed number of rows:
# every runtime refuses any other length. Random samples and the shapes of a build must have this length.


Dim = int | str | None

_EXPRESSION = re.compile(
    r"(?:(?P<factor>\d+)\*)?(?P<symbol>[^\s+*/-][^+*/]*?)(?:/(?P<divisor>\d+))?(?P<offset>[+-]\d+)?"
)
"""A symbol times a fraction plus a number, as `symbols` and onnx's inference write it: "4*N/2+1", "N + 160"."""
_ROUNDED = re.compile(
    r"floor\(\(?(?:(?P<factor>\d+)\*)?(?P<symbol>[^\s+*/()-][^+*/()]*?)(?:(?P<shift>[+-]\d+)\))?/(?P<divisor>\d+)\)(?P<offset>[+-]\d+)?"
)
"""An expression that is rounded down, so that several lengths of the symbol fit: "floor((N+1)/2)"."""


def settle(graph: onnx.GraphProto) -> dict[str, int]:
    """Replace dynamic input dimensions by the only length that fits; return the length of each replaced symbol.

    The graph must have inferred shapes. Expressions of a replaced symbol stay until shapes are inferred again. If two
    nodes demand different lengths of a symbol, it keeps its name: the model does not run, and a runtime reports that
    best.
    """
    free = {name for value in graph.input for name in _name_dims(value) if isinstance(name, str)}
    demanded: dict[str, set[int]] = defaultdict(set)
    if free:
        for length_one, required in _equal(graph):
            symbol, length = solve_dim(length_one, required)
            if symbol in free:
                demanded[symbol].add(length)
    lengths_of = {symbol: lengths.pop() for symbol, lengths in demanded.items() if len(lengths) == 1}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim, name in zip(_dims(value), _name_dims(value), strict=True):
            if name in lengths_of:
                dim.dim_value = lengths_of[name]
    return lengths_of


def solve_dim(dim: Dim, required: Dim) -> tuple[str, int]:
    """Return the symbol of one dimension, and its length if the other dimension is a number; ("", 0) if that is inconclusive."""
    if isinstance(dim, int):
        dim, required = required, dim
    match = _EXPRESSION.fullmatch(dim.replace(" ", "")) if isinstance(dim, str) else None
    if match is None or not isinstance(required, int):
        return "", 0
    length = (
        Fraction(required - int(match["offset"] or 0))
        * int(match["divisor"] or 1)
        / int(match["factor"] or 1)
    )
    return (match["symbol"], int(length)) if length.denominator == 1 and length > 0 else ("", 0)


def length_of(dim: int | str, lengths: Mapping[str, int]) -> int | None:
    """Return the length of a dimension if the symbols have these lengths; None for other forms of expression.

    >>> length_of("height/4+1", {"height": 32})
    9
    >>> length_of("floor((height+3)/4)", {"height": 33})
    9
    """
    if isinstance(dim, int):
        return dim
    text = dim.replace(" ", "")
    match = _ROUNDED.fullmatch(text) or _EXPRESSION.fullmatch(text)
    if match is None or match["symbol"] not in lengths:
        return None
    parts = match.groupdict()
    scaled = lengths[parts["symbol"]] * int(parts["factor"] or 1) + int(parts.get("shift") or 0)
    return scaled // int(parts["divisor"] or 1) + int(parts["offset"] or 0)


def _equal(graph: onnx.GraphProto) -> Iterator[tuple[Dim, Dim]]:
    """Yield pairs of dimensions that must be equal, because a compute node sums over them."""
    shapes = _shapes(graph)
    for node in graph.node:
        first, second = (shapes.get(name, ()) for name in (*node.input, "", "")[:2])
        if node.domain not in {"", "ai.onnx"} or not first or not second:
            continue
        flags = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == "MatMul":
            yield first[-1], second[max(len(second) - 2, 0)]
        elif node.op_type == "Gemm" and len(first) == len(second) == 2:
            yield first[0 if flags.get("transA") else 1], second[1 if flags.get("transB") else 0]
        elif node.op_type in RECURRENT and len(first) == len(second) == 3:
            yield first[2], second[2]
        elif node.op_type == "Conv" and len(first) == len(second) > 2:
            channels = second[1]
            yield first[1], channels * flags.get("group", 1) if isinstance(channels, int) else None


def _shapes(graph: onnx.GraphProto) -> Mapping[str, tuple[Dim, ...]]:
    shapes = {value.name: _name_dims(value) for value in (*graph.value_info, *graph.output, *graph.input)}
    return shapes | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _name_dims(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Return the dimensions of a tensor; a dimension without a name gets the name that `symbols` uses."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}_{index}"
        for index, dim in enumerate(_dims(value))
    )


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


# --- shapes ----------------------------------------------------------------------------------------------------------


SHAPE_OF_INPUT = SOFTMAXES | {
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
}
"""Operators whose first output has the shape of their first input, whatever their attributes."""


_log = logging.getLogger(__name__)
_MOST_DIMENSIONS = 64
"""Most dimensions of a tensor in NumPy and every runtime; a shape with more comes from a hostile model."""


def infer(proto: onnx.ModelProto, path: Path, *, keep: bool = True) -> str | None:
    """Write the type and shape of every tensor that inference can determine into the model.

    `keep=False` forgets what was noted before, for when types have changed; `path` is named in errors. Returns a note
    when inference gave up.
    Source of the rules: the shape functions of the onnx operator schemas, with data propagation for shape arithmetic.

    Raises:
        InputFileError: inference takes more memory or time than a model of this size may take.
    """
    light, _ = skeleton(proto)
    _write_defaults(light)
    stored = {value.name: value for value in light.graph.value_info}
    if not keep:
        del light.graph.value_info[:]
    try:
        inferred, note = _plain(light)
        if inferred is not None and (seeds := list(_seeds(light, inferred, stored))):
            light.graph.value_info.extend(seeds)
            inferred, note = _plain(light)
        if inferred is None:
            return note
        values = {value.name: value for value in inferred.graph.value_info if _is_possible(value)}
        computed = {name for node in proto.graph.node for name in node.output if name}
        outputs = {value.name: value for value in inferred.graph.output}
        blank = {name for name in computed if _is_vague(values.get(name) or outputs.get(name))}
        # dimensions that stayed unknown in an earlier try are not tried again, also where they are passed on: that
        # took most of an audit
        declared = (*stored.values(), *light.graph.output) if keep else ()
        tried = {dim for value in declared for dim in _find_invented_symbols(value)}
        is_new = any(
            not _has_shape(value) or not tried.issuperset(_find_invented_symbols(value))
            for value in (values.get(name) or outputs.get(name) for name in blank)
        )
        resolved = _resolve_types(light) if is_new else {}
    except PassExceeded as error:
        raise InputFileError(
            f"shape inference of the model {error}",
            fix="export the model again; the likely cause is a far too large constant for a shape, a Range or a Tile",
            where=str(path),
        ) from error
    values |= {
        name: _fill_dims(value, values.get(name) or outputs.get(name))
        for name, value in resolved.items()
        if name in blank
    }
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(values[name] for name in sorted(values) if name not in outputs)
    for mine in proto.graph.output:
        theirs = values.get(mine.name) or outputs[mine.name]
        is_better = mine.name in resolved or not _is_vague(theirs)
        if not keep or not _has_shape(mine) or (_is_vague(mine) and is_better):
            mine.type.CopyFrom(theirs.type)
    return None


def _write_defaults(light: onnx.ModelProto) -> None:
    """Write the default of STFT's `onesided`, for which onnx's inference assumes another one.

    Without the attribute, STFT returns half a spectrum.

    onnx 1.23 infers a two-sided result (512 frequencies instead of 257). The shapes of the MatMuls that read it then
    disagree.
    """
    for node in light.graph.node:
        if node.op_type == "STFT" and not any(field.name == "onesided" for field in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def infer_again(proto: onnx.ModelProto, path: Path) -> str | None:
    """Infer like `infer`, but use the file's own shapes only for tensors that inference cannot determine.

    Exporters write wrong shapes: of the sample that they traced, or of a tensor that was renamed since.

    Raises:
        InputFileError: as `infer`.
    """
    stored = [copy_message(value) for value in proto.graph.value_info]
    del proto.graph.value_info[:]
    note = infer(proto, path)
    sized = {value.name for value in proto.graph.value_info if _has_shape(value)}
    sized |= {value.name for value in proto.graph.output}
    computed = {name for node in proto.graph.node for name in node.output if name}
    missing = [value for value in stored if value.name in computed - sized]
    if not missing:
        return note
    vague = {value.name for value in missing}
    clear = [copy_message(value) for value in proto.graph.value_info if value.name not in vague]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend((*clear, *missing))
    return infer(proto, path)


def infer_types(proto: onnx.ModelProto) -> onnx.GraphProto:
    """Return the main graph with the type of every tensor that inference can determine, also in bodies.

    Heavy weights become inputs of the graph.

    The result is the graph itself if the model states all types. Types that inference does not know are as the model
    states them.
    """
    graph = proto.graph
    noted = {value.name for value in (*graph.value_info, *graph.output) if value.type.tensor_type.elem_type}
    computed = {name for node in graph.node for name in node.output if name}
    if computed <= noted and not any(True for node in graph.node for _ in bodies(node)):
        return graph
    light, _ = skeleton(proto)
    try:
        inferred, _ = _plain(light)
        if inferred is not None and (seeds := list(_seeds(light, inferred, {}))):
            light.graph.value_info.extend(seeds)
            inferred, _ = _plain(light)
    except PassExceeded:
        return graph
    return graph if inferred is None else inferred.graph


def _plain(light: onnx.ModelProto) -> tuple[onnx.ModelProto | None, str | None]:
    """Return onnx's shape inference; if it fails, infer without the stored shapes. None and a note if both fail."""
    try:
        return onnx.ModelProto.FromString(run_pass("infer", light)), None
    except PassRefused as error:
        _log.info("shape inference with the stored shapes failed: %s", error)
    del light.graph.value_info[:]
    try:
        return onnx.ModelProto.FromString(run_pass("infer", light)), None
    except PassRefused as error:
        return None, f"shape inference failed: {str(error).splitlines()[0]}"


def _seeds(
    light: onnx.ModelProto, inferred: onnx.ModelProto, stored: Mapping[str, onnx.ValueInfoProto]
) -> Iterator[onnx.ValueInfoProto]:
    """Yield types of tensors that inference leaves unknown, from the constraints in the operator's schema.

    onnx 1.22 infers no type for the result of GroupNormalization, and for no tensor after it. Shapes do not change
    with types, and a normalization has the shape of its input.
    """
    graph = inferred.graph
    values = {
        value.name: value for value in (*stored.values(), *graph.input, *graph.value_info, *graph.output)
    }
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    typed_values = (*graph.input, *graph.value_info, *graph.output)
    types |= {value.name: kind for value in typed_values if (kind := value.type.tensor_type.elem_type)}
    versions = {entry.domain: entry.version for entry in inferred.opset_import}
    noted = {value.name for value in light.graph.value_info}
    for node in graph.node:
        for index, name in enumerate(node.output):
            if not name or name in types or name in noted:
                continue
            kind = _type_by_schema(node, index, types, versions)
            if not kind:
                continue
            types[name] = kind
            like = values.get(name) or (
                values.get(node.input[0]) if node.op_type in SHAPE_OF_INPUT and not index else None
            )
            seed = onnx.helper.make_tensor_value_info(name, kind, None)
            if like is not None and _has_shape(like):
                seed.type.tensor_type.shape.CopyFrom(like.type.tensor_type.shape)
            values[name] = seed
            yield seed


def _type_by_schema(
    node: onnx.NodeProto, index: int, types: Mapping[str, int], versions: Mapping[str, int]
) -> int | None:
    """Return the type that an output shares with an input of known type; None if the schema does not connect them."""
    if node.domain not in versions or not onnx.defs.has(node.op_type, node.domain):
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
    except onnx.defs.SchemaError:
        return None  # an operator newer than the opset, which is reported elsewhere
    result = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
    pairs = zip(schema.inputs, node.input, strict=False)
    return next((types[name] for formal, name in pairs if formal.type_str == result and name in types), None)


def _resolve_types(light: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return types and shapes from trial runs, in which a number replaces each symbol; see `symbols`."""
    content = run_pass("resolve", light, opset=default_opset(light))
    values = onnx.GraphProto.FromString(content).value_info
    return {value.name: value for value in values if _is_possible(value)}


def _fill_dims(value: onnx.ValueInfoProto, plain: onnx.ValueInfoProto | None) -> onnx.ValueInfoProto:
    """Copy symbols that onnx made up from `plain` to unknown dimensions. Equal symbols: equal lengths."""
    dims = value.type.tensor_type.shape.dim
    plain_dims = () if plain is None else plain.type.tensor_type.shape.dim
    if len(dims) == len(plain_dims):
        for dim, plain_dim in zip(dims, plain_dims, strict=True):
            if dim.WhichOneof("value") is None:
                dim.CopyFrom(plain_dim)
    return value


def _is_possible(value: onnx.ValueInfoProto) -> bool:
    """Return True if a tensor has no more dimensions than NumPy and runtimes allow."""
    return len(value.type.tensor_type.shape.dim) <= _MOST_DIMENSIONS


def _has_shape(value: onnx.ValueInfoProto | None) -> bool:
    return (
        value is not None and value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    )


def _is_vague(value: onnx.ValueInfoProto | None) -> bool:
    """Return True if a shape is unknown or contains a symbol that inference made up."""
    return value is None or not _has_shape(value) or bool(_find_invented_symbols(value))


def _find_invented_symbols(value: onnx.ValueInfoProto | None) -> set[str]:
    """Return the symbols of a shape that inference made up."""
    dims = () if value is None else value.type.tensor_type.shape.dim
    return {dim.dim_param for dim in dims if dim.dim_param.startswith("unk__")}


# --- peak ------------------------------------------------------------------------------------------------------------
# Estimates the memory that values inside a network take, for inputs of given shapes.


def peak_bytes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the peak bytes of values computed inside the main graph, without weights.

    Shapes are inferred, nothing is computed. Each value is held from the node that makes it to its last consumer, as
    onnxruntime does. The result is a lower bound: tensors of unknown shape, bodies of If and Loop, and the workspace
    of kernels are not counted.
    """
    light, heavy = skeleton(model.proto)
    for value in light.graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type
            kind.CopyFrom(onnx.helper.make_tensor_type_proto(kind.elem_type, shapes[value.name]).tensor_type)
    for value in light.graph.output:
        # Lengths that the file states for its original sizes would contradict these.
        value.type.tensor_type.ClearField("shape")
    try:
        infer(light, model.path, keep=False)
    except QdqError:
        return 0
    weights = {tensor.name for tensor in heavy}
    values = (*light.graph.value_info, *light.graph.input, *light.graph.output)
    return _peak(light.graph, {value.name: _bytes(value) for value in values if value.name not in weights})


def _peak(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> int:
    left = Counter(name for node in graph.node for name in node.input)
    left.update(value.name for value in graph.output)
    now = most = sum(sizes.get(value.name, 0) for value in graph.input)
    for node in graph.node:
        now += sum(sizes.get(name, 0) for name in node.output)
        most = max(most, now)
        now -= sum(sizes.get(name, 0) for name in node.output if not left[name])
        for name in node.input:
            left[name] -= 1
            if not left[name]:
                now -= sizes.get(name, 0)
    return most


def _bytes(value: onnx.ValueInfoProto) -> int:
    kind = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in kind.shape.dim]
    is_complete = kind.HasField("shape") and kind.elem_type and prod(dims)
    return byte_size(onnx.TensorProto(data_type=kind.elem_type, dims=dims)) or 0 if is_complete else 0
