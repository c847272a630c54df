"""Reads and writes ONNX files, without trusting any of them."""
