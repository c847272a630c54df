"""Models with which onnxruntime gives the results of INT8, FP4 and FP8 kernels, with FP32 epilogues."""
