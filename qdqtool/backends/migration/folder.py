"""Finds the files of an old build in a folder, and reports which of them are worth keeping."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool.backends.migration.command_line import Action, Advice, Migration, gone_flag, migrate_command
from qdqtool.backends.plan import banner_release, read_plan, spell
from qdqtool.engine.layer_info import PLAN_SUFFIXES
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import read_at_most, require_file, unreadable

# --- fates of the API ------------------------------------------------------------------------------------------------
# What replaced TensorRT's Python API until release 11.
#
# Source: the classes and attributes of the bindings of 8.6.1, 10.9, 10.16, 11.0 and 11.4. Names that other libraries
# also use (`precision`, `execute`) count only where they belong to TensorRT.


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiFate:
    """Change of one name of TensorRT's Python API in TensorRT 11.

    Attributes:
        gone: the first release without it, 10 or 11.
        action: see Advice.
        do: the step to take.
    """

    gone: int
    action: Action
    do: str


_CALIBRATOR = (
    "quantize the model with Q/DQ instead: qdqtool run, or qdqtool cache to-qdq with the calibrator's cache"
)
_QDQ = "put Q/DQ into the model: qdqtool run MODEL --samples SAMPLES --out RUN"
_TYPES = "write types into the model: qdqtool convert MODEL -o OUT --types fp16 --keep NODE; INT8 by Q/DQ: qdqtool run"
_RANGES = "put the ranges into the model as Q/DQ; qdqtool cache to-qdq reads them from a cache"
_TACTICS = (
    "pin tactics with an editable timing cache (BuilderFlag.EDITABLE_TIMING_CACHE, ITimingCache.update)"
)
_NAMED = (
    "use named tensors: num_io_tensors, get_tensor_name, get_tensor_mode, get_tensor_shape, get_tensor_dtype"
)
_RUNS = "use set_tensor_address for every tensor and execute_async_v3(stream)"
_BUILD = "use build_serialized_network and Runtime.deserialize_cuda_engine"
_BATCH = "use explicit batch: the batch is a dimension of the inputs, with an optimization profile"
_ONNX = "export the model to ONNX and use OnnxParser"
_FAST = "check the compute capability instead: GPUs from 7.5 on have INT8 tensor cores"


def _fates(gone: int, action: Action, do: str, names: str) -> dict[str, ApiFate]:
    return {name: ApiFate(gone=gone, action=action, do=do) for name in names.split()}


NAMES: dict[str, ApiFate] = {
    **_fates(
        11,
        "change the model",
        _CALIBRATOR,
        "IInt8Calibrator IInt8LegacyCalibrator IInt8EntropyCalibrator IInt8EntropyCalibrator2 IInt8MinMaxCalibrator "
        "CalibrationAlgoType int8_calibrator set_calibration_profile get_calibration_profile set_quantization_flag "
        "clear_quantization_flag get_quantization_flag quantization_flags QuantizationFlag",
    ),
    **_fates(11, "change the model", _RANGES, "set_dynamic_range reset_dynamic_range dynamic_range"),
    **_fates(
        11,
        "change the model",
        _TYPES,
        "precision_is_set reset_precision set_output_type output_type_is_set reset_output_type",
    ),
    **_fates(
        11,
        "replace",
        _TACTICS,
        "IAlgorithmSelector IAlgorithm IAlgorithmContext IAlgorithmIOInfo IAlgorithmVariant algorithm_selector",
    ),
    **_fates(11, "replace", _FAST, "platform_has_fast_int8 platform_has_fast_fp16 platform_has_tf32"),
    **_fates(
        11,
        "replace",
        "use create_execution_context(strategy)",
        "create_execution_context_without_device_memory",
    ),
    **_fates(11, "replace", "use parse(model, path)", "parse_with_weight_descriptors"),
    **_fates(11, "replace", "use supports_model_v2", "supports_model"),
    **_fates(11, "replace", "use infer_shapes", "all_shape_inputs_specified"),
    **_fates(11, "replace", "use device_memory_size_v2", "device_memory_size"),
    **_fates(
        11, "replace", "use get_device_memory_size_for_profile_v2", "get_device_memory_size_for_profile"
    ),
    **_fates(
        11,
        "replace",
        "use weight_streaming_budget_v2",
        "weight_streaming_budget minimum_weight_streaming_budget",
    ),
    **_fates(
        10,
        "replace",
        _NAMED,
        "num_bindings get_binding_name get_binding_index get_binding_shape get_binding_dtype binding_is_input "
        "get_binding_format get_binding_format_desc get_binding_vectorized_dim get_binding_bytes_per_component "
        "get_binding_components_per_element is_shape_binding is_execution_binding get_location",
    ),
    **_fates(10, "replace", "use get_tensor_profile_shape", "get_profile_shape"),
    **_fates(10, "replace", "use get_tensor_profile_values", "get_profile_shape_input"),
    **_fates(10, "replace", "use set_input_shape", "set_binding_shape"),
    **_fates(10, "replace", _RUNS, "execute_async execute_async_v2"),
    **_fates(10, "replace", _BUILD, "build_engine build_cuda_engine"),
    **_fates(
        10,
        "replace",
        "use set_memory_pool_limit(MemoryPoolType.WORKSPACE, size)",
        "max_workspace_size",
    ),
    **_fates(10, "drop", _BATCH, "max_batch_size"),
    **_fates(10, "replace", "use avg_timing_iterations", "min_timing_iterations"),
    **_fates(10, "replace", _ONNX, "UffParser CaffeParser"),
    **_fates(10, "replace", "use add_matrix_multiply and add_elementwise", "add_fully_connected"),
    **_fates(
        10,
        "replace",
        "use the call of the same name with _nd",
        "add_convolution add_deconvolution add_pooling add_padding",
    ),
    **_fates(10, "replace", "use kernel_size_nd, window_size_nd", "kernel_size window_size"),
    **_fates(10, "replace", "unroll it with add_loop", "add_rnn_v2 IRNNv2Layer"),
    **_fates(10, "drop", "the Q/DQ in the model replaces it", "has_explicit_precision"),
    **_fates(11, "change the model", _TYPES, "compute_precision"),
    **_fates(11, "change the model", _RANGES, "get_dynamic_range get_tensors_with_dynamic_range"),
    **_fates(11, "replace", "use get_creator and all_creators", "get_plugin_creator plugin_creator_list"),
    **_fates(11, "replace", "use IStreamReaderV2", "IStreamReader"),
    **_fates(10, "replace", "use InterpolationMode", "ResizeMode"),
    **_fates(10, "replace", "use SampleMode", "SliceMode"),
}
"""Names that always mean TensorRT in a script that imports it."""

MEMBERS: dict[tuple[str, str], ApiFate] = {
    ("BuilderFlag", "INT8"): ApiFate(gone=11, action="change the model", do=_QDQ),
    **{
        ("BuilderFlag", name): ApiFate(gone=11, action="change the model", do=_TYPES)
        for name in ("FP16", "BF16", "FP8", "INT4", "FP4")
    },
    **{
        ("BuilderFlag", name): ApiFate(gone=11, action="change the model", do=_TYPES)
        for name in ("OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS")
    },
    ("BuilderFlag", "STRICT_TYPES"): ApiFate(gone=10, action="change the model", do=_TYPES),
    ("BuilderFlag", "REJECT_EMPTY_ALGORITHMS"): ApiFate(gone=11, action="replace", do=_TACTICS),
    ("BuilderFlag", "ENABLE_TACTIC_HEURISTIC"): ApiFate(
        gone=10, action="replace", do="use a lower builder_optimization_level"
    ),
    ("BuilderFlag", "WEIGHTLESS"): ApiFate(gone=11, action="replace", do="use BuilderFlag.STRIP_PLAN"),
    ("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH"): ApiFate(
        gone=11, action="drop", do="call create_network() without it: batches are always explicit"
    ),
    ("NetworkDefinitionCreationFlag", "EXPLICIT_PRECISION"): ApiFate(
        gone=10, action="drop", do="the Q/DQ in the model replaces it"
    ),
    **{
        ("TacticSource", name): ApiFate(
            gone=11, action="drop", do="cuBLAS and cuDNN are not tactic sources in 11"
        )
        for name in ("CUBLAS", "CUBLAS_LT", "CUDNN")
    },
    ("PreviewFeature", "PROFILE_SHARING_0806"): ApiFate(gone=11, action="drop", do="it is the default now"),
    ("PreviewFeature", "FASTER_DYNAMIC_SHAPES_0805"): ApiFate(
        gone=10, action="drop", do="it is the default now"
    ),
    ("ProfilingVerbosity", "DEFAULT"): ApiFate(gone=10, action="replace", do="use LAYER_NAMES_ONLY"),
    ("ProfilingVerbosity", "VERBOSE"): ApiFate(gone=10, action="replace", do="use DETAILED"),
    ("EngineCapability", "DEFAULT"): ApiFate(gone=10, action="replace", do="use STANDARD"),
    ("EngineCapability", "SAFE_GPU"): ApiFate(gone=10, action="replace", do="use SAFETY"),
    ("EngineCapability", "SAFE_DLA"): ApiFate(gone=10, action="replace", do="use DLA_STANDALONE"),
}
"""Members of TensorRT's enumerations, by (enumeration, member)."""

ASSIGNED: dict[str, ApiFate] = {
    "precision": ApiFate(gone=11, action="change the model", do=_TYPES),
}
"""Attributes that mean TensorRT layers if a script assigns them."""


# --- scripts ---------------------------------------------------------------------------------------------------------

_LARGEST = 16 << 20
"""Largest size of a script, in bytes."""
_PACKAGE = "tensorrt"
_CLASSES = frozenset(
    {"Builder", "BuilderFlag", "ICudaEngine", "IExecutionContext", "Logger", "OnnxParser", "Runtime"}
) | frozenset(name for name in NAMES if name[:1].isupper())
"""Class names that identify `trt` as TensorRT."""


def migrate_script(path: Path) -> Migration:
    """Return advice for a Python script; empty if the script does not use TensorRT.

    Raises:
        InputFileError: it cannot be read, or is not Python 3.
    """
    tree = _parse(path)
    uses = any(_is_import(node) or _is_module(node) for node in ast.walk(tree))
    runs = any(isinstance(node, ast.Constant) and "trtexec" in str(node.value) for node in ast.walk(tree))
    advice: list[Advice] = []
    if uses or runs:
        for node in ast.walk(tree):
            advice += _of_node(node, uses=uses, runs=runs)
    unique = dict.fromkeys(sorted(advice, key=lambda entry: (_line(entry), entry.what)))
    return Migration(source="script", name=path.name, advice=tuple(unique))


def _parse(path: Path) -> ast.Module:
    try:
        content = read_at_most(path, _LARGEST)
        if content is None:
            raise InputFileError(
                "the script is larger than 16 MiB", fix="pass one Python script", where=str(path)
            )
        return ast.parse(content, filename=path.name)
    except OSError as error:
        raise unreadable(path, error) from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputFileError(
            f"the script is not Python 3: {error}",
            fix="convert the script with 2to3 first, or pass another file",
            where=str(path),
        ) from error


def _is_import(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == _PACKAGE for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == _PACKAGE
    if not isinstance(node, ast.Call) or not node.args or "import" not in _name_called_function(node):
        return False
    first = node.args[0]
    return (
        isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and re.match(r"tensorrt\b(?!_rtx)", first.value) is not None
    )


def _is_module(node: ast.AST) -> bool:
    """Return True if a syntax node is `trt.BuilderFlag` or another class of `trt`, even without an import of `trt`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "trt"
        and node.attr in _CLASSES
    )


def _name_called_function(node: ast.Call) -> str:
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def _of_node(node: ast.AST, *, uses: bool, runs: bool) -> Iterator[Advice]:
    if runs and isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _of_text(node.value, node.lineno)
    if not uses:
        return
    if isinstance(node, ast.Attribute):
        yield from _of_attribute(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _advice(node.lineno, node.id, NAMES[node.id])
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in NAMES:
                yield _advice(node.lineno, f"import {alias.name}", NAMES[alias.name])


def _of_attribute(node: ast.Attribute) -> Iterator[Advice]:
    owner = _last(node.value)
    member = MEMBERS.get((owner, node.attr))
    if member is not None:
        yield _advice(node.lineno, f"{owner}.{node.attr}", member)
    elif node.attr in NAMES:
        yield _advice(node.lineno, f".{node.attr}", NAMES[node.attr])
    elif node.attr in ASSIGNED and isinstance(node.ctx, ast.Store):
        yield _advice(node.lineno, f".{node.attr} =", ASSIGNED[node.attr])


def _of_call(node: ast.Call) -> Iterator[Advice]:
    """Yield advice on TensorRT names that `getattr` and `setattr` use as text."""
    if _name_called_function(node) not in {"getattr", "setattr"} or len(node.args) < 2:
        return
    owner, name = node.args[0], node.args[1]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return
    fate = NAMES.get(name.value) or MEMBERS.get((_last(owner), name.value))
    if fate is None and _name_called_function(node) == "setattr":
        fate = ASSIGNED.get(name.value)
    if fate is not None:
        yield _advice(node.lineno, f"{_name_called_function(node)}(..., {name.value!r})", fate)


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _of_text(text: str, line: int) -> Iterator[Advice]:
    """Yield advice on trtexec flags in a string of a script."""
    for word in text.split():
        gone = gone_flag(word)
        if gone is not None:
            yield Advice(
                where=f"line {line}", what=gone.what, action=gone.action, reason=gone.reason, do=gone.do
            )


def _advice(line: int, call: str, fate: ApiFate) -> Advice:
    return Advice(
        where=f"line {line}",
        what=call,
        action=fate.action,
        reason=f"removed in TensorRT {fate.gone}",
        do=fate.do,
    )


def _line(advice: Advice) -> int:
    return int(advice.where.removeprefix("line "))


# --- folder ----------------------------------------------------------------------------------------------------------


_CACHE = re.compile(rb"TRT-(?P<release>\d+)-(?P<kind>\w+)\r?\n")
_BANNER = re.compile(r"^&&&& RUNNING TensorRT\.trtexec(?: \[[^\]]*\])* # (?P<command>.*)$", re.MULTILINE)
_HEAD = 1 << 16
"""Bytes at the start of a file that are read to detect its kind."""
# A wrong folder, such as a home folder, must not be searched forever.
_MOST_FILES = 10_000


def migrate_path(path: Path) -> Migration:
    """Return advice for a script, calibration cache, log or engine, or for a folder of such files.

    Raises:
        InputFileError: it cannot be read, or its kind is unknown.
    """
    if path.is_dir():
        return _folder(path)
    migration = _file(path)
    if migration is None:
        raise InputFileError(
            "the file is not a script, calibration cache, log with a trtexec banner, shell script with trtexec, or engine",
            fix="pass one of these files, or a trtexec command line",
            where=str(path),
        )
    return migration


def _folder(path: Path) -> Migration:
    files = sorted(child for child in path.iterdir() if child.is_file())[:_MOST_FILES]
    advice: list[Advice] = []
    first: Migration | None = None
    for file in files:
        migration = _file(file)
        if migration is None:
            continue
        if first is None and migration.command:
            first = migration
        advice += [replace(each, where=f"{file.name}: {each.where}") for each in migration.advice]
    if not advice:
        raise InputFileError(
            "the folder contains no file of TensorRT",
            fix="pass the folder with the log, engine, cache or script of a build",
            where=str(path),
        )
    whole = first or Migration(source="", name="", advice=())
    return replace(whole, source="build folder", name=path.name, advice=tuple(advice))


def _file(path: Path) -> Migration | None:
    if path.suffix == ".py":
        return migrate_script(path)
    require_file(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    cache = _CACHE.match(head)
    if cache is not None:
        return _cache(path, cache["kind"].decode())
    if path.suffix.lower() in PLAN_SUFFIXES and head:
        return _engine(path)
    return _log(path, head.decode("utf-8", "replace"))


def _cache(path: Path, kind: str) -> Migration:
    advice = Advice(
        where="cache",
        what=kind,
        action="change the model",
        reason="TensorRT 11 has no calibrators and reads no cache; the ranges in the cache are still valid",
        do=f"qdqtool cache to-qdq MODEL {path.name}",
    )
    return Migration(source="calibration cache", name=path.name, advice=(advice,))


def _engine(path: Path) -> Migration:
    try:
        release = spell(read_plan(path).release)
    except InputFileError:
        release = "the file has the name of an engine, but its content is unknown: an engine older than 8.6, or another file"
    advice = Advice(
        where="engine",
        what=release,
        action="drop",
        reason="only the release that built an engine loads it (unless it was built version compatible)",
        do="build it again from the ONNX model: qdqtool build",
    )
    return Migration(source="engine", name=path.name, advice=(advice,))


def _log(path: Path, head: str) -> Migration | None:
    banner = _BANNER.search(head)
    lines = [
        line
        for line in head.replace("\\\n", " ").splitlines()
        if re.match(r"\s*(\S*/)?trtexec(\.exe)?\s+-", line)
    ]
    text = banner["command"] if banner else next(iter(lines), "")
    try:
        migration = migrate_command(text, name=path.name) if text else None
    except UsageError:
        return None
    if migration is None or not banner:
        return migration
    built = Advice(
        where="banner",
        what=spell(banner_release(head)) or "unknown release",
        action="measure anew",  # english: a value of JSON
        reason="releases measure times differently",
        do="measure old and new side by side: qdqtool time",
    )
    return replace(migration, advice=(built, *migration.advice))
