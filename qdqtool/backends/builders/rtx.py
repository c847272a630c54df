"""TensorRT for RTX: a real builder of the TensorRT family that needs no GPU.

    pip install 'qdqtool[rtx]'
    qdqtool build model.onnx --out built --sm 86

It parses the model, optimizes it and chooses the type of every tensor as on a machine with a GPU, and reports these
types in a layer dump. The last choice of kernels is left to the device. So it answers "what runs INT8?" on any
laptop, but never "how fast?". It is only a substitute for classic TensorRT, which may fuse and choose differently;
figures from it say so.

Targets are GPU architectures: sm86 by default; sm75, sm80, sm86, sm89, sm120 and sm121 with release 1.7. On sm75
every INT8 convolution silently becomes Half. If there are several targets, the builder makes one choice for all, so
its single layer dump applies to each target. The weakest target decides: with sm75 among them, no convolution is
INT8. Networks are always strongly typed: there is no --fp16 or --int8, the types are in the model.

Every build runs in a separate process, with a large stack and a wall-clock limit, because some models end the native
builder with a signal; that becomes a message that names the likely cause. All log lines are kept in `build.log`, the
layer dump in `layers.txt`, the engine in `engine.plan`.
"""

from qdqtool.backends.native.builder import Library, NativeBuilder

PLUGIN = NativeBuilder(
    Library(
        name="rtx",
        title="TensorRT for RTX",
        module="tensorrt_rtx",
        oldest=(1, 7, 1),
        too_old="cannot build INT8 convolutions",
        portable=True,
    )
)
