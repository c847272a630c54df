"""Message patterns about the optimizer: attempts and effects, its compiler, and the builder's own steps.

# optimizer

The graph optimizer: attempts (`Running: X on Y`), their effects, banners of its phases, layer counts.

# builder

The builder of TensorRT 8.6 to 11 talking of itself: backends, subgraphs, cached results, streams, limits.

# myelin

Myelin, the compiler behind `ForeignNode` regions: its tuning tables of TensorRT 10 and newer.
"""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = {
    "optimizer": PatternSet(
        patterns=(
            message("attempt", "Running: {pass} on {node}", "Running: ConstShuffleFusion on fc.bias"),
            message("attempt-unnamed", "Running: {pass:word}", "Running: ConvReluFusion"),
            message(
                "quantize-into",
                "{pass:word}: fusing {nodes} into {node}",
                "QuantizeDoubleInputNodes: fusing (DQ_1 and DQ_2) into Conv_3",
                "QuantizeDoubleInputNodes: fusing Q_9 into Conv_3 + Relu_4",
            ),
            message(
                "fused",
                "{pass:word}: Fusing {nodes}",
                "ConvReluFusion: Fusing Conv_1 with Relu_2",
            ),
            message("fused-unnamed", "Fusing {nodes}", "Fusing Conv_1 with Relu_2"),
            message("swapped", "Swapping {nodes}", "Swapping MaxPool_12 with QuantizeLinear_15"),
            message(
                "duplicate",
                "Eliminating {node} which duplicates ({kind}) {twin}",
                "Eliminating Q_1_clone_1 which duplicates (Q) Q_7",
            ),
            message(
                "slice-retargeted",
                "Eliminating slice {node} by retargeting {tensors}",
                "Eliminating slice /Slice by retargeting a from a to b",
            ),
            message(
                "slice-copied",
                "Replacing slice {node} with copy from {tensors}",
                "Replacing slice Slice_851 with copy from 1446 to 1451",
            ),
            message(
                "concat-gone", "Eliminating concatenation {node}", "Eliminating concatenation /Concat_10"
            ),
            message("retargeted", "Retargeting {tensors}", "Retargeting 1407 to 1411"),
            message(
                "copy-made",
                "Generating copy for {tensors} because {reason}",
                "Generating copy for a to b because of stomping hazard.",
                "Generating copy for a to b because input does not support striding.",
            ),
            message("removed", "Removing {node}", "Removing QuantizeLinear_15"),
            message(
                "layer-converted",
                "Convert layer type of {node} from {before:word} to {after:word}",
                "Convert layer type of MatMul_1 from FULLY_CONNECTED to CONVOLUTION",
            ),
            message(
                "layer-swapped",
                "Swap the layer type of {node} from {before:word} to {after:word}",
                "Swap the layer type of QuantizeLinear_3 from QUANTIZE to kQDQ",
            ),
            message(
                "merged", "Merging layers: {nodes}", "Merging layers: Conv_1 + Relu_2 || Conv_3 + Relu_4"
            ),
            message(
                "split-constant",
                "ConstantSplit: {what}",
                "ConstantSplit: splitting (Unnamed Layer* 3) [Constant]",
            ),
            message(
                "squeeze-case",
                "-----------SqueezePushDown {case:word} case: {source} --> {squeeze} --> {reader}",
                "-----------SqueezePushDown kSQUEEZE_FORK case: add_2 --> copied_squeeze_after_add_2 --> Relu_2",
                "-----------SqueezePushDown kSQUEEZE_JOIN case: MatMul --> (Unnamed Layer* 19) [Shuffle] --> add_2",
            ),
            message(
                "qdq-banner",
                "QDQ graph optimizer {step}",
                "QDQ graph optimizer - constant folding of Q/DQ initializers",
                "QDQ graph optimizer quantization epilogue pass",
            ),
            message("qdq-optimization", "QDQ optimization pass", "QDQ optimization pass"),
            message("layers-original", "Original: {layers:int} layers", "Original: 755 layers"),
            message(
                "layers-after", "After {stage}: {layers:int} layers", "After vertical fusions: 76 layers"
            ),
            message(
                "construction-took",
                "Graph construction completed in {seconds:num} seconds.",
                "Graph construction completed in 0.034632 seconds.",
            ),
            message(
                "optimization-took",
                "Graph optimization time: {seconds:num} seconds.",
                "Graph optimization time: 0.1889 seconds.",
            ),
            message(
                "construction-and-optimization-took",
                "Graph construction and optimization completed in {seconds:num} seconds.",
                "Graph construction and optimization completed in 0.971241 seconds.",
            ),
            message(
                "profile-number",
                "Constructing optimization profile number {n:int} [{of}].",
                "Constructing optimization profile number 0 [1/1].",
            ),
        )
    ),
    "builder": PatternSet(
        patterns=(
            message("memory-scratch", "Max Scratch Memory: {bytes}", "Max Scratch Memory: 935424 bytes"),
            message(
                "convergence-mode",
                "Compiler backend convergence mode enabled",
                "Compiler backend convergence mode enabled",
            ),
            message(
                "tactic-out-of-memory",
                "UNSUPPORTED_STATE: Skipping tactic {tactic} due to insufficient memory on requested size of {bytes:int} "
                "detected for tactic {id}.",
                "UNSUPPORTED_STATE: Skipping tactic 0 due to insufficient memory on requested size of 2688 detected for "
                "tactic 0x0000000000000000.",
            ),
        )
    ),
    "myelin": PatternSet(
        patterns=(
            message(
                "myelin-op",
                "(foreignNode) Autotuning op {op}",
                "(foreignNode) Autotuning op node_linear: [ONNX Layer: node_linear]",
                "(foreignNode) Autotuning op conv(key: 0x1234): [ONNX Layer: a]",
            ),
            message(
                "myelin-row",
                "(foreignNode)  {id:int}, {ms:num}, {ratio:num}, {correlation:num}, {kernel}, {hash:hex},{parameter?}",
                "(foreignNode)    0, 0.0188384, 1.00000, 0.92564, sm80_xmma_gemm_f32f32_f32f32_f32_nn_n, 0x4841c72cefae1,",
                "(foreignNode)  121, 0.0079136, 1.02190, 1.21963, sm90_xmma_fprop, 0x36457eb459578, 3",
                light="rest",
            ),
            message(
                "myelin-row",
                "(foreignNode) {id:int}, {ms:num}, {ratio:num}, {correlation:num}, {kernel}, {hash:hex},{parameter?}",
                "(foreignNode) 1021, 0.0079136, 1.02190, 1.21963, sm90_xmma_fprop, 0x36457eb459578,",
            ),
            message(
                "foreign-node",
                "ForeignNode {region>} metadata:{nodes?}",
                "ForeignNode {ForeignNode[a...b]} metadata: [ONNX Layer: node_view][ONNX Layer: node_linear]",
            ),
            message(
                "myelin-selected",
                "(foreignNode) The selected tactic is (tactic hash, cost(in ms)):{tactic}, {ms:num}",
                "(foreignNode) The selected tactic is (tactic hash, cost(in ms)):0x4841c72cefae1, 0.0188384",
            ),
        )
    ),
}
