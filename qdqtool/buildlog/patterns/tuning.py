"""Message patterns of autotuning in classic TensorRT: formats, kernels timed and chosen, timing caches."""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = PatternSet(
    patterns=(
        message(
            "tactic",
            "Tactic: {tactic:hex} Time: {ms:num}",
            "Tactic: 0x00000000000003ea Time: 0.0141162",
            "Tactic: -3730012925709297561 Time: 0.220436",
            "Tactic: 1002 Time: 0.004096",
            light="all",
        ),
        message(
            "tactic", "Tactic: {tactic:hex} time {ms:num}", "Tactic: -32 time 0.078624"
        ),  # TensorRT 5 to 7
        message(
            "tactic-named",
            "Tactic Name: {kernel} Tactic: {tactic:hex} Time: {ms:num}",
            "Tactic Name: sm80_xmma_fprop_implicit_gemm Tactic: 0x00000000000204bb Time: 0.0866743",
            light="all",
        ),
        message(
            "subgraph-compiled",
            "Subgraph compilation completed in {seconds:num} seconds.",
            "Subgraph compilation completed in 7.922 seconds.",
        ),
        message(
            "timing",
            "--------------- Timing Runner: {layer>} ({runner})",
            "--------------- Timing Runner: Conv_1 + Relu_2 (CaskConvolution[0x80000009])",
            "--------------- Timing Runner: Optimizer Reformat(<in> -> x) (Reformat)",
            light="noted",
        ),
        message(
            "timed",
            "{layer} profiling completed in {seconds} seconds. Fastest Tactic: {tactic} Time: {ms}",
            "Conv_1 (CaskConvolution[0x80000009]) profiling completed in 0.41 seconds. "
            "Fastest Tactic: 0x5b8bf1b8028629d9 Time: 0.00534603",
        ),
        message(
            "fastest",
            "Fastest Tactic: {tactic:id} Time: {ms:num}",
            "Fastest Tactic: 0x00000000000003e8 Time: 0.00507949",
        ),
        message(
            "chosen",
            ">>>>>>>>>>>>>>> Chose Runner Type: {runner:word} Tactic: {tactic:hex}",
            ">>>>>>>>>>>>>>> Chose Runner Type: CaskConvolution Tactic: 0x764ba04bb839d539",
            light="all",
        ),
        message(
            "kernel-set",
            "{layer} Set Tactic Name: {kernel} Tactic: {tactic:hex16}",
            "Conv_32 Set Tactic Name: ampere_scudnn_128x64_relu_small_nn_v1 Tactic: 0x5b8bf1b8028629d9",
            light="all",
        ),
        message(
            "kernel-set",
            "{layer} Set Tactic Name: {kernel} Tactic: {tactic}",
            "Conv_32 Set Tactic Name: ampere_scudnn_128x64_relu_small_nn_v1 Tactic: 4549827808004681195",
        ),
        message(
            "kernel-set",
            "{layer?}Set Tactic Name: {kernel} Tactic: {tactic}",
            "Set Tactic Name: sm50_xmma_cublas_gemvx Tactic: 0x000000000002044a numSplitK: 1 numBuffers: 0",
        ),
        message(
            "no-tactics",
            "{runner:word} has no valid tactics for this config, skipping",
            "CaskFlattenConvolution has no valid tactics for this config, skipping",
            light="all",
        ),
        message(
            "formats-tried",
            "*************** Autotuning format combination: {formats}",
            "*************** Autotuning format combination: Int8(1,1:32,9) -> Float(1,9) ***************",
            light="all",
        ),
        message(
            "reformat-tried",
            "*************** Autotuning Reformat:{formats}",
            "*************** Autotuning Reformat: Float(1,1,1) -> Float(1:4,1,1) ***************",
            "*************** Autotuning Reformat:Float(98,49:32,7,1) -> Float(3136,49,7,1) ***************",
            light="all",
        ),
        message(
            "tactic-too-slow",
            "Fast skip Tactic:{tactic:hex} which exceed time limit during pre-run",
            "Fast skip Tactic:0x0000000000000000 which exceed time limit during pre-run",
            light="all",
        ),
        message(
            "selection-took",
            "Formats and tactics selection completed in {seconds:num} seconds.",
            "Formats and tactics selection completed in 6.81485 seconds.",
        ),
        message(
            "timing-cache-local",
            "Local timing cache in use. {rest}",
            "Local timing cache in use. Profiling results in this builder pass will not be stored.",
        ),
        message(
            "timing-cache-global",
            "Global timing cache in use. {rest}",
            "Global timing cache in use. Profiling results in this builder pass will be stored.",
        ),
        message(
            "timing-cache-gone",
            "Deleting timing cache: {entries:int} entries, served {hits:int} hits since creation.",
            "Deleting timing cache: 144 entries, served 172 hits since creation.",
        ),
        message(
            "timing-cache-gone",
            "Deleting timing cache: {entries:int} entries, {hits:int} hits",
            "Deleting timing cache: 65 entries, 0 hits",
        ),
        message(
            "only-option",
            "Tactic: {tactic} is the only option, timing skipped",
            "Tactic: 0 is the only option, timing skipped",
        ),
    )
)
