"""Message patterns about the model: header, inputs and nodes that the parser prints; symbolic shapes.

# onnx

The ONNX parser: the model's header, and block by block the whole graph with names, shapes and types.

# shapes

The symbolic shape check of TensorRT 10: every layer with the extents of its tensors.
"""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

PLUGIN = {
    "onnx": PatternSet(
        patterns=(
            message("onnx-file", "Input filename: {path}", "Input filename:   resnet50.onnx"),
            message("onnx-ir", "ONNX IR version: {version}", "ONNX IR version:  0.0.7"),
            message("onnx-opset", "Opset version: {version}", "Opset version:    13"),
            message("onnx-producer", "Producer name:{name?}", "Producer name:    pytorch", "Producer name:"),
            message("onnx-producer-version", "Producer version:{version?}", "Producer version: 2.0.1"),
            message("onnx-domain", "Domain:{domain?}", "Domain:           ", "Domain:"),
            message("onnx-model-version", "Model version:{version?}", "Model version:    0"),
            message(
                "parsing-begins",
                "Start parsing network model{dot?}",
                "Start parsing network model",
                "Start parsing network model.",
            ),
            message(
                "parsing-took",
                "Finished parsing network model. Parse time: {seconds:num}",
                "Finished parsing network model. Parse time: 0.144613",
            ),
            message(
                "network-input",
                "Adding network input: {tensor} with dtype: {dtype}, dimensions: ({dims?})",
                "Adding network input: x with dtype: float32, dimensions: (-1, 3, 224, 224)",
            ),
            message("node-begins", "Parsing node: {node>} [{op}]", "Parsing node: /conv1/Conv [Conv]"),
            message(
                "node-inputs",
                "{node}] inputs:{tensors?}",
                "Conv_1 [Conv] inputs: [423 -> (1, 512, 180, 180)[FLOAT]], [w -> (16, 512, 1, 1)[FLOAT]],",
                "Q_1 [QuantizeLinear] inputs: [x -> (1, 3)[FLOAT]], [s -> ()[FLOAT]], [z -> ()[INT8]],",
            ),
            message(
                "node-outputs",
                "{node}] outputs:{tensors?}",
                "Conv_1 [Conv] outputs: [424 -> (1, 16, 180, 180)[FLOAT]],",
            ),
            message(
                "layer-registered",
                "Registering layer: {layer} for ONNX node: {node}",
                "Registering layer: Conv_1 for ONNX node: Conv_1",
            ),
        )
    ),
    "shapes": PatternSet(
        patterns=(message("shapes-nodes", "GRAPH NODES", "GRAPH NODES"),),
        sections=(
            LogSection(
                opens="shapes-nodes",
                first=True,
                rows=(
                    row(
                        "shapes-tensor", r"(?P<direction>Input|Output) (?P<index>\d+)", "Input 0", "Output 1"
                    ),
                    row(
                        "shapes-extent",
                        r"(?P<range>-?\d+|\[-?\d+,-?\d+\])\t(?P<symbol>\S.*)",
                        "1024\t1024",
                        "[1,16]\tnBS",
                        "[1,4]\t(# 0 (SHAPE x))",
                    ),
                    row(
                        "shapes-layer",
                        r"(?P<kind>[A-Z][A-Z_0-9]{2,40}) (?P<layer>\S.*)",
                        "CONVOLUTION node_conv2d",
                        "MATRIX_MULTIPLY node_linear",
                    ),
                ),
            ),
        ),
    ),
}
