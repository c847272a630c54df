"""The entrance: the only place that opens ONNX. Everyone else asks a `GraphView`."""
