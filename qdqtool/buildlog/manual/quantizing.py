"""Passes that work on Q/DQ nodes: they decide what runs in INT8."""

from qdqtool.buildlog.manual.page import Page

PAGES = (
    Page(
        name="ConstQDQInitializersFusion",
        what="Takes the scale and zero point of a Q or DQ, which are constants, into the node itself.",
        before="x -> Q <- scale, zero point",
        after="x -> Q(scale)",
        int8="Runs once on every Q and DQ whose scale is a build-time constant. A Q or DQ it does not visit has a "
        "computed scale and will not be fused. `Removing X` below it drops the constant, not the node.",
        releases="8.4-8.6",
    ),
    Page(
        name="ConstWeightsQuantizeFusion",
        what="Quantizes a constant weight at build time: the weight and the Q behind it become one INT8 constant.",
        before="weight -> Q -> DQ -> Conv",
        after="(weight + Q) -> DQ -> Conv",
        int8="Good: the weight is stored in INT8 and the Q costs nothing at run time. A weight without this line stays "
        "float.",
    ),
    Page(
        name="ConstWeightsFusion",
        what="Takes a constant weight into the layer that uses it.",
        before="(weight + Q) -> Conv",
        after="(weight + Q + Conv)",
        int8="Last step of a quantized weight: from now on the layer's name lists the weight and its Q.",
    ),
    Page(
        name="QuantizeDoubleInputNodes",
        what="Makes a layer with two inputs (activation and weight, or two activations) an INT8 layer.",
        before="DQ -> Conv <- DQ; Conv -> Q",
        after="Conv(INT8 in, INT8 out)",
        int8="The line that matters most. `fusing (DQ and DQ) into N` gives INT8 inputs, `fusing Q into N` an INT8 output "
        "as well. With only the first of the two, N writes float and the next Q costs a kernel.",
    ),
    Page(
        name="QuantizeSingleInputNodes",
        what="Makes a layer with one input (pooling, some pointwise layers) an INT8 layer.",
        before="DQ -> AveragePool -> Q",
        after="AveragePool(INT8 in, INT8 out)",
        int8="Needs Q/DQ on both sides: such layers have no INT8 in, float out form.",
        releases="8.5",
    ),
    Page(
        name="QuantizeConvWithResidualAdd",
        what="Makes a convolution and the residual Add behind it one INT8 layer; the Q behind the Add moves above it.",
        before="DQ -> Conv -> Add -> Relu -> Q; shortcut -> DQ -> Add",
        after="Conv + Add + Relu (INT8 in, INT8 shortcut, INT8 out)",
        int8="Wanted in every residual block. It needs Q/DQ on the shortcut only, not between Conv and Add.",
        releases="8.5, 8.6",
    ),
    Page(
        name="QConvScaleFusion",
        what="Takes BatchNormalization (a Scale layer, with its activation) into a quantized convolution.",
        before="DQ -> Conv -> Scale + Relu -> Q",
        after="DQ -> Conv -> Q",
        int8="Good: leave BatchNormalization between Conv and Relu when you train; no Q/DQ belongs between them.",
        releases="8.4, 8.5",
    ),
    Page(
        name="HorizontalMergeQNodes",
        what="Several Q with one scale read the same tensor: one stays, the others are removed.",
        before="x -> Q1 -> ...; x -> Q2 -> ...",
        after="x -> Q1 -> ... and ...",
        int8="Saves kernels. Two Q on one tensor with different scales cannot merge, and each costs a kernel.",
    ),
    Page(
        name="SplitQAcrossPrecedingFanIn",
        what="A Q stands behind a Concat (or another layer with many inputs): it is cloned above every input.",
        before="a, b -> Concat -> Q",
        after="a -> Q_clone_0 -> Concat; b -> Q_clone_1 -> Concat",
        int8="The pass prints no line of its own; the clones show up later as `<Q>_clone_<k>`. Each clone should fuse "
        "with the layer that makes its input; one that cannot becomes a copy (QDQToCopy). All branches get one scale.",
    ),
    Page(
        name="VanillaSwapWithFollowingQ",
        what="Moves a Q upwards through a layer that does not change values (Slice, MaxPool, Reshape, Transpose, Resize).",
        before="x -> MaxPool -> Q",
        after="x -> Q -> MaxPool",
        int8="Good: the layer now works on INT8, a quarter of the bytes, and the Q comes closer to the layer that can "
        "take it.",
    ),
    Page(
        name="VanillaSwapWithPreceedingDQ",
        what="Moves a DQ downwards through a layer that does not change values. (The spelling is TensorRT's.)",
        before="DQ -> Reshape -> y",
        after="Reshape -> DQ -> y",
        int8="Good: the layer now works on INT8.",
        releases="8.5",
    ),
    Page(
        name="DqQFusion",
        what="A DQ meets a Q: with equal scales both vanish, with different ones they become one rescaling.",
        before="x -> DQ -> Q -> y",
        after="x -> y, or x -> rescale -> y",
        int8="Give both sides one scale and it costs nothing; different scales on the branches of a Concat cost a kernel "
        "each.",
        releases="8.6",
    ),
    Page(
        name="QDQToCopy",
        what="Turns a Q or DQ that nothing could take into a copy layer of its own.",
        before="x -> Q -> y (no layer takes the Q)",
        after="x -> copy (reformat kernel, float to INT8) -> y",
        int8="Every such node is a kernel at run time: it shows up as `[GpuLayer] COPY` and as a Reformat layer with "
        "Origin QDQ. One at each input of the model is normal; inside the model each is a lost fusion.",
    ),
)
