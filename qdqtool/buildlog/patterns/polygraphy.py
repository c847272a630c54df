"""Polygraphy's own lines: its configuration, runners, data, comparisons with their statistics and histograms."""

from qdqtool.buildlog.sentence import Family, Section, row, says

PLUGIN = Family(
    sentences=(
        says(
            "polygraphy-passed-old",
            "PASSED | Command: {command}",
            "PASSED | Command: /usr/local/bin/polygraphy run model.onnx --trt",
        ),
        says(
            "polygraphy-failed-old",
            "FAILED | Command: {command}",
            "FAILED | Command: /usr/local/bin/polygraphy run model.onnx --trt",
        ),
        says(
            "binding-set",
            "Setting binding: {tensor} (index: {index:int}) to shape: {shape}",
            "Setting binding: x:0 (index: 0) to shape: (4, 1, 28, 28)",
        ),
        says(
            "outputs-marked",
            "Marking {outputs} as outputs",
            "Marking 24 tensors as outputs",
            "Marking all ONNX tensors as outputs",
        ),
        says(
            "module-of",
            "Loaded Module: {module:word}    | Path: {path}",
            "Loaded Module: polygraphy.util    | Path: ['/usr/lib/python3/polygraphy/util']",
        ),
        says(
            "option-deprecated",
            "{option:word} is deprecated and {rest}",
            "--workspace is deprecated and will be removed in Polygraphy 0.45.0. Use --pool-limit workspace:1000000000 instead.",
        ),
        says("inference-of-shapes", "Starting shape inference", "Starting shape inference"),
        says(
            "inferred-shapes",
            "Inferred shapes in the model with {tool}",
            "Inferred shapes in the model with `onnxruntime.tools.symbolic_shape_infer`.",
        ),
        says(
            "inference-of-shapes-done",
            "Shape inference completed successfully",
            "Shape inference completed successfully",
        ),
        says(
            "fully-supported",
            "Graph is fully supported by TensorRT; {rest}",
            "Graph is fully supported by TensorRT; Will not generate subgraphs.",
        ),
        row(
            "histogram-row",
            r"\((?P<low>[-+\d.e]+|-?inf)\s*, (?P<high>[-+\d.e]+|-?inf)\s*\) \|\s*(?P<count>\d+) \|\s*(?P<bar>#*)",
            "(-0.5, -0.4) |          0 |",
            "(0.748, 0.855) |        261 | ####",
        ),
        row(
            "histogram-columns",
            r"Bin Range\s+\|  Num Elems \| (?P<title>Visualization)",
            "Bin Range    |  Num Elems | Visualization",
        ),
        row(
            "heading",
            r"---- (?P<title>[\w() ,/.-]+?) ----",
            "---- Histogram ----",
            "---- Inference Input(s) ----",
        ),
        says(
            "statistics",
            "{what} | Stats: mean={mean}, std-dev={deviation}, {rest}",
            "Absolute Difference | Stats: mean=0, std-dev=0, var=0, median=0, min=0 at (0,), max=0 at (0,), "
            "avg-magnitude=0",
        ),
        says(
            "statistics",
            "{what}: Stats: mean={mean}, std-dev={deviation}, {rest}",
            "onnxrt-runner: y | Stats: mean=0.1, std-dev=0.2, var=0, median=0, min=0 at (0,), max=0 at (0,), "
            "avg-magnitude=0",
        ),
        says(
            "statistics-alone",
            "mean={mean}, std-dev={deviation}, var={variance}, {rest}",
            "mean=3, std-dev=0, var=0, median=3, min=3 at (0,), max=3 at (0,), avg-magnitude=3, p90=3, p95=3, p99=3",
        ),
        says(
            "tolerance-kept",
            "PASSED | Difference is within tolerance ({limits})",
            "PASSED | Difference is within tolerance (rel=0.001, abs=0.001)",
        ),
        says(
            "tolerance-missed",
            "FAILED | Difference exceeds tolerance ({limits})",
            "FAILED | Difference exceeds tolerance (rel=1e-05, abs=1e-05)",
        ),
        says(
            "outputs-matched",
            "PASSED | All outputs matched | Outputs: {names}",
            "PASSED | All outputs matched | Outputs: ['y', 'z']",
        ),
        says(
            "outputs-differ", "FAILED | Mismatched outputs: {names}", "FAILED | Mismatched outputs: ['1883']"
        ),
        says("output-passed", "PASSED | Output: {what}", "PASSED | Output: y is valid"),
        says("output-passed", "PASSED | Output {what}", "PASSED | Output Validation"),
        says(
            "output-failed",
            "FAILED | Errors detected in output: {what}",
            "FAILED | Errors detected in output: y",
        ),
        says("output-failed", "FAILED | Output {what}", "FAILED | Output Validation"),
        says(
            "not-finite",
            "{kind:word} Detected | {text}",
            "Inf Detected | One or more non-finite values were encountered in this output",
        ),
        says(
            "verbosity-advice",
            "Note: Use -vv {rest}",
            "Note: Use -vv or set logging verbosity to EXTRA_VERBOSE to display non-finite values",
        ),
        says(
            "required-tolerance",
            "Minimum Required Tolerance: {metric} | {values} (requirements may be lower if {condition})",
            "Minimum Required Tolerance: elemwise error | [abs=0] OR [rel=0] (requirements may be lower if both "
            "abs/rel tolerances are set)",
        ),
        says(
            "tolerance",
            "Tolerance: {limits} | Checking {metric}",
            "Tolerance: [abs=0.001, rel=0.001] | Checking elemwise error",
        ),
        says(
            "comparing",
            "Comparing Output: {first} with {second}",
            "Comparing Output: 'y' (dtype=float32, shape=(4, 10)) with 'y' (dtype=float32, shape=(4, 10))",
        ),
        says("error-metrics", "Error Metrics: {tensor}", "Error Metrics: tensor-15"),
        says(
            "compared",
            "Accuracy Comparison | {first} vs. {second}",
            "Accuracy Comparison | onnxrt-runner-N0 vs. trt-runner-N0",
        ),
        says(
            "comparison-summary",
            "Accuracy Summary | {first} vs. {second} | Passed: {passed} | Pass Rate: {rate}",
            "Accuracy Summary | a vs. b | Passed: 1/1 iterations | Pass Rate: 100.0%",
        ),
        says(
            "validated",
            "Output Validation | Runners: {runners}",
            "Output Validation | Runners: ['onnxrt-runner-N0-07/02/26-03:46:28']",
        ),
        says(
            "module-loaded",
            "Loaded Module: {module} | Version: {version} | Path: {path}",
            "Loaded Module: numpy | Version: 1.25.1 | Path: ['/usr/lib/python3/dist-packages/numpy']",
            "Loaded Module: numpy              | Version: 1.22.3 | Path: ['/usr/local/lib/python3.8/dist-packages/numpy']",
        ),
        says("module-plain", "Loaded Module: {module:word}", "Loaded Module: fcntl"),
        row(
            "runner",
            r"(?P<runner>[\w-]+-runner-N\d+-\d\d/\d\d/\d\d-\d\d:\d\d:\d\d)\s*(?:\| (?P<message>.+))?:?",
            "trt-runner-N0-08/24/23-07:55:00",
            "trt-runner-N0-08/24/23-07:55:00     | Activating and starting inference",
        ),
        row(
            "tensor-described",
            r"\{?(?P<tensor>\S+) \[(?:dtype=(?P<dtype>\w+), )?shape=(?P<shape>[^\]]*)\][,}]{0,2}",
            "{x [dtype=float32, shape=(4, 1, 28, 28)]}",
        ),
        says("extensions", "Loaded extension modules: {modules}", "Loaded extension modules: []"),
        says("inputs-loading", "Loading inputs from data loader", "Loading inputs from data loader"),
        says("seed", "Generating data using numpy seed: {seed:int}", "Generating data using numpy seed: 1"),
        says(
            "input-planned",
            "Input tensor: {tensor} | {plan}",
            "Input tensor: x | Generating input data in range: [0.0, 1.0]",
        ),
        says(
            "input-metadata",
            "Will generate inference input data according to provided TensorMetadata: {metadata}",
            "Will generate inference input data according to provided TensorMetadata: {x [shape=(4, 1, 28, 28)]}",
        ),
        says(
            "runner-metadata",
            "Runner input metadata is: {metadata}",
            "Runner input metadata is: {tensor-0 [dtype=float32, shape=('B', 1, 28, 28)]}",
        ),
        says(
            "data-advice",
            "If this is incorrect, please provide a custom data loader.",
            "If this is incorrect, please provide a custom data loader.",
        ),
        says(
            "static-shape",
            "This will cause the tensor to have a static shape. {advice}",
            "This will cause the tensor to have a static shape. If this is incorrect, please set the range of shapes for this input tensor.",
        ),
        says(
            "histogram-missing",
            "Could not generate histogram. Note: Error was: {error}",
            "Could not generate histogram. Note: Error was: autodetected range of [inf, inf] is not finite",
        ),
        says(
            "onnxruntime-session",
            "Creating ONNX-Runtime Inference Session with providers: {providers}",
            "Creating ONNX-Runtime Inference Session with providers: ['CPUExecutionProvider']",
        ),
        says(
            "cuda-libraries",
            "Found candidate CUDA libraries: {paths}",
            "Found candidate CUDA libraries: ['/usr/local/cuda/lib64/libcudart.so']",
        ),
        says("ran", "Successfully ran: {runners}", "Successfully ran: ['trt-runner-N0-08/24/23-07:55:00']"),
        says("saving", "Saving {what} to {path}", "Saving tactic replay file to model-trained-tactics.json"),
        says(
            "saving-later",
            "Will save {what} to: {path}",
            "Will save runner results to: model-trained-output.json",
        ),
        says("loading", "Loading {what} from {path}", "Loading bytes from model-trained.trt"),
        says(
            "loading-file",
            "Loading {what}: {path}",
            "Loading plugin library: ./AddScalarPlugin.so",
            "Loading model: model.onnx",
        ),
        says(
            "postprocessing",
            "Executing postprocessing step [{step}]",
            "Executing postprocessing step [ModifyNetworkOutputs]",
        ),
        says(
            "tf32",
            "TF32 is {state:word} by default. {advice}",
            "TF32 is disabled by default. Turn on TF32 for better performance with minor accuracy differences.",
        ),
        says(
            "timing-cache-off",
            "Timing cache disabled. {advice}",
            "Timing cache disabled. Turning it on will improve builder speed.",
        ),
        says(
            "timing-cache-disabled",
            "Disabling tactic timing cache because {reason}",
            "Disabling tactic timing cache because algorithm selector is enabled.",
        ),
        says(
            "dtype-late",
            "Tensor DataType is determined at build time {rest}",
            "Tensor DataType is determined at build time for tensors not marked as input or output.",
        ),
        says(
            "engine-finished",
            "Finished engine building in {seconds:num} seconds",
            "Finished engine building in 16.696 seconds",
        ),
        says(
            "profiles-setting",
            "Setting TensorRT Optimization Profiles",
            "Setting TensorRT Optimization Profiles",
        ),
        says("configuring", "Building engine with configuration:", "Building engine with configuration:"),
        says(
            "profiles-heading",
            "Configuring with profiles:{list?}",
            "Configuring with profiles:[",
            "Configuring with profiles: [Profile().add('x', min=[1], opt=[1], max=[1])]",
        ),
        row(
            "layer-inspected",
            r"Layer (?P<index>\d+)\s*\| (?P<layer>\S.*) \[Op: (?P<op>[\w.]+)\]",
            "Layer 23   | ONNXTRT_castHelper_8 [Op: LayerType.CAST]",
        ),
        row(
            "tensors-inspected",
            r"\{(?P<inputs>[^{}]*)\}\s*-> \{(?P<outputs>[^{}]*)\}?",
            "{} -> {gemm1.weight_output [dtype=float32, shape=(1024, 3136)]}",
        ),
        row(
            "attribute-inspected",
            r"(?P<layer>\S.{0,300})\.(?P<attribute>[a-z]\w{0,40}) = (?P<value>.*)",
            "node_relu_1.alpha = 0.0",
            "(Unnamed Layer* 24) [Constant].shape = (1,)",
        ),
    ),
    sections=(
        Section(
            opens="polygraphy-begins",
            rows=(row("model-file", r"Model: (?P<path>.+)", "Model: model.onnx"),),
        ),
        Section(
            opens="configuring",
            rows=(
                row(
                    "configuration",
                    r"(?P<key>[A-Z][\w ]{1,40}?)\s*\| (?P<value>.*)",
                    "Profiling Verbosity    | ProfilingVerbosity.DETAILED",
                ),
                row("configuration-more", r"(?P<value>\[.*\]|.*\])", "[FP16, DISABLE_TIMING_CACHE]"),
            ),
        ),
        Section(
            opens="profiles-heading",
            rows=(
                row("profile-heading", r"(?P<title>Profile \d+):", "Profile 0:"),
                row(
                    "profile-shapes",
                    r"[{ ]*(?P<tensor>\S+) \[min=(?P<low>[^=]{0,2000}), opt=(?P<opt>[^=]{0,2000}), max=(?P<high>[^=]{0,2000})\][}, ]{0,9}",
                    "{x [min=[1, 1, 28, 28], opt=[4, 1, 28, 28], max=[16, 1, 28, 28]]}",
                ),
                row("profiles-end", r"(?P<mark>\])", "]"),
            ),
        ),
    ),
)
