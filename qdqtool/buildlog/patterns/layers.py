"""What the engine is made of: layer records in the text of every generation, bindings, device placement."""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

_NAME = row("layer-name-only", r"(?P<layer>[^\s\[=&].*)", "Conv_1 + Relu_2")
_BINDING = row("binding", r"(?P<tensor>\S{1,300})", "images", "output0")

_IO = row(
    "io-tensor",
    r"Name: (?P<tensor>.+?), IOMode: (?P<mode>\w{1,20}), (?P<rest>.*)",
    "Name: input, IOMode: Input, DataType: Float, Dimensions: [1,3,224,224], Location: Device, ProfileInfo: [ ]",
)
_FACT = row("engine-fact", r"(?P<key>[A-Z][\w -]{1,60}): (?P<value>.*)", "Multi-Device: Disabled")

PLUGIN = PatternSet(
    patterns=(
        message("layers-heading", "Engine Layer Information:", "Engine Layer Information:"),
        message("layers-detailed", "Layers:", "Layers:"),
        message("bindings-heading", "Bindings:", "Bindings:"),
        message("engine-metadata", "Engine Metadata:", "Engine Metadata:"),
        message("io-heading", "I/O Tensors:", "I/O Tensors:"),
        message(
            "layer",
            "Layer({kind}): {name>}, Tactic: {rest}",
            "Layer(CaskConvolution): A + B, Tactic: 7144526460361122478, in[Half(1,256,180,180)] -> out[Half(1,9)]",
            "Layer(Reformat): q, Tactic: 0x00000000000003ea, x (Float[1,3,640,960]) -> q_out (Int8[1,3,640,960])",
        ),
        message(
            "layer-record",
            "Name: {name}, LayerType: {rest}",
            "Name: MaxPool_2, LayerType: CaskPooling, Inputs: [ { Name: x, Location: Device, Dimensions: [1,64,9,9], "
            "Format/Datatype: Thirty-two wide channel vectorized row major Int8 format }], Outputs: []",
        ),
    ),
    sections=(
        LogSection(opens="layers-heading", rows=()),
        LogSection(opens="layers-detailed", rows=(_NAME,), bare=True),
        LogSection(opens="bindings-heading", rows=(_BINDING,), bare=True),
        LogSection(opens="io-heading", rows=(_IO,), bare=True),
        LogSection(opens="engine-metadata", rows=(_FACT,), bare=True),
    ),
)
