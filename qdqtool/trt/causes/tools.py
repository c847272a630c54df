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
        pattern=r"Calibrator returned None|has not been calibrated|[Cc]alibration data list is empty|forward_loop must be provided|calibrator hasn't seen any tensor",
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
        name="python-releases",
        area="host",
        pattern=r"got an unexpected keyword argument|takes \d+ positional arguments? but|missing \d+ required (?:positional|keyword-only) argument",
        meaning="a program calls a function with arguments of another release of its package; the text names the function",
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
        meaning="two inputs of a node have different types, so the file is not a valid model: a tool that edited or quantized it left out a Cast",
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
