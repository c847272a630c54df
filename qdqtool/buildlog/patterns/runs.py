"""Where a run begins and ends: trtexec's banner, Polygraphy's command lines, shell prompts."""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = PatternSet(
    patterns=(
        message(
            "run-begins",
            "&&&& RUNNING {program} # {command}",
            "&&&& RUNNING TensorRT.trtexec [TensorRT v8201] # trtexec --workspace=2048 --onnx=a.onnx",
            "&&&& RUNNING TensorRT.trtexec # trtexec --onnx=a.onnx --fp16",
            "&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --onnx=a.onnx",
        ),
        message("run-passed", "&&&& PASSED {program}", "&&&& PASSED TensorRT.trtexec"),
        message("run-failed", "&&&& FAILED {program}", "&&&& FAILED TensorRT.trtexec"),
        message(
            "run-waived", "&&&& WAIVED {program}", "&&&& WAIVED TensorRT.trtexec # trtexec --useDLACore=0"
        ),
        message(
            "polygraphy-begins",
            "RUNNING | Command: {command}",
            "RUNNING | Command: /usr/bin/polygraphy run model.onnx --trt",
        ),
        message(
            "polygraphy-passed",
            "PASSED | Runtime: {seconds}s | Command: {command}",
            "PASSED | Runtime: 4.873s | Command: /usr/bin/polygraphy run model.onnx --trt",
        ),
        message(
            "polygraphy-failed",
            "FAILED | Runtime: {seconds}s | Command: {command}",
            "FAILED | Runtime: 4.873s | Command: /usr/bin/polygraphy run model.onnx --trt",
        ),
        message(
            "tensorrt-llm-said",
            "[TRT-LLM] [{severity:word}] {text}",
            "[TRT-LLM] [I] Set paged_kv_cache to True.",
        ),
        message(
            "version",
            "TensorRT version: {version}",
            "TensorRT version: 8.6.1",
        ),
    )
)
