"""A recipe: everything the straight line can be told, in one checked document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from qdqtool.core.target import Target
from qdqtool.errors import UsageError

Pair = tuple[int, int]


def _words(value: object) -> object:
    """One word stands for a list of one; numbers are words too (86 for "86")."""
    if isinstance(value, (str, int)):
        return (str(value),)
    return (
        [str(entry) if isinstance(entry, int) else entry for entry in value]
        if isinstance(value, list)
        else value
    )


def _word(value: object) -> object:
    """One word; a number with a point may have lost a zero (10.1 for 10.10), so it must be quoted.

    Raises:
        ValueError: it is such a number.
    """
    if isinstance(value, float):
        raise ValueError(f"a release is a text: write it in quotes, as '\"{value}\"'")  # noqa: TRY004 - pydantic wants it
    return str(value) if isinstance(value, int) else value


def _target(value: str) -> str:
    """One spelling per builder."""
    try:
        return Target.parse(value).name
    except UsageError as error:
        raise ValueError(f"{error.what}; {error.fix}") from error


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


@dataclass(frozen=True, slots=True)
class Naming:
    """Marks a field of a recipe whose entries (of a mapping: keys) name parts of a model; see `pipeline.patterns`.

    Attributes:
        kind: "node" and "tensor" are globs on names, "operator" is an operator type.
    """

    kind: Literal["node", "tensor", "operator"]


Format = Literal["int8", "fp8", "int8-weights", "int4-weights", "nvfp4", "mxfp8", "float"]
"""The names of `qdqtool.core.quant_format.SCHEMES`; a test keeps the two alike."""


class RecipeSection(BaseModel):
    """A part of a recipe: frozen, and unknown names are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Preprocess(RecipeSection):
    """How a raw image or array becomes a model input: `(value * scale - mean) / std`."""

    resize: Annotated[int, Field(gt=0)] | Pair | None = None
    """Images: length of the short side in pixels, or [height, width]."""
    crop: Annotated[int, Field(gt=0)] | Pair | None = None
    """Images: central crop, one side or [height, width]."""
    letterbox: Pair | None = None
    """Images: fit into [height, width] keeping the aspect ratio, padded with `pad`."""
    anchor: Literal["center", "top-left"] = "center"
    """Where letterbox puts the image."""
    pad: Annotated[int, Field(ge=0, le=255)] = 114
    """Pixel value of the letterbox border."""
    colour: Literal["rgb", "bgr", "gray"] = "rgb"
    """Order of the colour channels."""
    scale: float = 1.0
    """Factor on the raw value, before mean and std (1/255 = 0.00392156862745098). Pictures hold 0 to 255, those of 16 bits too."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted after scaling, one value or one per channel."""
    std: tuple[Annotated[float, Field(gt=0)], ...] = (1.0,)
    """Divided by after the mean, one value or one per channel."""
    layout: Literal["nchw", "nhwc", "as-is"] = "nchw"
    """Order of dimensions that the model wants; "as-is" leaves arrays alone."""
    arrays: bool = False
    """Also treat arrays (.npz, .npy) this way: raw NHWC values such as 0-255. Images always are."""
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
"""Values of pixels that families of networks were trained on, by the name that `--preprocess` takes: torchvision and timm,
Inception and MobileNet of TensorFlow, Ultralytics, OpenAI's CLIP, and Caffe."""


def _preset(value: object) -> object:
    """A mapping for the name of a preset; other values stay.

    Raises:
        ValueError: no such preset.
    """
    if not isinstance(value, str):
        return value
    if value not in PRESETS:
        raise ValueError(f"no preset {value!r}: choose {', '.join(PRESETS)}")
    return dict(PRESETS[value])


class SampleOptions(RecipeSection):
    """Which samples, and how they are made."""

    limit: Annotated[int, Field(gt=0)] | None = None
    """Largest number of calibration samples; None takes all."""
    nan: Literal["error", "skip"] = "error"
    """Samples that hold NaN or Inf, and such values inside the model while it is calibrated: an error, or left out and counted."""
    preprocess: Annotated[Preprocess, BeforeValidator(_preset)] = Preprocess()
    """How pictures become inputs: values, or the name of a preset (imagenet, imagenet-inception, yolo, clip, caffe)."""
    sources: dict[str, str] = {}
    """Source of each value of `preprocess`: "given", "read from ..." or "guessed"; a run writes it."""


Given = bool | int | float | tuple[float, ...]
"""The value of an input that becomes a constant."""


class PrepareOptions(RecipeSection):
    """What is folded before placement."""

    constants: dict[str, Given] = {}
    """Inputs that become constants, with their values: `{sr: 16000}` makes an engine for one sampling rate, and decides the
    branches of an If that depends on it. One number fills the input, a list has all of its values."""
    fold_constants: bool = True
    """Compute what depends on constants only."""
    einsum: bool = True
    """Write an Einsum that is a matrix product as MatMul, which TensorRT can quantize."""
    attention: bool = True
    """Write Attention (opset 23 and newer) as MatMul, Softmax and MatMul, which TensorRT quantizes and fuses, and norms, attentions
    and activations of com.microsoft as ONNX operators."""
    conv_transpose: bool = True
    """Write a ConvTranspose of stride 1 as the Conv that computes the same, for which TensorRT has INT8 kernels."""
    strided_conv_transpose: bool | None = None
    """Write one with strides as a Conv of all places between two steps and a DepthToSpace, too. None does it where
    that saves bytes: for TensorRT for RTX, which has no INT8 kernel for ConvTranspose, beside FP32. Needs `conv_transpose`."""
    flatten: bool | None = None
    """Give matrix products that read the result of an attention an input of two dimensions: then their kernel dequantizes
    stored weights. None does it where weights alone are quantized."""
    fold_batchnorm: bool = True
    """Fold BatchNormalization into the Conv, ConvTranspose or Gemm before it."""


class PlacementOptions(RecipeSection):
    """Where Q/DQ nodes go."""

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
    """Nodes that a limit of accuracy keeps float, by name; `qdqtool run --max-drop` writes it into the recipe of its run."""
    exclude_ops: Annotated[Words, Naming("operator")] = ()
    """Operator types kept float."""
    only: Annotated[Words, Naming("node")] = ()
    """If given, only nodes whose name matches one of these globs are quantized."""
    first_layer: Literal["int8", "float"] = "int8"
    """The first weighted node after each input."""
    last_layer: Literal["int8", "float"] = "int8"
    """The last weighted node before each output."""
    computed_ops: Words = ()
    """Operators of plug-ins that calibration can compute, as domain::Op; "*" for all. Those that `runtime` names are added."""
    min_channels: Annotated[int, Field(ge=0)] = 0
    """Weighted nodes with fewer input or output channels stay float (the network's input channels excepted)."""
    per_channel: bool = True
    """One scale per output channel for weights."""
    activations: Literal["int8", "float"] = "int8"
    """What weighted nodes read at run time; float quantizes weights alone, and the arithmetic stays float."""
    format: Format = "int8"
    """Number format of products: int8 and fp8 for weights and activations, int8-weights and int4-weights for weights
    alone, nvfp4 and mxfp8 in blocks of 16 and 32."""
    formats: Annotated[dict[str, Format], Naming("node")] = {}
    """Other formats by node-name glob, the first match wins; "float" leaves a node float."""
    block: Literal[0, 16, 32, 64, 128] = 0
    """Values along the reduction axis that share a scale of INT4 weights; 0 takes the largest up to 128 that fits."""
    kv_cache: Literal["float", "int8", "fp8"] = "float"
    """How a decoder keeps the keys and values that it hands to its next step: as they are exported, or in few bits, which
    changes the type of these inputs and outputs."""
    skip_rules: Words = ()
    """Rules that are not asked."""
    target: Annotated[str, BeforeValidator(_word), AfterValidator(_target)] = "rtx"
    """The builder whose abilities count: rtx, a family of TensorRT (8, 10, 11) or a release (8.6.1, 10.13, rtx-1.7.1)."""
    sm: Words = ()
    """GPU architectures whose abilities count, as "75"; empty means SM80 and newer."""

    float_type: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type that the float part will have in the engine; a run takes it from insert.types. It decides whether a float
    attention is one kernel."""

    @property
    def builder(self) -> Target:
        """Target and architectures together."""
        return Target.parse(self.target, self.sm, where="place.sm")


AUTO: Final = "auto"
"""Instead of a calibrator: the one, or the mixture, that keeps the network's outputs quietest."""


class CalibrationOptions(RecipeSection):
    """How ranges are chosen."""

    method: str = AUTO
    """Calibrator for activations: a file in `calibrators/methods`, or auto, which chooses by the network's outputs."""
    percentile: Annotated[float, Field(gt=0, le=100)] = 99.99
    """Share of magnitudes kept by the percentile calibrator."""
    weights: Literal["max", "mse"] = "max"
    """Calibrator for weights."""
    overrides: Annotated[dict[str, str], Naming("tensor")] = {}
    """Calibrator by tensor-name glob; the first match wins."""
    shrink: Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], Naming("tensor")] = {}
    """Factor on the range by tensor-name glob, the first match wins: cuts tails where a sweep showed that it helps."""
    symmetric: Literal["auto", "always", "never"] = AUTO
    """Zero points for activations that lie on one side of 0, or mostly, as after Relu and Gelu. TensorRT has none: a constant is
    subtracted before Q and given back in the next bias. always: none, as TensorRT has it; never: wherever that can be written;
    auto: if `method` is auto, the outputs gain more than 0.3 dB and a build has no more kernels. For classic TensorRT, which was not
    built, auto and never take only those that need no node."""
    zero_point_bytes: Annotated[float, Field(ge=0)] = 0.02
    """With symmetric auto: share by which the activation bytes of the engine may grow for a gain of up to 1 dB."""
    bias: Literal["keep", "correct"] = "keep"
    """Correct the biases, so that every layer's mean output stays what it was (32 samples, no cost in the engine)."""


class WeightOptions(RecipeSection):
    """How weights are prepared for few bits, from the activations that the samples cause."""

    rounding: Literal["auto", "nearest", "mse", "seqmse", "adaround", "gptq"] = AUTO
    """nearest; mse: the nearest, with scales of the smallest squared error (as calibrate.weights=mse); seqmse: the same for
    the noise of the layer's output; adaround: each weight of an integer format up or down, gptq for others; gptq: errors of a layer's weights cancel in its output; auto: gptq where
    calibrate.method is auto and the network's outputs gain more than 0.3 dB, else nearest."""
    equalize: Literal["none", "cross-layer", "smooth", "depthwise", "awq", "auto"] = AUTO
    """Channels scaled so that weights or activations lose less, with the network computing the same: cross-layer (weights of
    layers in a row), smooth (SmoothQuant), depthwise (what depthwise convolutions read), awq (weight-only formats); auto: outlier
    channels and what depthwise convolutions read, where weights, histograms or samples foretell a gain and the network's
    outputs gain more than 0.3 dB."""

    @property
    def rounds_by_outputs(self) -> bool:
        """Whether weights are rounded by what that does to the outputs of their layers, which takes samples."""
        return self.rounding in {"seqmse", "adaround", "gptq"}


class InsertOptions(RecipeSection):
    """How the Q/DQ model is written."""

    types: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type of everything that is not INT8."""
    weights: Literal["qdq", "int8", "stored"] = "qdq"
    """Float weights behind Q and DQ, or weights stored in their format behind DQ only (FP8 and INT8: 4 times smaller;
    formats with blocks, and weights of products with float activations, are always stored). "int8" is the older word for
    "stored"."""
    blocks: Literal["computed", "constant"] = "computed"
    """NVFP4 activations: a scale per block of 16 computed in every inference, or the same constant scale for all blocks:
    fewer kernels (one instead of three in front of a product) and no other operators than those of ONNX, but the accuracy of
    four bits per tensor. Behind LayerNormalization, Softmax and other sums along the blocks they are computed all the same:
    TensorRT for RTX 1.7.1 fails to build constant ones there."""
    keep_io: bool = True
    """With fp16 and bf16: model inputs and outputs stay FP32."""
    keep_nodes: Annotated[Words, Naming("node")] = ()
    """With fp16 and bf16: nodes that stay FP32, as globs on their names."""
    narrow_nodes: Annotated[Words, Naming("node")] = ()
    """With fp16 and bf16: the only nodes that compute in that type, as globs on their names; without any, all that can."""
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
    """With fp16 and bf16: operators that stay FP32, because they make large values of small ones."""
    overflow: Literal["ignore", "name", "keep"] = "keep"
    """With fp16 and samples: run them and keep FP32 what touches a tensor that would become infinite or lose its digits, or only
    name it."""
    overflow_samples: Annotated[int, Field(gt=0)] = 16
    """Samples that are run for it."""


class BuildOptions(RecipeSection):
    """How the engine is built."""

    builder: str = "rtx"
    """The name of a file in `qdqtool/backends/builders`."""
    sm: Words = ("86",)
    """GPU architectures, as "86" for SM86."""
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Wall-clock limit in seconds."""
    stack_mib: Annotated[int, Field(ge=8)] = 1024
    """Stack of the building process in MiB."""
    flags: str = ""
    """Further options in trtexec's spelling, as "--builderOptimizationLevel=5"."""
    fp16: bool = True
    """Build the network in FP16 too, so that the report can say whether the quantized engine is faster."""
    plugins: Words = ()
    """Libraries of TensorRT plug-ins. Loading one runs its code, so a recipe that names one needs --trust."""
    retries: Annotated[int, Field(ge=0)] = 3
    """Nodes without a kernel whose Q/DQ may be given up, at most."""
    min_shapes: str = ""
    """Smallest shapes of dynamic inputs, as "input:1x3x224x224,other:1x8"."""
    opt_shapes: str = ""
    """Usual shapes."""
    max_shapes: str = ""
    """Largest shapes."""


class AuditOptions(RecipeSection):
    """What counts as a problem."""

    fail_on: Literal["error", "warning", "info", "bad", "doubtful", "never"] = "never"
    """Exit with 1 when a finding is at least this severe, or when `run` ends with this verdict or a worse one."""
    fail_on_unrealised: bool = False
    """Exit with 1 when a node does not run in the format that its Q/DQ asks for."""
    ignore: Words = ()
    """Codes or names of checks whose findings are not reported, each with the reason: "QDQ210=known and measured"."""


class CompareOptions(RecipeSection):
    """How accuracy is checked."""

    metrics: Words = ("cosine", "sqnr_db", "max_abs")
    """Names of files in `qdqtool/accuracy/metrics`."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Largest number of evaluation samples; None takes all."""
    output: str = ""
    """Which output holds the class scores; empty takes the first one."""
    task: Literal["classify", "agreement", "none"] = "classify"
    """With labels: top-1 and top-5. "agreement": share of samples where both runners agree on the class."""
    max_drop: Annotated[float, Field(ge=0)] | None = None
    """Exit with 1 when the task metric falls by more than this many points."""


class AccuracyOptions(RecipeSection):
    """What the quantized model must keep; nodes stay float until it does."""

    max_drop: Annotated[float, Field(ge=0)] | None = None
    """Points of the task metric that may be lost; needs labels, or compare.task=agreement."""
    min_sqnr: float | None = None
    """SQNR in dB that the outputs must keep."""
    confidence: Annotated[float, Field(ge=0.5, lt=1)] | Literal[0] = 0.9
    """How sure it must be that other samples keep the limit, as far as the evaluation samples can tell; 0 asks for these
    alone."""
    samples: Annotated[int, Field(gt=0)] = 32
    """Calibration samples on which single nodes and sets of them are measured; the limit itself is checked on all
    evaluation samples."""
    alternatives: Annotated[tuple[Literal["fp8", "fp16"], ...], BeforeValidator(_words)] = ("fp8", "fp16")
    """What nodes that leave INT8 may compute in where the limit still holds, and what the target runs: FP8 from SM89 on,
    FP16 where the float part is FP32. Of what keeps the limit the fastest engine (estimated) is taken; [] leaves them in the type
    of the float part."""


FORMATS_OF: Final = "place.formats."
"""Begins a key of `sweep.space` that chooses the format of the nodes whose names match the glob behind it."""


class SweepOptions(RecipeSection):
    """What `qdqtool sweep` searches."""

    space: dict[str, tuple[str | int | float | bool, ...]] = {
        "calibrate.method": ("all",),
        "calibrate.weights": ("max", "mse"),
    }
    """Values to try for each key of the recipe; "all" calibrators are those that compete with each other, and
    "place.formats.*mlp*": [int8, fp8] tries formats for the nodes that match a glob."""
    keep_float: tuple[Annotated[int, Field(ge=0)], ...] = (0, 1, 2, 4)
    """How many of the most sensitive nodes stay float."""
    tune: Annotated[int, Field(ge=0)] = 0
    """Of how many of the most sensitive nodes the input range is searched too, each by itself."""
    factors: tuple[Annotated[float, Field(gt=0, le=1)], ...] = (1.0, 0.85)
    """What those ranges are multiplied with."""
    sampler: Literal["gain", "grid", "tpe", "nsga2"] = "gain"
    """Every combination, the most promising one first by what finished trials say of each value (gain) or in a fixed order
    (grid); or some of them, drawn by Optuna's samplers."""
    hold_back: bool | None = None
    """Measure trials on every other evaluation sample, and what nothing beats once more on the rest, which chose nothing;
    None does where each half has 64 samples or more."""
    speed: Literal["estimated", "engine", "measured", "none"] = "estimated"
    """Time of the engine estimated for `device`, or measured on the GPU that is here; latency measured on onnxruntime's
    CPU; or accuracy alone."""
    device: str = ""
    """GPU for which the time of an engine is estimated; without one the first known of the architectures of build.sm,
    and NVIDIA A10 where these are not named."""
    seed: int = 0
    """Seed of the samplers that draw."""


class ComputeOptions(RecipeSection):
    """Device on which onnxruntime runs models that are calibrated, compared and searched."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, tensorrt, rtx, openvino, or the path of a plug-in provider library, which needs --trust in a recipe;
    options of the provider behind a colon: cuda:0,gpu_mem_limit=2147483648."""


class OperatorOptions(RecipeSection):
    """Libraries and functions for operators that onnxruntime lacks, such as those of TensorRT plug-ins."""

    custom_ops: Words = ()
    """Libraries of custom operators for onnxruntime. Loading one runs its code, so a recipe that names one needs --trust."""
    stand_ins: dict[str, str] = {}
    """NumPy functions by operator: `{"my.domain::Op": "module:function"}`, or "file.py:function". It takes the inputs, and the attributes
    as keywords, and returns the output or a tuple of them. A recipe that names one needs --trust."""


class QatOptions(RecipeSection):
    """How `qdqtool qat run` fine-tunes a PyTorch network with quantizers in it."""

    model: str = ""
    """Function that returns the trained float network: module:function, or file.py:function beside the recipe."""
    data: str = ""
    """Function of a split ("train", "validate", "test") that returns (inputs, targets), a dataset, or batches."""
    engine: str = "own"
    """Who computes the fake quantization: own, pytorch_quantization or modelopt."""
    scales: Literal["learned", "fixed"] = "learned"
    """Whether training moves the scales (LSQ), or they stay where calibration put them."""
    epochs: Annotated[int, Field(ge=0)] = 10
    """Passes over the training samples."""
    batch: Annotated[int, Field(gt=0)] = 64
    """Samples per step."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """AdamW, or SGD with Nesterov momentum 0.9."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.0005
    """Of the weights, at its highest."""
    scale_rate: Annotated[float, Field(ge=0)] = 1.0
    """Factor on the learning rate of learned scales."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Of the weights; scales have none."""
    clip_gradient: Annotated[float, Field(ge=0)] = 0.0
    """Largest norm of the gradient; 0 does not limit it."""
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    """Passes over which the learning rate rises."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the learning rate goes on after the warm-up."""
    batchnorm: Literal["freeze", "fold"] = "freeze"
    """Keep BatchNorm and freeze its statistics, or fold it into the weights before training."""
    freeze_epoch: Annotated[int, Field(ge=0)] = 0
    """With freeze: passes that still move the statistics."""
    distill: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the loss that is the distance to the float network's outputs; 1 needs no labels."""
    temperature: Annotated[float, Field(gt=0)] = 4.0
    """Of the distillation."""
    loss: str = "cross_entropy"
    """cross_entropy, mse, or a function of outputs and targets."""
    metric: str = "top1"
    """Chooses the best epoch: top1, loss (lower is better), or a function of the outputs and targets of all samples of a
    split (higher is better), which is then measured on the three models too."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where training runs."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of torch on the CPU; 0 leaves it to torch. Small networks are much faster with 1."""
    mixed: bool = True
    """On a GPU: compute in bfloat16 where that is safe."""
    exporter: Literal["legacy", "dynamo"] = "legacy"
    """Which of torch's two ONNX exporters."""
    opset: Annotated[int, Field(ge=17, le=20)] = 17
    """ONNX opset of the export; the exporter dynamo writes none below 18."""
    seed: int = 0
    """Order of the samples and everything random."""
    tensorboard: bool = False
    """Also write logs for TensorBoard."""


class Recipe(RecipeSection):
    """A method without data: what `qdqtool run` does, step by step."""

    name: str = "custom"
    """What reports call this recipe."""
    description: str = ""
    """When to use it, in one sentence."""
    optional: Words = ()
    """Patterns and operator types of this recipe that may match nothing in a model; all others must. Globs on their text:
    "*" allows all."""
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
        """What the float part computes in, single nodes aside."""
        return "fp32" if self.insert.narrow_nodes else self.insert.types

    @property
    def preparing(self) -> PrepareOptions:
        """What preparation obeys: its own section, completed from that of placement."""
        alone = any(word.endswith("-weights") for word in (self.place.format, *self.place.formats.values()))
        known: dict[str, bool] = {}
        if self.prepare.flatten is None:
            known["flatten"] = alone or self.place.activations == "float"
        if self.prepare.strided_conv_transpose is None:
            wide = self.float_type == "fp32" and self.place.activations != "float" and not alone
            known["strided_conv_transpose"] = self.place.builder.is_rtx and wide
        return self.prepare.model_copy(update=known)

    @property
    def placing(self) -> PlacementOptions:
        """What placement obeys: its own section, completed from those of the build and of insertion."""
        known: dict[str, object] = {} if self.place.sm else {"sm": self.build.sm}
        if self.float_type != "fp32":
            known["float_type"] = self.float_type
        if self.runtime.custom_ops or self.runtime.stand_ins:
            known["computed_ops"] = ("*",) if self.runtime.custom_ops else tuple(self.runtime.stand_ins)
        return self.place.model_copy(update=known)
