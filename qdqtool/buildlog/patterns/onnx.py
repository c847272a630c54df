"""The ONNX parser: the model's header, and block by block the whole graph with names, shapes and types."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says("onnx-rule", "-" * 64, "-" * 64),
        says("onnx-file", "Input filename: {path}", "Input filename:   resnet50.onnx"),
        says("onnx-ir", "ONNX IR version: {version}", "ONNX IR version:  0.0.7"),
        says("onnx-opset", "Opset version: {version}", "Opset version:    13"),
        says("onnx-producer", "Producer name:{name?}", "Producer name:    pytorch", "Producer name:"),
        says("onnx-producer-version", "Producer version:{version?}", "Producer version: 2.0.1"),
        says("onnx-domain", "Domain:{domain?}", "Domain:           ", "Domain:"),
        says("onnx-model-version", "Model version:{version?}", "Model version:    0"),
        says("onnx-doc", "Doc string:{text?}", "Doc string:       "),
        says(
            "parsing-begins",
            "Start parsing network model{dot?}",
            "Start parsing network model",
            "Start parsing network model.",
        ),
        says("parsing-ends", "Finish parsing network model", "Finish parsing network model"),
        says(
            "parsing-took",
            "Finished parsing network model. Parse time: {seconds:num}",
            "Finished parsing network model. Parse time: 0.144613",
        ),
        says(
            "network-input",
            "Adding network input: {tensor} with dtype: {dtype}, dimensions: ({dims?})",
            "Adding network input: x with dtype: float32, dimensions: (-1, 3, 224, 224)",
        ),
        says(
            "tensor-registered",
            "Registering tensor: {tensor} for ONNX tensor: {onnx}",
            "Registering tensor: input for ONNX tensor: input",
            light="all",
        ),
        says(
            "initializer", "Importing initializer: {tensor}", "Importing initializer: fc.weight", light="all"
        ),
        says("node-begins", "Parsing node: {node>} [{op}]", "Parsing node: /conv1/Conv [Conv]"),
        says(
            "node-check",
            "Static check for parsing node: {node>} [{op}]",
            "Static check for parsing node: node_conv2d [Conv]",
            light="all",
        ),
        says("node-input", "Searching for input: {tensor}", "Searching for input: x:0", light="all"),
        says(
            "node-inputs",
            "{node}] inputs:{tensors?}",
            "Conv_1 [Conv] inputs: [423 -> (1, 512, 180, 180)[FLOAT]], [w -> (16, 512, 1, 1)[FLOAT]],",
            "Q_1 [QuantizeLinear] inputs: [x -> (1, 3)[FLOAT]], [s -> ()[FLOAT]], [z -> ()[INT8]],",
        ),
        says(
            "node-outputs",
            "{node}] outputs:{tensors?}",
            "Conv_1 [Conv] outputs: [424 -> (1, 16, 180, 180)[FLOAT]],",
        ),
        says(
            "layer-registered",
            "Registering layer: {layer} for ONNX node: {node}",
            "Registering layer: Conv_1 for ONNX node: Conv_1",
        ),
        says(
            "layer-helper",
            "Registering layer: {layer} required by ONNX-TRT",
            "Registering layer: ONNXTRT_Broadcast required by ONNX-TRT",
        ),
        says(
            "constant-registered",
            "Registering constant layer: {layer} for ONNX initializer: {onnx}",
            "Registering constant layer: w for ONNX initializer: w",
        ),
        says(
            "conv-input",
            "Convolution input dimensions: ({dims})",
            "Convolution input dimensions: (-1, 1, 28, 28)",
            light="all",
        ),
        says(
            "conv-output",
            "Convolution output dimensions: ({dims})",
            "Convolution output dimensions: (-1, 32, 28, 28)",
            light="all",
        ),
        says(
            "conv-kernel",
            "Using kernel: ({kernel}), strides: ({strides}), prepadding: ({pre}), postpadding: ({post}), "
            "dilations: ({dilations}), numOutputs: {outputs}",
            "Using kernel: (5, 5), strides: (1, 1), prepadding: (2, 2), postpadding: (2, 2), dilations: (1, 1), "
            "numOutputs: 32",
            "Using kernel: (5, 5), strides: (1, 1), prepadding: (2, 2), postpadding: (2, 2), dilations: (1, 1), "
            "numOutputs: 32, nbGroups: 1",
            light="all",
        ),
        says(
            "unsqueeze",
            "Original shape: ({before?}), unsqueezing to: ({after?})",
            "Original shape: (), unsqueezing to: (1,)",
            light="all",
        ),
        says(
            "squeeze",
            "Original shape: ({before?}), squeezing to: ({after?})",
            "Original shape: (_, 1), squeezing to: (_,)",
            light="all",
        ),
        says(
            "average-pool",
            "GlobalAveragePool operators are implemented via Reduce layers rather than Pooling layers",
            "GlobalAveragePool operators are implemented via Reduce layers rather than Pooling layers",
        ),
        says("resize", "Running resize layer with:", "Running resize layer with:"),
        says("resize-transformation", "Transformation mode: {mode:word}", "Transformation mode: asymmetric"),
        says("resize-mode", "Resize mode: {mode:word}", "Resize mode: nearest"),
        says(
            "gemm-as-fc",
            "GEMM: using FC layer instead of MM because {reason}",
            "GEMM: using FC layer instead of MM because all criteria were met.",
        ),
        says(
            "importer-missing",
            "No importer registered for op: {op}. {rest}",
            "No importer registered for op: LayerNorm. Attempting to import as plugin.",
        ),
        says(
            "plugin-searched",
            "Searching for plugin: {plugin}, plugin_version: {version}, plugin_namespace:{namespace?}",
            "Searching for plugin: LayerNorm, plugin_version: 1, plugin_namespace: ",
        ),
        says(
            "plugin-created",
            "Successfully created plugin: {plugin}",
            "Successfully created plugin: LayerNorm",
        ),
        says("gemm-operands", "Using opA: {a:int} opB: {b:int}", "Using opA: 0 opB: 1"),
        says("casting", "Casting to type: {dtype}", "Casting to type: int32", light="all"),
        says(
            "output-marked",
            "Marking {tensor>} as output: {name}",
            "Marking output_101 as output: output",
        ),
        says("marks-output", "Marking {tensor} as output", "Marking y as output"),
    )
)
