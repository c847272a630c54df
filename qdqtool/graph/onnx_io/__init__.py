"""Reads and writes ONNX files, none of which is trusted."""
