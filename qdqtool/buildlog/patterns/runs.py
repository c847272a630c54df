"""Where a run begins and ends: trtexec's banner, Polygraphy's command lines, shell prompts."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says(
            "run-begins",
            "&&&& RUNNING {program} # {command}",
            "&&&& RUNNING TensorRT.trtexec [TensorRT v8201] # trtexec --workspace=2048 --onnx=a.onnx",
            "&&&& RUNNING TensorRT.trtexec # trtexec --onnx=a.onnx --fp16",
            "&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --onnx=a.onnx",
        ),
        says("run-passed", "&&&& PASSED {program}", "&&&& PASSED TensorRT.trtexec"),
        says("run-failed", "&&&& FAILED {program}", "&&&& FAILED TensorRT.trtexec"),
        says("run-waived", "&&&& WAIVED {program}", "&&&& WAIVED TensorRT.trtexec # trtexec --useDLACore=0"),
        says(
            "polygraphy-begins",
            "RUNNING | Command: {command}",
            "RUNNING | Command: /usr/bin/polygraphy run model.onnx --trt",
        ),
        says(
            "polygraphy-passed",
            "PASSED | Runtime: {seconds}s | Command: {command}",
            "PASSED | Runtime: 4.873s | Command: /usr/bin/polygraphy run model.onnx --trt",
        ),
        says(
            "polygraphy-failed",
            "FAILED | Runtime: {seconds}s | Command: {command}",
            "FAILED | Runtime: 4.873s | Command: /usr/bin/polygraphy run model.onnx --trt",
        ),
        says(
            "version",
            "TensorRT version: {version}",
            "TensorRT version: 8.6.1",
        ),
    )
)
