"""Causes about calibration, and about checks of outputs."""

from __future__ import annotations

from qdqtool.core.causes import Cause, Wording
from qdqtool.core.wording import Command
from qdqtool.trt.causes.classes import LINT

CALIBRATION = (
    Cause(
        name="int8-not-allowed",
        area="calibration",
        pattern=r"int8 is not configured in the builder|Int8 precision has been set for a layer",
        meaning="the model has Q/DQ nodes, or layers that are set to INT8, but the build does not allow INT8",
        fix="allow INT8: trtexec --int8, config.set_flag(trt.BuilderFlag.INT8), onnxruntime trt_int8_enable=True; from release 10 on, a strongly typed "
        "build (--stronglyTyped) needs no flag",
        releases="8 to 10",
    ),
    Cause(
        name="ranges-and-qdq",
        area="calibration",
        pattern=r"[Ss]etting dynamic range is only allowed when there are no Q/DQ",
        meaning="the program sets ranges, for example from a calibration table, but the model has Q/DQ nodes, which hold the scales already",
        fix="build without the table (onnxruntime: unset trt_int8_calibration_table_name, keep trt_int8_enable), or use the float model with the table",
        releases="8 to 10",
    ),
    Cause(
        name="no-fast-int8",
        area="gpu",
        pattern=r"platformHasFastInt8\(\)[^ ]* failed",
        meaning="the program stops because this GPU has no fast INT8 (Jetson Nano and TX2 have none)",
        fix="use FP16 on this GPU, or a GPU of compute capability 6.1, 7.2 or newer",
        fault="machine",
    ),
    Cause(
        name="no-fast-fp16",
        area="gpu",
        pattern=r"requested on hardware without native FP16 support",
        meaning="FP16 was asked for, but this GPU has no fast FP16: kernels in FP16 gain nothing there",
        fix="build without FP16 on this GPU",
        effect="float",
        fault="machine",
    ),
    Cause(
        name="ranges-set",
        area="calibration",
        pattern=r"Calibrator is not being used\. Users must provide dynamic range",
        meaning="INT8 was asked for without a calibrator: only tensors whose range the application sets, for example from a calibration table, run INT8 "
        "(trtexec without --calib uses invented ranges), and a build without any range fails",
        fix="check that the program finds the table and that the table names the tensors of this model: "
        f"{Command('cache', ('lint', 'TABLE', '--model', 'MODEL'))} (onnxruntime: trt_int8_calibration_table_name; a cache that TensorRT "
        "wrote needs trt_int8_use_native_calibration_table; trtexec: --calib=TABLE); without a table, use a model with Q/DQ: "
        f"{Command('run', ('MODEL', '--samples', 'DATA'))}",
        effect="warns",
        variants=(
            Wording(
                program="tensorrt-llm",
                fix="TensorRT-LLM has no calibrator, its checkpoint holds the scales: build strongly typed (trtllm-build --strongly_typed), or with a newer "
                "release, which does so by default",
            ),
        ),
    ),
    Cause(
        name="calibration-zero",
        area="calibration",
        pattern=r"is uniformly zero; network calibration failed",
        meaning="a tensor was zero in every calibration sample",
        fix="check the preprocessing of the samples; use samples for which this tensor is not zero",
        releases="5 to 10",
    ),
    Cause(
        name="calibration-images",
        area="calibration",
        pattern=r"Failed to read image for calibration",
        meaning="the calibrator of the application could not read an image",
        fix="check each path in its list of images (DeepStream-Yolo: INT8_CALIB_IMG_PATH); "
        f"or use a calibration cache, or a model with Q/DQ ({Command('run', ('MODEL', '--samples', 'DATA'))})",
    ),
    Cause(
        name="calibrator-method",
        area="calibration",
        pattern=r"Method: \w+ was not overrid\w+",
        meaning="the calibrator of the program lacks a method that this release of TensorRT calls; the text names it",
        fix="write the method in the class of the calibrator (read_calibration_cache may return None, write_calibration_cache may do nothing), or update the package that "
        f"has the class; a model with Q/DQ needs no calibrator: {Command('run', ('MODEL', '--samples', 'DATA'))}",
        releases="5 to 10",
    ),
    Cause(
        name="calibrator-left-out",
        area="calibration",
        pattern=r"OpenCV is required to run INT8 calibrator",
        meaning="the library of the application (nvdsinfer_custom_impl_Yolo) was compiled without OpenCV, so it has no calibrator",
        fix="install OpenCV's headers (libopencv-dev) and compile the library again with it: make -C nvdsinfer_custom_impl_Yolo clean, then "
        "OPENCV=1 make -C nvdsinfer_custom_impl_Yolo (with CUDA_VER as before; if make ignores the variable, write OPENCV=1 into the Makefile); or "
        f"build an engine from a model with Q/DQ ({Command('run', ('MODEL', '--samples', 'DATA'))}) and use that engine in the program",
    ),
    Cause(
        name="regions-left",
        area="calibration",
        pattern=r"region should have been removed from Graph::regions",
        meaning="the builder fails after an INT8 calibration: users report this fault for several TensorRT 10 releases",
        fix=f"build from a model with Q/DQ, which needs no calibration ({Command('run', ('MODEL', '--samples', 'DATA'))}); or run the program again, so that it "
        "reads the calibration cache that it wrote; or use another release of TensorRT",
        releases="10",
    ),
    Cause(
        name="no-scales",
        area="calibration",
        pattern=r"Could not find (?:tensor )?\S+ in tensorScales",
        meaning="INT8 is requested, but a tensor has no scale: there is no calibrator, or the table does not have the tensor",
        fix="calibrate before the conversion (TF-TRT: converter.calibrate, or calibration_input_fn), or give a model with Q/DQ: "
        f"{Command('run', ('MODEL', '--samples', 'DATA'))}",
        releases="5 to 7",
    ),
    Cause(
        name="range-inverted",
        area="calibration",
        pattern=r"DynamicRange.{0,80}min_ <= max_",
        meaning="the range of a tensor is invalid (the lower end is above the upper end, or not a number): for some calibration sample, values are infinite or NaN"
        "",
        fix=f"check the samples and their preprocessing, or calibrate outside of the builder: {Command('run', ('MODEL', '--samples', 'DATA'))} "
        "checks the samples and names such a tensor",
        releases="8 to 10",
    ),
    Cause(
        name="calibration-lookup",
        area="calibration",
        pattern=r"_Map_base::at|\bmap::at\b|invalid (?:unordered_)?map<K, T> key",
        meaning="an internal table of the builder has no entry for a tensor: with INT8, most often after a calibration that did not finish, or with a calibration table of another model"
        "",
        fix=f"read the messages of the calibrator before this line; {Command('cache', ('lint', 'TABLE', '--model', 'MODEL'))} compares a table with the model; "
        f"without a table and such a message, calibrate outside of the builder ({Command('run', ('MODEL', '--samples', 'DATA'))} writes Q/DQ)",
        rank="general",
        before=(
            "calibration-images",
            "calibrator-left-out",
            "calibration-zero",
            "no-table",
        ),
    ),
    Cause(
        name="no-table",
        area="calibration",
        pattern=r"INT8 calibration file not specified/accessible|INT8_CALIB_\w+ not set|File does not exist ?: \S*calib|Could not (?:open|find|read) \S*calib\S*",
        meaning="the program found no calibration table, so it must calibrate with its own images; otherwise an INT8 build has no scales",
        fix="provide images for calibration (DeepStream-Yolo: built with OPENCV=1, INT8_CALIB_IMG_PATH and INT8_CALIB_BATCH_SIZE set; the program then writes calib.table"
        f"), or build an engine from a model with Q/DQ ({Command('run', ('MODEL', '--samples', 'DATA'))}) and use that engine in the program",
        effect="warns",
    ),
    Cause(
        name="scale-of-zero",
        area="calibration",
        pattern=r"quantizeBiasCommon.{0,80}getter\(i\) != 0",
        meaning="a scale is zero, so the bias of a convolution cannot be divided by it: a calibration cache or a Q/DQ model holds zeros",
        fix=f"{Command('cache', ('lint', 'CACHE', '--model', 'MODEL'))} names the tensors (a model with Q/DQ: {LINT}); calibrate "
        "again with samples that reach them",
        releases="8 to 10",
    ),
    Cause(
        name="output-without-scale",
        area="calibration",
        pattern=r"combineInOutScale.{0,80}isOutputSet",
        meaning="the builder runs a layer in INT8, but the output of the layer has no scale",
        fix=f"{LINT} names pairs in the wrong place, such as a Q that is not directly after the layer; if there is none, keep the layer "
        "float, or build with a newer release",
        releases="8",
    ),
    Cause(
        name="calibration-of-other",
        area="calibration",
        pattern=r"scales? (?:for|of) .{1,200} not found in (?:the )?(?:calibration )?(?:cache|table)",
        meaning="the calibration cache has no scale for this tensor: it was written for another model, or for another export of this one",
        fix=f"delete the cache and calibrate again; {Command('cache', ('lint', 'CACHE', '--model', 'MODEL'))} lists the tensors without a scale",
        releases="5 to 10",
    ),
    Cause(
        name="calibration-failed",
        area="calibration",
        pattern=r"Calibration failure|[Cc]alibration failed|calibrator is not set",
        meaning="the calibration gave no scales, and this text does not state the reason: there is no calibrator, the calibrator has no data, or it failed for a reason that other lines name",
        fix=f"look for an error of CUDA or of the calibrator near this line; use a calibrator with data (--calib=FILE for an existing cache), or a model with Q/DQ: "
        f"{Command('run', ('MODEL', '--samples', 'DATA'))}",
        rank="general",
        releases="5 to 10",
        before=("ranges-set",),
    ),
    Cause(
        name="range-not-finite",
        area="check",
        pattern=r"autodetected range of \[.*\] is not finite",
        meaning="an output holds values that are infinite or not a number",
        fix=f"find the first node that overflows FP16, and keep this node in FP32 ({Command('convert', ('MODEL', '--keep', 'NODE', '--out', 'FP16'))})",
        effect="warns",
    ),
    Cause(
        name="outputs-differ",
        area="check",
        pattern=r"Difference exceeds tolerance|Mismatched outputs|FAILED \| (?:Mismatch|Output Validation|Errors detected)"
        r"|(?:Inf|NaN) Detected|Error Metrics",
        meaning="the engine was built; its outputs differ by more than the tolerance, or are not finite",
        fix=f"measure the loss with {Command('compare', ('MODEL', 'QUANTIZED', '--samples', 'DATA'))}; keep the nodes with the largest error float ({Command('sensitivity', ('QUANTIZED', '--samples', 'DATA'))})",
    ),
    Cause(
        name="scale-missing",
        area="calibration",
        pattern=r"Missing (?:scale and zero-point|dynamic range) for tensor",
        meaning="a tensor has no scale: the layers around it run in float",
        fix=f"calibrate with data for which the tensor is not zero, or insert Q/DQ ({Command('run', ('MODEL', '--samples', 'DATA'))})",
        releases="5 to 10",
        effect="float",
    ),
    Cause(
        name="scale-left-out",
        area="calibration",
        pattern=r"(?!)",
        meaning="the builder has no scale for a tensor after its calibration: integer tensors need no scale, but inside regions that Myelin compiles (attention) the builder does not calibrate, so transformers stay float"
        "",
        fix=f"insert Q/DQ, which needs no calibration by the builder ({Command('run', ('MODEL', '--samples', 'DATA'))}), and allow FP16 (--fp16), so that the float layers are not FP32",
        releases="5 to 10",
        effect="float",
    ),
    Cause(
        name="int8-rejected",
        area="calibration",
        pattern=r"Rejecting some int8 implementation of layer .* due to missing int8 scales",
        meaning="INT8 kernels of a layer were refused, because a tensor it reads or writes has no scale",
        fix=f"calibrate with data for which the tensor is not zero, or insert Q/DQ ({Command('run', ('MODEL', '--samples', 'DATA'))})",
        releases="5 to 10",
        effect="float",
    ),
    Cause(
        name="not-obeyed",
        area="kernel",
        pattern=r"o implementation of (?:layer )?.* obeys the requested constraints|non-conforming implementation was chosen",
        meaning="no kernel has the requested precision, so another precision was used",
        fix="often nothing to do: layers that only move or normalize data (Shuffle, Softmax, Reduce) have few kernels; for others put the types into the model as Q/DQ "
        f"({Command('run', ('MODEL', '--samples', 'DATA'))}); --precisionConstraints=obey makes the build fail instead",
        releases="7 to 10",
        effect="float",
    ),
)
"""Causes about calibration, and about checks of outputs."""
