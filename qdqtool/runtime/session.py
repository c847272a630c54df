"""The only factory of onnxruntime sessions: no other module of this process imports onnxruntime.

A session is set up so that a Q/DQ model computes what its nodes say: `session.disable_quant_qdq` keeps onnxruntime
from turning DQ -> op -> Q into integer separate kernels. Their rounding (and, on processors without VNNI, their
saturation) is neither that of the graph nor that of TensorRT. All other optimizations keep float semantics. Nodes run
one after the other with deterministic kernels: on one machine, equal models and feeds give equal bits.

onnxruntime is imported when the first session is opened.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import onnx

from qdqtool.core.wording import Command
from qdqtool.errors import InputFileError, MissingPackage
from qdqtool.graph.instrumented.cut import wide_bytes
from qdqtool.graph.onnx_io.deferred import from_home, home_of, is_deferred, with_values
from qdqtool.graph.onnx_io.read import external_locations, parse_in_pieces, read
from qdqtool.graph.onnx_io.save import FOLDER_OPTION
from qdqtool.io.files import budget, native_path
from qdqtool.platform import free_memory
from qdqtool.runtime.device import (
    CPU,
    DEVICES,
    IN_USE,
    DeviceUse,
    Provider,
    device_use,
    known_device,
    options_for,
    provider_of,
)
from qdqtool.runtime.operators import NONE, CutSession, Operators, in_use, open_in_pieces, read_whole

if TYPE_CHECKING:
    import onnxruntime

_log = logging.getLogger(__name__)
Function = TypeVar("Function", bound=Callable[..., Any])
UNKNOWN_OPERATOR: Final = "is not a registered function/op"
"""Part of onnxruntime's message about an operator that neither it nor the model defines."""
_OPENING: Final = "Exception during initialization"
"""Part of onnxruntime's message if its optimizer, or the setup of a kernel, fails."""
_HARMFUL: Final = ("ReluQuantRewrite",)
"""An optimizer that removes a Relu before a Q with a zero point of an eight-bit float or INT4 (seen in 1.31).
This is valid only if the zero point is the type's smallest number.
"""

LARGE: Final = 64 << 20
"""Bytes of weights from which a model is passed to onnxruntime through a file, and memory used for opening it is released."""
_LARGE: Final = 1 << 30
"""Bytes of weights in files from which onnxruntime reads them in place: packing 3 GB takes 2.7 s and 3 GB of memory, and
then saves 0.3 s of each run."""
_WIDENED: Final = 8
"""Bytes of FP32 for each byte of a file, at most: two INT4 values."""
_PIECES: Final = 4
"""Pieces whose weights would fill the room; one is open at a time, and onnxruntime may copy some weights."""

MEMORY: Final = r"bad_alloc|Failed to allocate|BFCArena|[Oo]ut of memory|OUT_OF_MEMORY|ALLOC_FAILED|resource allocation failed|smaller than requested bytes"
"""Parts of the messages of onnxruntime and its providers about too little memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeOptions:
    """Options of an onnxruntime session.

    Attributes:
        provider: the execution provider; the CPU computes the nodes that it does not support.
        threads: of one run; 0 leaves the number to onnxruntime.
        exact: on another provider than the CPU, take options that make it agree with the CPU as far as it can. False leaves them
            to the provider: right for measuring speed.
        faithful: Q/DQ nodes compute what they state. Otherwise onnxruntime may replace Q/DQ patterns by integer
            separate kernels: right for measuring speed, wrong for judging accuracy.
        optimized: False runs the graph node by node, which opens a graph of many thousand nodes far sooner.
        arena: False returns the memory of a run after it; with an arena a session stays as large as its two largest runs.
        planned: False skips the search for memory to use again, which takes time that grows with the square of the nodes.
        patterned: False: runs with equal shapes do not allocate one block for all their memory, in addition to the
            memory of the first run.
        packed: False uses the weights in place; for weights in a file these are pages that the system can drop. True
            rearranges a copy in memory, which makes each run faster.
        home: folder of the weights of a model in memory, or of a file in another folder.
        saved: file for the optimized model, with its weights in a file beside it.
        libraries: shared libraries of custom operators.
    """

    provider: Provider = CPU
    exact: bool = True
    threads: int = 0
    faithful: bool = True
    optimized: bool = True
    arena: bool = True
    planned: bool = True
    patterned: bool = True
    packed: bool = True
    home: Path | None = None
    saved: Path | None = None
    libraries: tuple[Path, ...] = ()


def open_session(model: Path | bytes, options: RuntimeOptions) -> onnxruntime.InferenceSession:
    """Open a session for a model in a file, with its external data next to it, or in memory.

    A model with unknown operators, or operators with a stand-in, is opened in pieces around these operators.

    Raises:
        one of `failures()`: onnxruntime cannot open the model.
    """
    streamed = None if isinstance(model, bytes) else _streamed_file(model, options)
    if streamed is not None:
        return streamed
    used = in_use()
    options = replace(options, libraries=tuple(dict.fromkeys((*options.libraries, *used.libraries))))
    pieces = _in_pieces(model, options, used) if used.stand_ins else None
    if pieces is not None:
        return pieces
    try:
        return _open_whole(model, options)
    except failures() as error:
        pieces = _in_pieces(model, options, used) if UNKNOWN_OPERATOR in str(error) else None
        if pieces is None:
            raise
        _log.info("runs in pieces: %s", error)
        return pieces


def _in_pieces(
    model: Path | bytes, options: RuntimeOptions, used: Operators
) -> onnxruntime.InferenceSession | None:
    """Open a session in pieces around operators of plug-ins or operators with a stand-in; None if the model has none."""
    proto = read_whole(model, options.home)
    if options.saved is not None:
        options.saved.write_bytes(proto.SerializeToString())  # no optimization crosses the pieces
    plain = replace(options, home=None, saved=None)
    session: Any = open_in_pieces(proto, used.stand_ins, lambda part: _open_whole(part, plain))
    return session  # has the methods of a session that this tool uses


def _open_whole(model: Path | bytes, options: RuntimeOptions) -> onnxruntime.InferenceSession:
    """Open a plain session of onnxruntime for the whole model."""
    import onnxruntime

    _silence()
    source = native_path(model) if isinstance(model, Path) else model
    if options.packed and isinstance(model, Path) and _beside(model, options.home) >= _LARGE:
        options = replace(options, packed=False)
    if isinstance(model, Path):
        light = _without_weights(model) if options.home is None else model.read_bytes()
        if light is not None:
            source, options = light, replace(options, home=options.home or model.parent)
    if options.provider != CPU:
        return _on_device(source, options)
    chosen = [CPU.name]
    try:
        return onnxruntime.InferenceSession(
            source, sess_options=session_options(options), providers=chosen, disabled_optimizers=_HARMFUL
        )
    except failures() as error:
        if _OPENING not in str(error) or not options.optimized:
            raise
        # The optimizer may fail on a valid graph, for example if it gives a tensor an existing name.
        plain = session_options(replace(options, optimized=False))
        return onnxruntime.InferenceSession(source, sess_options=plain, providers=chosen)


def _without_weights(model: Path) -> bytes | None:
    """Return a large model that refers to weights in its own file, so that onnxruntime maps them; None for a small model.

    Onnxruntime would keep them twice while it opens the file: as it read them, and as its kernels need them.
    """
    if model.stat().st_size < LARGE:
        return None
    proto = parse_in_pieces(model)
    weights = proto.graph.initializer
    if home_of(weights) != model.parent.resolve():
        return None  # this file has no external weights, or the file is a link into another folder than its weights
    for tensor in weights:
        if is_deferred(tensor):
            tensor.CopyFrom(from_home(tensor))
    return bytes(proto.SerializeToString())


def _beside(model: Path, home: Path | None) -> int:
    """Return the total size of a model's weight files, in bytes."""
    folder = home or model.parent
    files = (folder / name for name in external_locations(model))
    return sum(file.stat().st_size for file in files if file.is_file())


def _streamed_file(model: Path, options: RuntimeOptions) -> onnxruntime.InferenceSession | None:
    """Open a session that reads a model's file layer by layer; None if the whole file fits into memory."""
    if (
        options.home is not None
        or model.stat().st_size + _beside(model, None) < room_for_weights() // _WIDENED
    ):
        return None
    return open_streamed(read(model), options)


def room_for_weights() -> int:
    """Return how many bytes the weights of a session may take: half of the free or allowed memory."""
    return min(budget(), free_memory()) // 2


def open_streamed(proto: onnx.ModelProto, options: RuntimeOptions) -> onnxruntime.InferenceSession | None:
    """Open a session that holds the weights of few layers at a time; None if all weights fit into memory.

    Each run reads all weights again. Other devices than the CPU have separate memory.
    """
    room = room_for_weights()
    weights = proto.graph.initializer
    if (
        options.provider != CPU
        or options.saved is not None
        or in_use() != NONE
        or sum(map(wide_bytes, weights)) <= room
    ):
        return None
    home = home_of(weights)
    plain = replace(options, home=home, packed=False, libraries=())

    def open_part(part: bytes) -> onnxruntime.InferenceSession:
        held = onnx.ModelProto.FromString(part)
        for tensor in held.graph.initializer:
            tensor.CopyFrom(with_values(tensor) if home is None else from_home(tensor))
        return _open_whole(held.SerializeToString(), plain)

    _log.info("runs layer by layer: its weights need more than %d bytes", room)
    session: Any = CutSession(proto, frozenset(), {}, open_part, room // _PIECES)
    return session


@lru_cache(maxsize=1)
def _silence() -> None:
    """Stop the warnings that onnxruntime's kernels print on standard error.

    While kernels are created, they use the process logger, not the session logger.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)


def session_options(options: RuntimeOptions) -> onnxruntime.SessionOptions:
    """Return these options as onnxruntime's SessionOptions."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.inter_op_num_threads = 1
    settings.intra_op_num_threads = options.threads
    settings.use_deterministic_compute = True
    settings.log_severity_level = 4  # errors are raised, so do not also print them
    if options.faithful:
        settings.add_session_config_entry("session.disable_quant_qdq", "1")
        # Waiting threads would keep a processor busy, which doubles the cost of models with small layers.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not options.optimized:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not options.arena:
        settings.enable_cpu_mem_arena = False
    if not options.planned:
        settings.enable_mem_reuse = False
    if not options.packed:
        settings.add_session_config_entry("session.disable_prepacking", "1")
    if not options.patterned:
        settings.enable_mem_pattern = False
    if options.home is not None:
        settings.add_session_config_entry(FOLDER_OPTION, native_path(options.home))
    if options.saved is not None:
        settings.optimized_model_filepath = native_path(options.saved)
        settings.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{options.saved.stem}.data"
        )
    for library in options.libraries:
        settings.register_custom_ops_library(native_path(library))
    return settings


def run_giving_back() -> onnxruntime.RunOptions:
    """Return options for a run that releases all memory that the session allocated after it was opened."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


@lru_cache(maxsize=1)
def failures() -> tuple[type[Exception], ...]:
    """Return all exception classes of onnxruntime. They have no common base class and differ between releases."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    kinds = (kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception))
    return (*kinds, RuntimeError, ValueError)


def release() -> str:
    """Return the installed release of onnxruntime."""
    import onnxruntime

    return str(onnxruntime.__version__)


_CODE: Final = r"^\[ONNXRuntimeError\] : \d+ : \w+ : "
_PLACE: Final = r"/\S+\.(?:cc|cpp|cu|h):\d+ "
"""A line of onnxruntime's source, as its messages name it."""
_SIGNATURE: Final = rf"{_PLACE}[^()]*?[\w>]\([^()]*\)(?: const)?(?: \[with [^\]]*\])?:? ?"
"""The line of a message with a C++ function after it."""
_FAILURE: Final = r"\b(\w+) failure (\d+): (.*?) ?; GPU=(\d+) ;.*?\bexpr=(.*?);? *$"
"""Message of CUDA, cuBLAS or cuDNN in onnxruntime: library, number, meaning, GPU and call."""


def message_of(error: Exception) -> str:
    """Return an onnxruntime error's message in one line, without C++ functions; the name of its type if the message is empty.

    One of CUDA's libraries is said as "CUBLAS failure 3 (CUBLAS_STATUS_ALLOC_FAILED) on GPU 0 in cublasCreate(&handle)".
    """
    text = re.sub(_CODE, "", " ".join(str(error).split()))
    failure = re.search(_FAILURE, text)
    if failure:
        library, number, meaning, gpu, call = failure.groups()
        return f"{library} failure {number} ({meaning}) on GPU {gpu} in {call}"
    return re.sub(_SIGNATURE, "", text).strip() or type(error).__name__


def ran_out_of_memory(error: Exception) -> bool:
    """Return True if a session failed for lack of memory, on the CPU or on a device."""
    return re.search(MEMORY, str(error)) is not None


# --- devices ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """An execution provider that is installed on this machine.

    Attributes:
        provider: the provider with its name; a plug-in library states its name when it is loaded.
        devices: the chosen device of a plug-in library; empty for a provider that is part of onnxruntime.
    """

    provider: Provider
    devices: tuple[Any, ...] = ()


def list_built_in_providers() -> tuple[str, ...]:
    """Return the execution providers that are part of the installed onnxruntime."""
    import onnxruntime

    plugged = {device.ep_name for device in _plugged_devices()} - {CPU.name}
    return tuple(name for name in onnxruntime.get_available_providers() if name not in plugged)


def is_installed(provider: Provider) -> bool:
    """Return True if the provider is part of onnxruntime or of an installed plug-in package. Nothing is loaded."""
    module = known_device(provider).module
    return provider.name in list_built_in_providers() or bool(module and find_spec(module))


@lru_cache(maxsize=8)
def find_device(provider: Provider) -> Located:
    """Find an execution provider that is part of onnxruntime or of a plug-in library, which is then loaded.

    Raises:
        MissingPackage: the provider is not installed, or does not offer the requested device here.
        InputFileError: the library cannot be loaded.
    """
    if provider.library is not None:
        return _of_library(provider, provider.library)
    if provider.name in list_built_in_providers():
        _preload()
        return Located(provider=provider)
    device = known_device(provider)
    library = _library_of(device.module)
    if library is None:
        raise MissingPackage(
            f"onnxruntime has no {provider.name} here (it has {', '.join(list_built_in_providers())})",
            fix=how_to_get(provider),
            where=f"--device {provider.word}",
        )
    _load(library, device.module)
    return _choose_device(provider, library)


def _of_library(provider: Provider, library: Path) -> Located:
    if not library.is_file():
        raise InputFileError(
            "the plug-in provider library does not exist", fix="check the path", where=str(library)
        )
    _load(library, library.stem)
    names = {
        device.ep_name
        for device in _plugged_devices()
        if Path(device.ep_metadata.get("library_path", "")).resolve() == library.resolve()
    }
    if not names:
        raise MissingPackage(
            "the plug-in provider library offers no device on this machine",
            fix="check that the hardware of this provider and its driver are installed; or remove --device to use the CPU",
            where=str(library),
        )
    return _choose_device(replace(provider, name=min(names)), library)


def _plugged_devices() -> tuple[Any, ...]:
    """Return the devices of loaded plug-in libraries of onnxruntime; none if it does not support plug-ins."""
    import onnxruntime

    listed = getattr(onnxruntime, "get_ep_devices", None)
    return () if listed is None else tuple(listed())


_loaded: Final[set[Path]] = set()
"""Libraries that this process has loaded; onnxruntime refuses to load one twice."""


def _load(library: Path, name: str) -> None:
    import onnxruntime

    if library in _loaded:
        return
    register = getattr(onnxruntime, "register_execution_provider_library", None)
    if register is None:
        raise MissingPackage(
            f"onnxruntime {release()} cannot load plug-in provider libraries",
            fix="pip install --upgrade 'onnxruntime>=1.23'",
            where=str(library),
        )
    try:
        register(f"qdqtool.{name}", str(library))
    except failures() as error:
        raise InputFileError(
            f"onnxruntime cannot load the plug-in provider library: {message_of(error)[:300]}",
            fix="install the library's release for this onnxruntime, and the libraries and drivers it needs",
            where=str(library),
        ) from error
    _loaded.add(library)


def _library_of(module: str) -> Path | None:
    """Return the provider library in an installed plug-in package; None if the package is not installed."""
    if not module or find_spec(module) is None:
        return None
    return Path(import_module(module).get_library_path())


def _choose_device(provider: Provider, library: Path) -> Located:
    """Choose a device of a provider library by number or kind; by default its CPU, else its first device."""
    devices = [device for device in _plugged_devices() if device.ep_name == provider.name]
    if not devices:
        device_kind = known_device(provider)
        instead = f"; else: {_in_place(device_kind.instead)}" if device_kind.instead else ""
        raise MissingPackage(
            f"the plug-in library of {provider.name} offers no device on this machine",
            fix=f"it needs {device_kind.needs or 'its hardware and driver'}{instead}",
            where=str(library),
        )
    kinds = [str(device.ep_metadata.get("ov_device") or device.device.type.name) for device in devices]
    if provider.pick.isdigit():
        chosen = devices[int(provider.pick) : int(provider.pick) + 1]
    else:
        kind = provider.pick.upper() or "CPU"
        chosen = [device for device, its in zip(devices, kinds, strict=True) if its.upper() == kind]
        chosen = chosen or ([] if provider.pick else devices)
    if not chosen:
        raise MissingPackage(
            f"{provider.name} has no device {provider.pick!r} here",
            fix=f"choose a number below {len(devices)}, or one of {', '.join(dict.fromkeys(kinds))}",
            where=f"--device {provider.word}",
        )
    return Located(provider=provider, devices=(chosen[0],))


@lru_cache(maxsize=1)
def _preload() -> None:
    """Load CUDA and cuDNN from their Python packages, where the system does not look for them."""
    import onnxruntime

    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is not None and DEVICES["cuda"].provider in onnxruntime.get_available_providers():
        preload()


def how_to_get(provider: Provider) -> str:
    """Return the command that installs an execution provider."""
    device = known_device(provider)
    ways = [f"pip install {device.beside}"] if device.beside else []
    ways += [_in_place(device.instead)] if device.instead else []
    needs = f" ({provider.word} needs {device.needs})" if device.needs else ""
    if not ways:
        return "install an onnxruntime with this provider, or pass its plug-in library: --device path/to/library.so"
    return f"{'; or '.join(ways)}{needs}. {Command('doctor')} lists what works on this machine"


def _in_place(package: str) -> str:
    """Return the command that replaces the installed onnxruntime package by another one.

    All builds of onnxruntime write the folder `onnxruntime`. If two are installed, the last installed one is
    imported, and a removal of either breaks the other.
    """
    here = " ".join(onnxruntime_packages()) or "onnxruntime"
    return f"pip uninstall -y {here} && pip install '{package}'".replace(" tensorrt'", "' tensorrt")


def onnxruntime_packages() -> tuple[str, ...]:
    """Return the installed packages that contain the module `onnxruntime`. Several such packages overwrite each other."""
    return tuple(sorted(set(packages_distributions().get("onnxruntime", ()))))


def _on_device(source: str | bytes, options: RuntimeOptions) -> onnxruntime.InferenceSession:
    """Open a session on a provider other than the CPU. If it is missing, raise an error.

    Onnxruntime would continue without it.
    """
    import onnxruntime

    there = find_device(options.provider)
    provider = there.provider
    settings = options_for(provider, exact=options.exact, plugged=bool(there.devices))
    session_settings = session_options(options)
    session_settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    chosen: list[Any] | None = None
    if there.devices:
        session_settings.add_provider_for_devices(list(there.devices), settings)
    else:
        chosen = [(provider.name, settings), CPU.name]
        if provider.name == DEVICES["tensorrt"].provider:
            chosen.insert(1, DEVICES["cuda"].provider)  # runs the nodes that TensorRT does not run

    def open_on_device() -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(
            source,
            sess_options=session_settings,
            providers=chosen,
            disabled_optimizers=_HARMFUL,
            enable_fallback=0,
        )

    alone = known_device(provider).one_thread
    session = _device_thread().submit(open_on_device).result() if alone else open_on_device()
    if provider.name not in session.get_providers():
        raise MissingPackage(
            f"onnxruntime has {provider.name}, but cannot load it: a library or the driver that it needs is missing",
            fix=f"pip install '{known_device(provider).instead or 'onnxruntime-gpu[cuda,cudnn]'}', and check the driver with "
            "nvidia-smi; or --device cpu",
            where=f"--device {provider.word}",
        )
    device_use().assigned(_on_cpu(session))
    return cast("onnxruntime.InferenceSession", _OneThread(session)) if alone else session


@lru_cache(maxsize=1)
def _device_thread() -> ThreadPoolExecutor:
    """Return the thread that opens and runs all sessions of a GPU."""
    return ThreadPoolExecutor(1, thread_name_prefix="device")


class _OneThread:
    """An onnxruntime session whose calls all run in the thread of the GPU."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, *args: Any) -> Any:
        return _device_thread().submit(self._session.run, *args).result()


def _on_cpu(session: onnxruntime.InferenceSession) -> Counter[str]:
    """Count the nodes that the CPU runs in a session for another provider, by operator.

    Empty if onnxruntime cannot report them.
    """
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:
        return Counter()
    return Counter(
        str(node.op_type) for part in ask() if part.ep_name == CPU.name for node in part.get_nodes()
    )


# --- the device in use -----------------------------------------------------------------------------------------------


@contextmanager
def computing_on(word: str) -> Iterator[DeviceUse]:
    """Open all sessions of this block on a device. Nested blocks for one device share one `DeviceUse`.

    Raises:
        UsageError: no device has this word.
        MissingPackage: the provider is not here, or offers no such device.
    """
    provider = provider_of(word)
    outer = IN_USE.get()
    if outer is not None and outer.provider.word == provider.word:
        yield outer
        return
    if provider != CPU:
        provider = find_device(provider).provider
    use = DeviceUse(provider)
    token = IN_USE.set(use)
    try:
        yield use
    finally:
        IN_USE.reset(token)
        for note in use.troubles():
            _log.warning("%s", note)


def on_device(word_of: Callable[[Any], str]) -> Callable[[Function], Function]:
    """Decorate a function so that it computes on a device; `word_of` reads the device from the first argument."""

    def wrap(function: Function) -> Function:
        @wraps(function)
        def call(request: Any, *args: Any, **named: Any) -> Any:
            with computing_on(word_of(request)):
                return function(request, *args, **named)

        return cast("Function", call)

    return wrap
