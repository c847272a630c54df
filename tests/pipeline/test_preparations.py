"""How pictures become inputs: what models carry is read, what nobody says is called guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from qdqtool import compare
from qdqtool.api.inputs import fitting_recipe
from qdqtool.calibration.samples import opening
from qdqtool.cli.app import run
from qdqtool.core.recipe import PRESETS, Preprocess, Recipe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from qdqtool.pipeline import random_shapes, recipes
from qdqtool.pipeline.preparations import (
    assumptions,
    read_stated,
    read_task,
    with_known_inputs,
    written,
)
from tests import models
from tests.docs.networks import write_segmenter

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
FILES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "a ViT of transformers": (
        "preprocessor_config.json",
        {
            "do_resize": True,
            "size": {"height": 224, "width": 224},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
        {"resize": (224, 224), "scale": 1 / 255, "mean": (0.5, 0.5, 0.5), "colour": "rgb"},
    ),
    "an older ViT, which resizes to a square": (
        "preprocessor_config.json",
        {
            "do_normalize": True,
            "do_resize": True,
            "feature_extractor_type": "ViTFeatureExtractor",
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "size": 224,
        },
        {"resize": (224, 224), "crop": None, "scale": 1 / 255, "mean": (0.5, 0.5, 0.5)},
    ),
    "an older CLIP, which resizes the shorter side": (
        "preprocessor_config.json",
        {
            "crop_size": 224,
            "do_center_crop": True,
            "do_resize": True,
            "feature_extractor_type": "CLIPFeatureExtractor",
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "size": 224,
        },
        {"resize": 224, "crop": 224},
    ),
    "a MobileViT, which reads BGR": (
        "preprocessor_config.json",
        {
            "do_rescale": True,
            "do_normalize": False,
            "size": {"shortest_edge": 288},
            "do_center_crop": True,
            "crop_size": {"height": 256, "width": 256},
            "do_flip_channel_order": True,
        },
        {"resize": 288, "crop": (256, 256), "mean": (0.0,), "colour": "bgr"},
    ),
    "a ConvNext, which cuts to a square": (
        "preprocessor_config.json",
        {"do_rescale": True, "size": {"shortest_edge": 224}, "crop_pct": 0.875},
        {"resize": 256, "crop": (224, 224)},
    ),
    "a large ConvNext, which is not cut": (
        "preprocessor_config.json",
        {"do_rescale": True, "size": {"shortest_edge": 384}, "crop_pct": 0.875},
        {"resize": (384, 384), "crop": None},
    ),
    "a timm model": (
        "config.json",
        {
            "architecture": "resnet18",
            "pretrained_cfg": {"input_size": [3, 224, 224], "crop_pct": 0.875, **IMAGENET},
        },
        {"resize": 256, "crop": (224, 224), "std": (0.229, 0.224, 0.225)},
    ),
    "a timm model that keeps the usual share": (
        "config.json",
        {"pretrained_cfg": {"input_size": [3, 224, 224], **IMAGENET}},
        {"resize": 256, "crop": (224, 224)},
    ),
    "a timm model that distorts pictures to a square": (
        "config.json",
        {"pretrained_cfg": {"input_size": [3, 448, 448], "crop_pct": 1.0, "crop_mode": "squash", **IMAGENET}},
        {"resize": (448, 448), "crop": (448, 448)},
    ),
    "PaddleDetection": (
        "infer_cfg.yml",
        {
            "Preprocess": [
                {"type": "Resize", "target_size": [640, 640], "keep_ratio": False},
                {"type": "NormalizeImage", "is_scale": True, **IMAGENET},
            ]
        },
        {"resize": (640, 640), "scale": 1 / 255, "mean": (0.485, 0.456, 0.406)},
    ),
    "PaddleOCR": (
        "inference.yml",
        {
            "PreProcess": {
                "transform_ops": [
                    {"DecodeImage": {"img_mode": "BGR"}},
                    {"NormalizeImage": {"scale": "1./255.", **IMAGENET}},
                ]
            }
        },
        {"colour": "bgr", "scale": 1 / 255},
    ),
}
METADATA: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "an Ultralytics detector": (
        {"task": "detect", "imgsz": "[320, 640]", "stride": "32", "names": "{0: 'a'}"},
        {"letterbox": (320, 640), "scale": 1 / 255, "pad": 114, "colour": "rgb"},
    ),
    "an Ultralytics classifier": (
        {"task": "classify", "imgsz": "[224, 224]", "stride": "1"},
        {"resize": 224, "crop": (224, 224), "scale": 1 / 255},
    ),
    "a detector of lightly-train": (
        {
            "lightly_train_version": "0.18.0",
            "image_normalize": '{"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}',
        },
        {"scale": 1 / 255, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)},
    ),
    "a network of lightly-train without a mean": (
        {"lightly_train_version": "0.18.0"},
        {"scale": 1 / 255, "mean": (0.0,)},
    ),
    "ONNX's keys": (
        {"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "Normalized_1_1"},
        {"colour": "bgr", "scale": 1 / 255, "mean": (0.5,), "std": (0.5,)},
    ),
}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    s = models.Sketch(0)
    s.output(s.relu("r", s.conv("c", s.input("x", ["N", 3, 8, 8]), (3, 4))), ["N", 4, 8, 8])
    return models.save(s.model(), tmp_path)


@pytest.fixture(params=["pictures", "pictures [1]"])
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / str(request.param)
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "a.png")
    return str(folder)


def _known(recipe: Recipe, samples: str, path: Path) -> Recipe:
    return with_known_inputs(recipe, samples, path)


def _preprocess(recipe: Recipe, wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(recipe.samples.preprocess, name) for name in wanted}


@pytest.mark.parametrize(("name", "document", "wanted"), FILES.values(), ids=FILES)
def test_files_beside_the_model_are_read(
    name: str, document: Any, wanted: dict[str, Any], network: Path, pictures: str
) -> None:
    (network.parent / name).write_text(json.dumps(document), "utf-8")  # JSON is YAML
    found = _known(Recipe(name="r"), pictures, network)
    assert _preprocess(found, wanted) == wanted
    assert found.samples.sources["scale"] == f"read from {name}"
    assert not any(entry.is_guessed for entry in assumptions(found, ()))


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("SegformerForSemanticSegmentation", ("compare.task=segment",)),
        ("BertForTokenClassification", ("compare.task=tokens",)),
        ("Wav2Vec2ForCTC", ("compare.task=text",)),
        ("ViTForImageClassification", ()),
    ],
)
def test_the_architecture_beside_the_model_says_what_its_logits_are(
    architecture: str, settings: tuple[str, ...], network: Path
) -> None:
    (network.parent / "config.json").write_text(json.dumps({"architectures": [architecture]}), "utf-8")
    assert read_task(network) == settings
    chosen = fitting_recipe("conv-int8", (), network, trust=False)
    assert (f"compare.task={chosen.compare.task}",) == (settings or ("compare.task=classify",))
    labelled = fitting_recipe("conv-int8", (), network, trust=False, labels=np.zeros(1, np.int64))
    assert labelled.compare.task == "classify"
    assert fitting_recipe("unet-int8", (), network, trust=False).compare.task == "agreement"


@pytest.mark.parametrize("side", ["snapshot", "blobs"])
def test_files_beside_a_link_and_beside_its_target_are_read(side: str, network: Path, tmp_path: Path) -> None:
    link = tmp_path / "snapshot" / "onnx" / "model.onnx"
    link.parent.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    link.symlink_to(network.rename(tmp_path / "blobs" / "0123"))
    document = {"architectures": ["BertForTokenClassification"]}
    (tmp_path / side / "config.json").write_text(json.dumps(document), "utf-8")
    assert read_task(link) == ("compare.task=tokens",)


def test_commands_agree_about_the_task_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, pictures = tmp_path / "segmenter.onnx", tmp_path / "pictures.npz"
    write_segmenter(str(model))
    np.savez(pictures, picture=np.random.default_rng(3).normal(size=(4, 3, 32, 32)).astype(np.float32))
    document = {"architectures": ["SegformerForSemanticSegmentation"]}
    (tmp_path / "config.json").write_text(json.dumps(document), "utf-8")
    (metric,) = compare(model, model, pictures).task
    assert "pixel" in metric.metric
    assert run(["compare", str(model), str(model), "--samples", str(pictures), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["task"][0]["metric"] == metric.metric
    (tmp_path / "config.json").unlink()
    assert not compare(model, model, pictures).task


@pytest.mark.parametrize(("metadata", "wanted"), METADATA.values(), ids=METADATA)
def test_metadata_of_the_model_is_read(
    metadata: dict[str, str], wanted: dict[str, Any], network: Path, pictures: str
) -> None:
    proto = onnx.load(network)
    onnx.helper.set_model_props(proto, metadata)
    onnx.save(proto, network)
    found = _known(Recipe(name="r"), pictures, network)
    assert _preprocess(found, wanted) == wanted
    assert found.samples.sources["scale"] == f"read from the metadata of {network.name}"


def test_what_nobody_says_is_guessed_and_what_is_given_stays(network: Path, pictures: str) -> None:
    sized = recipes.load(None, ["samples.preprocess.resize=[8,8]"])
    found = {entry.what: entry for entry in assumptions(_known(sized, pictures, network), ())}
    assert {name for name, entry in found.items() if entry.is_guessed} == {
        "scale",
        "mean",
        "std",
        "colour order",
    }
    assert found["resize"].source == "given"
    (network.parent / "preprocessor_config.json").write_text(
        json.dumps({"do_rescale": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 64}), "utf-8"
    )
    own = recipes.load(None, ["samples.preprocess.scale=2", "samples.preprocess.resize=[8,8]"])
    kept = _known(own, pictures, network)
    assert (kept.samples.preprocess.scale, kept.samples.preprocess.mean) == (2, (0.0,))
    assert kept.samples.preprocess.resize == (8, 8)
    assert not any(entry.is_guessed for entry in assumptions(kept, ()))
    assert _known(kept, pictures, network) is kept


def test_the_order_of_colours_alone_says_nothing_about_the_scale(network: Path, pictures: str) -> None:
    turned = recipes.load(None, ["samples.preprocess.colour=bgr", "samples.preprocess.resize=[8,8]"])
    found = {entry.what: entry for entry in assumptions(_known(turned, pictures, network), ())}
    assert {name for name, entry in found.items() if entry.is_guessed} == {"scale", "mean", "std"}
    assert found["colour order"].source == "given"
    _write_stated(network)
    read = _known(turned, pictures, network)
    assert (read.samples.preprocess.std, read.samples.preprocess.colour) == ((0.5, 0.5, 0.5), "bgr")
    assert read.samples.sources["std"] == "read from preprocessor_config.json"


def _write_stated(network: Path) -> dict[str, Any]:
    document = FILES["a ViT of transformers"][1] | {"size": {"height": 8, "width": 8}}
    (network.parent / "preprocessor_config.json").write_text(json.dumps(document), "utf-8")
    return {"resize": (8, 8), "scale": 1 / 255, "mean": (0.5, 0.5, 0.5), "colour": "rgb"}


def test_compare_prepares_pictures_as_the_model_states_and_shows_the_source(
    network: Path, pictures: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_stated(network)
    words = ["compare", str(network), str(network), "--samples", pictures]
    assert run(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Inputs resize 8, 8, scale 0.00392157, mean 0.5, 0.5, 0.5" in said
    assert "[read from preprocessor_config.json]" in said
    assert run([*words, "--json", "--preprocess", "yolo"]) == 0
    entries = json.loads(capsys.readouterr().out)["data"]["assumptions"]
    assert {entry["source"] for entry in entries if entry["what"] == "scale"} == {"given"}
    (network.parent / "preprocessor_config.json").unlink()
    found = compare(network, network, pictures, settings={"samples.preprocess.resize": [8, 8]})
    assert {entry.what for entry in found.assumptions if entry.is_guessed} >= {"scale", "mean"}


def test_every_command_that_reads_pictures_prepares_them_alike(
    network: Path,
    pictures: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = _write_stated(network)
    seen: list[dict[str, Any]] = []
    opened = opening.open_samples

    def watched(source: Any, inputs: Any, preprocess: Preprocess, **rest: Any) -> Any:
        seen.append({name: getattr(preprocess, name) for name in expected})
        return opened(source, inputs, preprocess, **rest)

    monkeypatch.setattr(random_shapes, "open_samples", watched)
    quick = ["--set", "calibrate.method=max", "--set", "calibrate.symmetric=always"]
    made, other = str(tmp_path / "q.onnx"), str(tmp_path / "o.onnx")
    assert run(["quantize", str(network), "--samples", pictures, "-o", made, *quick]) == 0
    assert "[read from preprocessor_config.json]" in " ".join(capsys.readouterr().err.split())
    (network.parent / "preprocessor_config.json").unlink()
    # the Q/DQ model states the preparation that made it
    for words in (
        ["compare", str(network), made],
        ["sensitivity", made],
        ["repair", made, "-o", other],
    ):
        assert run([*words, "--samples", pictures]) == 0, words
    _write_stated(network)
    for words in (["calibrate", str(network), *quick], ["convert", str(network), "-o", other]):
        capsys.readouterr()
        assert run([*words, "--samples", pictures]) == 0, words
        said = capsys.readouterr()
        assert "[read from preprocessor_config.json]" in " ".join((said.out + said.err).split()), words
    assert len(seen) >= 6
    assert all(entry == expected for entry in seen)


def test_a_guess_is_never_written_as_a_fact(network: Path, pictures: str) -> None:
    sized = _known(recipes.load(None, ["samples.preprocess.resize=[8,8]"]), pictures, network)
    assert json.loads(written(sized)) == {"resize": [8, 8]}
    _write_stated(network)
    stated = json.loads(written(_known(Recipe(name="r"), pictures, network)))
    assert stated["mean"] == [0.5, 0.5, 0.5]
    assert not written(Recipe(name="r"))


@pytest.mark.parametrize("text", ["[", "[1]", '{"scale": "x"}', "{" * 5000])
def test_a_broken_entry_of_a_model_states_nothing(text: str, network: Path) -> None:
    proto = onnx.load(network)
    onnx.helper.set_model_props(proto, {"qdqtool.made.pictures": text})
    onnx.save(proto, network)
    assert read_stated(load(network), network) == ({}, "")


def test_arrays_are_taken_as_they_are(network: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3, 8, 8), np.float32))
    recipe = Recipe(name="r")
    assert _known(recipe, str(tmp_path / "x.npz"), network) is recipe


def test_a_preset_is_a_recipe_value_and_an_option(network: Path, pictures: str) -> None:
    for name, values in PRESETS.items():
        recipe = recipes.load(None, [f"samples.preprocess={name}"])
        assert recipe.samples.preprocess == Preprocess.model_validate(values)
        assert not any(entry.is_guessed for entry in assumptions(_known(recipe, pictures, network), ()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{" * 5000,
        '{"image_mean": "x", "do_rescale": true}',
        "[1, 2]",
        '{"size": {"height": -1}, "do_rescale": 1}',
    ],
)
def test_a_broken_file_beside_the_model_says_nothing(text: str, network: Path, pictures: str) -> None:
    for name in ("preprocessor_config.json", "config.json", "inference.yml", "infer_cfg.yml"):
        (network.parent / name).write_text(text, "utf-8")
    model: Model = load(network)
    values, _ = read_stated(model, network)
    assert Preprocess.model_validate(values).mean == (0.0,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{" * 5000, "the file has more than 32 nested sections"),
        ("a: [", "the file is not YAML: line 1, column 5"),
    ],
)
def test_a_file_that_is_not_read_is_named_with_the_reason(
    text: str, says: str, network: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (network.parent / "inference.yml").write_text(text, "utf-8")
    read_stated(load(network), network)
    assert f"inference.yml is not read: {says}" in caplog.text
