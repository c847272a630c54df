"""The only package that opens ONNX. Every other asks a `GraphView`."""
