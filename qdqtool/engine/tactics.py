"""What the name of a kernel tells: the type it multiplies in, and whether it runs on tensor cores.

Names come from several generations of kernel libraries: `sm80_xmma_fprop_implicit_gemm_i8f16_i8i32_f32_...` (operand
A and result, operand B and accumulator, epilogue), `ampere_int8_i8816cudnn_int8_256x128_...`, `maxwell_scudnn_...`.
A name that follows no known pattern tells nothing.
"""

from __future__ import annotations

import re

from qdqtool.core.dtypes import DType

_TYPE = r"(?:i8|u8|s8|f16|bf16|tf32|f32|e4m3|e5m2)"
_XMMA = re.compile(rf"_{_TYPE}(?:{_TYPE}|i32)_({_TYPE})(?:i32|f32|f16|bf16)_")
_MATH = {
    "i8": DType.INT8,
    "u8": DType.INT8,
    "s8": DType.INT8,
    "f16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "tf32": DType.FLOAT32,
    "f32": DType.FLOAT32,
    "e4m3": DType.FLOAT8,
    "e5m2": DType.FLOAT8_E5M2,
}
_HINTS = (
    (DType.INT8, re.compile(r"i8816|imma|int8|icudnn|i8i8_|_s8_", re.IGNORECASE)),
    (DType.FLOAT8, re.compile(r"fp8|e4m3|e5m2|qgmma", re.IGNORECASE)),
    (DType.BFLOAT16, re.compile(r"bf16", re.IGNORECASE)),
    (DType.FLOAT16, re.compile(r"h884|h1688|h16816|hmma|hcudnn|hgemm|fp16|f16", re.IGNORECASE)),
    (DType.FLOAT32, re.compile(r"scudnn|sgemm|ffma|fp32|f32|s1688", re.IGNORECASE)),
)
_TENSOR_CORES = re.compile(
    r"tensor\d+x|i8816|imma|h884|h1688|h16816|s1688|s16816|hmma|warpgroupsize|wgmma|[hq]gmma", re.IGNORECASE
)
_CUDA_CORES = re.compile(r"ffma|simt|scudnn|sgemm|depthwise|icudnn_int8x4|winograd|wngd|gemvx", re.IGNORECASE)


def spelled_type(tactic: str) -> DType | None:
    """The type of the factors where the name spells out the types of all operands, else None."""
    exact = _XMMA.search(tactic)
    return _MATH[exact[1]] if exact else None


def math_type(tactic: str) -> DType | None:
    """The type of the factors, spelled out or hinted at; None where the name does not tell."""
    hints = (dtype for dtype, pattern in _HINTS if pattern.search(tactic))
    return spelled_type(tactic) or next(hints, None)


def tensor_cores(tactic: str) -> bool | None:
    """Whether the kernel runs on tensor cores, or None where the name does not tell."""
    if _TENSOR_CORES.search(tactic):
        return True
    return False if _CUDA_CORES.search(tactic) else None
