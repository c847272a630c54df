"""Parser of kernel ("tactic") names: GPU, operation, types, layouts, tile, stages and arithmetic unit.

Names come from several generations of kernel libraries:

    sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw_vect_c_32_
        tilesize96x64x64_stage3_warpsize2x2x1_g1_tensor16x8x32_t1r1s1
    ampere_int8_i8816cudnn_int8_256x128_ldg16_relu_singleBuffer_interior_nhwc_tn_v1
    turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1
    maxwell_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1

(`i8i8_i8i32_f32`: operand A and result, operand B and accumulator, epilogue). A name, or a word in a name, without a
known pattern gives no information; nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from qdqtool.core.tensors import DType

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
_LONGEST_NAME = 500
"""Number of characters of a kernel name that are read; real names have up to 200."""
_LONGEST_ID = 24
"""Largest length of a tactic id in characters, including signs and blanks."""
_TENSOR_CORES = re.compile(
    r"tensor\d+x|tensorop|i8816|i16832|imma|[hs]884|[hs]1688|[hs]16816|hmma|warpgroupsize|wgmma|[hq]gmma",
    re.IGNORECASE,
)
_CUDA_CORES = re.compile(r"ffma|simt|scudnn|sgemm|depthwise|icudnn_int8x4|winograd|wngd|gemvx", re.IGNORECASE)
_ARCHITECTURES = {
    "maxwell": "Maxwell (sm50)",
    "pascal": "Pascal (sm60)",
    "volta": "Volta (sm70)",
    "turing": "Turing (sm75)",
    "ampere": "Ampere (sm80)",
    "hopper": "Hopper (sm90)",
    "ada": "Ada (sm89)",
    "sm50": "Maxwell (sm50)",
    "sm60": "Pascal (sm60)",
    "sm61": "Pascal (sm61)",
    "sm70": "Volta (sm70)",
    "sm72": "Xavier (sm72)",
    "sm75": "Turing (sm75)",
    "sm80": "Ampere (sm80)",
    "sm86": "Ampere (sm86)",
    "sm87": "Orin (sm87)",
    "sm89": "Ada (sm89)",
    "sm90": "Hopper (sm90)",
    "sm100": "Blackwell (sm100)",
    "sm120": "Blackwell (sm120)",
}
_OPERATIONS = (
    ("implicit_gemm_indexed", "convolution as implicit matrix product, indexed"),
    ("fprop_implicit_gemm", "convolution as implicit matrix product"),
    ("conv_fprop", "convolution"),
    ("fprop", "convolution (forward)"),
    ("dgrad", "transposed convolution (data gradient)"),
    ("depthwise", "depthwise convolution"),
    ("deconv", "transposed convolution"),
    ("conv_act_pool", "convolution, activation and pooling in one"),
    ("conv_act", "convolution and activation in one"),
    ("first_layer", "convolution of the first layer (3 or 4 channels)"),
    ("pooling", "pooling"),
    ("gemvx", "matrix-vector product"),
    ("gemm", "matrix product"),
    ("cudnn", "convolution"),
    ("conv", "convolution"),
    ("softmax", "softmax"),
    ("reformat", "format change"),
)
_GENERATED = (
    ("MulMinMaxRounCast", "quantizes"),
    ("RounCastCastMul", "quantizes and dequantizes in one kernel"),
    ("CastMul", "dequantizes"),
    ("Conc", "pads or joins channels"),
    ("Tran", "changes the layout"),
    ("Etc", "name truncated"),
)
"""Words in names of generated kernels; each step has four letters or fewer."""
_WORDS = {
    "i8": "INT8",
    "i32": "INT32",
    "u8": "UINT8",
    "f32": "FP32",
    "tf32": "TF32",
    "f16": "FP16",
    "bf16": "BF16",
    "e4m3": "FP8 (e4m3)",
    "e5m2": "FP8 (e5m2)",
}
_TYPES = re.compile(
    r"(?:^|_)(?P<a>i8|u8|f16|bf16|f32|e4m3|e5m2)(?P<b>i8|u8|f16|bf16|f32|e4m3|e5m2)_(?P<c>i8|f16|bf16|f32|tf32|i32|e4m3|e5m2)?"
    r"(?P<d>i32|f32|f16|tf32)_(?P<e>i32|f32|f16|bf16)(?=_|$)"
)
_OLD_TYPES = (
    ("int8x4_icudnn_int8x4", "INT8 in and out, four channels packed"),
    ("fp32_icudnn_int8x4", "INT8 in, FP32 out"),
    ("icudnn_int8x4", "INT8 in"),
    ("s1688cudnn_fp16", "FP16 in and out"),
    ("h1688cudnn", "FP16 in and out"),
    ("h884cudnn", "FP16 in and out"),
    ("i8816cudnn_int8", "INT8 in and out"),
    ("i16832cudnn_int8", "INT8 in and out"),
    ("hcudnn", "FP16 in and out"),
    ("scudnn", "FP32 in and out"),
    ("sgemm", "FP32 in and out"),
    ("h16816gemm", "FP16 in and out"),
    ("s16816gemm_fp16", "FP16 in and out, FP32 accumulation"),
    ("igemm_int8", "INT8 in"),
    ("imma", "INT8 in"),
)
_UNITS = (
    (re.compile(r"tensor(\d+x\d+x\d+)"), "tensor cores, instruction shape {}"),
    (re.compile(r"(?<![a-z])[sh](16816|1688|884)(?=cudnn|gemm)"), "tensor cores, instruction shape {}"),
    (re.compile(r"(?<![a-z])i(8816|16832)(?=cudnn|gemm)"), "INT8 tensor cores, instruction shape {}"),
    (re.compile(r"warpgroupsize(\d+x\d+x\d+)"), "Hopper warp-group tensor cores, {} warp groups"),
    (re.compile(r"(?<![a-z])imma(?![a-z])"), "INT8 tensor cores (imma)"),
    (re.compile(r"(?<![a-z])hmma(?![a-z])"), "FP16 tensor cores (hmma)"),
    (re.compile(r"(?<![a-z])ffma(?![a-z])"), "FP32 units (ffma), no tensor cores"),
    (re.compile(r"(?<![a-z])hfma2?(?![a-z])"), "FP16 units (hfma), no tensor cores"),
    (re.compile(r"icudnn_int8x4|dp4a"), "INT8 dot product of four (dp4a), no tensor cores"),
    (re.compile(r"_scudnn_|_sgemm_|_hcudnn_"), "CUDA cores, no tensor cores"),
)
_LAYOUTS = (
    ("nchw_vect_c_32", "NC/32HW32 (32 channels packed)"),
    ("nchw_vect_c_4", "NC/4HW4 (four channels packed)"),
    ("nhwckrsc_nhwc", "channels last in and out"),
    ("nhwckrsc_nchw", "channels last in, channels first out"),
    ("nchwkcrs_nchw", "channels first in and out"),
    ("NCxHW32", "NC/32HW32 (32 channels packed)"),
    ("NCHW", "channels first"),
    ("nhwc", "channels last"),
    ("ndhwc", "channels last, 3-D"),
    ("c32", "writes NC/32HW32"),
)


def tactic_id(text: str) -> str | None:
    """Convert a tactic id to `0x` and 16 digits. Releases print it as signed decimal, hexadecimal, or padded hexadecimal."""
    text = text.strip()
    if len(text) > _LONGEST_ID:
        return None
    try:
        value = int(text, 16) if text.removeprefix("-").startswith("0x") else int(text)
    except ValueError:
        return None
    return f"0x{value & 0xFFFFFFFFFFFFFFFF:016x}" if -(1 << 63) <= value < 1 << 64 else None


def spelled_type(tactic: str) -> DType | None:
    """Return the type that a kernel multiplies, if its name gives the types of all operands; else None."""
    return _types_in_name(tactic[:_LONGEST_NAME])[0]


def math_type(tactic: str) -> DType | None:
    """Return the type that a kernel multiplies, if its name gives or implies this type; else None."""
    return _types_in_name(tactic[:_LONGEST_NAME])[1]


def tensor_cores(tactic: str) -> bool | None:
    """Return True if a kernel runs on tensor cores, False if not, and None if its name does not show this."""
    return _types_in_name(tactic[:_LONGEST_NAME])[2]


@lru_cache(maxsize=4096)
def _types_in_name(tactic: str) -> tuple[DType | None, DType | None, bool | None]:
    # An engine has few kernels for many layers, and a log may have many engines.
    exact = _XMMA.search(tactic)
    spelled = _MATH[exact[1]] if exact else None
    hinted = next((dtype for dtype, pattern in _HINTS if pattern.search(tactic)), None)
    on_cores = bool(_TENSOR_CORES.search(tactic)) or (False if _CUDA_CORES.search(tactic) else None)
    return spelled, spelled or hinted, on_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class TacticWords:
    """The parts of a kernel name; "" for missing parts.

    Attributes:
        name: the name.
        architecture: GPU generation it was written for.
        operation: the operation in words.
        types: of inputs, accumulator and output.
        layout: memory order of its tensors.
        tile: work of one block, as rows x columns x depth.
        stages: of its software pipeline.
        unit: arithmetic unit.
        int8: whether its inputs are INT8; None if not in the name.
        tensor_cores: whether it uses tensor cores; None if not in the name.
    """

    name: str
    architecture: str
    operation: str
    types: str
    layout: str
    tile: str
    stages: str
    unit: str
    int8: bool | None
    tensor_cores: bool | None


def explain_tactic(name: str) -> TacticWords:
    """Parse a kernel's name."""
    name = name.strip()[:_LONGEST_NAME]
    multiplies = math_type(name)
    tile = re.search(r"(?:warp)?tilesize(\d+x\d+(?:x\d+)?)", name) or re.search(
        r"_(\d{2,3}x\d{2,3}(?:x\d{2,3})?)(?=_|$)", name
    )
    stages = re.search(r"stages?_?(\d+)(?:x(\d+))?", name)
    return TacticWords(
        name=name,
        architecture=_ARCHITECTURES.get(name.partition("_")[0], ""),
        operation=_operation(name),
        types=_types(name),
        layout=next((words for part, words in _LAYOUTS if part in name), ""),
        tile=tile.group(1) if tile else "",
        stages=(stages.group(2) or stages.group(1)) if stages else "",
        unit=_unit(name),
        int8=None if multiplies is None else multiplies is DType.INT8,
        tensor_cores=tensor_cores(name),
    )


def _operation(name: str) -> str:
    if name.startswith("__myl_"):
        steps = " ".join(re.findall(r"[A-Z][a-z]+", name[6:].partition("_")[0]))
        signs = [words for part, words in _GENERATED if part in name]
        return f"generated by Myelin: {steps}" + (f" ({', '.join(signs)})" if signs else "")
    return next((words for part, words in _OPERATIONS if part in name), "")


def _types(name: str) -> str:
    match = _TYPES.search(name)
    if match:
        # types of input, output, multiplication, accumulator, epilogue
        a, b, c, d, e = (_WORDS.get(match[key], match[key]) for key in "abcde")
        return f"{a} in, {b} out, multiplied as {c}, {d} accumulator, {e} epilogue"
    words = next((words for part, words in _OLD_TYPES if part in name), "")
    return words or ("INT8 in" if "INT8" in name or "_int8" in name else "")


def _unit(name: str) -> str:
    for form, words in _UNITS:
        match = form.search(name)
        if match:
            return words.format(*match.groups()) if match.groups() else words
    return ""
