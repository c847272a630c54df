"""The graph optimizer: attempts (`Running: X on Y`), their effects, banners of its phases, layer counts."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says("attempt", "Running: {pass} on {node}", "Running: ConstShuffleFusion on fc.bias"),
        says("attempt-unnamed", "Running: {pass:word}", "Running: ConvReluFusion"),
        says(
            "quantize-into",
            "{pass:word}: fusing {nodes} into {node}",
            "QuantizeDoubleInputNodes: fusing (DQ_1 and DQ_2) into Conv_3",
            "QuantizeDoubleInputNodes: fusing Q_9 into Conv_3 + Relu_4",
        ),
        says(
            "fused",
            "{pass:word}: Fusing {nodes}",
            "ConvReluFusion: Fusing Conv_1 with Relu_2",
        ),
        says("fused-unnamed", "Fusing {nodes}", "Fusing Conv_1 with Relu_2"),
        says("swapped", "Swapping {nodes}", "Swapping MaxPool_12 with QuantizeLinear_15"),
        says(
            "duplicate",
            "Eliminating {node} which duplicates ({kind}) {twin}",
            "Eliminating Q_1_clone_1 which duplicates (Q) Q_7",
        ),
        says(
            "slice-retargeted",
            "Eliminating slice {node} by retargeting {tensors}",
            "Eliminating slice /Slice by retargeting a from a to b",
        ),
        says(
            "slice-copied",
            "Replacing slice {node} with copy from {tensors}",
            "Replacing slice Slice_851 with copy from 1446 to 1451",
        ),
        says("concat-gone", "Eliminating concatenation {node}", "Eliminating concatenation /Concat_10"),
        says("retargeted", "Retargeting {tensors}", "Retargeting 1407 to 1411"),
        says(
            "copy-made",
            "Generating copy for {tensors} because {reason}",
            "Generating copy for a to b because of stomping hazard.",
            "Generating copy for a to b because input does not support striding.",
        ),
        says("removed", "Removing {node}", "Removing QuantizeLinear_15"),
        says(
            "layer-converted",
            "Convert layer type of {node} from {before:word} to {after:word}",
            "Convert layer type of MatMul_1 from FULLY_CONNECTED to CONVOLUTION",
        ),
        says(
            "layer-swapped",
            "Swap the layer type of {node} from {before:word} to {after:word}",
            "Swap the layer type of QuantizeLinear_3 from QUANTIZE to kQDQ",
        ),
        says("merged", "Merging layers: {nodes}", "Merging layers: Conv_1 + Relu_2 || Conv_3 + Relu_4"),
        says(
            "split-constant",
            "ConstantSplit: {what}",
            "ConstantSplit: splitting (Unnamed Layer* 3) [Constant]",
        ),
        says(
            "squeeze-case",
            "-----------SqueezePushDown {case:word} case: {source} --> {squeeze} --> {reader}",
            "-----------SqueezePushDown kSQUEEZE_FORK case: add_2 --> copied_squeeze_after_add_2 --> Relu_2",
            "-----------SqueezePushDown kSQUEEZE_JOIN case: MatMul --> (Unnamed Layer* 19) [Shuffle] --> add_2",
        ),
        says(
            "qdq-banner",
            "QDQ graph optimizer {step}",
            "QDQ graph optimizer - constant folding of Q/DQ initializers",
            "QDQ graph optimizer quantization epilogue pass",
        ),
        says("qdq-optimization", "QDQ optimization pass", "QDQ optimization pass"),
        says("layers-original", "Original: {layers:int} layers", "Original: 755 layers"),
        says("layers-after", "After {stage}: {layers:int} layers", "After vertical fusions: 76 layers"),
        says(
            "construction-took",
            "Graph construction completed in {seconds:num} seconds.",
            "Graph construction completed in 0.034632 seconds.",
        ),
        says(
            "optimization-took",
            "Graph optimization time: {seconds:num} seconds.",
            "Graph optimization time: 0.1889 seconds.",
        ),
        says(
            "construction-and-optimization-took",
            "Graph construction and optimization completed in {seconds:num} seconds.",
            "Graph construction and optimization completed in 0.971241 seconds.",
        ),
        says(
            "profile-number",
            "Constructing optimization profile number {n:int} [{of}].",
            "Constructing optimization profile number 0 [1/1].",
        ),
    )
)
