"""The only package that opens ONNX files; all other packages ask a `GraphView`."""
