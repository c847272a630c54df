"""Causes in tools that export, quantize and edit models: PyTorch's exporter, quantizers, onnxruntime.quantization."""

from __future__ import annotations

from qdqtool.core.causes import Cause
from qdqtool.core.wording import Command
from qdqtool.trt.causes.classes import FIXED

_RUN = Command("run", ("MODEL", "--samples", "DATA"))
_PREPROCESS = "python -m onnxruntime.quantization.preprocess --input MODEL --output PREPARED"

TOOLS = (
    Cause(
        name="export-fake-quant",
        area="host",
        pattern=r"Couldn't export Python operator \w*(?:Quant|quant)\w*",
        meaning="the quantizers of the model are Python functions, which the exporter cannot write as Q/DQ",
        fix="switch them to PyTorch's fake quantization before the export (pytorch_quantization: quant_nn.TensorQuantizer.use_fb_fake_quant = True), or quantize with "
        "NVIDIA Model Optimizer and its export",
    ),
    Cause(
        name="export-observer",
        area="host",
        pattern=r"fused_moving_avg_obs_fake_quant",
        meaning="the model is exported while its observers still learn ranges, and the exporter has no operator for that",
        fix="before the export: model.apply(torch.ao.quantization.disable_observer), then model.eval(); do not call convert",
    ),
    Cause(
        name="export-converted",
        area="host",
        pattern=r"Exporting the operator '?(?:aten::)?(?:de)?quantize_per_(?:tensor|channel)\b|quantized_decomposed\.|unpack_quantized_weights\.cpp",
        meaning="the model was converted to PyTorch's integer operators (convert, convert_fx, convert_pt2e), which the exporter cannot write as Q/DQ",
        fix="export the model with fake quantization (after prepare_qat, without convert), or quantize with NVIDIA Model Optimizer; or export the float model to ONNX: "
        f"{_RUN}",
    ),
    Cause(
        name="export-dynamo",
        area="host",
        pattern=r"No ONNX function found for .{0,40}fake_quantize|No decompositions? registered for .{0,60}fake_quantize",
        meaning="PyTorch's newer exporter (dynamo=True) has no translation of fake quantization",
        fix="export with torch.onnx.export(..., dynamo=False, opset_version=13 or higher), or quantize with NVIDIA Model Optimizer",
    ),
    Cause(
        name="export-opset",
        area="host",
        pattern=r"to ONNX opset version \d+ is not supported\. Support for this operator was added in version \d+",
        meaning="the opset of this export is older than the operator that the text names",
        fix="export with the opset that the text names or a newer one; Q/DQ with one scale per channel needs opset_version=13",
    ),
    Cause(
        name="quantizer-no-data",
        area="calibration",
        pattern=r"Calibrator returned None|has not been calibrated|[Cc]alibration data list is empty|forward_loop must be provided|calibrator hasn't seen any tensor|Histogram has not been collected",
        meaning="a quantizer of the model has no range: no data ran through it during the calibration",
        fix="run samples through the whole model in the calibration (Model Optimizer: forward_loop of mtq.quantize); a module that never runs: disable its quantizer, or load "
        "with strict=False",
    ),
    Cause(
        name="quantized-already",
        area="format",
        pattern=r"[Mm]odel (?:must not be|is already|has already been) quantized|already (?:contains|has) Q(?:uantize)?(?:Linear)?/?D",
        meaning="the quantizer needs a float model, but this model contains Q/DQ",
        fix="give the quantizer the float model from before",
    ),
    Cause(
        name="odd-rows",
        area="format",
        pattern=r"shape\[0\] must be divisible by 2|array length must be even|must have even number on last dimension",
        meaning="4-bit weights are stored in pairs, and a weight of this model has an odd number of rows or values",
        fix="exclude this node from the 4-bit quantization, or pad the weight to an even size",
    ),
    Cause(
        name="modelopt-model",
        area="host",
        pattern=r"Cannot export model to the model_config|Unknown model type \w+\. Continue exporting|model type .{0,40} is not supported for export",
        meaning="this release of NVIDIA Model Optimizer does not know the architecture of the model, so its checkpoint for TensorRT-LLM is incomplete",
        fix="use a newer nvidia-modelopt, whose release notes name the model; or export a Hugging Face checkpoint (export_hf_checkpoint), which the PyTorch backend of TensorRT-LLM reads",
    ),
    Cause(
        name="modelopt-weights",
        area="host",
        pattern=r"assert not np_y_scale\.shape or w32\.shape\[-1\] == np_y_scale\.shape\[0\]",
        meaning="Model Optimizer before 0.29 fails to store INT8 weights if a ConvTranspose, or another weight that it transposes, has one scale per channel",
        fix="use nvidia-modelopt 0.29 or newer, or quantize without --dq_only",
    ),
    Cause(
        name="ort-quantizer-shapes",
        area="host",
        pattern=r"Quantization parameters are not specified for param|Unable to find data type for weight_name|'NoneType' object has no attribute 'HasField'"
        r"|Expected \S+ to be an initializer",
        meaning="the quantizer of onnxruntime does not know the type, the shape or the range of a tensor: usually the model was not prepared (shapes inferred, constants folded), "
        "or the node is not in the calibration",
        fix=f"prepare the model first ({_PREPROCESS}) and quantize PREPARED; a node that still fails: nodes_to_exclude; or {_RUN} quantizes without this quantizer",
    ),
    Cause(
        name="ort-quantizer-hint",
        area="host",
        pattern=r"Inference failed or unsupported type to quantize|consider to run pre-processing before quantization",
        meaning="a warning of onnxruntime's quantizer: it leaves tensors of integers float, and tensors without a shape; a model that was not prepared has more of these",
        fix=f"prepare the model first ({_PREPROCESS}) and quantize PREPARED",
        effect="warns",
    ),
    Cause(
        name="numpy-release",
        area="host",
        pattern=r"module 'numpy' has no attribute|No module named 'numpy\._core|compiled using NumPy 1\.x|numpy\.dtype size changed|numpy\.core\.multiarray failed to import",
        meaning="a package was written or compiled for another NumPy: 1.24 removed np.bool, np.int, np.float and np.object, and 2.0 changed names and the binary interface",
        fix='pip install "numpy<1.24" for a missing np.bool, np.int, np.float or np.object (TensorRT itself: 8.6 and newer need no old NumPy), "numpy<2" for a package compiled with NumPy 1.x, '
        '"numpy>=1.26" for numpy._core; or update the package that fails',
        fault="machine",
    ),
    Cause(
        name="cuda-headers",
        area="host",
        pattern=r"fatal error: (?:cuda\w*|cublas\w*|cudnn\w*)\.h: No such file|nvcc not in path|(?:Failed building wheel|Could not build wheels) for pycuda",
        meaning="a package is compiled when it is installed (PyCUDA), and the compiler does not find the CUDA toolkit, or there is no compiler",
        fix="install the CUDA toolkit (Jetson: part of JetPack) and a C++ compiler, then export PATH=/usr/local/cuda/bin:$PATH CPATH=/usr/local/cuda/include LIBRARY_PATH=/usr/local/cuda/lib64, and install again",
        fault="machine",
    ),
    Cause(
        name="header-missing",
        area="host",
        pattern=r"fatal error: (?!NvInfer\w+\.h|(?:cuda|cublas|cudnn)\w*\.h:)[\w/.+-]+\.(?:h|hpp|hh|cuh): No such file",
        meaning="the compiler does not find a header of a library that the program needs: the library is not installed, or its folder is not among those that the compiler searches",
        fix="install the development package of the library (NvInfer.h: libnvinfer-dev; Python.h: python3-dev) or build the library first, and name its folder to the build (-I, CMAKE_PREFIX_PATH, CPATH)",
        fault="machine",
    ),
    Cause(
        name="nvcc-architecture",
        area="host",
        pattern=r"Unsupported gpu architecture '|None of the provided CUDA architectures",
        meaning="the CUDA compiler does not know an architecture that the project lists: this CUDA is too old or too new for it, or the script did not detect the GPU (compute_N)",
        fix="list the compute capability of your GPU only (CMAKE_CUDA_ARCHITECTURES, GPU_ARCHS, or -gencode in the build file), or use the CUDA that supports it (check nvcc --version)",
        fault="machine",
    ),
    Cause(
        name="pip-failed",
        area="host",
        pattern=r"Failed building wheel for|Failed to build installable wheels|No matching distribution found for|Getting requirements to build wheel did not run|Building wheel for \S+ \(.{1,20}\) \.\.\. error",
        meaning="pip has no finished package for this Python, platform and name, and could not build it",
        fix="update pip, and use a Python for which the package exists (the release notes of TensorRT name them); nvidia-tensorrt is now called tensorrt; otherwise read the first error of the compiler",
        rank="general",
        fault="machine",
    ),
    Cause(
        name="model-size",
        area="file",
        pattern=r"exceed\w* maximum protobuf size of 2GB|does not have an ir_version set properly|must specify opset_import for ONNX",
        meaning="the model exceeds 2 GB, the limit of one ONNX file, or the file is incomplete because a tool wrote it in spite of the limit",
        fix="store the weights beside it: onnx.save(model, FILE, save_as_external_data=True), and check the path, not the model: onnx.checker.check_model(FILE); tf2onnx: --large_model; a tool that cannot: skip it (simplifiers)",
        fault="model file",
    ),
    Cause(
        name="inferred-shapes",
        area="file",
        pattern=r"\[(?:Shape|Type)InferenceError\]",
        meaning="a shape or type in the file contradicts the one that follows from the inputs of a node; the text names the node",
        fix="export the model again without stored shapes, or remove them (polygraphy surgeon sanitize MODEL --cleanup -o CLEAN; onnx: del model.graph.value_info[:]); if a tool changed the model, use the model from before",
        rank="general",
        fault="model file",
    ),
    Cause(
        name="export-dynamic",
        area="shape",
        pattern=r"Constraints violated \(",
        meaning="an axis that the export declares dynamic is fixed by the model or by the example input (an axis of size 1 in the example is taken as fixed)",
        fix="export with an example of size 2 or more on this axis, and Dim(..., min=2) if the text says != 1; or declare the axis as the text proposes, or use torch.onnx.export(..., dynamo=False)",
    ),
    Cause(
        name="export-trace",
        area="shape",
        pattern=r"TracerWarning: ",
        meaning="the export records a Python value as a constant, so the model may be right only for sizes like the example's",
        fix="nothing to do if all sizes are fixed; for dynamic axes, compute the value with tensor operations, or test the model with another size",
        effect="warns",
    ),
    Cause(
        name="simplifier",
        area="host",
        pattern=r"simplifier failure|Failed to simplify ONNX|onnxoptimizer/|onnx-optimizer/",
        meaning="the tool that simplifies the ONNX model (onnxslim, onnxsim) failed; the model from before it is still good",
        fix="update onnx and the tool, or leave it out (Ultralytics: simplify=False; onnxsim: --skip-optimization)",
        rank="general",
    ),
    Cause(
        name="calibrator-cache",
        area="calibration",
        pattern=r"Exception caught in (?:read|write)_calibration_cache",
        meaning="the Python calibrator failed to read or write its cache; the text has the exception (a missing folder, a file of another user, text instead of bytes)",
        fix='create the folder, and write bytes: open(FILE, "wb").write(cache) in write_calibration_cache(self, cache); read_calibration_cache returns the bytes or None',
        releases="5 to 10",
    ),
    Cause(
        name="python-releases",
        area="host",
        pattern=r"got an unexpected keyword argument|takes \d+ positional arguments? but|missing \d+ required (?:positional|keyword-only) argument"
        r"|(?<!deserialize_cuda_engine\(\)): incompatible function arguments|is installed, but version .{1,20} is required",
        meaning="a program needs another release of a package, or calls a function with a wrong object (a layer of TensorRT instead of its tensor, layer.get_output(0)); the text names the package or the function",
        fix="update the calling package and the called one together, or install the release that the caller was written for",
        rank="general",
        fault="machine",
    ),
    Cause(
        name="program-missing",
        area="host",
        pattern=r"executable not found in (?:the )?PATH|: command not found|No such file or directory: '(?:trtexec|polygraphy|nvcc)'",
        meaning="the system does not find a program that is called",
        fix="add its folder to PATH (trtexec: /usr/src/tensorrt/bin, or bin of the TensorRT archive), or install it",
        fault="machine",
    ),
    Cause(
        name="ort-symbolic",
        area="host",
        pattern=r"Incomplete symbolic shape inference",
        meaning="the symbolic shape inference of onnxruntime cannot compute the shape of a tensor",
        fix=f"skip it ({_PREPROCESS} --skip_symbolic_shape True), or fix the shapes of the inputs first",
    ),
    Cause(
        name="node-types-differ",
        area="file",
        pattern=r"Type parameter \(\w+\).{0,80}bound to different types|Type Error: Type .{0,60}(?:of input parameter|does not match)",
        meaning="an input of a node has a type that its operator does not allow, or two inputs have different types, so the file is not a valid model: a tool that converted (to FP16), edited or quantized it left out a Cast",
        fix="create the file again with a newer release of that tool, or add the Cast; onnx.checker.check_model(MODEL, full_check=True) names such nodes",
        fault="model file",
    ),
    Cause(
        name="opset-of-node",
        area="file",
        pattern=r"has input size \d+ not in range|Unrecognized attribute: \w+ for operator|No (?:Op|Schema) registered for \w+ with domain_version|Bad node spec",
        meaning="a node has other inputs or attributes than its operator has in the opset that the file states: a tool wrote nodes of one opset under the number of another",
        fix="let the tool keep the opset of the model (onnx_graphsurgeon: graph.opset), or convert the model with onnx.version_converter",
        fault="model file",
    ),
    Cause(
        name="names-twice",
        area="file",
        pattern=r"duplicate tensor name|Cycle detected in (?:graph|function)|[Ff]ailed to sort (?:the )?model topologically|Output name is not unique|not in single static assignment|need to have unique names",
        meaning="two nodes write a tensor of one name, or the nodes form a cycle, so the file is not a valid model",
        fix="give every tensor its own name in the tool that edited the model; onnx.checker.check_model names the tensor",
        fault="model file",
    ),
    Cause(
        name="onnx-release",
        area="host",
        pattern=r"module 'onnx[\w.]*' has no attribute|No module named 'onnx\.(?:mapping|numpy_helper\.\w+)'|cannot import name '\w+' from 'onnx[\w.]*'",
        meaning="the package that fails was written for an older onnx, which had this name",
        fix='update that package, or install an older onnx beside it (pip install "onnx<1.20")',
        fault="machine",
    ),
    Cause(
        name="calibrator-type",
        area="calibration",
        pattern=r"Unable to cast Python instance .{0,20}to C\+\+ type|Exception caught in get_batch|is not an instance of 'buffer'",
        meaning="a method of the Python calibrator returned another type than TensorRT takes",
        fix="get_batch returns a list with one device address (int) per input, or None at the end; read_calibration_cache returns bytes or None; "
        f"a model with Q/DQ needs no calibrator: {_RUN}",
        releases="5 to 10",
    ),
    Cause(
        name="quantizer-form",
        area="host",
        pattern=r"Number of bits must be \d+ for \w+ ONNX export|does not support unsigned narrow range|does not support multi-axis quantization",
        meaning="a quantizer of the model has a form that ONNX does not have: other bits, an unsigned narrow range, or scales along several axes",
        fix=f"quantize with signed 8 bits, one scale per tensor for activations and per channel for weights; {FIXED} corrects some other forms in a file",
    ),
)
"""Causes in tools that write or quantize the model."""
