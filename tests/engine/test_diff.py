"""Two engines side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.cli.engine_words import difference
from qdqtool.core.difference import EngineDiff
from qdqtool.core.engine import Certainty, Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.explore import Profile, ProfileRow
from qdqtool.core.tensors import DType
from qdqtool.engine import read, read_text
from qdqtool.engine.diff import Explored, compare
from qdqtool.engine.profile_forms import read_profile
from qdqtool.engine.view import view
from tests.shared import SHARED, shared

FP16, INT8 = "Row major linear FP16 format", "Row major Int8 format"


def tensor(name: str, words: str, channels: int = 8) -> dict:
    return {"Name": name, "Dimensions": [1, channels, 16, 16], "Format/Datatype": words}


def conv(name: str, source: str, target: str, words: str, out: str = "", channels: int = 8) -> dict:
    return {
        "Name": name,
        "LayerType": "CaskConvolution",
        "Inputs": [tensor(source, words)],
        "Outputs": [tensor(target, out or words, channels)],
        "Kernel": [3, 3],
        "OutMaps": channels,
        "Weights": {"Type": "Int8" if words == INT8 else "Half", "Count": 8 * channels * 9},
    }


def quantize(name: str, source: str, target: str) -> dict:
    sides = {"Inputs": [tensor(source, FP16)], "Outputs": [tensor(target, INT8)]}
    return {"Name": name, "LayerType": "Reformat", "Origin": "QDQ", **sides}


def explored(name: str, *layers: dict, ms: tuple[float, ...] = ()) -> Explored:
    engine = read_text(json.dumps({"Layers": layers, "Bindings": ["x", "y"]}), where=name)
    rows = tuple(
        ProfileRow(name=layer.name, average_ms=time) for layer, time in zip(engine.layers, ms, strict=False)
    )
    return Explored(name=name, engine=engine, view=view(engine, profile=Profile(rows=rows) if rows else None))


def test_an_engine_does_not_differ_from_itself():
    one = explored("a", conv("c1 + relu1", "x", "t", FP16), conv("c2", "t", "y", FP16), ms=(1.0, 2.0))
    found = compare(one, one)
    assert [pair.ms for pair in found.pairs] == [0.0, 0.0]
    assert (found.left_only, found.right_only, found.notes) == ((), (), ())
    assert not [cause for cause in found.causes if cause.ms or cause.bytes]


def test_layers_are_aligned_by_the_names_they_share():
    left = explored("fp16", conv("c1 + relu1", "x", "t", FP16), conv("c2", "t", "y", FP16), ms=(1.0, 2.0))
    right = explored(
        "int8",
        quantize("Q", "x", "q"),
        conv("c2", "t", "y", INT8, FP16),
        conv("w + Q1 + c1 + relu1", "q", "t", INT8),
        ms=(0.2, 0.5, 0.6),
    )
    found = compare(left, right)
    assert [(pair.left.layers, pair.right.layers) for pair in found.pairs] == [
        (("c1 + relu1",), ("w + Q1 + c1 + relu1",)),
        (("c2",), ("c2",)),
    ]
    assert {pair.certainty for pair in found.pairs} == {Certainty.STATED}
    assert [side.layers for side in found.right_only] == [("Q",)]
    assert found.causes[0].text.startswith("2 compute layers went from fp16 to int8: 1.9000 ms gained")


def test_layers_without_common_names_are_aligned_by_shape_and_that_is_said():
    left = explored("a", conv("l1", "x", "t", FP16), conv("l2", "t", "y", FP16, channels=24))
    right = explored("b", conv("r2", "t", "y", INT8, FP16, channels=24), conv("r1", "x", "t", INT8))
    found = compare(left, right)
    assert [(pair.left.layers[0], pair.right.layers[0]) for pair in found.pairs] == [
        ("l1", "r1"),
        ("l2", "r2"),
    ]
    assert {pair.certainty for pair in found.pairs} == {Certainty.INFERRED}


def test_counted_up_names_do_not_prove_that_layers_are_the_same():
    left = explored("a", conv("w1 + Conv_3", "x", "t", FP16), conv("w2 + Conv_5", "t", "y", FP16))
    right = explored("b", conv("w1 + Conv_5", "x", "t", INT8), conv("w2 + Conv_9", "t", "y", INT8))
    found = compare(left, right)
    assert [(pair.left.layers[0][:2], pair.right.layers[0][:2]) for pair in found.pairs] == [
        ("w1", "w1"),
        ("w2", "w2"),
    ]


def test_a_merged_layer_stands_against_the_layers_it_merges():
    left = explored("a", conv("c1", "x", "t", FP16), conv("c2", "x", "u", FP16))
    right = explored("b", conv("c1 || c2", "x", "tu", FP16, channels=16))
    found = compare(left, right)
    assert [(pair.left.layers, pair.right.layers) for pair in found.pairs] == [(("c1", "c2"), ("c1 || c2",))]


def test_a_slower_layer_is_a_cause_of_its_own():
    left = explored("a", conv("c1", "x", "t", FP16), conv("c2", "t", "y", FP16), ms=(1.0, 2.0))
    right = explored("b", conv("c1", "x", "t", INT8, FP16), conv("c2", "t", "y", FP16), ms=(1.5, 2.0))
    texts = [cause.text for cause in compare(left, right).causes]
    assert any(text.startswith("c1 takes 1.5000 ms in int8 instead of 1.0000 ms in fp16") for text in texts)


def test_conversions_of_one_engine_alone_have_their_time():
    floats = explored("float", conv("c1", "x", "y", FP16), ms=(1.0,))
    mixed = explored("mixed", quantize("q", "x", "t"), conv("c1", "t", "y", INT8), ms=(0.25, 0.5))
    (cause,) = [one for one in compare(floats, mixed).causes if one.text.startswith("kernels that only")]
    assert (cause.ms, cause.text) == (0.25, "kernels that only convert: 0 -> 1: 0.2500 ms lost")
    assert compare(explored("a", conv("c1", "x", "y", FP16)), mixed).left.conversion_ms is None


def test_a_dynamic_layer_stands_against_the_static_one():
    def engine(name: str, side: int) -> Explored:
        layer = conv("head/conv/Conv", "x", "y", FP16)
        for end in (*layer["Inputs"], *layer["Outputs"]):
            end["Dimensions"] = [1, 8, side, side]
        return explored(name, layer)

    (pair,) = compare(engine("dynamic", -1), engine("static", 32)).pairs
    assert (pair.nodes, pair.certainty) == (("head/conv/Conv",), Certainty.STATED)


def test_round_trips_are_named_with_the_layers_they_stand_behind():
    left = explored(
        "before", conv("c1", "x", "f", INT8, FP16), quantize("Q", "f", "q"), conv("c2", "q", "y", INT8)
    )
    right = explored("after", conv("c1", "x", "q", INT8), conv("c2", "q", "y", INT8))
    found = compare(left, right)
    cause = next(cause for cause in found.causes if "round trips" in cause.text)
    assert cause.text.startswith("before has 1 fp16 round trips, after has 0")
    assert cause.text.endswith("after c1")
    assert cause.layers == ("Q",)
    assert cause.bytes == -(2 + 1) * 8 * 16 * 16
    assert found.left.conversions - found.right.conversions == 1


def test_engines_of_different_models_are_called_so():
    found = compare(
        explored("a", conv("c1", "x", "y", FP16)), explored("b", conv("d", "x", "y", FP16, channels=24))
    )
    assert found.pairs == ()
    assert any("different models" in note for note in found.notes)


@pytest.mark.shared
def test_the_residual_quantized_resnet_loses_the_round_trips_of_the_other_one():
    def trex(name: str) -> Explored:
        shared("corpus/layer_info")
        marks = f"trt-engine-explorer__examples__pytorch__resnet__A100__{name}__"
        (layers,) = (SHARED / "corpus" / "layer_info").glob(f"*{marks}*")
        (times,) = (SHARED / "corpus" / "profile").glob(f"*{marks}*engine.profile.json")
        engine = read(layers)
        return Explored(name=name, engine=engine, view=view(engine, profile=read_profile(times)))

    found: EngineDiff = compare(trex("qat"), trex("qat-residual"))
    assert len(found.pairs) == 21
    assert {pair.right.precision for pair in found.pairs} == {DType.INT8}
    cause = next(cause for cause in found.causes if "round trips" in cause.text)
    assert cause.text.startswith("qat has 7 fp16 round trips, qat-residual has 0")
    assert "layer1.0.conv2.weight + QuantizeLinear_32 + Conv_34 + Add_36 + Relu_37" in cause.text
    assert cause.ms == pytest.approx(-0.136192)
    assert (found.left.conversions, found.right.conversions) == (12, 3)
    assert found.right.ms < found.left.ms


def test_a_convolution_that_took_a_pooling_in_is_aligned_by_its_weight_alone():
    def engine(conv: EngineLayer) -> Explored:
        made = Engine(layers=(conv,))
        return Explored(name=conv.name, engine=made, view=view(made))

    weight = EngineTensor(name="weights", shape=(64, 3, 7, 7), dtype=DType.INT8)

    def conv(name: str, side: int) -> EngineLayer:
        tensors = [
            EngineTensor(name=n, shape=(1, 64, s, s), dtype=DType.INT8) for n, s in (("x", 224), ("y", side))
        ]
        return EngineLayer(
            name=name, kind="CaskConvActPool", inputs=(tensors[0],), constants=(weight,), outputs=(tensors[1],),
            role=Role.COMPUTE, precision=DType.INT8,
        )  # fmt: skip

    found = compare(engine(conv("one", 112)), engine(conv("other", 56)))
    assert [(pair.left.layers, pair.right.layers, pair.certainty) for pair in found.pairs] == [
        (("one",), ("other",), Certainty.INFERRED)
    ]


def test_kernels_of_other_small_formats_are_counted_by_their_type():
    left = explored("half", conv("c1", "x", "t", FP16), conv("c2", "t", "y", FP16))
    small = replace(
        left.engine,
        layers=tuple(replace(layer, precision=DType.FLOAT8) for layer in left.engine.layers),
    )
    found = compare(left, replace(left, name="fp8", engine=small))
    assert (found.left.others, found.right.int8, found.right.others) == ({}, 0, {"fp8": 2})
    (row,) = [line for line in difference(found) if "FP8" in line]
    assert row.split() == ["of", "these", "FP8", "0", "2"]
    stored = EngineTensor(name="w", shape=(64, 64), dtype=DType.INT4)
    held = replace(left.engine, layers=tuple(replace(one, constants=(stored,)) for one in left.engine.layers))
    told = list(difference(compare(left, replace(left, name="int4", engine=held))))
    (row,) = [line for line in told if "INT4" in line]
    assert row.split() == ["with", "INT4", "weights", "0", "2"]
    assert len({len(line) for line in told[:5]}) == 1, "the columns stand below one another"


def test_layers_of_several_types_are_told_with_all_of_them():
    left = explored("a", conv("c1", "x", "t", FP16), conv("c2", "x", "u", INT8, FP16))
    right = explored("b", conv("c1 || c2", "x", "tu", FP16, channels=16))
    texts = [cause.text for cause in compare(left, right).causes]
    assert any(text.startswith("1 compute layer went from fp16 and int8 to fp16") for text in texts), texts


@pytest.mark.parametrize(
    ("files", "titles"),
    [
        (("resnet__fp16__layers.json", "resnet__qat__layers.json"), ("fp16", "qat")),
        (
            ("a_very_long_name_of_a_network.fp16.json", "a_very_long_name_of_a_network.int8.json"),
            ("fp16", "int8"),
        ),
        (("one/layers.json", "other/layers.json"), ("one/layers.json", "other/layers.json")),
        (("layers.json", "./layers.json"), ("1: layers.json", "2: layers.json")),
    ],
)
def test_two_columns_carry_what_tells_their_files_apart(
    files: tuple[str, str], titles: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / file for file in files]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"Layers": [conv("c1", "x", "y", FP16)]}))
    assert run(["engine", "diff", *map(str, paths)]) == 0
    heading = capsys.readouterr().out.splitlines()[0]
    assert all(title in heading for title in titles), heading
    assert len(heading) <= 80
