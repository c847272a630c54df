"""Runs models: the only factory of onnxruntime sessions, and runners that emulate types which onnxruntime rounds differently."""
