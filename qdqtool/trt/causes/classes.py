"""Answers for error texts without a known cause. The answer depends on the error's code, the phase or the program.

TensorRT numbers its errors (`ErrorCode` in NvInferRuntimeBase.h, `nvonnxparser::ErrorCode`), and CUDA, onnxruntime,
Triton and Python name theirs. The class gives the kind of failure and the next step; the text gives the details
(`anatomy`).
"""

from __future__ import annotations

from qdqtool.core.causes import Cause, Wording
from qdqtool.core.wording import Command, Setting

_CODE = r"(?:Error Code {0}: |Error\[{0}\]: |(?:^|\s){0}: \[)"
"""An error number as TensorRT 7 to 11 print it."""
LINT = Command("lint", ("MODEL",))
FIXED = Command("repair", ("MODEL", "--out", "repaired.onnx"))
CONVERT = Command("convert", ("MODEL", "--out", "FP16"))
"""Commands as they are typed; words in capital letters are the reader's files."""
RELEASE = (
    f"build the model with another release: {Command('build', ('MODEL', '--builder', 'rtx', '--out', 'BUILD'))} needs no GPU. If that works, the fault is in your "
    "release; if not, find the smallest failing part for a report to NVIDIA "
    "(polygraphy debug reduce MODEL -o reduced.onnx --mode=bisect --check trtexec --onnx=polygraphy_debug.onnx)"
)
_RATE = Setting("prepare.constants", '{"sr": 16000}')
DECIDE_IF = (
    "give the model fixed shapes (python -m onnxruntime.tools.make_dynamic_shape_fixed): `run`, `quantize` and `convert` "
    "then replace every If that depends on shapes by the branch that runs. If it depends on an input (a sampling rate), "
    f"make that input a constant: {_RATE}"
)
BUILD_ALONE = f"build the model alone ({Command('build', ('MODEL', '--builder', 'trtexec', '--out', 'BUILD'))}): if that works, the fault is in the program"
_LINES_BEFORE = f"read the lines before this one; if there are none, {BUILD_ALONE}"
LLM_RELEASE = (
    "convert the checkpoint and build it with the scripts of one release of TensorRT-LLM; if that fails too, try another release, and report the "
    "failing one (TensorRT-LLM builds its own network, so there is no ONNX file to build alone)"
)
_EDGE_RELEASE = (
    "export and build with one release of TensorRT Edge-LLM, and the TensorRT that its release notes name for this GPU; if that fails too, try the newest of both, or a checkpoint "
    "in another format, and report it to NVIDIA"
)
FOR_PROGRAMS: dict[str, tuple[tuple[str, str], ...]] = {
    "tensorrt-llm": (
        (RELEASE, LLM_RELEASE),
        (_LINES_BEFORE, f"read the lines before this one; if there are none, {LLM_RELEASE}"),
    ),
    "edge-llm": ((RELEASE, _EDGE_RELEASE),),
}
"""Fixes that a program has no use for, and the fix that it has."""
_MODEL = (
    "change this node in the export of the model, or cut the model before it; an operator that is not part of ONNX needs the library of its plug-in "
    f"(trtexec --staticPlugins=FILE); {LINT} checks a model with Q/DQ before a build"
)
_ALONE = (
    "run the engine alone (trtexec --loadEngine=FILE): if it runs, the program's buffers, shapes or streams are wrong; if not, build with another "
    "release, and report it to NVIDIA"
)

_CODES = (
    (
        5,
        "allocation",
        "memory",
        "TensorRT could not allocate memory",
        "free memory on the GPU and the host, or build for smaller shapes",
    ),
    (
        6,
        "initialization",
        "driver",
        "a library that TensorRT needs (CUDA, cuDNN, cuBLAS) did not start",
        f"check that driver and libraries belong to this TensorRT ({Command('doctor')}), and that the GPU has free memory",
    ),
    (
        4,
        "does-not-fit",
        "shape",
        "inputs, parameters or shapes of a layer, or settings of the build, do not fit together",
        "change the shape, attribute or build flag that the text names",
    ),
    (
        10,
        "unsupported-here",
        "kernel",
        "the network needs a feature that this GPU or this configuration does not support",
        RELEASE,
    ),
)
"""Error codes of TensorRT that determine a class: code, name, area, meaning and fix of the class."""

FIXED_SHAPES = "give the model fixed shapes and fold its constants (polygraphy surgeon sanitize MODEL --fold-constants -o FOLDED), and look at the shapes before the layer"
"""First thing to try if shapes are at fault."""
SUBJECTS: tuple[tuple[str, str, str], ...] = (
    (
        r"[pP]lugin",
        "a plug-in",
        "check which types, formats and shapes the plug-in accepts (supportsFormatCombination, getOutputDimensions), and compile the plug-in for this release",
    ),
    (
        r"\bnbDims\b|\bbatchSize\b",
        "the number of dimensions of a tensor, or the batch",
        f"{FIXED_SHAPES}; a scalar or a missing batch dimension is the usual reason: add the dimension in the export",
    ),
    (
        r"quantizations|[sS]calesLen|[sS]calesSize|scale\.count",
        "the number of INT8 scales of a tensor",
        "keep the Reshape and Transpose nodes around products of more than two dimensions float, or give their tensors one scale each; write such a product with fewer dimensions",
    ),
    (
        r"nbOutputMaps|nbOutputChannels",
        "the number of values per output channel (scales, or a bias)",
        f"{LINT} names Q/DQ whose scales do not fit the axis; {FIXED} corrects them",
    ),
    (
        r"transformWeights|weightConvertors",
        "the type of a constant",
        f"{FIXED} stores INT32 biases as floats; remove Q/DQ from the outputs of the network",
    ),
    (
        r"[eE]xpr\b|[eE]xprValues|[sS]ymbolic|shapeMachine|shapeCompiler|shapeContext",
        "shapes that are computed",
        FIXED_SHAPES,
    ),
)
"""Subjects of internal checks, by the words of their condition and their place: pattern, subject, and the first thing to try."""

STATUSES = (
    Cause(
        name="no-kernel-image",
        area="driver",
        pattern=r"no kernel image is available|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorInvalidDeviceFunction|invalid device function|must be overrided in python",
        meaning="the program, or one of its libraries or plug-ins, was compiled for other GPUs (compute capabilities) than this one",
        fix="install a build of that library for this GPU, or compile the plug-in for its compute capability",
        fault="machine",
    ),
    Cause(
        name="driver-old",
        area="driver",
        pattern=r"unsupported toolchain|UnsupportedPtxVersion|UNSUPPORTED_PTX_VERSION|[Ff]orward compatibility was attempted"
        # Without a GPU, TensorRT for RTX prints "cudaError 35: CUDA driver ..." after any error. Its builds need no GPU.
        r"|CompatNotSupported|cudaErrorInsufficientDriver|(?<!cudaError 35: CUDA )driver version is insufficient",
        meaning="the GPU's driver is older than the CUDA release of the program",
        fix=f"update the driver, or install the program for an older CUDA; {Command('doctor')} shows both",
        fault="machine",
    ),
    Cause(
        name="device-assert",
        area="gpu",
        pattern=r"device-side assert",
        meaning="a CUDA kernel of the program stopped at an invalid value, most often an index outside its table; later errors follow from it",
        fix="run it again with CUDA_LAUNCH_BLOCKING=1, so that the error is reported where it occurs, and check the indices there",
    ),
)
"""Statuses of CUDA that name their reason."""

CLASSES = (
    Cause(
        name="no-outputs",
        area="file",
        pattern=r"[Nn]etwork must have at least one output",
        meaning="the network is empty: the file is not an ONNX model, declares no outputs, or was not parsed completely",
        fix="pass an ONNX model with at least one output; if the parser reports an error before this line, fix that error",
        fault="model file",
        rank="vague",
    ),
    Cause(
        name="two-constraints",
        area="typing",
        pattern=r"kPREFER_PRECISION_CONSTRAINTS cannot be set if kOBEY",
        meaning="the build both prefers and obeys precision constraints, which is not possible",
        fix="give one --precisionConstraints: prefer, or obey, which fails if no kernel has the type",
        effect="warns",
        releases="8.2 to 10",
    ),
    Cause(
        name="unsupported-node",
        area="parser",
        pattern=r"UNSUPPORTED_NODE|UNSUPPORTED_GRAPH",
        meaning="the parser cannot import this operator, or this form of the operator",
        fix="replace the operator, or simplify the model (constant folding, fixed shapes)",
        rank="vague",
    ),
    Cause(
        name="parser-check",
        area="parser",
        pattern=r"INVALID_NODE|INVALID_GRAPH|INVALID_VALUE|\[\d+\] Assertion failed:|While parsing node number|Invalid Node - "
        r"|ERROR: \S+ In function \w+|In node \d+ |Static check for parsing node|Parsing will halt|Custom QDQ ops are available",
        meaning="the parser refuses the model",
        fix=_MODEL,
        rank="vague",
    ),
    Cause(
        name="refit-check",
        area="refit",
        pattern=r"\bIRefitter::|REFIT_FAILED|[Rr]efit(?:ter)?\.cpp",
        meaning="the refitter refuses to replace weights",
        fix="build the engine with --refit, and list the names that the refitter accepts",
        rank="vague",
    ),
    Cause(
        name="load-check",
        area="engine",
        pattern=r"\bIRuntime::deserialize\w*: |deserialize\w*::\d+\].*(?:Assertion|Error Code)|[Ss]erialization (?:Error|assertion)",
        meaning="TensorRT does not load this engine",
        fix="build the engine again, with the TensorRT release and on the type of GPU that run it, and check that the file was copied completely",
        rank="vague",
    ),
    Cause(
        name="run-check",
        area="running",
        pattern=r"\bIExecutionContext::\w+: Error Code [^3]|[eE]xecutionContext\.cpp::\w+::\d+\] Error Code [^3]"
        rf"|{_CODE.format(7)}|{_CODE.format(8)}",
        meaning="an engine that was built failed when it ran",
        fix=_ALONE,
        rank="vague",
    ),
    *(
        Cause(name=name, area=area, pattern=_CODE.format(code), meaning=meaning, fix=fix, rank="vague")
        for code, name, area, meaning, fix in _CODES
    ),
    Cause(
        name="wrong-call",
        area="engine",
        pattern=rf"API Usage Error|Parameter check failed|{_CODE.format(3)}",
        meaning="TensorRT refuses an API call of the program",
        fix="change the call or the flag that the text names; a program that worked with an older release: "
        f"{Command('migrate', ('SCRIPT',))} lists what changed",
        rank="vague",
    ),
    Cause(
        name="kernel-check",
        area="gpu",
        pattern=r"nvinfer1::\S*::(?:execute|enqueue)\w*\(.*Assertion",
        meaning="an internal check stops a TensorRT kernel, in a build or in a finished engine",
        fix="if the program loads an engine from a file or a cache, delete it and build it on this GPU with this release; if not, build with another release",
        rank="vague",
    ),
    Cause(
        name="tactic-skipped",
        area="kernel",
        pattern=r"Skipping tactic \S+ due to exception|Cannot profile configuration .{1,300}Skipped",
        meaning="the builder skips a kernel that failed a check, and continues with other kernels",
        fix="nothing to do if the build succeeds; if the build fails, read the error after this line",
        effect="warns",
        rank="vague",
    ),
    Cause(
        name="torch-check",
        area="host",
        pattern=r"Error thrown at \S*core/|Expected .{1,200} to be true but got false",
        meaning="a check of Torch-TensorRT failed",
        fix='run this operator in PyTorch (torch_executed_ops), compile with a newer Torch-TensorRT and ir="dynamo", or export the model to ONNX',
        rank="vague",
    ),
    Cause(
        name="plugin-check",
        area="plugin",
        pattern=r"#assertion ?\S+\.(?:cpp|cu|h),\d+|(?m:^\S+: \S+\.(?:cc?|cpp|cu|hp*):\d+: .+: Assertion (?![`']?m?_?[eE]ngine).+ failed)",
        meaning="a check in the source of a plug-in or of the program failed; the text names the file and the line",
        fix="read that line of the source: it says which type, shape or parameter is expected; a layer that is null has weights that do not fit the settings of the program (number of classes, size of the model); "
        "compile a plug-in for the TensorRT that runs it",
        rank="vague",
    ),
    Cause(
        name="gxf-status",
        area="host",
        pattern=r"\bGXF_[A-Z_]+|Gxf\w+ Error",
        meaning="a step of Isaac ROS (GXF) failed",
        fix="read the first ERROR lines before it; an engine: run it alone (trtexec --loadEngine=FILE), and compare names and shapes with the parameters of the node",
        rank="vague",
    ),
    Cause(
        name="llm-check",
        area="host",
        pattern=r"\[TensorRT-LLM\]\[ERROR\]",
        meaning="TensorRT-LLM reports an error",
        fix=f"at run time: change the request or the setting that the text names (lengths, batch, tokens); in a build: {LLM_RELEASE}",
        rank="vague",
    ),
    Cause(
        name="internal-check",
        area="kernel",
        pattern=r"Internal Error\s*(?:$|\()(?!Assertion engine|Engine generation failed)|Assertion failed:|Assertion Error in |Assertion (?![`']?m?_?[eE]ngine\b).+ failed"
        rf"|{_CODE.format(2)}(?!.*(?:Assertion engine|Engine generation failed))|{_CODE.format(9)}",
        meaning="an internal check of the builder failed",
        fix=RELEASE,
        rank="vague",
        before=("no-table",),
    ),
    Cause(
        name="cuda-status",
        area="gpu",
        pattern=r"(?i:cuda (?:error|failure))|cudaError[A-Z]|CUDA_ERROR_|CUBLAS_STATUS_|Cuda Runtime \(|Platform \(Cuda\) error",
        meaning="a CUDA call failed; CUDA reports errors late, so an earlier call may be the cause",
        fix=f"run the program again with CUDA_LAUNCH_BLOCKING=1 and read the first error; {_ALONE}",
        rank="vague",
    ),
    Cause(
        name="ort-status",
        area="host",
        pattern=r"\[ONNXRuntimeError\] : \d+ : |Non-zero status code returned while running",
        meaning="onnxruntime reports an error",
        fix="give the session log_severity_level=1 and read the lines before this one; try the model on the CPU provider: if it fails there "
        "too, the model is wrong, not TensorRT",
        rank="vague",
    ),
    Cause(
        name="triton-config",
        area="host",
        pattern=r"unexpected (?:datatype|shape) .{0,80}, expecting|configuration expects (?:datatype|shape|\d)|the model configuration specifies"
        r"|model provides (?:TYPE_|\[)|model configuration shape is \[",
        meaning="config.pbtxt and the model have different types or shapes for an input or output; the text names both",
        fix="write the types and shapes of the model into config.pbtxt, or remove inputs and outputs from config.pbtxt: Triton then reads them from the model. TensorRT 10 keeps INT64, older releases use INT32"
        "",
    ),
    Cause(
        name="triton-status",
        area="host",
        pattern=r"failed to load '[^']*' version|loading failed with error|Poll failed for model|failed to poll model|^[EF]\d{4} .*\] ",
        meaning="Triton reports an error",
        fix="read the first error line of this model; check its config.pbtxt and the files in its version folder",
        rank="vague",
    ),
    Cause(
        name="file-missing",
        area="host",
        pattern=r"No such file or directory|FileNotFoundError|(?i:(?:cannot|can't|unable to|could not|failed to) (?:open|access|read|open/read|find) (?:the )?(?:\w+ ){0,3}file\b|error (?:opening|loading) engine file|file does not exist)",
        meaning="the program did not find a file that it needs",
        fix="correct the path; if an earlier step of the program writes the file (a calibration table, an ONNX model), that step failed",
        rank="vague",
    ),
    Cause(
        name="python-exception",
        area="host",
        pattern=r"(?m:^\s*(?:[\w.]+\.)?(?!PolygraphyException: Could not parse)\w*(?:Error|Exception)\b: )",
        meaning="a Python program failed",
        fix="read the traceback: its last frame is the failing call (a package that raises it may be of another release than its caller expects); if TensorRT printed an [E] line before the traceback, read that line",
        variants=(
            Wording(
                program="tensorrt-llm",
                fix="a KeyError or an unknown value of a configuration: this TensorRT-LLM is older than the model or its checkpoint; install a release that supports "
                f"this model, and {LLM_RELEASE}; other errors: the last frame of the traceback is the failing call",
            ),
        ),
        rank="vague",
    ),
    Cause(
        name="killed",
        area="host",
        pattern=r"(?m:^(?:.*: line \d+: *\d+ )?Killed\b)|exit(?:ed)?(?: with)?(?: code)?:? (?:137|-9)\b|SIGKILL|[Oo]om-?[Kk]ill",
        meaning="the system ended the program, most often because memory ran out",
        fix="watch the memory while it runs; build for smaller shapes, or on a machine with more memory (Jetson: add swap)",
        rank="vague",
    ),
    Cause(
        name="program-crash",
        area="host",
        pattern=r"Segmentation fault|\(core dumped\)|Bus error|Illegal instruction|Floating point exception|access violation|SIG(?:SEGV|ABRT|BUS|ILL|FPE)"
        r"|exit(?:ed)?(?: with)?(?: code)?:? (?:13[2-9]|-(?:4|6|7|8|11))\b|terminate called after throwing|what\(\): ",
        meaning="a fault or an exception in native code ended the program",
        fix=f"{_LINES_BEFORE}; a finished engine: run it alone (trtexec --loadEngine=FILE)",
        rank="vague",
        before=("engine-of-like-device",),
    ),
    Cause(
        name="unknown",
        area="check",
        pattern=r"(?i)\b(?:errors?|exception|fatal|failed|failure|unable to|cannot|can't|could not|couldn't|unsupported|not supported|invalid)\b",
        meaning="the cause of this text is unknown",
        fix=f"read the lines before it, because an earlier line may decide; {Command('parse', ('LOG',))} reads the whole log",
        rank="unknown",
    ),
)
"""Answers for texts without a cause of their own, the narrowest class first."""
