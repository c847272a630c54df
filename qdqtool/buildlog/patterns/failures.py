"""Errors: what the builder says when it gives up, and what it says after that."""

from qdqtool.buildlog.sentence import Family, row, says

PLUGIN = Family(
    sentences=(
        row(
            "api-error-code",
            r"Error\[(?P<code>\d{1,5})\]: \[(?P<place>[^\]]{3,200})\] (?P<text>.+)",
            "Error[4]: [shuffleNode.cpp::symbolicExecute::387] Error Code 4: Internal Error (Reshape_3: bad dimensions)",
        ),
        row(
            "cudnn-error",
            r"(?P<file>[\w./]{1,120}) \((?P<at>\d{1,6})\) - (?P<library>\w{2,20}) Error in (?P<call>\w{1,60}): (?P<code>\d{1,6}) \((?P<text>.*)\)",
            "instanceNormalizationPlugin.cu (292) - Cudnn Error in enqueue: 3 (CUDNN_STATUS_BAD_PARAM)",
        ),
        says("invalid-node", "Invalid Node - {node}", "Invalid Node - Pad_13"),
        row(
            "api-error",
            r"(?P<call>I?[A-Z]\w{2,60}::\w{1,80}): Error Code (?P<code>\d{1,5}): (?P<kind>[\w ]{3,60}?) \((?P<text>.*)\)",
            "IRefitter::setWeights: Error Code 3: API Usage Error (Conv_1: The weights cannot be refitted.)",
        ),
        row(
            "internal-error",
            r"(?:(?P<number>\d{1,5}): )?\[(?P<place>[^\]]{3,200})\] Error Code (?P<code>\d{1,5}): (?P<kind>[\w ]{3,60}?) \((?P<text>.*)\)",
            "2: [builder.cpp::buildSerializedNetwork::636] Error Code 2: Internal Error (Assertion engine != nullptr failed. )",
        ),
        row(
            "numbered-error",
            r"(?P<number>[1-9]|10|11|12): (?P<text>[A-Z(\[].*)",
            "3: (Unnamed Layer* 0) [Convolution]: bias weights are not permitted since they are of type Int32",
        ),
        says(
            "parser-error",
            "ERROR: {text}",
            "ERROR: In node 0 (importConv): UNSUPPORTED_NODE: Assertion failed",
        ),
        row(
            "parser-node",
            r"While parsing node number (?P<number>\d{1,9}) \[(?P<op>\w{1,60})(?: -> \"(?P<tensor>.*)\")?\]:?",
            'While parsing node number 12 [Conv -> "conv1_out"]:',
        ),
        says("parser-node-begins", "--- Begin node ---{rest?}", "--- Begin node ---"),
        says("parser-node-ends", "--- End node ---{rest?}", "--- End node ---"),
        says(
            "in-node",
            "In node {number:int} with name: {node} and operator: {op} ({function}): {text}",
            "In node 4 with name: Conv_1 and operator: Conv (importConv): UNSUPPORTED_NODE: Assertion failed: x",
        ),
        says(
            "in-node-old",
            "In node {number:int} ({function}): {text}",
            "In node 0 (parseGraph): UNSUPPORTED_NODE: No importer registered for op: Foo",
        ),
        says("parsing-failed", "Parsing model failed", "Parsing model failed"),
        says("parse-failed", "Failed to parse {what}", "Failed to parse onnx file"),
        says("network-failed", "Network And Config setup failed", "Network And Config setup failed"),
        says("engine-setup-failed", "Engine set up failed", "Engine set up failed"),
        says("building-failed", "Building engine failed{rest?}", "Building engine failed!"),
        says(
            "engine-failed", "Failed to create engine{rest?}", "Failed to create engine from model or file."
        ),
        says(
            "engine-not-created",
            "Engine could not be created from network",
            "Engine could not be created from network",
        ),
        says(
            "model-missing",
            "Model missing or format not recognized",
            "Model missing or format not recognized",
        ),
        says("caffe-error", "CaffeParser: {text}", "CaffeParser: Could not parse deploy file"),
        says(
            "no-implementation",
            "Could not find any implementation for node {node}.{rest?}",
            "Could not find any implementation for node Conv_1 + Relu_2.",
        ),
        says("cuda-failure", "Cuda failure: {text}", "Cuda failure: out of memory"),
        says(
            "assertion",
            "{place} Assertion failed: {text}",
            "onnx2trt_utils.cpp:23 In function notInvalidType: [8] Assertion failed: shiftIsAllZeros(zeroPoint)",
        ),
    )
)
