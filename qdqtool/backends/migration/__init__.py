"""Migration of command lines, scripts, calibration caches and old builds to TensorRT 11.

TensorRT 11 knows strongly typed networks only. Precision flags, calibrators, dynamic ranges, layer precisions and
algorithm selectors are gone; types and Q/DQ are in the ONNX model instead. Everything here reads text and never runs
it.
"""
