"""Models that compute on onnxruntime the results of low-precision kernels: integers, blocks, wide epilogues."""
