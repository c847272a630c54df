"""TensorRT 8.6 to 11 through its Python package, on a machine with an NVIDIA GPU.

    pip install 'qdqtool[trt]'
    qdqtool build model.onnx --out built --builder trt --flags "--fp16 --builderOptimizationLevel=5"

It builds only for the GPU of this machine. The child process checks which features the library has, and never its
release number:

- Networks are strongly typed if the library knows nothing else (11). If strong typing is a choice (9, 10), a model
  with Q/DQ is built strongly typed unless a precision flag is given. Without this choice (8.6), INT8 is enabled, and
  FP16 if the model has FP16 tensors. The warnings of the result report the choice.
- Flags are written as for trtexec and translated into calls. A flag that the installed release does not support is an
  error with this reason. --calib hands over a finished calibration cache (up to 10).
- Progress is shown where there is a progress monitor (9 and later). The layer information comes from the engine
  inspector, as JSON, at detailed verbosity.
- A timing cache (--timingCacheFile) is read if it is there, and written after the build.

Not tested: no release of this package was run in the tests of qdqtool, which have no GPU. Its calls are checked
against the classes, attributes and signatures of the real bindings of 8.6.1, 10.9, 10.16, 11.0 and 11.4, which
stand-ins imitate. No package index has the bindings of 9, so they were not checked.
"""

from qdqtool.backends.native.builder import Library, NativeBuilder

PLUGIN = NativeBuilder(
    Library(
        name="trt",
        title="TensorRT",
        module="tensorrt",
        oldest=(8, 6),
        too_old="is older than all tested releases",
        portable=False,
    )
)
