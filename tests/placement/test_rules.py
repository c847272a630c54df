from __future__ import annotations

import numpy as np
import pytest

from qdqtool.core.placement import JointSlots, Placement, QuantSpec, RequestOrVeto, SharedScale, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.matching.refused import recurrent_in_int8
from qdqtool.matching.rule import RULES, rulebook
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from tests import models
from tests.placement import building, graphs


def place(proto, **options) -> Placement:
    return decide(graphs.view(proto), PlacementOptions(**options))


def quantized(placement: Placement) -> set[str]:
    return {str(decision.slot) for decision in placement.quantized}


def specs(placement: Placement) -> dict[str, int | None]:
    return {str(decision.slot): decision.spec.axis for decision in placement.quantized}


def tied(placement: Placement, *tensors: str) -> bool:
    return any(set(tensors) <= set(tie.tensors) for tie in placement.ties)


def vetoes(placement: Placement, slot: str) -> dict[str, str]:
    decision = next(d for d in placement.decisions if str(d.slot) == slot)
    return {o.rule: o.reason for o in decision.opinions if o.stance is RequestOrVeto.VETO}


PLACES = {name: rule.place for name, rule in rulebook().rules.items() if rule.place is not None}


@pytest.mark.parametrize("name", PLACES)
def test_every_rule_has_a_manual_and_something_to_say(name):
    manual = RULES.manual(name)
    assert len(manual.splitlines()) >= 5
    assert manual.splitlines()[0].endswith(".")
    picky = PlacementOptions(
        exclude=("*",), first_layer="float", last_layer="float", min_channels=64, target="10"
    )
    said = set()
    for make in (
        models.attention,
        models.residual_cnn,
        models.unet,
        models.matmuls,
        models.gemms,
        graphs.excite,
        graphs.computed_weight,
        graphs.recurrent,
        graphs.pooled,
        graphs.pool_chain,
        graphs.gated,
        graphs.inverted_swish,
        graphs.normalized_stream,
        graphs.decoder,
        graphs.spectrogram,
        graphs.behind_plugin,
        lambda: graphs.joint("Split"),
        lambda: graphs.head(rows=1, outputs=8),
    ):
        for options in (
            PlacementOptions(),
            PlacementOptions(target="8"),
            PlacementOptions(sm=("75",)),
            PlacementOptions(kv_cache="int8"),
            PlacementOptions(float_type="fp16"),
            picky,
        ):
            for statement in PLACES[name](graphs.view(make()), options):
                assert isinstance(statement, (SlotStatement, SharedScale, JointSlots))
                assert statement.reason
                said.add(type(statement))
    assert said


@pytest.mark.parametrize("name", PLACES)
def test_every_rule_has_nothing_to_say_about_a_graph_without_anything_to_quantize(name):
    s = models.Sketch()
    s.output(s.relu("relu", s.input("x", [1, 4])), [1, 4])
    options = PlacementOptions(exclude=("*",), first_layer="float", last_layer="float", min_channels=8)
    assert list(PLACES[name](graphs.view(s.model()), options)) == []


def test_conv_weights_have_one_scale_per_output_channel():
    assert specs(place(models.conv_chain())) == {
        "conv1[0]": None, "conv1[1]": 0, "conv2[0]": None, "conv2[1]": 0
    }  # fmt: skip


def test_per_channel_false_gives_one_scale_per_weight():
    assert set(specs(place(models.conv_chain(), per_channel=False)).values()) == {None}


def test_gemm_weight_axis_follows_transb():
    assert {k: v for k, v in specs(place(models.gemms())).items() if k.endswith("[1]")} == {
        "fc1[1]": 0, "fc2[1]": 1
    }  # fmt: skip


def test_matmul_weight_axis_is_the_output_channel_on_either_side():
    axes = specs(place(models.matmuls()))
    assert axes["mm_right[1]"] == 1
    assert axes["mm_left[0]"] == 0
    assert axes["mm_both[0]"] is None
    assert axes["mm_both[1]"] is None


def test_a_weight_shared_with_different_channel_axes_gets_one_scale():
    assert specs(place(graphs.shared_weight())) == {
        "fc1[0]": None, "fc1[1]": None, "fc2[0]": None, "fc2[1]": None
    }  # fmt: skip


def test_conv_transpose_stays_float_on_rtx_with_a_fix():
    placement = place(models.unet())
    decision = next(d for d in placement.decisions if str(d.slot) == "up[0]")
    assert not decision.quantize
    assert [o.fix for o in decision.opinions if o.stance is RequestOrVeto.VETO] == [
        "nothing to do; --set insert.types=fp16 runs it in FP16"
    ]


@pytest.mark.parametrize(
    ("target", "axis"), [("8", 0), ("8.2", 0), ("9.3", None), ("10", None), ("11", None)]
)
def test_conv_transpose_axis_follows_the_release(target, axis):
    assert specs(place(models.unet(), target=target))["up[1]"] == axis


def test_grouped_conv_transpose_has_one_scale():
    assert specs(place(models.unet(group=2), target="10"))["up[1]"] is None


@pytest.mark.parametrize(
    ("size", "tokens", "reason"),
    [(48, 16, "heads of the attention have size 48"), (32, 513, "513 tokens")],
    ids=["size", "length"],
)
def test_an_attention_that_int8_cannot_fuse_stays_float_where_float_is_fused(size, tokens, reason):
    placement = place(graphs.heads(size, tokens), float_type="fp16")
    assert reason in vetoes(placement, "qk[0]")["attention"]
    assert quantized(placement) == {
        f"{node}[{index}]" for node in ("q", "k", "v", "proj") for index in (0, 1)
    }
    assert {"qk[0]", "av[1]"} <= quantized(
        place(graphs.heads(size, tokens), float_type="fp16", skip_rules=("attention",))
    )


@pytest.mark.parametrize(("size", "tokens"), [(48, 16), (32, 513), (8, 64)])
def test_an_attention_that_nothing_fuses_is_two_int8_products(size, tokens):
    whole = {"qk[0]", "qk[1]", "av[0]", "av[1]"}
    assert whole <= quantized(place(graphs.heads(size, tokens)))
    assert whole.isdisjoint(quantized(place(graphs.heads(size, tokens), float_type="bf16"))) is (size >= 12)


def test_classic_releases_fuse_other_head_sizes_but_no_longer_sequences():
    assert {"qk[0]", "av[1]"} <= quantized(place(graphs.heads(48, 16), target="10"))
    assert "qk[0]" not in quantized(place(graphs.heads(32, 513), target="10"))


@pytest.mark.parametrize("outputs", [10, 100], ids=["narrow", "small"])
def test_a_head_behind_the_global_average_of_a_convolution_is_quantized(outputs):
    assert {"fc[0]", "fc[1]"} <= quantized(place(graphs.pooled_head(outputs)))


def test_attention_products_are_quantized_on_all_four_inputs():
    assert {"qk[0]", "qk[1]", "av[0]", "av[1]"} <= quantized(place(models.attention()))


def test_an_attention_with_one_excluded_product_is_float_as_a_whole():
    placement = place(models.attention(), exclude=("qk",))
    assert not {"qk[0]", "qk[1]", "av[0]", "av[1]"} & quantized(placement)
    assert "qk[0], qk[1] stays float" in vetoes(placement, "av[0]")["attention"]


def test_two_activation_products_are_float_together():
    placement = place(models.matmuls(), exclude=("mm_both",))
    assert not {"mm_both[0]", "mm_both[1]"} & quantized(placement)


def test_residual_add_quantizes_the_identity_shortcut_only():
    slots = quantized(place(models.residual_cnn()))
    assert "add1[1]" in slots
    assert "add1[0]" not in slots


def test_residual_add_of_two_convolutions_depends_on_the_builder():
    assert not {"add2[0]", "add2[1]"} & quantized(place(models.residual_cnn()))
    classic = quantized(place(models.residual_cnn(), target="10"))
    assert "add2[1]" in classic
    assert "add2[0]" not in classic


@pytest.mark.parametrize(("batch", "refused"), [(1, True), (4, False)])
def test_every_row_of_every_batch_is_a_vector_of_a_matrix_product(batch, refused):
    s = models.Sketch()
    x = s.input("x", [batch, 1, 64])
    s.output(s.node("MatMul", [x, s.weight("w", 64, 64)], "y", name="mm"))
    assert ("gemv" in vetoes(place(s.model()), "mm[0]")) is refused


@pytest.mark.parametrize("target", ["rtx", "8.6", "10.13", "11.4"])
def test_an_add_of_one_convolution_and_a_float_shortcut_reads_no_pair(target):
    s = models.Sketch()
    x = s.input("x", [1, 8, 8, 8])
    gate = s.node("Sigmoid", [x], "gate_y", name="gate")
    s.output(s.node("Add", [s.conv("conv", x, (8, 8)), gate], "y", name="add"))
    assert quantized(place(s.model(), target=target)) == {"conv[0]", "conv[1]"}


def test_residual_stream_of_a_transformer_stays_float():
    assert not {"add1[0]", "add1[1]", "add2[0]", "add2[1]"} & quantized(place(models.attention()))


def test_strided_shortcut_is_quantized_because_its_origin_is():
    placement = place(graphs.strided_shortcut())
    assert "add[1]" in quantized(placement)
    assert ("pad_y", "stem_relu_y") in {tie.tensors for tie in placement.ties}


def test_concat_inputs_share_one_scale():
    ties = place(graphs.pyramid()).ties
    assert [tie.tensors for tie in ties] == [("concat_y", "relu1_y", "relu2_y")]
    assert ties[0].rule == "commuting, concat"


def test_concat_that_feeds_no_int8_layer_ties_nothing():
    assert place(graphs.float_concat()).ties == ()
    assert place(graphs.pyramid(), exclude=("conv3",)).ties == ()


def test_maxpool_and_its_input_share_one_scale():
    assert tied(place(models.unet()), "concat_y", "pool_y")


@pytest.mark.parametrize("op", ["Concat", "MaxPool"])
def test_ties_are_left_out_where_the_recipe_does_not_list_the_operator(op):
    ops = tuple(name for name in PlacementOptions().ops if name != op)
    assert not tied(place(models.unet(), ops=ops), "concat_y", "pool_y")


def test_parts_of_one_tensor_keep_scales_of_their_own():
    for options in ({"target": "10"}, {"skip_rules": ("joint_projection",)}):
        placement = place(graphs.cut_attention(), **options)
        assert {"qk[0]", "qk[1]", "av[1]"} <= quantized(placement)
        assert placement.ties == ()


def test_a_tensor_that_pools_and_concats_read_is_quantized_in_front_of_them():
    placement = place(graphs.pool_chain())
    assert {"pool1[0]", "pool2[0]", "concat[0]", "concat[1]", "concat[2]"} <= quantized(placement)
    assert tied(placement, "relu1_y", "pool1_y", "pool2_y", "concat_y")


def test_a_tensor_that_pools_read_stays_as_it_is_where_nothing_behind_is_int8():
    placement = place(graphs.pool_chain(), exclude=("conv2",))
    assert quantized(placement) == {"conv1[0]", "conv1[1]"}
    assert "fan_out" in vetoes(placement, "pool1[0]")


def test_a_small_product_of_one_row_stays_float_and_a_large_one_does_not():
    assert quantized(place(graphs.head(rows=1, outputs=32))) == set()
    assert quantized(place(graphs.head(rows=2, outputs=32))) == {"fc[0]", "fc[1]"}
    assert quantized(place(graphs.head(rows="N", outputs=32))) == {"fc[0]", "fc[1]"}
    assert quantized(place(graphs.head(rows=1, outputs=8192))) == {"fc[0]", "fc[1]"}
    assert quantized(place(graphs.head(rows=1, outputs=32), skip_rules=("gemv",))) == {"fc[0]", "fc[1]"}


def test_narrow_products_stay_float():
    placement = place(graphs.head(rows=8, outputs=10))
    assert vetoes(placement, "fc[1]") == {
        "narrow": "the weights of this node are 64 x 10, less than a kernel's tile of 16, and no other node reads the input in INT8"
    }
    assert quantized(place(graphs.head(rows=8, outputs=10), skip_rules=("narrow",))) == {"fc[0]", "fc[1]"}


def test_average_pools_stay_float_on_rtx_and_are_quantized_on_classic():
    rtx = place(graphs.pooled())
    assert "pooling" in vetoes(rtx, "pool[0]")
    classic = quantized(place(graphs.pooled(), target="8"))
    assert "pool[0]" in classic
    assert "gap[0]" not in classic


def test_squeeze_and_excite_gates_stay_float_unless_the_rule_is_skipped():
    gate = {"squeeze[0]", "squeeze[1]", "expand[0]", "expand[1]"}
    slots = quantized(place(graphs.excite()))
    assert not gate & slots
    assert {"stem[0]", "tail[0]"} <= slots
    assert gate <= quantized(place(graphs.excite(), skip_rules=("squeeze_excite", "gemv")))


def test_what_a_logarithm_is_taken_of_stays_float_up_to_the_inputs():
    front = {f"{node}[{index}]" for node in ("Cos_mm", "Sin_mm", "mel_mm") for index in (0, 1)}
    placement = place(graphs.spectrogram())
    assert not front & quantized(placement)
    assert {"conv1[0]", "conv2[0]"} <= quantized(placement)
    assert all("logarithm" in vetoes(placement, slot) for slot in front)
    assert front <= quantized(place(graphs.spectrogram(), skip_rules=("logarithm",)))


@pytest.mark.parametrize("name", ["fp8", "int8-weights", "int4-weights", "nvfp4"])
def test_what_a_logarithm_is_taken_of_stays_float_in_every_format(name):
    model, placement = building.quantized(graphs.spectrogram(), format=name)
    assert not {str(slot) for slot in quantized(placement)} & {"Cos_mm[0]", "Cos_mm[1]", "mel_mm[1]"}
    assert not [entry for entry in lint(model).findings if entry.rule == "logarithm"]


def test_lint_tells_of_a_spectrogram_that_somebody_else_quantized():
    def found(**options):
        model, _ = building.quantized(graphs.spectrogram(), **options)
        return [(entry.node, entry.reason) for entry in lint(model).findings if entry.rule == "logarithm"]

    ((node, reason),) = found(skip_rules=("logarithm",))
    assert node == "Cos_mm"
    assert "3 quantized compute nodes" in reason
    assert not found()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("activation", ["Relu", "Softmax", "Exp"])
def test_a_logarithm_behind_an_activation_keeps_nothing_float(activation, early):
    placement = place(graphs.spectrogram(activation, early=early))
    assert {"mel_mm[0]", "mel_mm[1]", "Cos_mm[0]", "Sin_mm[1]"} <= quantized(placement)


def test_a_classifier_head_behind_a_pool_is_no_gate():
    assert "squeeze_excite" not in vetoes(place(models.residual_cnn()), "fc[0]")


@pytest.mark.parametrize(
    ("options", "rule_says"),
    [
        ({"exclude": ("conv*",)}, "place.exclude lists 'conv*'"),
        ({"only": ("conv2",)}, "no pattern of place.only matches this node"),
        ({"exclude_ops": ("Conv",)}, "place.exclude_ops lists Conv"),
        ({"ops": ("Gemm",)}, "place.ops does not list Conv"),
    ],
    ids=["exclude", "only", "exclude_ops", "ops"],
)
def test_the_user_keeps_nodes_float(options, rule_says):
    placement = place(models.conv_chain(), **options)
    assert vetoes(placement, "conv1[0]")["user"] == rule_says
    assert "conv1[0]" not in quantized(placement)


def test_a_product_of_two_activations_is_listed_as_an_add_and_told_so():
    placement = place(graphs.excite(), ops=("Conv",))
    assert vetoes(placement, "excite[0]")["user"] == "place.ops does not list Add, which includes Mul"


def test_first_and_last_layers_can_stay_float():
    skip = ("narrow",)
    first = quantized(place(models.residual_cnn(), first_layer="float", skip_rules=skip))
    assert "stem[0]" not in first
    assert {"conv1[0]", "fc[0]"} <= first
    last = quantized(place(models.residual_cnn(), last_layer="float", skip_rules=skip))
    assert "fc[0]" not in last
    assert {"stem[0]", "shortcut[0]"} <= last


def test_every_head_has_its_own_last_layer():
    placement = place(graphs.pyramid(), last_layer="float")
    assert not {"conv3[0]", "conv4[0]"} & quantized(placement)
    assert "conv2[0]" in quantized(placement)


def test_layers_in_front_of_an_expected_value_are_last_ones():
    """Boxes as YOLOv8 makes them: a softmax over places, whose numbers a convolution weighs."""
    s = models.Sketch()
    x = s.conv("stem", s.input("x", [1, 8, 8, 8]), (8, 32))
    places = s.conv("places", s.relu("relu", x), (32, 64), kernel=1)
    shape = s.constant("shape", np.array([1, 4, 16, 64], np.int64))
    rows = s.node("Reshape", [places, shape], "rows")
    first = s.node("Transpose", [rows], "first", perm=[0, 2, 1, 3])
    shares = s.node("Softmax", [first], "shares", axis=1)
    numbers = s.constant("numbers", np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    s.output(s.node("Conv", [shares, numbers], "boxes", name="expected"), [1, 1, 4, 64])
    found = place(s.model(), last_layer="float", skip_rules=("narrow",))
    assert "places[0]" not in quantized(found)
    assert "expected[0]" not in quantized(found)
    assert "stem[0]" in quantized(found)


def test_few_channels_stay_float_but_the_colours_of_the_input_do_not_count():
    placement = place(models.depthwise_cnn(), min_channels=16)
    assert quantized(placement) >= {"stem[0]", "dw[0]", "pw[0]"}
    narrow = place(models.depthwise_cnn(), min_channels=20)
    assert (
        vetoes(narrow, "dw[0]")["min_channels"]
        == "this Conv has 16 channels, fewer than place.min_channels=20"
    )


def test_computed_conv_weights_are_int8_on_rtx_and_float_on_classic():
    assert quantized(place(graphs.computed_weight())) == {"conv[0]", "conv[1]"}
    assert "unsupported" in vetoes(place(graphs.computed_weight(), target="10"), "conv[1]")


@pytest.mark.parametrize("target", ["8", "10", "11", "rtx"])
def test_a_depthwise_swish_stays_float_for_tensorrt_8_alone(target: str):
    placement = place(graphs.inverted_swish(), target=target)
    assert {"expand[0]", "expand[1]", "project[0]", "project[1]"} <= quantized(placement)
    assert ("dw[0]" in quantized(placement)) is (target != "8")
    if target == "8":
        assert "depthwise_swish" in vetoes(placement, "dw[0]")


def test_sm75_has_no_int8_convolution_on_rtx():
    assert quantized(place(models.residual_cnn(), sm=("75",), skip_rules=("narrow",))) == {
        "fc[0]", "fc[1]"
    }  # fmt: skip


def test_integer_products_are_left_alone():
    s = models.Sketch()
    a = s.input("a", [4, 4], 7)
    s.output(s.node("MatMul", [a, a], "y", name="mm"), [4, 4], 7)
    placement = place(s.model())
    assert quantized(placement) == set()
    assert "int64" in vetoes(placement, "mm[0]")["unsupported"]


def test_a_model_that_already_has_qdq_is_not_quantized_twice():
    s = models.Sketch()
    import numpy as np

    step, zero = s.constant("step", np.float32(0.1)), s.constant("zero", np.int8(0))
    q = s.node("QuantizeLinear", [s.input("x", [1, 8, 8, 8]), step, zero], "q", name="q")
    x = s.node("DequantizeLinear", [q, step, zero], "d", name="d")
    s.output(s.conv("conv", x, (8, 8)), [1, 8, 8, 8])
    placement = place(s.model())
    assert quantized(placement) == set()
    assert "already comes from Q/DQ" in vetoes(placement, "conv[0]")["unsupported"]


def test_recurrent_layers_are_left_alone():
    placement = place(graphs.recurrent(), skip_rules=("narrow",))
    assert vetoes(placement, "lstm[0]") == {"recurrent": recurrent_in_int8("LSTM", Target())}
    assert quantized(placement) == {"fc[0]", "fc[1]"}


def test_requests_for_activations_ask_for_one_scale():
    for decision in place(models.attention()).quantized:
        if decision.kind.value == "activation":
            assert decision.spec == QuantSpec()


def test_the_scale_behind_a_concat_of_pools_is_apart_on_rtx_only():
    (tie,) = place(graphs.pool_chain()).ties
    assert tie.apart == ("concat_y",)
    assert {"concat[0]", "concat[1]", "concat[2]"} <= quantized(place(graphs.pool_chain()))
    assert all(tie.apart == () for tie in place(graphs.pool_chain(), target="10").ties)


def test_a_concat_of_a_pool_and_another_layer_is_not_apart():
    assert all(tie.apart == () for tie in place(graphs.pool_beside_conv()).ties)


def test_a_concat_of_pools_that_stays_float_asks_for_no_pairs():
    placement = place(graphs.pool_chain(), exclude=("conv2",))
    assert placement.ties == ()
    assert quantized(placement).isdisjoint({"concat[0]", "concat[1]", "concat[2]"})


def test_an_average_pool_reads_int8_on_rtx_only_where_another_layer_does_or_a_kernel_averages_int8():
    wide = {"kernel": 5}
    assert "pool[0]" in quantized(place(graphs.averaged_branch(**wide)))
    assert "pool[0]" not in quantized(place(graphs.averaged_branch(**wide), exclude=("conv2",)))
    assert "pool[0]" in quantized(place(graphs.averaged_branch(), exclude=("conv2",)))
    assert "pool[0]" not in quantized(place(graphs.pooled()))
    assert "gap[0]" not in quantized(place(graphs.averaged_branch()))


def test_a_gate_reads_its_shortcut_as_int8_where_another_layer_does():
    assert {"gate[0]"} == {slot for slot in quantized(place(graphs.gated())) if slot.startswith("gate")}
    assert "gate[0]" not in quantized(place(graphs.gated(), exclude=("conv2",)))
    assert "gate[0]" not in quantized(place(graphs.gated(), exclude=("gate",)))
    assert "gate[0]" not in quantized(place(graphs.gated(), exclude_ops=("Mul",)))
    assert not any(slot.startswith("excite[") for slot in quantized(place(graphs.excite())))


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("batch", "is_small"), [(1, True), ("batch", True), (8, False)])
def test_a_dynamic_batch_counts_as_one_row_in_steps(cell: str, batch: int | str, is_small: bool) -> None:
    assert bool(quantized(place(graphs.steps(cell, 64, batch)))) != is_small
