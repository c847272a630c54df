"""Causes in programs around the builder: they choose another precision, stop, or only repeat a failure."""

from __future__ import annotations

from qdqtool.core.causes import Cause
from qdqtool.core.wording import Command

HOSTS = (
    Cause(
        name="triton-batch",
        area="host",
        pattern=r"configuration specified max-batch \d+ but TensorRT engine only supports max-batch|unexpected configuration maximum batch size|doesn't support batching",
        meaning="config.pbtxt has a max_batch_size that the engine does not support: the first dimension of its inputs or outputs is fixed, or the profile ends below it",
        fix="build the engine with a dynamic first dimension of every input and output and --maxShapes with this batch, and write dims in config.pbtxt without the batch; or set max_batch_size: 0 and "
        "write all dims",
    ),
    Cause(
        name="triton-request",
        area="host",
        pattern=r"input byte size mismatch for input|request specifies invalid shape for input|unexpected total byte size \d+ for input"
        r"|input data-type is .{1,20}, model expects|unexpected shape for input .{1,120}Expected \[",
        meaning="the client sent an input of another size or type than the model has",
        fix="send the shape and datatype of the model's metadata (GET v2/models/NAME); a model with max_batch_size above 0 takes the batch as first dimension",
        rank="general",
    ),
    Cause(
        name="isaac-dynamic",
        area="shape",
        pattern=r"Dynamic non-batch dimensions are not supported|requires dynamic size on dimension No",
        meaning="the TensorRT node of Isaac ROS takes engines whose inputs have fixed shapes, except for the batch",
        fix="export the model with fixed height, width and channels, delete the engine file, and start with force_engine_update:=True",
    ),
    Cause(
        name="isaac-parameters",
        area="host",
        pattern=r"\bEmpty (?:engine_file_path|model_repository_paths|(?:input|output)_(?:tensor|binding)_names)|binding names .{0,20}count mismatch|bindings? mismatch",
        meaning="the parameters of the Isaac ROS node do not fit the engine: a path is empty, or the lists of tensor names and binding names differ",
        fix="set engine_file_path (and model_file_path), and give input_binding_names and output_binding_names the names in the engine (trtexec --loadEngine=FILE --verbose), "
        "as many as input_tensor_names and output_tensor_names",
    ),
    Cause(
        name="edge-plugin",
        area="plugin",
        pattern=r"(?:not found|cannot open|[Ff]ailed to (?:load|open)).{0,80}libNvInfer_edgellm_plugin|libNvInfer_edgellm_plugin\S*: cannot open",
        meaning="TensorRT Edge-LLM does not find its plug-in library: it was not compiled, or the program runs in another folder",
        fix="compile it (cmake and make in the source of Edge-LLM), and set EDGELLM_PLUGIN_PATH to the full path of libNvInfer_edgellm_plugin.so",
    ),
    Cause(
        name="deepstream-library",
        area="host",
        pattern=r"NVDSINFER_CUSTOM_LIB_FAILED|Could not open custom lib|Could not open lib: \S+",
        meaning="DeepStream cannot load the library of the configuration (custom-lib-path): it was not compiled, is at another path, or was compiled for another DeepStream or CUDA",
        fix="compile it for the installed DeepStream (CUDA_VER=... make -C nvdsinfer_custom_impl_Yolo), and correct custom-lib-path",
    ),
    Cause(
        name="deepstream-config",
        area="host",
        pattern=r"gst_nvinfer_parse_config_file|Configuration file parsing failed|NVDSINFER_CONFIG_FAILED",
        meaning="DeepStream refuses the nvinfer configuration: the file or a file that it names (labels, model, engine) is missing, a key is wrong, or the engine does not fit it (batch-size, dimensions)",
        fix="read the lines before it, which name the key or the file; paths are relative to the configuration file",
        rank="general",
        before=("uff-operator",),
    ),
    Cause(
        name="deepstream-outputs",
        area="host",
        pattern=r"Could not find output (?:coverage |bbox )?layer|[Ff]ailed to parse bboxes|layer\.inferDims\.numDims",
        meaning="the function that reads the boxes expects outputs that the engine does not have",
        fix="choose the parser for this model (parse-bbox-func-name, custom-lib-path), or export the model with the script that belongs to this parser; output-blob-names names the outputs",
    ),
    Cause(
        name="torch-subgraph",
        area="host",
        pattern=r"TRT conversion failed on the subgraph",
        meaning="Torch-TensorRT could not convert a part of the model, and runs this part in PyTorch",
        fix="read the traceback before this line; pass_through_build_failures=True makes it an error",
        effect="float",
        rank="general",
    ),
    Cause(
        name="torch-input-type",
        area="host",
        pattern=r"unsupported data ?type as an input data ?type",
        meaning="an input or enabled_precisions has a type that this release of Torch-TensorRT does not take, such as FP8",
        fix="give inputs in FP32, FP16 or INT32; FP8 and INT8 come from a model that NVIDIA Model Optimizer quantized, with a newer Torch-TensorRT",
    ),
    Cause(
        name="llm-kv-memory",
        area="memory",
        pattern=r"maxTokensInPagedKvCache must be large|[Nn]ot enough KV cache|could not be created: KV cache|insufficient GPU memory|cannot (?:fit|allocate) .{0,40}KV cache",
        meaning="the GPU has too little memory left for the KV cache of the requested lengths and batch",
        fix="shorten them (max_seq_len, max_num_tokens, max_batch_size), quantize the KV cache (FP8 or INT8), use more GPUs (tp_size), or give the cache another part of the free memory "
        "(kv_cache_free_gpu_memory_fraction; max_tokens_in_paged_kv_cache above it)",
    ),
    Cause(
        name="fp8-blocks",
        area="format",
        pattern=r"Unsupported SM version for FP8 block",
        meaning="this checkpoint has FP8 weights with a scale per block, and this release of TensorRT-LLM has no kernel for them on this GPU (the first ones are for SM 90)",
        fix="use a checkpoint with one scale per tensor (quantize with qformat fp8), a Hopper or newer GPU, or a newer release",
    ),
    Cause(
        name="llm-fp4-runtime",
        area="format",
        pattern=r"Cannot determine size of FP4 data type",
        meaning="this C++ runtime of TensorRT-LLM cannot hold tensors in FP4",
        fix="run the FP4 checkpoint with the PyTorch backend (trtllm-serve --backend pytorch), or with a newer release; or quantize to FP8",
    ),
    Cause(
        name="ort-option",
        area="host",
        pattern=r"Invalid (?:TensorRT|TRT|NV|CUDA)\w*(?: RTX)? EP option|Unknown provider option",
        meaning="this onnxruntime does not have an option of the provider that the text names, so the provider is not created",
        fix="correct its name, or install the onnxruntime that has it; without the provider the model runs on CUDA or CPU",
    ),
    Cause(
        name="ort-dynamic-range",
        area="calibration",
        pattern=r"TensorRT EP failed to set INT8 dynamic range",
        meaning="onnxruntime could not set a range of its calibration table: the model has Q/DQ (then no table is allowed), or a range is missing, infinite or not a number",
        fix="a model with Q/DQ: unset trt_int8_calibration_table_name; else check the table: "
        f"{Command('cache', ('lint', 'TABLE', '--model', 'MODEL'))}",
        releases="8 to 10",
    ),
    Cause(
        name="ort-decryption",
        area="host",
        pattern=r"TensorRT EP could not open shared library from",
        meaning="onnxruntime was asked to decrypt engines (trt_engine_decryption_enable), and finds no library for it",
        fix="set trt_engine_decryption_enable to 0 (in C++ fill every field of the options), or give trt_engine_decryption_lib_path",
    ),
    Cause(
        name="ort-rtx-shapes",
        area="shape",
        pattern=r"Dynamic input shapes not provided",
        meaning="the provider has no range of shapes for a dynamic input",
        fix="give nv_profile_min_shapes, nv_profile_opt_shapes and nv_profile_max_shapes for every dynamic input (TensorRT provider: trt_profile_...), or fix the shapes",
    ),
    Cause(
        name="ort-providers",
        area="host",
        pattern=r"explicitly set the providers parameter",
        meaning="this onnxruntime needs the list of providers, and the program does not give it",
        fix="InferenceSession(MODEL, providers=['TensorrtExecutionProvider', 'CUDAExecutionProvider', 'CPUExecutionProvider']); a package that calls it: update the package",
    ),
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
        name="deepstream-reuses",
        area="host",
        pattern=r"Use deserialized engine model: ",
        meaning="DeepStream runs a finished engine, so network-mode has no effect now: the types were chosen when the engine was built (DeepStream writes them into the file name)",
        fix="to build another one, delete the engine file or change model-engine-file, and start again; to see the types of its layers: trtexec --loadEngine=FILE --exportLayerInfo=layers.json",
        effect="warns",
    ),
    Cause(
        name="edge-attention",
        area="running",
        pattern=r"AttentionPlugin: enqueue failed|No available kernel .{0,40}(?:GQA|MHA|attention)",
        meaning="the attention plug-in of TensorRT Edge-LLM has no kernel for this GPU: its library was compiled for other compute capabilities",
        fix="compile Edge-LLM again for this GPU (on a Jetson with CMAKE_TOOLCHAIN_FILE=cmake/aarch64_linux_toolchain.cmake and EMBEDDED_TARGET), and build the engine again",
    ),
    Cause(
        name="llm-arguments",
        area="host",
        pattern=r"is greater than build_config\.|must be smaller than mMax\w+|[Pp]rompt length .{1,20}exceeds|max_context_len <= mMax|engine supports \[min, opt, max\]|maxNumTokens\S* % tokensPerBlock|[Ff]ailed to parse the arguments for the LLM|validation errors? for \w*Args\b",
        meaning="an argument of the program has a wrong value, or exceeds the limit for which the engine was built",
        fix="pass values up to those of the build (--max_batch_size, --max_seq_len, --max_num_tokens, --max_lora_rank; config.json of the engine shows them), or build the engine for larger ones; max_num_tokens is a multiple of tokens_per_block",
        rank="general",
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
        pattern=r"(?<!ImportError: )(?<!libraries: )(?:libnvinfer|(?<!lib)nvinfer|libnvonnxparser|onnxruntime_providers_tensorrt)\S*: cannot open shared object|LoadLibrary failed with error 126(?!.*providers_cuda)"
        r"|depends on \"\S*nv(?:infer|onnxparser)\S*\" which is missing|Please install TensorRT libraries as mentioned",
        meaning="a library of TensorRT, or one that it needs, is not found: the program runs without TensorRT",
        fix="install the TensorRT release that the program was built for, and put its folder on LD_LIBRARY_PATH (Windows: PATH)",
        effect="float",
        fault="machine",
    ),
    Cause(
        name="library-missing",
        area="host",
        pattern=r"[Cc]ould not (?:locate|load library|load dynamic library|find module) \S+|\[WinError (?:126|127|1114)\]|cannot open shared object file|LoadLibrary failed with error|[Uu]nable to open library|getInferLibVersion symbol not found"
        r"|[Ff]ailed to load (?:shared )?library",
        meaning="a library that the program loads is missing, or belongs to another release than the program (WinError 127: it lacks a function)",
        fix="install it, or put its folder on PATH (Windows) or LD_LIBRARY_PATH, and remove other releases of CUDA, cuDNN and TensorRT from there; zlibwapi.dll belongs to cuDNN 8; onnxruntime-gpu: the release for your CUDA; "
        "a library of a Jetson in a container: start the container with --runtime nvidia",
        rank="general",
        fault="machine",
    ),
    Cause(
        name="mpi",
        area="host",
        pattern=r"\bMPI error\b|MPI_ERRORS_ARE_FATAL|error occurred in MPI_Init|PMPI_\w+.{0,40}(?:fail|error)",
        meaning="MPI, which TensorRT-LLM uses to start its processes, did not start, or the processes of a model on several GPUs could not reach each other",
        fix="start as many processes as the model has parts (mpirun -n, tensor times pipeline parallelism), one GPU for each, with the MPI of the container; outside of a container, install Open MPI and mpi4py together (conda install -c conda-forge mpi4py openmpi)",
        rank="general",
    ),
    Cause(
        name="mpi-abort",
        area="host",
        pattern=r"MPI_ABORT was invoked",
        meaning="one process of the program stopped because of an error, and MPI ended the others",
        fix="read the lines of that process (its rank is in the text) before this one: its own error decides",
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
        name="tftrt-type",
        area="host",
        pattern=r"Unsupported data type encountered in input \d+",
        meaning="an input of a part that TF-TRT converted has a type that it does not support, such as UINT8, INT64 or a string",
        fix="cast the input to FP32 or INT32 before the model is converted, or keep the first operators out of the engine (a larger minimum_segment_size)",
    ),
    Cause(
        name="paddle-tensorrt",
        area="host",
        pattern=r"tensorrt_subgraph_pass has not been registered|Load tensorrt api \w+ failed",
        meaning="this PaddlePaddle was built without TensorRT, or does not find the libraries of the TensorRT that it was built with",
        fix="install the package of PaddlePaddle that names this TensorRT, and put the lib folder of this TensorRT release on LD_LIBRARY_PATH",
        fault="machine",
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
        pattern=r"run in (?:PyTorch|Torch)\b|Unsupported operators listed below|Enabling PyTorch fallback|not supported by .{0,30}converters?|falling back to (?:PyTorch|eager)",
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
        pattern=r"(?i)export(?:ing)? (?:the model )?to onnx failed|onnx export failed|\bonnx: export failure|torch\.onnx\.(?:errors|_internal\.exporter)\S*(?:Error|Exception)"
        r"|Exporting the operator \S+ to ONNX opset version \d+ is not supported(?!\. Support)|Failed to export the model with torch\.export",
        meaning="the export to ONNX failed, so the builder has no model, or an old one; the text names the operator or the reason",
        fix="change what the exporter names: replace a custom operator by standard ones (attention of xformers or flash-attention: choose the attention of PyTorch), or export "
        "with a newer PyTorch or opset (grid_sampler: opset 16), or with the other exporter (dynamo=False or True); then build again",
    ),
    Cause(
        name="no-engine",
        area="host",
        pattern=r"export failure.*(?:'NoneType' object|[Ff]ailed to build engine)|Invalid Engine\. Please ensure|TensorRT engine build returned None|Failed to create TensorRT engine|a bytes-like object is required, not 'NoneType'"
        r"|incompatible function arguments.*deserialize_cuda_engine|deserialize_cuda_engine\(\): incompatible"
        r"|'NoneType' object has no attribute '(?:create_execution_context|max_batch_size|num_(?:io_tensors|bindings|optimization_profiles)|(?:get|set)_(?:binding|tensor|input)\w+|execute\w*)'",
        meaning="TensorRT returned no engine or no execution context (the build or the loading failed), and the program continued without it",
        fix="read TensorRT's error before this line; if there is none, log with trt.Logger.VERBOSE; an engine file loads only in the TensorRT release that built it, with its plug-ins loaded first",
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
        pattern=r"[Uu]nable to (?:create|load|deserialize) (?:the )?(?:TensorRT engine|plan file)|[Cc]ould not deserialize engine|^Engine deserialization failed|[Ff]ailed to deserialize (?:the )?(?:cuda )?engine|[Dd]eserialize the cuda engine failed"
        r"|could not deserialize engine|\(\): engine deserialization failed",
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
        meaning="the checkpoint has other tensors than TensorRT-LLM expects: without scales it was quantized without calibration data, by another tool, or in another format; without weights "
        "or biases it was converted as another model or for another number of layers, or by another release",
        fix="missing weights or biases: convert again with the name and options of this model (--model_name, --model_dir), with the scripts of the release that builds; missing scales: quantize again with calibration data, with the scripts of the TensorRT-LLM that builds (examples/quantization/quantize.py; Model Optimizer: mtq.quantize with a "
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
        pattern=r"Have not found any valid GEMM config|No valid \w* ?GEMM tactic|Error occurred when running GEMM",
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
    r"|failed to (?:build|create) CUDA engine|Failed to create NvDsInferContext|failed to build network since|See (?:error |logging )?(?:log|output above) for details|see the logging output above"
    r"|Could not complete|Test engine failed|cudaError 35|Error Code 35|Assertion [`']?m?_?[eE]ngine(?:Ptr)?(?: != nullptr)?'? failed"
    r"|^FAILED|[Ff]ailed to load '[^']*'$|[Ee]ngine generation failed|Skipping this backend strategy|Could not parse ONNX correctly|--- (?:Begin|End) node|(?:^|: )(?:input|output|name|op_type): \""
)
_HARMLESS = (
    r"kTF32 is set but hardware|does not natively support INT64|outside the range of INT32 was clamped|getBroadcastAcrossBatch is deprecated|CUDA lazy loading is not enabled"
    r"|was called on non I/O tensor|The shape inference of \S+ type is missing|does not have direct mapping to torch|implicit batch dimension mode has been deprecated"
    r"|newer ir_version|Reading dangerously large protocol|parameter has been deprecated|requires GPU export, automatically|: Could not negotiate"
    r"|ignores some format combinations|has (?:Int64|INT64) binding|Cache result detected as invalid|TF-TRT Warning: Could not find TensorRT|arg is not supported for torch\.compile|Falling back to `onnx\.shape_inference`|UCP version is incompatible"
)

ECHOES = (
    Cause(
        name="weights-fp16",
        area="check",
        pattern=r"issues when converting weights between types|issues when converted to FP16|weights are affected by this issue|Subnormal FP16 values",
        meaning="some weights are too small for FP16 (they lose bits or become 0, which rarely matters) or above 65504 (they are clamped)",
        fix=f"measure the loss ({Command('compare', ('MODEL', 'QUANTIZED', '--samples', 'DATA'))}); if it is too large, or weights are clamped, keep the named nodes in FP32 "
        f"({Command('convert', ('MODEL', '--keep', 'NODE', '--out', 'FP16'))})",
        effect="warns",
    ),
    Cause(
        name="normalization-fp16",
        area="check",
        pattern=r"Running layernorm after self-attention in FP16|[Dd]etected layernorm nodes in FP16",
        meaning="a layer normalization computes in FP16, where its squares can exceed 65504: outputs become infinite or not a number in some models",
        fix="export with opset 17 or newer, so that the model has LayerNormalization nodes, which accumulate in FP32; or keep these nodes in FP32 "
        f"({Command('convert', ('MODEL', '--keep', 'NODE', '--out', 'FP16'))})",
        effect="warns",
    ),
    Cause(
        name="engine-of-like-device",
        area="engine",
        pattern=r"engine plan file across different models of devices",
        meaning="the engine was built on another model of GPU with the same compute capability: it runs, perhaps slower, and is not guaranteed to work",
        fix="build the engine on the GPU that runs it",
        effect="warns",
    ),
    Cause(
        name="library-linked",
        area="driver",
        pattern=r"was linked against .{1,60} but loaded",
        meaning="another version of a CUDA library was loaded than TensorRT was built with: it usually works, and explains errors of that library",
        fix="install the version that the text names, if errors of cuBLAS or cuDNN follow",
        effect="warns",
    ),
    Cause(
        name="kv-outliers",
        area="check",
        pattern=r"Large KV activation detected",
        meaning="the keys or values of the attention have a wide range, so a quantized KV cache may cost accuracy",
        fix="evaluate the model with the quantized KV cache; if it loses too much, quantize again without it (kv_cache_dtype auto)",
        effect="warns",
    ),
    Cause(
        name="echo",
        area="check",
        pattern=_ECHOES,
        meaning="this line only repeats that the build failed; it does not say why",
        fix="read the errors before it; if there are none, build again with verbose messages (trtexec --verbose, Python: trt.Logger.VERBOSE) and give the whole log "
        f"to {Command('parse', ('LOG',))}",
        rank="echo",
    ),
    Cause(
        name="harmless",
        area="check",
        pattern=_HARMLESS,
        meaning="a warning that names no failure: it does not change the precision of the engine, nor the results of almost all models",
        fix="nothing to do; if something failed, the reason is in another line",
        rank="echo",
        effect="warns",
    ),
)
"""Lines that explain nothing without other lines."""
