"""The one factory of onnxruntime sessions: no other module of this process imports onnxruntime.

A session is set up so that a Q/DQ model computes what its nodes say: `session.disable_quant_qdq` keeps onnxruntime from
turning DQ -> op -> Q into integer kernels of its own. Their rounding (and, on processors without VNNI, their saturation)
is neither that of the graph nor that of TensorRT. All other optimizations keep float semantics. Nodes run one after the
other with deterministic kernels: on one machine the same model and feeds give the same bits.

onnxruntime is imported when the first session is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qdqtool.graph.onnx_io.save import FOLDER_OPTION
from qdqtool.io.files import native_path

if TYPE_CHECKING:
    import onnxruntime

_OPENING: Final = "Exception during initialization"
"""What onnxruntime says when its optimizer, or a kernel while it is set up, fails."""
_HARMFUL: Final = ("ReluQuantRewrite",)
"""An optimizer that removes a Relu before a Q with a zero point of an eight-bit float or INT4 (seen in 1.31): valid
only if the zero point is the type's smallest number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """Where sessions compute: an execution provider by onnxruntime's name, with its options (memory limits of a GPU are among them)."""

    name: str
    options: tuple[tuple[str, str], ...] = ()


CPU: Final = Provider(name="CPUExecutionProvider")
"""The default of everything that opens a session, and the provider of nodes that another one does not support."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeOptions:
    """How a session computes.

    Attributes:
        provider: the execution provider; the CPU computes the nodes that it does not support.
        threads: of one run; 0 leaves the number to onnxruntime.
        faithful: Q/DQ nodes compute what they say. Otherwise onnxruntime may replace Q/DQ patterns by integer kernels of its own: right for measuring
            speed, wrong for judging accuracy.
        optimized: False runs the graph node by node, which opens a graph of many thousand nodes far sooner.
        arena: False returns the memory of a run after it; with an arena a session stays as large as its two largest runs.
        planned: False skips the search for memory to use again, which takes time that grows with the square of the nodes.
        patterned: False lets runs with the same shapes take no single block for all they need, in addition to what the first run took.
        home: folder of the weights of a model in memory, or of a file in another folder.
        saved: file for the optimized model, with its weights in a file beside it.
        libraries: shared libraries of custom operators.
    """

    provider: Provider = CPU
    threads: int = 0
    faithful: bool = True
    optimized: bool = True
    arena: bool = True
    planned: bool = True
    patterned: bool = True
    home: Path | None = None
    saved: Path | None = None
    libraries: tuple[Path, ...] = ()


def open_session(model: Path | bytes, options: RuntimeOptions) -> onnxruntime.InferenceSession:
    """A session for the model in a file, its external data beside it, or in memory.

    Raises:
        one of `failures()`: onnxruntime cannot open the model.
    """
    import onnxruntime

    provider = options.provider
    chosen: list[Any] = [CPU.name] if provider == CPU else [(provider.name, dict(provider.options)), CPU.name]
    source = native_path(model) if isinstance(model, Path) else model
    if isinstance(model, Path) and options.home is not None:
        source = model.read_bytes()
    try:
        return onnxruntime.InferenceSession(
            source, sess_options=session_options(options), providers=chosen, disabled_optimizers=_HARMFUL
        )
    except failures() as error:
        if _OPENING not in str(error) or not options.optimized:
            raise
        # The optimizer may fail on a valid graph, for example if it gives a tensor a name that is taken.
        plain = session_options(replace(options, optimized=False))
        return onnxruntime.InferenceSession(source, sess_options=plain, providers=chosen)


def session_options(options: RuntimeOptions) -> onnxruntime.SessionOptions:
    """The options in onnxruntime's form."""
    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    made.inter_op_num_threads = 1
    made.intra_op_num_threads = options.threads
    made.use_deterministic_compute = True
    made.log_severity_level = 4  # errors are raised; nothing is printed as well
    if options.faithful:
        made.add_session_config_entry("session.disable_quant_qdq", "1")
        # Threads that wait would keep a processor busy: that doubles the cost of a model of small layers.
        made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not options.optimized:
        made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not options.arena:
        made.enable_cpu_mem_arena = False
    if not options.planned:
        made.enable_mem_reuse = False
    if not options.patterned:
        made.enable_mem_pattern = False
    if options.home is not None:
        made.add_session_config_entry(FOLDER_OPTION, native_path(options.home))
    if options.saved is not None:
        made.optimized_model_filepath = native_path(options.saved)
        made.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{options.saved.stem}.data"
        )
    for library in options.libraries:
        made.register_custom_ops_library(native_path(library))
    return made


def run_giving_back() -> onnxruntime.RunOptions:
    """Options of a run after which a session keeps no more memory than it had when it was opened."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


@lru_cache(maxsize=1)
def failures() -> tuple[type[Exception], ...]:
    """All that onnxruntime raises; its classes share no parent of their own and differ by release."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    kinds = (kind for kind in vars(native).values() if isinstance(kind, type) and issubclass(kind, Exception))
    return (*kinds, RuntimeError, ValueError)


def release() -> str:
    """The installed release of onnxruntime."""
    import onnxruntime

    return str(onnxruntime.__version__)


def installed_providers() -> tuple[str, ...]:
    """The execution providers that the installed onnxruntime can use."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def known_providers() -> tuple[str, ...]:
    """All execution providers that onnxruntime has a name for."""
    import onnxruntime

    return tuple(onnxruntime.get_all_providers())
