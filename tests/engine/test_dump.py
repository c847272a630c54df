"""Detailed `Layers:` dumps."""

from __future__ import annotations

import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.engine import Certainty, Engine, Role
from qdqtool.core.tensors import DType
from qdqtool.engine import read, read_text
from qdqtool.errors import InputFileError
from tests.engine.records import CONV, EPILOGUE, QUANTIZE, dump, record, tensor
from tests.shared import SHARED, shared


def layers(text: str) -> Engine:
    return read_text(text, where="test")


def test_a_text_without_layers_is_refused_with_a_fix():
    with pytest.raises(InputFileError, match="no layer information") as caught:
        layers("hello\n")
    assert "--exportLayerInfo" in caught.value.fix


def test_a_record_becomes_a_layer_with_tensors_and_nodes():
    engine = layers(dump(CONV, bindings=("x",)))
    layer = engine.layers[0]
    assert (layer.name, layer.kind, layer.stream) == ("c1_myl0_1", "correlation", 0)
    assert layer.onnx_nodes == ("c1", "c1/DQ")
    assert layer.certainty is Certainty.STATED
    assert layer.inputs[0].dtype is DType.INT8
    assert layer.constants[0].shape == (16, 8, 3, 3)
    assert layer.outputs[0].bytes == 4 * 16 * 16 * 16
    assert [binding.name for binding in engine.bindings] == ["x"]
    assert engine.unread == 0


def test_int8_needs_int8_activation_and_int8_weight():
    both, float_weight = layers(
        dump(
            CONV,
            CONV.replace(
                "w, Dimensions: [16,8,3,3], Strides: [1], StrideOrder: [0], Datatype: Int8",
                "w, Dimensions: [16,8,3,3], Strides: [1], StrideOrder: [0], Datatype: Float",
            ),
        )
    ).layers
    assert both.precision is DType.INT8
    assert float_weight.precision is DType.FLOAT32


def _convolution(second: str, *constants: str) -> DType:
    line = record(
        "c1_myl0_1",
        inputs=(tensor("x_q"), second),
        constants=constants,
        outputs=(tensor("y", "1,16,16,16", "Float"),),
        nodes=("c1",),
    )
    return layers(dump(line)).layers[0].precision


def test_weights_that_another_kernel_computes_count_and_their_scale_does_not():
    scale = tensor("scale", "1,16,1,1", "Float")
    assert _convolution(tensor("w", "16,8,3,3"), scale) is DType.INT8
    assert _convolution(tensor("w", "16,8,3,3", "Float"), scale) is DType.FLOAT32


@pytest.mark.rtx
def test_a_built_convolution_with_computed_weights_is_int8():
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.graph.repairing import Sketch
    from tests.placement.building import build

    s = Sketch()
    weight = s.node("Tanh", [s.input("w", [16, 16, 3, 3])], "t", name="tanh")
    bias = s.weight("b", 16)
    x = s.pair(s.input("x", [1, 16, 8, 8]), "x")
    s.output(s.convolved(x, s.pair(weight, "t", 0.01), bias))
    assert build(s.model()).precision == (("conv", "int8"),)


def test_a_weight_of_one_output_channel_stays_a_weight_beside_a_shortcut():
    shortcut = tensor("shortcut", "1,16,16,16", "Float")
    assert _convolution(shortcut, tensor("w", "1,8,1,1")) is DType.INT8
    assert _convolution(shortcut, tensor("w", "1,8,1,1", "Float")) is not DType.INT8


def test_a_kernel_that_dequantizes_first_computes_in_float():
    text = record(
        "__myl_CastMulFc_myl0_3",
        "runtime_fusion",
        inputs=(tensor("a", "1,64"),),
        constants=(tensor("w", "64,10", "Half"),),
        outputs=(tensor("b", "1,10", "Half"),),
    )
    layer = layers(dump(text)).layers[0]
    assert (layer.role, layer.precision, layer.precision_certainty) == (
        Role.COMPUTE,
        DType.FLOAT16,
        Certainty.INFERRED,
    )


def test_a_layer_named_int8_is_not_int8_because_of_its_name():
    text = record(
        "int8_conv_myl0_0",
        inputs=(tensor("int8", dtype="Float"),),
        constants=(tensor("w_int8", "8,8,1,1", "Float"),),
        outputs=(tensor("y", dtype="Float"),),
    )
    assert layers(dump(text)).layers[0].precision is DType.FLOAT32


def test_roles_tell_kernels_that_only_convert():
    wait = "Name: __mye1_myl0_9, LayerType: wait, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 1, EventId: 2, Metadata: "
    engine = layers(dump(QUANTIZE, CONV, EPILOGUE, wait))
    assert [layer.role for layer in engine.layers] == [Role.QDQ, Role.COMPUTE, Role.OTHER, Role.NONE]
    assert [layer.pointwise for layer in engine.layers] == [True, False, True, False]


def test_a_kernel_that_clears_a_counter_converts_nothing():
    zero, one, wide = (tensor(name, "1", "Float") for name in ("zero", "one", "w"))
    clears = record("__myl_Move_myl0_1", "kgen", constants=(zero,), outputs=(one,))
    moves = record("__myl_Move_myl0_2", "kgen", inputs=(wide,), outputs=(one,))
    assert [layer.role for layer in layers(dump(clears, moves)).layers] == [Role.OTHER, Role.QDQ]


def test_rescaling_an_int8_result_is_an_epilogue_not_a_conversion():
    rescale = record(
        "__myl_MulMinMaxRounCast_myl0_2",
        "kgen",
        inputs=(tensor("y", "1,16,16,16", "Float"),),
        outputs=(tensor("y_q", "1,16,16,16"),),
    )
    assert [layer.role for layer in layers(dump(CONV, rescale)).layers] == [Role.COMPUTE, Role.OTHER]


@pytest.mark.parametrize(
    "name",
    [
        "a, b",
        "a]b",
        "}], tail",
        "line\nbreak",
        "ends with Name: x",
        "a + b || c",
        "[V] odd",
        "名前",
        "<script>",
    ],
    ids=["comma", "bracket", "closing", "line break", "anchor", "joints", "prefix", "unicode", "markup"],
)
def test_names_may_hold_anything(name: str):
    text = CONV.replace("c1_myl0_1", name, 1)
    engine = layers(dump(QUANTIZE, text, EPILOGUE))
    assert [layer.name for layer in engine.layers][1] == name
    assert engine.layers[1].precision is DType.INT8
    assert len(engine.layers) == 3


def test_a_node_name_with_brackets_survives_the_metadata():
    text = record(
        "k_myl0_0", "gemm", nodes=("a[0]", "b"), inputs=(tensor("x", "1,2"),), outputs=(tensor("y", "1,2"),)
    )
    assert layers(dump(text)).layers[0].onnx_nodes == ("a[0]", "b")


def test_the_mark_behind_a_node_name_is_not_part_of_it():
    text = CONV.replace("[ONNX Layer: c1]\x1f[ONNX Layer: c1/DQ]", "[ONNX Layer: c1]__gemm_from_conv1x1")
    assert layers(dump(text)).layers[0].onnx_nodes == ("c1",)


@pytest.mark.parametrize(
    ("words", "inputs", "outputs", "role"),
    [
        ("MulMulMinMaxRounCast", ("x", "gate"), ("x_q",), Role.OTHER),
        ("MulMinMaxRounCast", ("x",), ("x_q",), Role.QDQ),
        ("MulMinMaxRounCastMulMinMaxRounCast", ("x", "z"), ("x_q", "z_q"), Role.QDQ),
        ("MulMinMaxRounCast", ("x", "scale"), ("x_q",), Role.QDQ),
        ("MulMulMinMaxRounCast", ("x",), ("x_q",), Role.QDQ),
    ],
    ids=[
        "a gate",
        "a Q",
        "two Qs in one kernel",
        "a Q with a scale from an input",
        "a Q behind a constant factor",
    ],
)
def test_a_product_of_two_inputs_that_is_quantized_is_no_mere_conversion(
    words: str, inputs: tuple[str, ...], outputs: tuple[str, ...], role: Role
):
    kernel = record(
        f"__myl_{words}_myl0_0",
        "kgen",
        inputs=tuple(tensor(name, dtype="Float") for name in inputs),
        outputs=tuple(map(tensor, outputs)),
        nodes=("se/Mul", "c1/Q"),
    )
    assert layers(dump(kernel)).layers[0].role is role


def test_older_spelling_with_format_and_type_in_one_field():
    text = (
        "Name: k_myl0_0, LayerType: kgen, Inputs: [ { Name: a, Dimensions: [2,4], Format/Datatype: Half }], "
        "Outputs: [ { Name: b, Dimensions: [2,4], Format/Datatype: Half }], TacticName: t, StreamId: 0, Metadata: "
    )
    layer = layers(f"Layers:\n{text}\n").layers[0]
    assert [tensor.dtype for tensor in (*layer.inputs, *layer.outputs)] == [DType.FLOAT16, DType.FLOAT16]
    assert (layer.tactic, layer.stream, layer.constants) == ("t", 0, ())


@pytest.mark.parametrize("prefix", ["", "[V] ", "[01/10/2024-21:52:52] [V] [TRT] "])
def test_only_the_last_dump_of_a_log_counts(prefix: str):
    first, last = dump(QUANTIZE, bindings=("a",)), dump(CONV, EPILOGUE, bindings=("x",))
    engine = layers(f"[V] first\n{prefix}{first}[I] again\n{prefix}{last}[V] done\n")
    assert [layer.name for layer in engine.layers] == [
        "c1_myl0_1",
        "__myl_MulAddReluMulMinMaxRounCast_myl0_2",
    ]
    assert [binding.name for binding in engine.bindings] == ["x"]


def test_unknown_types_are_counted_not_guessed():
    engine = layers(dump(CONV.replace("Datatype: Int8", "Datatype: Int3", 1)))
    assert engine.layers[0].inputs[0].dtype is DType.UNKNOWN
    assert engine.unknown_formats == (("(Linear) Row major linear format", 1),)
    assert engine.layers[0].precision is DType.UNKNOWN


def test_a_record_cut_in_the_middle_is_counted_or_kept_but_never_raises():
    text = dump(QUANTIZE, CONV)
    whole = text.index(CONV)
    for end in range(whole + 10, whole + len(CONV), 7):
        engine = layers(text[:end])
        assert len(engine.layers) + engine.unread >= 1


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 2000), junk=st.text(max_size=12), drop=st.integers(0, 40))
def test_damaged_dumps_never_raise_anything_but_the_file_error(at: int, junk: str, drop: int):
    text = dump(QUANTIZE, CONV, EPILOGUE, bindings=("x",))
    at %= len(text)
    try:
        layers(text[:at] + junk + text[at + drop :])
    except InputFileError:
        assert "LayerType" not in text[:at] or at < 200


@pytest.mark.parametrize(
    ("encoding", "mark"), [("utf-16", ""), ("utf-8-sig", ""), ("utf-8", "\0")], ids=["utf16", "bom", "nul"]
)
def test_files_from_other_shells_read_alike(tmp_path, encoding: str, mark: str):
    path = tmp_path / "layers.txt"
    path.write_bytes((mark + dump(QUANTIZE, CONV).replace("\n", "\r\n")).encode(encoding))
    assert len(read(path).layers) == 2


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "kernels", "int8", "compute", "megabytes"),
    [
        ("resnet18.fp16.SM86.layers.txt", 24, 0, 21, 14.0),
        ("resnet18.ortc.SM86.layers.txt.xz", 41, 21, 21, 26.8),
        ("resnet18.mo_fp16.SM86.layers.txt", 41, 20, 21, 26.8),
        ("resnet18.mo_fp16.SM75.layers.txt.xz", 65, 0, 21, 68.2),
        ("yolov8n.fp16.SM86.layers.txt.xz", 95, 0, 64, 126.4),
        ("yolov8n.mo_fp16.SM86.layers.txt.xz", 132, 64, 64, 179.2),
        ("vit_s4.mo_fp16.SM86.layers.txt.xz", 49, 21, 22, 21.6),
        ("vit_s4.ortc.fp16.SM86.layers.txt.xz", 70, 26, 26, 30.9),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_real_dumps_give_the_recorded_figures(
    name: str, kernels: int, int8: int, compute: int, megabytes: float
):
    content = shared(f"corpus/rtx/{name}").read_bytes()
    text = (lzma.decompress(content) if name.endswith(".xz") else content).decode()
    found = [layer for layer in layers(text).layers if layer.role is not Role.NONE]
    computing = [layer for layer in found if layer.role is Role.COMPUTE]
    size = sum(tensor.bytes or 0 for layer in found for tensor in (*layer.inputs, *layer.outputs))
    assert (len(found), len(computing), round(size / 1e6, 1)) == (kernels, compute, megabytes)
    assert sum(layer.precision is DType.INT8 for layer in computing) == int8


@pytest.mark.shared
def test_every_compute_layer_of_the_real_dumps_names_its_nodes():
    shared("corpus/rtx")
    silent = []
    for path in sorted((SHARED / "corpus" / "rtx").glob("*.layers.txt*")):
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
        silent += [
            layer.name for layer in layers(text).layers if layer.role is Role.COMPUTE and not layer.onnx_nodes
        ]
    assert silent == []


@pytest.mark.parametrize(
    ("inputs", "constants", "expected"),
    [
        (("Int8", "Int8", "Int8"), (), DType.INT8),
        (("Int8", "Int8", "Int8"), ("Float",), DType.INT8),
        (("Int8", "Int8", "Int8", "Float"), (), DType.INT8),
        (("Half", "Half", "Half", "Float"), (), DType.FLOAT16),
        (("Int8", "Int8", "Half"), (), DType.FLOAT16),
    ],
    ids=["plain", "constant position bias", "mask at run time", "float with a mask", "float values"],
)
def test_what_is_added_to_the_scores_says_nothing_about_the_arithmetic_of_an_attention(
    inputs: tuple[str, ...], constants: tuple[str, ...], expected: DType
) -> None:
    layer = record(
        "_gemm_mha_v2_myl0_9",
        "kgen",
        inputs=tuple(tensor(f"in{i}", "6,49,32", dtype) for i, dtype in enumerate(inputs)),
        constants=tuple(tensor("bias", "1,3,49,49", dtype) for dtype in constants),
        outputs=(tensor("y", "6,49,32"),),
        tactic="_gemm_mha_v2_0x80e2",
    )
    assert read_text(dump(layer), where="test").layers[0].precision is expected
