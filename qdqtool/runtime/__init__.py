"""Runs models: the only factory of onnxruntime sessions, and runners that emulate types where onnxruntime rounds differently."""
