"""Myelin, the compiler behind `ForeignNode` regions: its tuning tables of TensorRT 10 and newer."""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = PatternSet(
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
)
