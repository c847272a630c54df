"""Models that compute on onnxruntime what low-precision kernels compute: integers, blocks, wide epilogues."""
