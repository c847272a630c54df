"""Families of ONNX operators that every room means alike."""

from __future__ import annotations

COMPUTE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators whose first two inputs are multiplied with each other; their precision decides the speed of an engine."""
