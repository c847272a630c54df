"""A small log of our own that has something of everything; times and names are made up."""

from __future__ import annotations

STAMP = "[01/10/2024-21:52:52]"

GRAPH = """\
Adding network input: x with dtype: float32, dimensions: (1, 3, 8, 8)
Parsing node: Q_x [QuantizeLinear]
Searching for input: x
Q_x [QuantizeLinear] inputs: [x -> (1, 3, 8, 8)[FLOAT]], [s -> ()[FLOAT]], [z -> ()[INT8]],
Registering layer: Q_x for ONNX node: Q_x
Q_x [QuantizeLinear] outputs: [xq -> (1, 3, 8, 8)[FLOAT]],
Parsing node: DQ_x [DequantizeLinear]
DQ_x [DequantizeLinear] inputs: [xq -> (1, 3, 8, 8)[FLOAT]], [s -> ()[FLOAT]], [z -> ()[INT8]],
DQ_x [DequantizeLinear] outputs: [xd -> (1, 3, 8, 8)[FLOAT]],
Parsing node: Q_w [QuantizeLinear]
Q_w [QuantizeLinear] inputs: [w -> (4, 3, 3, 3)[FLOAT]], [sw -> (4)[FLOAT]], [zw -> (4)[INT8]],
Q_w [QuantizeLinear] outputs: [wq -> (4, 3, 3, 3)[FLOAT]],
Parsing node: DQ_w [DequantizeLinear]
DQ_w [DequantizeLinear] inputs: [wq -> (4, 3, 3, 3)[FLOAT]], [sw -> (4)[FLOAT]], [zw -> (4)[INT8]],
DQ_w [DequantizeLinear] outputs: [wd -> (4, 3, 3, 3)[FLOAT]],
Parsing node: Conv_0 [Conv]
Conv_0 [Conv] inputs: [xd -> (1, 3, 8, 8)[FLOAT]], [wd -> (4, 3, 3, 3)[FLOAT]],
Conv_0 [Conv] outputs: [y -> (1, 4, 6, 6)[FLOAT]],
Parsing node: Conv_1 [Conv]
Conv_1 [Conv] inputs: [y -> (1, 4, 6, 6)[FLOAT]], [w1 -> (4, 4, 1, 1)[FLOAT]],
Conv_1 [Conv] outputs: [out -> (1, 4, 6, 6)[FLOAT]],
"""

OPTIMIZER = """\
Original: 6 layers
After dead-layer removal: 6 layers
QDQ graph optimizer - constant folding of Q/DQ initializers
Running: ConstQDQInitializersFusion on Q_x
Running: ConstQDQInitializersFusion on DQ_x
Removing s
Running: ConstWeightsQuantizeFusion on w
ConstWeightsQuantizeFusion: Fusing w with Q_w
Running: QuantizeDoubleInputNodes on Conv_0
QuantizeDoubleInputNodes: fusing (DQ_x and DQ_w) into Conv_0
Removing DQ_x
Removing DQ_w
Running: ConstWeightsFusion on w + Q_w
ConstWeightsFusion: Fusing w + Q_w with Conv_0
After vertical fusions: 3 layers
Running: QDQToCopy on Q_x
Swap the layer type of Q_x from QUANTIZE to kQDQ
After final dead-layer removal: 3 layers
"""

TUNING = """\
=============== Computing costs for w + Q_w + Conv_0
*************** Autotuning format combination: Int8(64,1:4,8) -> Float(36,36,6,1) ***************
--------------- Timing Runner: w + Q_w + Conv_0 (CaskConvolution[0x80000009])
Tactic Name: ampere_int8 Tactic: 0x0000000000000005 Time: 0.5
Tactic Name: sm80_xmma_fprop_implicit_gemm_i8i8_i8i32_f32 Tactic: 0x0000000000000007 Time: 0.25
w + Q_w + Conv_0 (CaskConvolution[0x80000009]) profiling completed in 0.125 seconds. \
Fastest Tactic: 0x0000000000000007 Time: 0.25
>>>>>>>>>>>>>>> Chose Runner Type: CaskConvolution Tactic: 0x0000000000000007
Formats and tactics selection completed in 1.5 seconds.
After reformat layers: 3 layers
Engine generation completed in 2.5 seconds.
"""

LAYERS = """\
Layer(Reformat): Q_x, Tactic: 0x00000000000003ea, x (Float[1,3,8,8]) -> xq (Int8[1,3:4,8,8])
Layer(CaskConvolution): w + Q_w + Conv_0, Tactic: 0x0000000000000007, xq (Int8[1,3:4,8,8]) -> y (Float[1,4,6,6])
Layer(CaskConvolution): Conv_1, Tactic: 0x0000000000000009, y (Float[1,4,6,6]) -> out (Float[1,4,6,6])
"""


def library(text: str, prefix: str = f"{STAMP} [V] [TRT] ") -> str:
    """Messages as lines with a prefix."""
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def trtexec(version: int = 8600, end: str = "PASSED") -> str:
    """A whole run of trtexec."""
    banner = f"TensorRT.trtexec [TensorRT v{version}] # trtexec --onnx=a.onnx --int8"
    own = f"{STAMP} [I] "
    return "".join(
        [
            f"&&&& RUNNING {banner}\n",
            library("=== Build Options ===\nPrecision: FP32+INT8\nCalibration: Dynamic", own),
            library("=== Device Information ===\nSelected Device: Orin\nSMs: 16", own),
            library("Start parsing network model", own),
            library(GRAPH + OPTIMIZER + TUNING),
            library("Engine Layer Information:"),
            LAYERS,
            library("=== Performance summary ===\nThroughput: 100 qps", own),
            library(
                "Latency: min = 9 ms, max = 12 ms, mean = 10.5 ms, median = 10 ms, percentile(90%) = 11 ms, "
                "percentile(99%) = 12 ms",
                own,
            ),
            library("GPU Compute Time: min = 8 ms, max = 11 ms, mean = 9.5 ms, median = 9 ms", own),
            f"&&&& {end} {banner}\n",
        ]
    )
