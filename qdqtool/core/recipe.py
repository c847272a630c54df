"""A recipe: all settings of `qdqtool run`, in one validated document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from qdqtool.core.target import Target, target_of
from qdqtool.errors import UsageError

Pair = tuple[int, int]


def _words(value: object) -> object:
    """Turn a single word of a recipe into a list, and numbers into words (86 into "86")."""
    if isinstance(value, (str, int)):
        return (str(value),)
    return (
        [str(entry) if isinstance(entry, int) else entry for entry in value]
        if isinstance(value, list)
        else value
    )


def _word(value: object) -> object:
    """Turn an integer of a recipe into a word. Refuse decimals, which may have lost a zero (10.1 for 10.10)."""
    if isinstance(value, float):
        raise ValueError(f"a release is a text: write it in quotes, as '\"{value}\"'")  # noqa: TRY004 - pydantic wants it
    return str(value) if isinstance(value, int) else value


def _target(value: str) -> str:
    """Return the canonical spelling of a recipe's target builder."""
    try:
        return Target.parse(value).name
    except UsageError as error:
        raise ValueError(f"{error.what}; {error.fix}") from error


def _architectures(value: tuple[str, ...]) -> tuple[str, ...]:
    """Return GPU architectures as "86", from every spelling."""
    return tuple(target_of(word).removeprefix("sm") for word in value)


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Architectures = Annotated[tuple[str, ...], BeforeValidator(_words), AfterValidator(_architectures)]


@dataclass(frozen=True, slots=True)
class Naming:
    """Annotation of a recipe field that contains names of nodes, tensors or operators, so that `pipeline.recipe_mistakes` can check them.

    Attributes:
        kind: "node" and "tensor" are globs on names, "operator" is an operator type.
    """

    kind: Literal["node", "tensor", "operator"]


Format = Literal["int8", "fp8", "int8-weights", "int4-weights", "nvfp4", "mxfp8", "float"]
"""The names of `qdqtool.core.tensors.SCHEMES`; a test checks that both are equal."""


class RecipeSection(BaseModel):
    """A section of a recipe: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Preprocess(RecipeSection):
    """Conversion of a raw image or array to a model input: `(value * scale - mean) / std`."""

    resize: Annotated[int, Field(gt=0)] | Pair | None = None
    """Images: length of the short side in pixels, or [height, width]."""
    crop: Annotated[int, Field(gt=0)] | Pair | None = None
    """Images: central crop, one side or [height, width]."""
    letterbox: Pair | None = None
    """Images: fit into [height, width] keeping the aspect ratio, padded with `pad`."""
    anchor: Literal["center", "top-left"] = "center"
    """Position of the image within the letterbox."""
    pad: Annotated[int, Field(ge=0, le=255)] = 114
    """Pixel value of the letterbox border."""
    colour: Literal["rgb", "bgr", "gray"] = "rgb"
    """Order of the colour channels."""
    scale: float = 1.0
    """Factor on the raw value, before mean and std (1/255 = 0.00392156862745098). Raw pixel values are 0 to
    255, also for 16-bit images.
    """
    mean: tuple[float, ...] = (0.0,)
    """Mean that is subtracted after scaling, one value or one per channel."""
    std: tuple[Annotated[float, Field(gt=0)], ...] = (1.0,)
    """Divisor after subtraction of the mean, one value or one per channel."""
    layout: Literal["nchw", "nhwc", "as-is"] = "nchw"
    """Order of dimensions that the model expects; "as-is" does not change the order."""
    arrays: bool = False
    """Preprocess arrays (.npz, .npy) like images, which are always preprocessed: raw NHWC values such as 0-255."""
    reshape: tuple[int, ...] | None = None
    """Shape of one sample without the batch dimension, applied last."""


_UNIT: Final = 1 / 255  # from 0..255, as pictures are stored, to 0..1
PRESETS: Final[dict[str, dict[str, object]]] = {
    "imagenet": {
        "scale": _UNIT,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "colour": "rgb",
    },
    "imagenet-inception": {"scale": _UNIT, "mean": (0.5,), "std": (0.5,), "colour": "rgb"},
    "yolo": {"scale": _UNIT, "mean": (0.0,), "std": (1.0,), "colour": "rgb"},
    "clip": {
        "scale": _UNIT,
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
        "colour": "rgb",
    },
    "caffe": {"scale": 1.0, "mean": (103.939, 116.779, 123.68), "std": (1.0,), "colour": "bgr"},
}
"""Pixel values of common model families, by the name that `--preprocess` accepts: torchvision and timm,
Inception and MobileNet of TensorFlow, Ultralytics, OpenAI's CLIP, and Caffe.
"""


def _preset(value: object) -> object:
    """Replace the name of a preset by its mapping; leave other values unchanged."""
    if not isinstance(value, str):
        return value
    if value not in PRESETS:
        raise ValueError(f"unknown preset {value!r}: choose {', '.join(PRESETS)}")
    return dict(PRESETS[value])


class SampleOptions(RecipeSection):
    """Calibration samples and their preprocessing."""

    limit: Annotated[int, Field(gt=0)] | None = None
    """Largest number of calibration samples; None uses all."""
    nan: Literal["error", "skip"] = "error"
    """Samples with NaN or Inf, and NaN or Inf inside the model during calibration. error: stop. skip: leave
    them out and count them.
    """
    preprocess: Annotated[Preprocess, BeforeValidator(_preset)] = Preprocess()
    """Conversion of images to inputs: values, or the name of a preset (imagenet, imagenet-inception, yolo, clip, caffe)."""
    sources: dict[str, str] = {}
    """Source of each value of `preprocess`: "given", "read from ..." or "guessed". A run writes it."""


Given = bool | int | float | tuple[float, ...]
"""The value of an input that becomes a constant."""


class PrepareOptions(RecipeSection):
    """Simplifications of the model before placement."""

    constants: dict[str, Given] = {}
    """Inputs that become constants, with their values. `{sr: 16000}` makes an engine for one sampling rate,
    and decides the branches of an If that depends on it. One number fills the whole input; a list gives all
    of its values.
    """
    fold_constants: bool = True
    """Fold nodes that depend only on constants."""
    einsum: bool = True
    """Replace an Einsum that is a matrix product, and a DFT of up to 1024 complex numbers, by a MatMul, which TensorRT can
    quantize.
    """
    attention: bool = True
    """Replace Attention (opset 23 and newer) by MatMul, Softmax and MatMul, which TensorRT quantizes and
    fuses. Also replace norms, attentions and activations of com.microsoft by ONNX operators.
    """
    conv_transpose: bool = True
    """Replace a ConvTranspose of stride 1 by an equivalent Conv, for which TensorRT has INT8 kernels."""
    strided_conv_transpose: bool | None = None
    """Also replace a ConvTranspose with strides, by a Conv that computes all places between two steps, and a
    DepthToSpace. None: only if this saves bytes, that is for TensorRT for RTX, which has no INT8 kernel for
    ConvTranspose, with an FP32 float part. Needs `conv_transpose`.
    """
    flatten: bool | None = None
    """Give matrix products that read the result of an attention a two-dimensional input, so that their kernel
    dequantizes stored weights. None: only if the recipe quantizes weights alone.
    """
    copy_outputs: bool | None = None
    """Write each floating-point output, and each tensor that the body of an If, Loop or Scan reads, through an Identity
    node, whose input can be quantized. None: only with place.every_tensor.
    """
    join_projections: bool | None = None
    """Join the MatMuls that compute queries, keys and values of an attention, so that a single Q before the
    split serves all. None: only for TensorRT for RTX with INT8 or FP8 activations, where each attention then
    has two kernels fewer.
    """
    not_joined: Annotated[Words, Naming("node")] = ()
    """MatMuls that stay alone: glob patterns on node names. Patterns of other sections count too, if they select some
    of the MatMuls only.
    """
    bound_masks: bool | None = None
    """Write a computed mask of an attention as a choice between scores and -30000, without the guard against NaN that
    PyTorch writes after the Softmax. None: only for TensorRT for RTX, which fuses no attention with a guard in INT8 and
    FP8.
    """
    transposes: Literal["keep", "cancel", "move"] | None = None
    """Move Transposes through other operators. keep: as exported. cancel: only if fewer remain. move: also if more remain,
    which saves kernels of some networks and adds a few to others. Tensors whose values are then in another order get
    other names. None: cancel for TensorRT for RTX, else keep.
    """
    fold_batchnorm: bool = True
    """Fold BatchNormalization into the Conv, ConvTranspose or Gemm before it."""


class PlacementOptions(RecipeSection):
    """Placement of Q/DQ nodes."""

    ops: Words = (
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "Add",
        "Concat",
        "MaxPool",
        "AveragePool",
    )
    """Operator types that the rules may quantize."""
    exclude: Annotated[Words, Naming("node")] = ()
    """Nodes kept float: glob patterns on node names."""
    kept_float: Words = ()
    """Nodes that stay float to keep an accuracy limit, by name. `qdqtool run --max-drop` writes them into the
    recipe of its run.
    """
    exclude_ops: Annotated[Words, Naming("operator")] = ()
    """Operator types kept float."""
    only: Annotated[Words, Naming("node")] = ()
    """If given, only nodes whose name matches one of these globs are quantized."""
    first_layer: Literal["int8", "float"] = "int8"
    """Format of the first weighted node after each input."""
    last_layer: Literal["int8", "float"] = "int8"
    """Format of the last weighted node before each output."""
    computed_ops: Words = ()
    """Plug-in operators that calibration can compute, as domain::Op; "*" for all. A run takes them from
    `runtime` if that names any.
    """
    every_tensor: bool = False
    """Quantize every floating-point tensor that a node reads, against all rules except the names of nodes to keep
    float. DLA needs this: it runs a part of the network in INT8 only if all tensors in it have a scale.
    """
    min_channels: Annotated[int, Field(ge=0)] = 0
    """Weighted nodes with fewer input or output channels stay float (the network's input channels excepted)."""
    per_channel: bool = True
    """Use one scale per output channel for weights."""
    activations: Literal["int8", "float"] = "int8"
    """Format of the run-time inputs of weighted nodes. float: quantize weights only; the arithmetic stays float."""
    format: Format = "int8"
    """Number format of compute nodes: int8 and fp8 for weights and activations, int8-weights and int4-weights
    for weights only, nvfp4 and mxfp8 in blocks of 16 and 32.
    """
    formats: Annotated[dict[str, Format], Naming("node")] = {}
    """Formats by node-name glob; the first match wins; "float" keeps a node float."""
    block: Literal[0, 16, 32, 64, 128] = 0
    """Number of values along the reduction axis that share a scale of INT4 weights; 0 uses the largest up to 128 that fits."""
    kv_cache: Literal["float", "int8", "fp8"] = "float"
    """Type of the keys and values that a decoder passes to its next step. float: as exported. int8, fp8: this
    type, which also changes the type of these model inputs and outputs.
    """
    skip_rules: Words = ()
    """Rules to skip."""
    target: Annotated[str, BeforeValidator(_word), AfterValidator(_target)] = "rtx"
    """Builder to place for: rtx, a family of TensorRT (8, 10, 11) or a release (8.6.1, 10.13, rtx-1.7.1)."""
    sm: Architectures = ()
    """GPU architectures to place for, as "75"; empty means SM80 and newer."""

    float_type: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type of the float part in the engine; a run takes it from insert.types. It decides whether a float
    attention is one kernel.
    """

    @property
    def builder(self) -> Target:
        """The target builder together with its GPU architectures."""
        return Target.parse(self.target, self.sm, where="place.sm")


AUTO: Final = "auto"
"""The setting `auto`: use the calibrator, or the mixture of calibrators, with the lowest noise at the network's outputs."""


class CalibrationOptions(RecipeSection):
    """Options for choosing the ranges of activations."""

    method: str = AUTO
    """Calibrator for activations: a file in `calibrators/methods`, or auto, which chooses by the noise of the
    network's outputs.
    """
    percentile: Annotated[float, Field(gt=0, le=100)] = 99.99
    """Percentage of magnitudes that the percentile calibrator keeps."""
    weights: Literal["max", "mse"] = "max"
    """Calibrator for weights."""
    overrides: Annotated[dict[str, str], Naming("tensor")] = {}
    """Calibrators by tensor-name glob; the first match wins."""
    shrink: Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], Naming("tensor")] = {}
    """Factors on ranges by tensor-name glob; the first match wins. They cut tails if a sweep showed that this helps."""
    symmetric: Literal["auto", "always", "never"] = AUTO
    """Zero points for activations whose values are all or mostly on one side of 0, as after Relu and Gelu.
    TensorRT has no zero points: a constant is subtracted before Q and added back in the next bias. always:
    symmetric ranges without zero points. never: zero points wherever they can be written. auto: zero points
    if `method` is auto, the outputs gain and a build has no more kernels. Without a build, the gain must be
    significant and exceed 0.3 dB. For classic
    TensorRT, auto and never use only zero points that need no extra node, because no build was tested.
    """
    zero_point_bytes: Annotated[float, Field(ge=0)] = 0.02
    """With symmetric=auto: largest growth of the engine's activation bytes, as a share, for a gain of up to 1 dB."""
    bias: Literal["keep", "correct"] = "keep"
    """correct: adjust the biases so that every layer keeps its mean output (32 samples, no cost in the engine). With
    `method` auto, the biases stay if this makes the outputs noisier.
    """


class WeightOptions(RecipeSection):
    """Preparation of weights for low-bit formats, based on the activations of the samples."""

    rounding: Literal["auto", "nearest", "mse", "seqmse", "adaround", "gptq"] = AUTO
    """nearest: round to nearest. mse: nearest, with scales of the smallest squared error (as
    calibrate.weights=mse). seqmse: nearest, with scales of the lowest noise at the layer's output. adaround:
    round each weight of an integer format up or down; gptq for other formats. gptq: errors of a layer's
    weights cancel in its output. auto: gptq if calibrate.method is auto and the network's outputs gain more
    than 0.3 dB, else nearest.
    """
    equalize: Literal["none", "cross-layer", "smooth", "rotate", "depthwise", "awq", "auto"] = AUTO
    """Scaling of channels that reduces quantization errors of weights or activations without a change of the
    network's function. cross-layer: weights of consecutive layers. smooth: SmoothQuant; for TensorRT for RTX
    also by a Mul, where no constant can take the factors. rotate: the stream
    between RMS norms of a transformer, by a Hadamard matrix. depthwise: inputs of depthwise convolutions. awq: weight-only formats. auto: outlier channels and inputs of depthwise
    convolutions, if weights, histograms or samples predict a gain and the network's outputs gain more than
    0.3 dB.
    """

    @property
    def rounds_by_outputs(self) -> bool:
        """True if weights are rounded for the least error at the outputs of their layers. This needs samples."""
        return self.rounding in {"seqmse", "adaround", "gptq"}


class InsertOptions(RecipeSection):
    """Options for writing the Q/DQ model."""

    types: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type of everything that is not quantized."""
    weights: Literal["qdq", "int8", "stored"] = "qdq"
    """qdq: float weights before Q and DQ. stored: weights stored in their format before a DQ only (FP8 and
    INT8: 4 times smaller). Formats with blocks, and weights of compute nodes with float activations, are
    always stored. "int8" is an older name for "stored".
    """
    blocks: Literal["computed", "constant"] = "computed"
    """Block scales of NVFP4 activations. computed: a scale per block of 16, computed in every inference. constant:
    one constant scale for all blocks. This needs fewer kernels (one instead of three before a compute node) and only
    ONNX operators, but has the accuracy of 4 bits per tensor. After LayerNormalization, Softmax and other sums along
    the blocks, scales are always computed, because TensorRT for RTX 1.7.1 fails to build constant ones there.
    """
    keep_io: bool = True
    """With fp16 and bf16: model inputs and outputs stay FP32."""
    keep_nodes: Annotated[Words, Naming("node")] = ()
    """With fp16 and bf16: nodes that stay FP32, as globs on their names."""
    narrow_nodes: Annotated[Words, Naming("node")] = ()
    """With fp16 and bf16: if given, only nodes whose names match one of these globs compute in that type."""
    keep_ops: Annotated[Words, Naming("operator")] = (
        "CumSum",
        "Exp",
        "LpNormalization",
        "MeanVarianceNormalization",
        "Pow",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    )
    """With fp16 and bf16: operators that stay FP32, because they compute large values from small ones."""
    overflow: Literal["ignore", "name", "keep"] = "keep"
    """With fp16 and samples: run the samples to find tensors that would become infinite or lose precision.
    keep: nodes that touch such a tensor stay FP32. name: only report these tensors. ignore: skip the check.
    """
    overflow_samples: Annotated[int, Field(gt=0)] = 16
    """Number of samples that are run for the overflow check."""


class BuildOptions(RecipeSection):
    """Options of the engine build."""

    builder: str = "rtx"
    """Name of a file in `qdqtool/backends/builders`."""
    sm: Architectures = ("86",)
    """GPU architectures, as "86" for SM86."""
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Wall-clock limit in seconds."""
    stack_mib: Annotated[int, Field(ge=8)] = 1024
    """Stack size of the build process in MiB."""
    flags: str = ""
    """More options in trtexec's spelling, such as "--builderOptimizationLevel=5"."""
    fp16: bool = True
    """Also build the network in FP16, so that the report can say whether the quantized engine is faster."""
    plugins: Words = ()
    """Libraries of TensorRT plug-ins. Loading one runs its code, so a recipe that names one needs --trust."""
    retries: Annotated[int, Field(ge=0)] = 3
    """Largest number of nodes whose Q/DQ may be removed because no kernel exists."""
    min_shapes: str = ""
    """Smallest shapes of dynamic inputs, as "input:1x3x224x224,other:1x8"."""
    opt_shapes: str = ""
    """Usual shapes of dynamic inputs."""
    max_shapes: str = ""
    """Largest shapes of dynamic inputs."""


class AuditOptions(RecipeSection):
    """Conditions for exit code 1, and findings to ignore."""

    fail_on: Literal["error", "warning", "info", "bad", "doubtful", "never"] = "never"
    """Exit with 1 if a finding is at least this severe, or if `run` ends with this verdict or a worse one."""
    fail_on_unrealised: bool = False
    """Exit with 1 if a node does not run in the format that its Q/DQ asks for."""
    ignore: Words = ()
    """Codes or names of checks whose findings are not reported, each with a reason: "QDQ210=known and measured"."""


class CompareOptions(RecipeSection):
    """Options of the accuracy check."""

    metrics: Words = ("cosine", "sqnr_db", "max_abs")
    """Names of files in `qdqtool/accuracy/metrics`."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Largest number of evaluation samples; None uses all."""
    output: str = ""
    """Output with the class scores; empty uses the first one."""
    task: Literal["classify", "agreement", "segment", "text", "tokens", "none"] = "classify"
    """classify: top-1 and top-5, with labels; next token and perplexity for a model that reads tokens and returns
    logits. agreement: share of samples, or of tokens, for which both runners agree on the class. segment: share of
    pixels that keep their class, or overlap of a single object. text: share of characters that greedy CTC decoding still reads.
    tokens: share of tokens that keep their class, without those that an attention mask leaves out. Probabilities at each
    pixel or position are found without `segment`, `text` or `tokens`; logits are not.
    """
    extra_columns: Annotated[int, Field(ge=0)] = 0
    """Values at the end of each detection that are neither box nor class: mask coefficients, keypoints. They are
    compared with those of the reference.
    """
    max_drop: Annotated[float, Field(ge=0)] | None = None
    """Exit with 1 if the task metric falls by more than this many points."""


class AccuracyOptions(RecipeSection):
    """Accuracy limit of the quantized model; nodes stay float until the model keeps it."""

    max_drop: Annotated[float, Field(ge=0)] | None = None
    """Largest allowed loss in points of the task metric; needs labels, or compare.task=agreement."""
    min_sqnr: float | None = None
    """Least SQNR of the outputs in dB."""
    confidence: Annotated[float, Field(ge=0.5, lt=1)] | Literal[0] = 0.9
    """Required confidence that other samples keep the limit too, as far as the evaluation samples show it. 0:
    check only the evaluation samples.
    """
    samples: Annotated[int, Field(gt=0)] = 32
    """Number of calibration samples on which single nodes and sets of nodes are measured. The limit itself is
    checked on all evaluation samples.
    """
    alternatives: Annotated[tuple[Literal["fp8", "fp16"], ...], BeforeValidator(_words)] = ("fp8", "fp16")
    """Types for nodes that leave INT8, used only if the limit still holds and the target supports them: FP8
    from SM89 on, FP16 if the float part is FP32. The fastest engine (estimated) that keeps the limit is used.
    []: these nodes use the type of the float part.
    """


FORMATS_OF: Final = "place.formats."
"""Prefix of a key of `sweep.space`. A glob follows, and the key chooses the format of the nodes whose names match it."""


class SweepOptions(RecipeSection):
    """Search options of `qdqtool sweep`."""

    space: dict[str, tuple[str | int | float | bool, ...]] = {
        "calibrate.method": ("auto", "all"),
        "calibrate.weights": ("max", "mse"),
    }
    """Values to try for each key of the recipe. "all" calibrators are those that compete with each other; "auto"
    also tries zero points and what else improves ranges.
    "place.formats.*mlp*": [int8, fp8] tries formats for the nodes that match the glob.
    """
    keep_float: tuple[Annotated[int, Field(ge=0)], ...] = (0, 1, 2, 4)
    """Numbers of most sensitive nodes to keep float; each number is tried."""
    tune: Annotated[int, Field(ge=0)] = 0
    """Number of most sensitive nodes whose input range is searched too, each separately."""
    factors: tuple[Annotated[float, Field(gt=0, le=1)], ...] = (1.0, 0.85)
    """Factors on the input ranges that `tune` searches."""
    sampler: Literal["gain", "grid", "tpe", "nsga2"] = "gain"
    """gain: all combinations, the most promising first, based on the gain of each value in finished trials.
    grid: all combinations in a fixed order. tpe, nsga2: some combinations, drawn by Optuna's samplers.
    """
    hold_back: bool | None = None
    """Measure trials on every other evaluation sample, and measure the Pareto front again on the rest, which had no
    part in the choice. None: only if each half has 64 samples or more.
    """
    speed: Literal["estimated", "engine", "measured", "none"] = "estimated"
    """Source of times. estimated: engine time estimated for `device`. engine: engine time measured on the
    local GPU. measured: latency measured with onnxruntime on `compute.device`. none: accuracy only.
    """
    device: str = ""
    """GPU for which engine time is estimated. Empty: the first known GPU of the architectures in build.sm, or
    NVIDIA A10 if none of these is known.
    """
    seed: int = 0
    """Random seed of the samplers."""


class ComputeOptions(RecipeSection):
    """Device on which onnxruntime runs models for calibration, comparison and search."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, tensorrt, rtx, openvino, or the path of a plug-in provider library, which needs
    --trust in a recipe. Provider options follow after a colon: cuda:0,gpu_mem_limit=2147483648.
    """


class OperatorOptions(RecipeSection):
    """Libraries and functions for operators that onnxruntime lacks, such as those of TensorRT plug-ins."""

    custom_ops: Words = ()
    """Libraries of custom operators for onnxruntime. Loading one runs its code, so a recipe that names one needs --trust."""
    stand_ins: dict[str, str] = {}
    """NumPy functions by operator: `{"my.domain::Op": "module:function"}`, or "file.py:function". The
    function takes the inputs, and the attributes as keywords, and returns the output or a tuple of outputs. A
    recipe that names one needs --trust.
    """


class QatOptions(RecipeSection):
    """Options of `qdqtool qat run`, which fine-tunes a PyTorch network with quantizers."""

    model: str = ""
    """Function that returns the trained float network: module:function, or file.py:function next to the recipe."""
    data: str = ""
    """Function that takes a split ("train", "validate", "test") and returns (inputs, targets), a dataset, or batches."""
    engine: str = "own"
    """Library that computes the fake quantization: own, pytorch_quantization or modelopt."""
    scales: Literal["learned", "fixed"] = "learned"
    """learned: training changes the scales (LSQ). fixed: the scales keep their calibrated values."""
    epochs: Annotated[int, Field(ge=0)] = 10
    """Epochs: passes over the training samples."""
    batch: Annotated[int, Field(gt=0)] = 64
    """Samples per step."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """adam: AdamW. sgd: SGD with Nesterov momentum 0.9."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.0005
    """Highest learning rate of the weights."""
    scale_rate: Annotated[float, Field(ge=0)] = 1.0
    """Factor on the learning rate of learned scales."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of the weights; scales have none."""
    clip_gradient: Annotated[float, Field(ge=0)] = 0.0
    """Largest norm of the gradient; 0 does not limit it."""
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    """Number of epochs in which the learning rate rises."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Schedule of the learning rate after the warm-up."""
    batchnorm: Literal["freeze", "fold"] = "freeze"
    """freeze: keep BatchNorm and freeze its statistics. fold: fold it into the weights before training."""
    freeze_epoch: Annotated[int, Field(ge=0)] = 0
    """With freeze: number of epochs that still update the statistics."""
    distill: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the loss that is the distance to the float network's outputs; 1 needs no labels."""
    temperature: Annotated[float, Field(gt=0)] = 4.0
    """Temperature of the distillation."""
    loss: str = "cross_entropy"
    """cross_entropy, mse, or a function of outputs and targets."""
    metric: str = "top1"
    """Metric that chooses the best epoch: top1, loss (lower is better), or a function of the outputs and
    targets of all samples of a split (higher is better), which is then also measured on the three models.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device for training."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Number of CPU threads of torch; 0 uses torch's default. Small networks are much faster with 1."""
    mixed: bool = True
    """On a GPU: compute the steps of the training in bfloat16 where torch's autocast does; validation is in FP32."""
    exporter: Literal["legacy", "dynamo"] = "legacy"
    """ONNX exporter of torch."""
    opset: Annotated[int, Field(ge=17, le=20)] = 17
    """ONNX opset of the export; the dynamo exporter needs 18 or newer."""
    seed: int = 0
    """Random seed, also for the order of the samples."""
    tensorboard: bool = False
    """Also write logs for TensorBoard."""


class Recipe(RecipeSection):
    """All settings of `qdqtool run`, without data."""

    name: str = "custom"
    """Name of this recipe in reports."""
    description: str = ""
    """Purpose of this recipe, in one sentence."""
    optional: Words = ()
    """Patterns and operator types of this recipe that may match nothing in a model; all others must match.
    Entries are globs on the text of the patterns: "*" allows all.
    """
    samples: SampleOptions = SampleOptions()
    prepare: PrepareOptions = PrepareOptions()
    place: PlacementOptions = PlacementOptions()
    calibrate: CalibrationOptions = CalibrationOptions()
    weights: WeightOptions = WeightOptions()
    insert: InsertOptions = InsertOptions()
    build: BuildOptions = BuildOptions()
    audit: AuditOptions = AuditOptions()
    compare: CompareOptions = CompareOptions()
    accuracy: AccuracyOptions = AccuracyOptions()
    runtime: OperatorOptions = OperatorOptions()
    sweep: SweepOptions = SweepOptions()
    compute: ComputeOptions = ComputeOptions()
    qat: QatOptions = QatOptions()

    @property
    def weight_ranges(self) -> str:
        """The calibrator of weights, "max" or "mse"."""
        return "mse" if self.weights.rounding == "mse" else self.calibrate.weights

    @property
    def float_type(self) -> Literal["fp32", "fp16", "bf16"]:
        """Type in which the float part computes; single nodes may have another type."""
        return "fp32" if self.insert.narrow_nodes else self.insert.types

    @property
    def preparing(self) -> PrepareOptions:
        """Options of preparation, with missing values completed from other sections."""
        alone = any(word.endswith("-weights") for word in (self.place.format, *self.place.formats.values()))
        derived: dict[str, object] = {"not_joined": (*self.prepare.not_joined, *self._named_nodes)}
        if self.prepare.join_projections is None:
            is_low = self.place.format in {"int8", "fp8"} and self.place.activations != "float" and not alone
            derived["join_projections"] = self.place.builder.is_rtx and is_low
        if self.prepare.copy_outputs is None:
            derived["copy_outputs"] = self.place.every_tensor
        if self.prepare.bound_masks is None:
            derived["bound_masks"] = self.place.builder.is_rtx
        if self.prepare.transposes is None:
            derived["transposes"] = "cancel" if self.place.builder.is_rtx else "keep"
        if self.prepare.flatten is None:
            derived["flatten"] = alone or self.place.activations == "float"
        if self.prepare.strided_conv_transpose is None:
            wide = self.float_type == "fp32" and self.place.activations != "float" and not alone
            derived["strided_conv_transpose"] = self.place.builder.is_rtx and wide
        return self.prepare.model_copy(update=derived)

    @property
    def preparing_by_name(self) -> PrepareOptions:
        """`preparing` without the changes that rename tensors or reorder their values.

        For QAT and for reading scales back, which find tensors by name.
        """
        return self.preparing.model_copy(update={"join_projections": False, "transposes": "keep"})

    @property
    def _named_nodes(self) -> tuple[str, ...]:
        """The patterns of all sections that select nodes or tensors by name."""
        sections = (self.place, self.calibrate, self.insert)
        return tuple(
            pattern
            for section in sections
            for name, field in type(section).model_fields.items()
            if any(isinstance(mark, Naming) and mark.kind != "operator" for mark in field.metadata)
            for pattern in getattr(section, name)
        )

    @property
    def placing(self) -> PlacementOptions:
        """The options of placement, with values that other sections of the recipe determine."""
        derived: dict[str, object] = {} if self.place.sm else {"sm": self.build.sm}
        if self.float_type != "fp32":
            derived["float_type"] = self.float_type
        if self.runtime.custom_ops or self.runtime.stand_ins:
            derived["computed_ops"] = ("*",) if self.runtime.custom_ops else tuple(self.runtime.stand_ins)
        return self.place.model_copy(update=derived)
