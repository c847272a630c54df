"""Runs models: the only factory of onnxruntime sessions, and runners for types that onnxruntime rounds differently."""
