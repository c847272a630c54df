"""Runs models: the one factory of onnxruntime sessions, and runners that emulate the types that it rounds differently."""
