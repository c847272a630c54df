"""Causes in programs around the builder: they choose another precision, stop, or only repeat a failure."""

from __future__ import annotations

from qdqtool.core.causes import Cause
from qdqtool.core.wording import Command

HOSTS = (
    Cause(
        name="triton-repository",
        area="host",
        pattern=r"failed to (?:stat|open) (?:file|directory|the directory) /\S+|failed to create repo server",
        meaning="Triton does not find its model repository: the folder does not exist in this container or for this user",
        fix="create the folder that the text names, with MODEL/config.pbtxt and MODEL/1/model.plan in it, mount it into the container, and name it in --model-repository "
        "(Isaac ROS: model_repository_paths)",
    ),
    Cause(
        name="ort-subgraph",
        area="host",
        pattern=r"graph_build\.Resolve\(\)\.IsOK\(\)",
        meaning="onnxruntime's TensorRT provider cuts the model into parts, and a part is no valid model: usually an operator of another domain than ONNX, or a missing type or shape",
        fix="run shape inference first (python -m onnxruntime.tools.symbolic_shape_infer); give operators of other domains to CUDA (trt_op_types_to_exclude), or update onnxruntime",
    ),
    Cause(
        name="deepstream-no-calibration",
        area="host",
        pattern=r"INT8 calibration file not specified\. Trying FP16 mode",
        meaning="DeepStream was configured for INT8 (network-mode=1) without a calibration file, so it builds FP16",
        fix="set int8-calib-file in the nvinfer configuration to a calibration cache; a model with Q/DQ: build the engine with trtexec, "
        "and set model-engine-file",
        effect="float",
        precision="fp16",
    ),
    Cause(
        name="deepstream-no-int8",
        area="host",
        pattern=r"INT8 not supported by platform\. Trying FP16 mode",
        meaning="this GPU has no fast INT8 (Jetson Nano and TX2 have none), and DeepStream builds FP16",
        fix="use FP16 (network-mode=2), or a GPU of compute capability 6.1, 7.2 or newer",
        effect="float",
        precision="fp16",
    ),
    Cause(
        name="deepstream-no-fp16",
        area="host",
        pattern=r"FP16 not supported by platform\. (?:Using|Trying) FP32 mode",
        meaning="this GPU has no fast FP16, and DeepStream builds FP32",
        fix="use FP32 (network-mode=0), or a GPU with FP16",
        effect="float",
        precision="fp32",
    ),
    Cause(
        name="deepstream-no-engine",
        area="host",
        pattern=r"Deserialize engine failed because file path: .* open error",
        meaning="DeepStream found no engine file at this path, which is normal in a first run, and builds an engine from the model; the later lines, which are missing here, show the result"
        "",
        fix="read the log to its end; to use a finished engine, set model-engine-file in the nvinfer configuration to its path",
        effect="warns",
    ),
    Cause(
        name="program-builds",
        area="host",
        pattern=r"(?i)\b(?:re)?building (?:an? |the )?(?:\w+ )?(?:trt|tensorrt|cuda|\w*8|fp\d\d) engine",
        meaning="the program builds an engine: the builder measures many kernels for each layer on this GPU, which takes minutes, and hours for large models, "
        "wide ranges of shapes, high optimization levels or a busy GPU",
        fix="build with a lower optimization level (trtexec --builderOptimizationLevel=2, config.builder_optimization_level; programs have a setting for it), with "
        "fewer and narrower ranges of shapes, and keep the engine and a timing cache (--timingCacheFile=FILE), which the next build on this GPU reads",
        effect="warns",
    ),
    Cause(
        name="llm-split",
        area="shape",
        pattern=r"Number of bytes for rows and cols must be a multiple|(?:is not|must be) divisible by (?:tp_size|tensor.parallel)",
        meaning="TensorRT-LLM cuts each weight into one part per GPU, and no kernel of this format accepts the size of a part",
        fix="use fewer parts: a smaller --tp_size, with a larger --pp_size for the same number of GPUs; or choose another format (qformat)",
    ),
    Cause(
        name="jetson-no-calibrator",
        area="host",
        pattern=r"without providing valid calibrator, disabling INT8",
        meaning="jetson-inference has no calibrator, so it disables INT8",
        fix="pass a calibrator, or use a model with Q/DQ",
        effect="float",
    ),
    Cause(
        name="ort-fallback",
        area="host",
        pattern=r"Falling back to \[.*\] and retrying|Failed to create (?:Nv)?Tensor[Rr][Tt]\w*ExecutionProvider|EP Error .*(?:Tensorrt|NvTensorRT)",
        meaning="onnxruntime could not create its TensorRT provider: the model runs on the CUDA or CPU provider, without TensorRT",
        fix="install the TensorRT release that this onnxruntime was built for, and put its libraries on the library path",
        effect="float",
    ),
    Cause(
        name="ort-library",
        area="host",
        pattern=r"(?:libnvinfer|nvinfer|libnvonnxparser|onnxruntime_providers_tensorrt)\S*: cannot open shared object|LoadLibrary failed with error 126"
        r"|depends on \"\S*nv(?:infer|onnxparser)\S*\" which is missing",
        meaning="a library of TensorRT, or one that it needs, is not found: the program runs without TensorRT",
        fix="install the TensorRT release that the program was built for, and put its folder on LD_LIBRARY_PATH (Windows: PATH)",
        effect="float",
        fault="machine",
    ),
    Cause(
        name="library-missing",
        area="host",
        pattern=r"[Cc]ould not (?:locate|load library|load dynamic library|find module) \S+|\[WinError (?:126|127|1114)\]|cannot open shared object file|LoadLibrary failed with error",
        meaning="a library that the program loads is missing, or belongs to another release than the program (WinError 127: it lacks a function)",
        fix="install it, or put its folder on PATH (Windows) or LD_LIBRARY_PATH, and remove other releases of CUDA, cuDNN and TensorRT from there; zlibwapi.dll belongs to cuDNN 8; "
        "a library of a Jetson in a container: start the container with --runtime nvidia",
        rank="general",
        fault="machine",
    ),
    Cause(
        name="mpi",
        area="host",
        pattern=r"\bMPI error\b|MPI_ABORT|PMPI_\w+.{0,40}(?:fail|error)",
        meaning="the processes of a model on several GPUs could not reach each other (MPI)",
        fix="start as many processes as the model has parts (mpirun -n, tensor times pipeline parallelism), one GPU for each, with the MPI of the container",
        rank="general",
    ),
    Cause(
        name="ort-profiles",
        area="host",
        pattern=r"no associated shape profiles provided|needs to provide all the dynamic shape inputs with associated profiles",
        meaning="onnxruntime was given shapes (trt_profile_min_shapes, _opt_, _max_), but not for all dynamic inputs of the parts that it gives "
        "to TensorRT; names that are not inputs of the model are tensors at which onnxruntime cuts the model",
        fix="let shapes be inferred first (python -m onnxruntime.tools.symbolic_shape_infer --input MODEL --output INFERRED --auto_merge), or give "
        "shapes for the named tensors too, or none at all",
    ),
    Cause(
        name="ort-newer-file",
        area="host",
        pattern=r"Unsupported model IR version|ONNX Runtime only \*guarantees\* support|[Oo]pset \d+ is under development",
        meaning="the model was written for a newer ONNX than this onnxruntime reads",
        fix="install a newer onnxruntime, or export the model again with an older ONNX (lower opset and IR version)",
    ),
    Cause(
        name="ort-engine",
        area="host",
        pattern=r"TensorRT EP (?:failed to|could not|execution)|returned while running TRTKernel_",
        meaning="TensorRT did not build or run the part of the model that onnxruntime gave it; the text of onnxruntime does not contain TensorRT's reason",
        fix="give the session log_severity_level=1 and read TensorRT's [E] lines before this one; first check that this TensorRT supports the GPU "
        f"({Command('doctor')}; TensorRT 10 does not support Pascal, SM 6.x)",
        rank="vague",
    ),
    Cause(
        name="ort-partition",
        area="host",
        pattern=r"(?:TensorRT|NvTensorRTRTX)\w*(?: EP|ExecutionProvider)?.{0,60}(?:No graph will run|not supported by|rejected|fall ?back)",
        meaning="onnxruntime gives these nodes to another provider: they run without TensorRT",
        fix="find the nodes in the provider's verbose log; replace or convert them",
        effect="float",
    ),
    Cause(
        name="ort-placed",
        area="host",
        pattern=r"placed on \[(?:CPU|CUDA)ExecutionProvider\]",
        meaning="onnxruntime gives some nodes to its CPU or CUDA provider, without TensorRT: the parser of TensorRT does not support them (NonMaxSuppression"
        ", NonZero and RoiAlign in detectors), so the model falls into parts with copies between them",
        fix="the lines below it name the nodes: end the model before them and compute them in the program, or replace them (NonMaxSuppression by the "
        "plug-in EfficientNMS_TRT); infer shapes first (python -m onnxruntime.tools.symbolic_shape_infer --input MODEL --output INFERRED --auto_merge), "
        "because onnxruntime also excludes nodes without shapes",
        effect="float",
    ),
    Cause(
        name="ort-qlinear",
        area="host",
        pattern=r"kernel not found in registries for Op type: (?:QLinear|ConvInteger|MatMulInteger|QAttention)\w*",
        meaning="the CUDA provider of onnxruntime has no kernels for these quantized operators (QOperator form), so they run on the CPU, with copies around them: "
        "slower than FP32",
        fix="quantize in Q/DQ form, and run it with the TensorRT provider (trt_int8_enable=True): "
        f"{Command('run', ('MODEL', '--samples', 'DATA'))} writes it from the float model",
        effect="float",
    ),
    Cause(
        name="tftrt-calibrates",
        area="host",
        pattern=r"Starting calibration thread on device",
        meaning="TF-TRT calibrates this part of the model: until the calibration ends, TensorFlow computes it in float, and no INT8 engine exists",
        fix="end the calibration, save the model, and measure the saved one (TensorFlow 2: converter.convert(calibration_input_fn=...), build, save; 1.x: "
        "converter.calibrate, then save); many candidate segments are many engines with copies between them. For INT8 on a current TensorRT, export the "
        f"model to ONNX (python -m tf2onnx.convert), then {Command('run', ('MODEL', '--samples', 'DATA'))}",
        effect="float",
    ),
    Cause(
        name="tftrt-native",
        area="host",
        pattern=r"(?:[Rr]etrying with|Running) native segment",
        meaning="TF-TRT could not build or run an engine for this part of the model, and runs it in TensorFlow instead",
        fix="the error before this line says why; newer releases of TensorFlow build more parts. For INT8 on a current TensorRT, export the model to ONNX "
        f"(python -m tf2onnx.convert), then {Command('run', ('MODEL', '--samples', 'DATA'))}",
        effect="float",
    ),
    Cause(
        name="torch-quantized",
        area="host",
        pattern=r"\bquantized::\w+(?:\.\w+)?(?:\(| ?$|[,* ])",
        meaning="the model has PyTorch's quantized operators (quantized::conv2d), which run on CPUs; Torch-TensorRT and TensorRT support none of them",
        fix="quantize the float model with fake quantization (NVIDIA Model Optimizer, or pytorch_quantization), which Torch-TensorRT and ONNX keep as Q/DQ; or "
        f"export the float model to ONNX: {Command('run', ('MODEL', '--samples', 'DATA'))}",
    ),
    Cause(
        name="torch-script-type",
        area="host",
        pattern=r"Unknown type \w+ encountered in graph lowering",
        meaning="the front end of Torch-TensorRT for TorchScript does not support a value of this type in the code of the model",
        fix='compile the module itself instead of a script (ir="dynamo"), for INT8 after fake quantization (NVIDIA Model Optimizer); or export the model to '
        f"ONNX: {Command('run', ('MODEL', '--samples', 'DATA'))}",
    ),
    Cause(
        name="torch-unsupported",
        area="host",
        pattern=r"Unsupported operator: \w+::|cannot be compiled by Torch-TensorRT",
        meaning="Torch-TensorRT has no converter for an operator of the model, which the text names, so it does not compile this method",
        fix="run this operator in PyTorch (require_full_compilation=False, torch_executed_ops), write it with other operators, compile with a newer Torch-TensorRT "
        '(ir="dynamo"), or export the model to ONNX',
    ),
    Cause(
        name="torch-long",
        area="host",
        pattern=r"truncate_(?:long_and_)?double(?!=False)|input type of at::k(?:Long|Double)",
        meaning="an input of a part of the model has 64 bits (INT64 or FP64), which this release of Torch-TensorRT does not support",
        fix="compile with truncate_long_and_double=True (newer releases: truncate_double=True), or convert these tensors to 32 bits in the model",
    ),
    Cause(
        name="torch-small-part",
        area="host",
        pattern=r"Skipping this subgraph, since min_block_size|fewer than min_block_size",
        meaning="Torch-TensorRT leaves a part of the model in PyTorch, because it has fewer operations that TensorRT supports than min_block_size asks for",
        fix="compile with a smaller min_block_size (1), and check which operations between such parts are not supported (torch_tensorrt.dynamo.debug, or dryrun=True)",
        effect="float",
    ),
    Cause(
        name="torch-fallback",
        area="host",
        pattern=r"run in (?:PyTorch|Torch)\b|Enabling PyTorch fallback|not supported by .{0,30}converters?|falling back to (?:PyTorch|eager)",
        meaning="Torch-TensorRT runs these operations in PyTorch, not in a TensorRT engine",
        fix="add a converter, or replace the operation; require_full_compilation=True makes it an error",
        effect="float",
    ),
    Cause(
        name="ultralytics-calibration",
        area="host",
        pattern=r"INT8 export requires a missing 'data' arg for calibration",
        meaning="Ultralytics calibrates with its own small example data, because no data was given",
        fix="pass data=FILE.yaml with your own images to export",
        effect="warns",
    ),
    Cause(
        name="torch-explicit-types",
        area="host",
        pattern=r"use_explicit_typing (?:is enabled|was set).{0,200}enabled_precisions",
        meaning="Torch-TensorRT was asked to take the types from the model (use_explicit_typing=True) and to choose types itself (enabled_precisions), which is not possible",
        fix="remove enabled_precisions: the model decides (model.half(); INT8 and FP8 by quantizing it with NVIDIA Model Optimizer)",
    ),
    Cause(
        name="python-api-11",
        area="host",
        pattern=r"has no attribute '(?:IInt8(?:EntropyCalibrator2?|LegacyCalibrator|Calibrator)|CalibrationAlgoType|FP16|INT8)'",
        meaning="TensorRT 11 has no calibrators and no flags for types: the model itself decides, and the program was written for TensorRT 10",
        fix='install TensorRT 10 for this program (pip install "tensorrt<11"), or a newer version of the program; with TensorRT 11, INT8 comes from Q/DQ in the model: '
        f"{Command('run', ('MODEL', '--samples', 'DATA'))}, and FP16 from {Command('convert', ('MODEL', '--out', 'FP16'))}",
        releases="11",
    ),
    Cause(
        name="python-api",
        area="host",
        pattern=r"'?tensorrt[\w.]*'? (?:object )?has no attribute|module 'tensorrt\S*' has no|tensorrt.{0,80}(?:unexpected keyword|incompatible constructor)"
        r"|'?(?:ICuda|IExec|IBuild|INetwork)\w+' object has no attribute",
        meaning="the installed tensorrt package does not have this name: the program was written for another release (TensorRT 10 removed build_engine, max_workspace_size, num_bindings, execute_async_v2 and related names)"
        "",
        fix=f"{Command('migrate', ('SCRIPT',))} names the new calls; if the program is a package (Polygraphy, torch2trt), update it; or install the release that the program was written for",
    ),
    Cause(
        name="no-wheel",
        area="host",
        pattern=r"does not currently build wheels for",
        meaning="pip has no TensorRT for this platform",
        fix="use the TensorRT of the system (on Jetson it comes with JetPack: apt install tensorrt, or an l4t-tensorrt container)",
        fault="machine",
    ),
    Cause(
        name="python-module",
        area="host",
        pattern=r"No module named '|ImportError: cannot import name",
        meaning="a Python package is missing, or is of another version than the program expects",
        fix="install it in this environment (pip install NAME); for TensorRT, the release that the program was written for",
        fault="machine",
    ),
    Cause(
        name="onnx-export",
        area="host",
        pattern=r"(?i)export(?:ing)? (?:the model )?to onnx failed|onnx export failed|\bonnx: export failure|torch\.onnx\.(?:errors|_internal\.exporter)\S*(?:Error|Exception)",
        meaning="the export to ONNX failed, so the builder has no model, or an old one; the text names the operator or the reason",
        fix="change what the exporter names: replace a custom operator by standard ones (attention of xformers or flash-attention: choose the attention of PyTorch), or export "
        "with a newer PyTorch or opset; then build again",
    ),
    Cause(
        name="no-engine",
        area="host",
        pattern=r"export failure.*'NoneType' object|Invalid Engine\. Please ensure|TensorRT engine build returned None|a bytes-like object is required, not 'NoneType'"
        r"|incompatible function arguments.*deserialize_cuda_engine|no attribute 'create_execution_context'",
        meaning="the builder returned no engine, and the program continued without one",
        fix="read the builder's error before this line; if there is none, log with trt.Logger.VERBOSE",
        rank="vague",
    ),
    Cause(
        name="placeholder",
        area="host",
        pattern=r"\$\{\w+\}",
        meaning="a setting still contains a placeholder (${...}) of a template, and the program uses the placeholder as a name",
        fix="fill in the configuration (config.pbtxt of a Triton model: tools/fill_template.py, or by hand)",
    ),
    Cause(
        name="triton-backend",
        area="host",
        pattern=r"unable to find backend library for backend|unable to find 'libtriton_\w+\.so'",
        meaning="this Triton container does not have the backend that config.pbtxt names",
        fix='correct `backend` in config.pbtxt (engines of TensorRT: backend: "tensorrt"; tensorrt_plan is a platform, not a backend), or use the container with this backend '
        "(TensorRT-LLM comes in a container with its backend)",
    ),
    Cause(
        name="engine-not-loaded",
        area="engine",
        pattern=r"unable to (?:create|load|deserialize) (?:TensorRT engine|plan file)|[Ff]ailed to deserialize (?:the )?(?:cuda )?engine|[Dd]eserialize the cuda engine failed"
        r"|could not deserialize engine",
        meaning="the program could not load the engine, and this text does not state the reason: the engine was built by another TensorRT release or for another GPU, its plug-ins are not loaded, or the file is incomplete",
        fix="read TensorRT's lines before this one; build the engine with the release of TensorRT that runs it (TensorRT-LLM, Triton: of the same container), on its GPU",
        rank="general",
        before=("other-version", "other-device", "lean-runtime", "plugin-missing"),
    ),
    Cause(
        name="llm-build",
        area="host",
        pattern=r"Failed to build (?:serialized|LLM) engine|Engine building failed|Failed to initialize executor|Building serialized network failed",
        meaning="the program around TensorRT reports that the build failed; an error before this line gives the reason",
        fix="read the builder's error before this line",
        rank="echo",
    ),
    Cause(
        name="llm-checkpoint",
        area="host",
        pattern=r"Unsupported \w+ quantized checkpoint format",
        meaning="TensorRT-LLM does not know the form of this quantized checkpoint: another release or another tool wrote it",
        fix="quantize again with the scripts of the installed TensorRT-LLM (examples/quantization/quantize.py)",
    ),
    Cause(
        name="llm-shared-embedding",
        area="host",
        pattern=r"KeyError: '(?:model\.)?lm_head\.weight'",
        meaning="the checkpoint has no weights for lm_head: the model shares the weights of its embedding (tie_word_embeddings), and this conversion script does not support that",
        fix="convert with a newer TensorRT-LLM, or save the model with lm_head.weight as a copy of the weights of the embedding",
    ),
    Cause(
        name="llm-tensors",
        area="host",
        pattern=r"KeyError: '(?:[\w.]*(?:_scaling_factor|per_channel_scale|qweight|(?:input|weight)_scale)\w*|(?:transformer|model)\.layers\.[\w.]+)'"
        r"|[Pp]rovided (?:tensor names are different|but not (?:expected|required) tensors)|[Rr]equired but not provided tensors",
        meaning="the checkpoint has other tensors than TensorRT-LLM expects: usually it was quantized without calibration data (then it has no activation scales), by another tool, or in "
        "another format than the build assumes",
        fix="quantize again with calibration data, with the scripts of the TensorRT-LLM that builds (examples/quantization/quantize.py; Model Optimizer: mtq.quantize with a "
        "forward_loop), and pass its config.json unchanged",
    ),
    Cause(
        name="llm-xqa",
        area="host",
        pattern=r"TllmXqaJit",
        meaning="TensorRT-LLM could not compile its attention kernel for generated tokens (XQA) for this GPU, head size and type of the KV cache",
        fix="set TRTLLM_DISABLE_XQA_JIT=1 for the build; releases that have the flag: trtllm-build --disable_xqa; or keep the KV cache in FP16, or "
        "build with another release of TensorRT-LLM",
    ),
    Cause(
        name="llm-gemm",
        area="host",
        pattern=r"Have not found any valid GEMM config|Error occurred when running GEMM",
        meaning="a GEMM plug-in of TensorRT-LLM has no kernel for this GPU and type",
        fix="choose another format for this GPU (INT8 or FP8 instead of FP4), or --gemm_plugin disable",
    ),
)
"""Causes in applications around TensorRT, which choose a precision or stop with an error."""


# --- lines -----------------------------------------------------------------------------------------------------------
# Lines that name no reason: they only repeat that something failed.


_ECHOES = (
    r"Engine could not be created|Engine set up failed|Engine creation failed|Parsing model failed|Failed to create engine"
    r"|Failed to parse|[Bb]uilding (?:engine )?failed|Network And Config setup failed|Network validation failed|Failed building"
    r"|failed to (?:build|create) CUDA engine"
    r"|Could not complete|Test engine failed|cudaError 35|Error Code 35|Assertion engine(?:Ptr)? != nullptr failed"
    r"|^FAILED|[Ff]ailed to load '[^']*'$|[Ee]ngine generation failed|Skipping this backend strategy|Could not parse ONNX correctly|--- (?:Begin|End) node|(?:^|: )(?:input|output|name|op_type): \""
)
ECHOES = (
    Cause(
        name="echo",
        area="check",
        pattern=_ECHOES,
        meaning="this line only repeats that the build failed; it does not say why",
        fix="read the errors before it; if there are none, build again with verbose messages (trtexec --verbose, Python: trt.Logger.VERBOSE) and give the whole log "
        f"to {Command('parse', ('LOG',))}",
        rank="echo",
    ),
)
"""Lines that explain nothing without other lines."""
