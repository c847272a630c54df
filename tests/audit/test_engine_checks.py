"""Checks that need nothing but layer information, each on a small engine that has the fault and one that has not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.auditing import audit, examine, stage
from qdqtool.auditing.context import ENGINE
from qdqtool.core.advice import leaves_nothing, promises
from qdqtool.core.claims import Assertion
from qdqtool.core.difference import EngineDiff, EngineTotals, LayerPair, Side
from qdqtool.core.engine import Engine, Role
from qdqtool.core.explore import Profile, ProfileRow
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.tensors import DType
from qdqtool.engine import read, read_text
from qdqtool.engine.view import view
from qdqtool.placement.decide import decide
from tests.calibration.material import opened
from tests.models import Sketch
from tests.shared import SHARED, shared

FP32, FP16 = "Row major linear FP32", "Row major linear FP16 format"
INT8, CHW32 = "Row major Int8 format", "Thirty-two wide channel vectorized row major Int8 format"


def tensor(name: str, words: str = INT8, channels: int = 32) -> dict:
    return {"Name": name, "Dimensions": [1, channels, 8, 8], "Format/Datatype": words}


def layer(name: str, kind: str, inputs: list[dict], outputs: list[dict], **more: object) -> dict:
    return {"Name": name, "LayerType": kind, "Inputs": inputs, "Outputs": outputs, **more}


def conv(name: str, source: dict, target: dict, weights: str = "Int8", **more: object) -> dict:
    channels = source["Dimensions"][1]
    parameters = {"Kernel": [3, 3], "OutMaps": 32, "Weights": {"Type": weights, "Count": 32 * channels * 9}}
    return layer(name, "CaskConvolution", [source, *more.pop("residual", [])], [target], **parameters, **more)


def reformat(name: str, source: dict, target: dict, origin: str = "REFORMAT") -> dict:
    return layer(name, "Reformat", [source], [target], Origin=origin)


def engine(*layers: dict) -> Engine:
    return read_text(json.dumps({"Layers": layers, "Bindings": ["in", "out"]}), where="test")


def found(check: str, *layers: dict) -> list[Finding]:
    return [finding for finding in audit(None, engine(*layers)).findings if finding.check == check]


CLEAN = (
    reformat("Q", tensor("in", FP32), tensor("a"), "QDQ"),
    conv("c1", tensor("a"), tensor("b")),
    conv("c2", tensor("b"), tensor("out", FP16)),
)


def test_a_clean_engine_has_no_findings_but_its_entry():
    (entry,) = audit(None, engine(*CLEAN)).findings
    assert (entry.check, entry.subject, entry.severity) == ("entry_conversion", "Q", Severity.INFO)
    assert entry.reason == "turns the input in from fp32 into int8"
    assert entry.bytes == 5 * 32 * 64


@pytest.mark.parametrize(("conversion", "told"), [("", 1), ("QuantizeLinear", 0), ("Cast", 0)])
def test_a_conversion_that_the_model_asks_for_is_not_told(conversion: str, told: int, tmp_path: Path):
    sketch = Sketch()
    x = sketch.input("in", [1, 32, 8, 8])
    if conversion == "QuantizeLinear":
        scale = [sketch.constant("scale", np.float32(0.1)), sketch.constant("zero", np.int8(0))]
        x = sketch.node("DequantizeLinear", [sketch.node(conversion, [x, *scale], "q"), *scale], "dq")
    elif conversion:
        x = sketch.node(conversion, [sketch.node(conversion, [x], "half", to=10)], "float", to=1)
    sketch.output(sketch.conv("c1", x, (32, 32)), [1, 32, 8, 8])
    model = opened(sketch.model(), tmp_path)
    assert [each.check for each in audit(model, engine(*CLEAN)).findings].count("entry_conversion") == told


def test_an_input_that_is_only_reordered_is_no_entry_conversion():
    assert found("entry_conversion", reformat("R", tensor("in"), tensor("a", CHW32)), *CLEAN[1:]) == []


def test_an_engine_without_layers_has_no_findings():
    assert audit(None, engine()).findings == ()


def test_a_cast_between_two_kernels_is_needless_and_names_both():
    (finding,) = found(
        "needless_conversion",
        conv("c1", tensor("in", FP32), tensor("a", FP32), "Float"),
        reformat("cast", tensor("a", FP32), tensor("b", FP16)),
        conv("c2", tensor("b", FP16), tensor("out", FP16), "Half"),
    )
    assert (finding.subject, finding.bytes) == ("cast", (4 + 2) * 32 * 64)
    assert "casts fp32 to fp16 (REFORMAT), between c1 and c2" in finding.reason


@pytest.mark.parametrize("placed", [True, False])
def test_a_kernel_that_a_transpose_asks_for_names_the_setting_of_a_run(placed: bool, tmp_path: Path):
    s = Sketch()
    moved = s.node(
        "Transpose", [s.conv("c1", s.input("x", [1, 4, 8, 8]), (4, 4))], "moved", perm=[0, 1, 3, 2]
    )
    s.output(s.conv("c2", moved, (4, 4)))
    model = opened(s.model(), tmp_path)
    built = engine(
        conv("c1", tensor("in", FP16), tensor("a", FP16), "Half"),
        reformat("mover", tensor("a", FP16), tensor("b", FP16)) | {"Metadata": "[ONNX Layer: moved]"},
        conv("c2", tensor("b", FP16), tensor("out", FP16), "Half"),
    )
    context = stage(built, model, decide(model.view, PlacementOptions()) if placed else None)
    (finding,) = (each for each in examine(context).findings if each.check == "needless_conversion")
    assert finding.reason.startswith("a kernel that only reorders fp16")
    assert ("--set prepare.transposes=move" in finding.fix) is placed


@pytest.mark.parametrize("part_first", [True, False])
def test_a_kernel_that_also_writes_a_part_of_a_concatenation_changes_no_form(part_first: bool):
    """The builder merges a copy and a part into one kernel; types and layouts before and after it agree."""
    outputs = [tensor("joined"), tensor("copy")]
    (finding,) = found(
        "needless_conversion",
        conv("c1", tensor("in"), tensor("a")),
        layer(
            "merged", "Reformat", [tensor("a")], outputs if part_first else outputs[::-1], Origin="REFORMAT"
        ),
        conv("c2", tensor("copy"), tensor("joined")),
        conv("c3", tensor("joined"), tensor("out")),
    )
    assert "copies its part of a int8 concatenation" in finding.reason
    assert Assertion.CHANGES_FORM not in {claim.says for claim in finding.claims}


def test_a_kernel_of_float_constants_is_not_said_to_dequantize():
    from tests.audit.scenes import engine as made
    from tests.audit.scenes import kernel as scene_kernel
    from tests.audit.scenes import tensor as scene_tensor

    for dtype, reason, fix in (
        (DType.INT8, "dequantizes a weight", "quantizes the activation"),
        (DType.FLOAT32, "computes from constants", "reports the cause"),
    ):
        alone = replace(
            scene_kernel("k", role=Role.OTHER), inputs=(), constants=(scene_tensor("held", dtype),)
        )
        (finding,) = audit(None, made(alone)).findings
        assert (finding.check, finding.reason.partition(" in ")[0]) == ("runtime_weights", reason)
        assert fix in finding.fix


def test_what_prepare_could_not_fold_is_for_information_only(tmp_path: Path):
    from tests.audit.scenes import engine as made
    from tests.audit.scenes import kernel as scene_kernel
    from tests.audit.scenes import tensor as scene_tensor

    constant = (scene_tensor("held", DType.FLOAT32),)
    alone = made(replace(scene_kernel("k", role=Role.OTHER), inputs=(), constants=constant))
    sketch = Sketch()
    sketch.output(sketch.conv("c1", sketch.input("in", [1, 32, 8, 8]), (32, 32)), [1, 32, 8, 8])
    model = opened(sketch.model(), tmp_path)
    placed = decide(model.view, PlacementOptions())
    for placement, severity in ((None, Severity.WARNING), (placed, Severity.INFO)):
        findings = audit(model, alone, placement).findings
        (finding,) = [each for each in findings if each.check == "runtime_weights"]
        assert finding.severity is severity
        # What an export could store is unknown, so a placed model gets no claim that nothing helps.
        assert (promises(finding.fix, of_finding=True) == ()) is (placement is not None)


@pytest.mark.parametrize("is_split", [False, True], ids=["one kernel", "a product and its finisher"])
def test_the_fix_of_a_quantizer_names_all_nodes_up_to_one_that_writes_floats(is_split: bool, tmp_path: Path):
    sketch = Sketch()
    heads = [sketch.input(name, [1, 4, 8, 8]) for name in ("p", "k", "v")]
    product = sketch.node("MatMul", [sketch.node("Softmax", heads[:1], "soft"), heads[1]], "m1")
    sketch.output(sketch.node("MatMul", [product, heads[2]], "m2"), [1, 4, 8, 8])
    layers = (
        layer("before", "kgen", [tensor("p", FP32)], [tensor("e", FP32)]),
        reformat("soft_Q", tensor("e", FP32), tensor("q"), "QDQ"),
        layer(
            "m1",
            "gemm",
            [tensor("q"), tensor("k")],
            [tensor("s", FP32) if is_split else tensor("a")],
            Metadata="[ONNX Layer: m1]",
        ),
        *[layer("__myl_MulMinMaxRounCast_myl0_1", "kgen", [tensor("s", FP32)], [tensor("a")])] * is_split,
        layer("m2", "gemm", [tensor("a"), tensor("v")], [tensor("b", FP32)], Metadata="[ONNX Layer: m2]"),
        layer("after", "kgen", [tensor("b", FP32)], [tensor("out", FP32)]),
    )
    findings = audit(opened(sketch.model(), tmp_path), engine(*layers)).findings
    (fix,) = [each.fix for each in findings if each.check == "unfused_qdq" and each.subject == "soft_Q"]
    assert "m1, m2 gain more from INT8" in fix
    assert "`qdqtool repair --float m1 --float m2` leaves them float" in fix


def test_quantizers_of_one_kind_share_one_fix_that_names_the_nodes_of_all(tmp_path: Path):
    sketch = Sketch()
    layers = []
    for number in "12":
        heads = [sketch.input(f"{name}{number}", [1, 4, 8, 8]) for name in "pk"]
        soft = sketch.node("Softmax", heads[:1], f"soft{number}")
        sketch.output(sketch.node("MatMul", [soft, heads[1]], f"m{number}"), [1, 4, 8, 8])
        layers += [
            layer(f"before{number}", "kgen", [tensor(f"p{number}", FP32)], [tensor(f"e{number}", FP32)]),
            reformat(f"Q{number}", tensor(f"e{number}", FP32), tensor(f"q{number}"), "QDQ"),
            layer(
                f"m{number}",
                "gemm",
                [tensor(f"q{number}"), tensor(f"k{number}")],
                [tensor(f"b{number}", FP32)],
                Metadata=f"[ONNX Layer: m{number}]",
            ),
            layer(f"after{number}", "kgen", [tensor(f"b{number}", FP32)], [tensor(f"out{number}", FP32)]),
        ]
    findings = audit(opened(sketch.model(), tmp_path), engine(*layers)).findings
    fixes = {each.subject: each.fix for each in findings if each.check == "unfused_qdq"}
    assert set(fixes) == {"Q1", "Q2"}
    (fix,) = set(fixes.values())
    assert "`qdqtool repair --float m1 --float m2` leaves them float" in fix


def test_a_dequantize_kernel_between_two_others_is_unfused():
    (finding,) = found(
        "unfused_qdq",
        conv("c1", tensor("in"), tensor("a")),
        reformat("DQ", tensor("a"), tensor("b", FP32), "QDQ"),
        layer("softmax", "SoftMax", [tensor("b", FP32)], [tensor("out", FP32)]),
    )
    assert finding.subject == "DQ"
    assert "only dequantizes" in finding.reason


def test_a_float_result_that_goes_back_to_int8_is_a_round_trip():
    layers = (
        conv("c1", tensor("in"), tensor("f", FP16)),
        reformat("Q", tensor("f", FP16), tensor("q"), "QDQ"),
        conv("c2", tensor("q"), tensor("r")),
        conv("c3", tensor("r"), tensor("out", FP16), residual=[tensor("f", FP16)]),
    )
    (finding,) = found("float_round_trip", *layers)
    assert finding.severity is Severity.WARNING
    assert "c1 computes in INT8 and writes fp16, which c3 reads unchanged" in finding.reason
    assert "put Q/DQ on the input of c3" in finding.fix
    assert [evidence.place for evidence in finding.evidence] == ["/data/layers/0", "/data/layers/1"]
    assert found("int8_in_float_out", *layers) == []
    assert found("unfused_qdq", *layers) == []


def test_an_int8_kernel_that_hands_floats_to_another_is_named():
    (finding,) = found(
        "int8_in_float_out",
        conv("c1", tensor("in"), tensor("f", FP16)),
        layer("pool", "CaskPooling", [tensor("f", FP16)], [tensor("out", FP16)]),
    )
    assert "writes fp16 for pool" in finding.reason
    assert finding.bytes == 2 * (2 - 1) * 32 * 64


def test_a_float_result_whose_reader_is_not_listed_is_named_only_where_outputs_are_unknown():
    layers = (conv("c1", tensor("in"), tensor("f", FP32)),)
    unknown = read_text(json.dumps({"Layers": layers}), where="test")
    checks = {finding.check: finding for finding in audit(None, unknown).findings}
    assert "does not list" in checks["int8_in_float_out"].reason
    assert found("int8_in_float_out", conv("c1", tensor("in"), tensor("out", FP32))) == []


def test_conversions_in_a_row_are_one_chain():
    (finding,) = found(
        "conversion_chain",
        conv("c1", tensor("in"), tensor("a")),
        reformat("r1", tensor("a"), tensor("b", CHW32)),
        reformat("copy", tensor("b", CHW32), tensor("c", CHW32), "SLICE"),
        conv("c2", tensor("c", CHW32), tensor("out", FP16)),
    )
    assert finding.reason.startswith("2 kernels in a row only move data: r1 (REFORMAT) -> copy (SLICE)")


def test_an_int8_kernel_on_ordinary_cores_is_named_with_the_likely_reason():
    first = conv(
        "c1",
        tensor("in", channels=3),
        tensor("out", FP16),
        TacticName="ampere_fp32_icudnn_int8x4_128x64_relu",
    )
    (finding,) = found("no_tensor_cores", first)
    assert "only 3 input channels" in finding.reason
    depthwise = layer("dw", "CudaDepthwiseConvolution", [tensor("in")], [tensor("out")])
    assert "depthwise" in found("no_tensor_cores", depthwise)[0].reason
    fast = conv(
        "c1", tensor("in"), tensor("out"), TacticName="sm80_xmma_fprop_i8i8_i8i32_f32_nchw_tensor16x8x32_x"
    )
    assert found("no_tensor_cores", fast) == []


def test_padding_is_reported_from_a_quarter_on():
    (finding,) = found(
        "padding_waste", reformat("r", tensor("in", channels=3), tensor("out", CHW32, channels=3))
    )
    assert finding.bytes == (32 - 3) * 64
    assert found("padding_waste", reformat("r", tensor("in"), tensor("out", CHW32, channels=30))) == []


def test_fp32_beside_int8_means_fp16_was_not_enabled():
    layers = (
        conv("c1", tensor("in"), tensor("a", FP32)),
        conv("c2", tensor("a", FP32), tensor("out", FP32), "Float"),
    )
    (finding,) = found("fp16_off", *layers)
    assert "1 of 2 compute kernels run FP32 and none FP16" in finding.reason
    mixed = (*layers, reformat("r", tensor("out", FP32), tensor("half", FP16)))
    assert found("fp16_off", *mixed) == []
    assert found("fp16_off", layers[1]) == []


def test_fp32_between_int8_products_means_fp16_was_not_enabled():
    ends = (conv("c1", tensor("in"), tensor("a", FP32)), conv("c2", tensor("b"), tensor("out")))
    norm = layer("norm", "kgen", [tensor("a", FP32)], [tensor("n", FP32)])
    (finding,) = found(
        "fp16_off", ends[0], norm, layer("q", "kgen", [tensor("n", FP32)], [tensor("b")]), ends[1]
    )
    assert (finding.subject, finding.severity) == (ENGINE, Severity.INFO)
    # (1 + 4) + (4 + 4) + (4 + 1) + (1 + 1) bytes a value, of which n takes 4 + 4
    assert "write FP32, 40% of all activation bytes" in finding.reason
    assert finding.bytes == (4 + 4) // 2 * 32 * 64
    # beside an FP32 product, the kernels between count too
    last = layer("q", "kgen", [tensor("n", FP32)], [tensor("b")])
    (finding,) = found(
        "fp16_off",
        *ends[:1],
        norm,
        last,
        ends[1],
        conv("c3", tensor("out", FP32), tensor("y", FP32), "Float"),
    )
    assert finding.severity is Severity.WARNING
    assert finding.bytes == (4 + 4 + 4 + 4) // 2 * 32 * 64
    # the sums of a product, and the ends of the engine, keep their type
    assert found("fp16_off", ends[0], layer("q", "kgen", [tensor("a", FP32)], [tensor("b")]), ends[1]) == []
    assert found("fp16_off", *ends, layer("last", "kgen", [tensor("out")], [tensor("end", FP32)])) == []


def test_what_fp16_would_destroy_is_not_offered_fp16(tmp_path: Path):
    sketch = Sketch()
    powers = sketch.conv("front", sketch.input("in", [1, 32, 8, 8]), (32, 32))
    powers = sketch.node("Mul", [powers, powers], "powers", name="square")
    y = sketch.conv("plain", sketch.node("Log", [powers], "loud", name="log"), (32, 32))
    sketch.output(sketch.conv("tail", y, (32, 32)), [1, 32, 8, 8])
    model = opened(sketch.model(), tmp_path)

    def told(*names: str) -> list[Finding]:
        layers = (
            conv("c1", tensor("in"), tensor("a", FP32), Metadata="[ONNX Layer: tail]"),
            *(
                conv(name, tensor("a", FP32), tensor("out", FP32), "Float", Metadata=f"[ONNX Layer: {name}]")
                for name in names
            ),
        )
        findings = audit(model, engine(*layers)).findings
        return [finding for finding in findings if finding.check == "fp16_off"]

    assert told("front") == []
    (finding,) = told("front", "plain")
    assert finding.subject == ENGINE
    assert [entry.place.rpartition("/")[2] for entry in finding.evidence] == ["2"]
    assert "1 of 3 compute kernels run FP32" in finding.reason
    assert "1 more must stay FP32 (the first feeds the logarithm 'log'" in finding.reason


def test_twins_that_read_one_tensor_could_be_merged():
    twins = (conv("c1", tensor("in"), tensor("a")), conv("c2", tensor("in"), tensor("b")))
    (finding,) = found("unmerged_siblings", *twins)
    assert finding.reason.endswith("c1, c2")
    assert leaves_nothing(finding.fix), "one tensor of an engine has one scale"
    apart = (twins[0], conv("c2", tensor("other"), tensor("b")))
    assert found("unmerged_siblings", *apart) == []  # two scales make two tensors
    assert found("unmerged_siblings", twins[0], conv("c3", tensor("a"), tensor("b"))) == []
    floats = [conv(name, tensor("in", FP32), tensor(f"{name}_y", FP32), "Float") for name in ("c1", "c2")]
    assert found("unmerged_siblings", *floats) == []  # no scale keeps them apart


def test_a_region_without_listed_kernels_says_what_it_holds():
    region = layer(
        "{ForeignNode[a...c]}",
        "Myelin",
        [tensor("in")],
        [tensor("out")],
        Metadata="[ONNX Layer: a]\x1e[ONNX Layer: b]",
    )
    (finding,) = found("opaque_region", region)
    assert "contains 2 ONNX nodes, a, b" in finding.reason


@pytest.mark.parametrize(
    ("words", "fix"), [(FP32, "put Q/DQ on both inputs"), (INT8, "remove the Q/DQ between")]
)
def test_a_softmax_between_two_products_is_an_attention_that_is_not_fused(words: str, fix: str):
    two = [tensor("q"), tensor("k")]
    layers = (
        layer("qk", "gemm", two, [tensor("s", words)]),
        layer("pad", "kgen", [tensor("s", words)], [tensor("sp", words)]),
        layer("softmax", "SoftMax", [tensor("sp", words)], [tensor("p")]),
        layer("av", "gemm", [tensor("p"), tensor("v")], [tensor("out")]),
    )
    (finding,) = found("attention_not_fused", *layers)
    assert "softmax between qk (int8) and av (int8)" in finding.reason
    assert fix in finding.fix
    assert found("attention_not_fused", *layers[:3]) == []


def test_a_mask_that_two_attentions_share_does_not_lead_from_one_to_the_other():
    def attention(number: int, mask: dict, *more: dict) -> list[dict]:
        scores, weights = tensor(f"s{number}"), tensor(f"p{number}")
        # the second attention comes first by name
        name = "ba"[number]
        return [
            layer(f"{name}_qk", "gemm", [tensor(f"q{number}"), tensor(f"k{number}")], [scores]),
            layer(f"softmax{number}", "SoftMax", [scores, mask], [weights, *more]),
            layer(f"{name}_av", "gemm", [weights, tensor(f"v{number}")], [tensor(f"out{number}")]),
        ]

    mask = tensor("mask")
    findings = found("attention_not_fused", *attention(0, tensor("ids"), mask), *attention(1, mask))
    assert [finding.reason.partition(":")[0] for finding in findings] == [
        "softmax between b_qk (int8) and b_av (int8)",
        "softmax between a_qk (int8) and a_av (int8)",
    ]


def test_a_layer_slower_than_in_the_other_engine_is_named():
    def totals(name: str) -> EngineTotals:
        return EngineTotals(
            name=name, kernels=1, compute=1, int8=0, conversions=0, ms=None, conversion_ms=None, bytes=None
        )

    def pair(left: float, right: float) -> LayerPair:
        before = Side(layers=("old",), precision=DType.FLOAT16, ms=left)
        return LayerPair(nodes=("c1",), left=before, right=replace(before, layers=("c1",), ms=right))

    scene = stage(engine(*CLEAN))
    for times, count in (((1.0, 1.2), 1), ((1.0, 1.01), 0), ((1.0, 0.5), 0)):
        diff = EngineDiff(
            left=totals("fp16"),
            right=totals("int8"),
            pairs=(pair(*times),),
            left_only=(),
            right_only=(),
            causes=(),
        )
        told = examine(replace(scene, compared=diff), ignore=("entry_conversion",)).findings
        assert [finding.subject for finding in told] == ["c1"] * count


def test_a_float_layer_between_int8_layers_is_an_island_without_a_model_too():
    (finding,) = found(
        "float_island",
        conv("c1", tensor("in"), tensor("a", FP16)),
        conv("c2", tensor("a", FP16), tensor("b"), "Half"),
        conv("c3", tensor("b"), tensor("out")),
    )
    assert (finding.subject, finding.bytes) == ("c2", (2 + 1) * 32 * 64)


def test_a_finding_tells_the_time_of_its_layer_where_there_is_a_profile():
    made = engine(*CLEAN, reformat("Q2", tensor("out", FP16), tensor("pad", CHW32, channels=3), "QDQ"))
    times = Profile(rows=(ProfileRow(name="Q2", average_ms=0.25),))
    scene = replace(stage(made), explored=view(made, profile=times))
    told = [finding.reason for finding in examine(scene).findings if finding.subject == "Q2"]
    assert told
    assert all(reason.endswith("(this layer takes 0.2500 ms)") for reason in told)


def test_evidence_points_into_the_file_that_was_read():
    scene = stage(engine(*CLEAN[:1], conv("c1", tensor("a"), tensor("b", CHW32, channels=3))))
    (finding,) = examine(replace(scene, layers_file="engine.json"), ignore=("entry_conversion",)).findings
    assert [(place.file, place.place) for place in finding.evidence] == [("engine.json", "/Layers/1")]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "trips"), [("qat", 7), ("qat-residual", 0)])
def test_the_residual_quantized_resnet_has_no_round_trips(name: str, trips: int):
    shared("corpus/layer_info")
    (path,) = (SHARED / "corpus" / "layer_info").glob(f"*resnet__A100__{name}__*")
    findings = audit(None, read(path)).findings
    assert sum(finding.check == "float_round_trip" for finding in findings) == trips


@pytest.mark.shared
def test_every_engine_there_is_can_be_audited():
    for folder in ("corpus/layer_info", "corpus/rtx"):
        for path in sorted(shared(folder).glob("*.json")) + sorted(shared(folder).glob("*.layers.txt")):
            result = audit(None, read(path))
            assert all(finding.reason and finding.fix and finding.evidence for finding in result.findings), (
                path.name
            )


@pytest.mark.shared
def test_the_seed_engine_is_told_its_float_result_its_entry_and_its_depthwise_kernels():
    engine = read(shared("seeds/003_f31fb2f90cf874bd.txt"))
    kinds = {
        kind: sum(layer.kind == kind for layer in engine.layers) for kind in {la.kind for la in engine.layers}
    }
    assert kinds == {"CaskConvolution": 34, "CudaDepthwiseConvolution": 13, "PointWiseV2": 2, "Reformat": 1}
    assert len({layer.name for layer in engine.layers}) == 48
    told = {check: [] for check in ("int8_in_float_out", "entry_conversion", "no_tensor_cores")}
    for finding in audit(None, engine).findings:
        told.setdefault(finding.check, []).append(finding.subject)
    assert told["int8_in_float_out"] == ["Conv_136 + Relu_137"]
    assert told["entry_conversion"] == ["Reformatting CopyNode for Input Tensor 0 to Conv_0 + PWN(Clip_3)"]
    assert len(told["no_tensor_cores"]) == 13


@pytest.mark.parametrize("made", [DType.INT8, DType.FLOAT8, DType.FLOAT4])
def test_an_input_in_few_bits_is_advised_only_where_it_needs_no_scale_per_block(made: DType) -> None:
    from tests.audit.scenes import engine as scene
    from tests.audit.scenes import kernel
    from tests.audit.scenes import tensor as given

    a, source, out = given("a", made), given("in", DType.FLOAT32), given("out", DType.FLOAT32)
    entry = replace(kernel("Q", role=Role.QDQ), inputs=(source,), outputs=(a,))
    reader = replace(kernel("gemm"), inputs=(a,), outputs=(out,))
    told = [each for each in audit(None, scene(entry, reader)).findings if each.check == "entry_conversion"]
    assert told
    assert ("--inputIOFormats" in told[0].fix) == (made is not DType.FLOAT4)
