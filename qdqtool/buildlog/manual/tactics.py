"""Names of kernels ("tactics"): architecture, operation, types, layouts, tile, stages and the arithmetic unit.

    sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw_vect_c_32_
        tilesize96x64x64_stage3_warpsize2x2x1_g1_tensor16x8x32_t1r1s1
    ampere_int8x4_icudnn_int8x4_128x32_relu_small_nn_v1
    turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1

A word that is not known stays unexplained; nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    ("RounCastCastMul", "quantizes and dequantizes at once"),
    ("CastMul", "dequantizes"),
    ("Conc", "pads or joins channels"),
    ("Tran", "changes the layout"),
    ("Etc", "name cut short"),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TacticWords:
    """A kernel name, taken apart; "" for what it does not say.

    Attributes:
        name: the name.
        architecture: GPU generation it was written for.
        operation: what it computes.
        types: of inputs, accumulator and output.
        layout: memory order of its tensors.
        tile: work of one block, as rows x columns x depth.
        stages: of its software pipeline.
        unit: arithmetic unit.
        int8: whether its inputs are INT8; None where the name does not say.
        tensor_cores: whether it uses tensor cores; None where the name does not say.
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
    """What a kernel's name says."""
    name = name.strip()[:500]
    types, int8 = _types(name)
    unit = _unit(name)
    tile = re.search(r"(?:warp)?tilesize(\d+x\d+(?:x\d+)?)", name) or re.search(
        r"_(\d{2,3}x\d{2,3}(?:x\d{2,3})?)(?=_|$)", name
    )
    stages = re.search(r"stages?_?(\d+)(?:x(\d+))?", name)
    return TacticWords(
        name=name,
        architecture=_ARCHITECTURES.get(name.partition("_")[0], ""),
        operation=_operation(name),
        types=types,
        layout=next((words for part, words in _LAYOUTS if part in name), ""),
        tile=tile.group(1) if tile else "",
        stages=(stages.group(2) or stages.group(1)) if stages else "",
        unit=unit,
        int8=int8,
        tensor_cores=None if not unit else "no tensor cores" not in unit,
    )


def _operation(name: str) -> str:
    if name.startswith("__myl_"):
        steps = " ".join(re.findall(r"[A-Z][a-z]+", name[6:].partition("_")[0]))
        signs = [words for part, words in _GENERATED if part in name]
        return f"generated by Myelin: {steps}" + (f" ({', '.join(signs)})" if signs else "")
    return next((words for part, words in _OPERATIONS if part in name), "")


def _types(name: str) -> tuple[str, bool | None]:
    found = _TYPES.search(name)
    if found:
        # in, out, as multiplied, accumulator, epilogue
        a, b, c, d, e = (_WORDS.get(found[key], found[key]) for key in "abcde")
        return f"{a} in, {b} out, multiplied as {c}, {d} accumulator, {e} epilogue", found["a"] in (
            "i8",
            "u8",
        )
    for part, words in _OLD_TYPES:
        if part in name:
            return words, words.startswith("INT8")
    if "INT8" in name or "_int8" in name:
        return "INT8 in", True
    return "", None


def _unit(name: str) -> str:
    for form, words in _UNITS:
        found = form.search(name)
        if found:
            return words.format(*found.groups()) if found.groups() else words
    return ""
