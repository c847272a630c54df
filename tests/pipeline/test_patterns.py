"""A pattern of a recipe that matches nothing in the model is an error in every command, unless the recipe calls it optional."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqtool
from qdqtool.calibration.caches import read_cache
from qdqtool.cli.app import run
from qdqtool.core.advice import settings_in
from qdqtool.core.recipe import Recipe, RecipeSection
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import recipes
from qdqtool.pipeline.readback import to_qdq
from qdqtool.pipeline.recipe_mistakes import named_parts, refuse_unmatched
from tests import models

NOWHERE = "no_such_*"
VALUES = {
    "prepare.not_joined": [NOWHERE],
    "place.exclude": [NOWHERE],
    "place.exclude_ops": ["ConvTranspose"],
    "place.only": [NOWHERE],
    "place.formats": {NOWHERE: "float"},
    "calibrate.overrides": {NOWHERE: "max"},
    "calibrate.shrink": {NOWHERE: 0.9},
    "insert.keep_nodes": [NOWHERE],
    "insert.narrow_nodes": [NOWHERE],
    "insert.keep_ops": ["ConvTranspose"],
}
SECTIONS = ("prepare", "place", "calibrate", "insert")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patterns")
    models.save(models.conv_chain(), folder)
    np.savez(folder / "s.npz", x=np.random.default_rng(0).standard_normal((4, 8, 8, 8)).astype(np.float32))
    return folder


def sections() -> Iterator[tuple[str, RecipeSection]]:
    for name, field in Recipe.model_fields.items():
        if isinstance(field.default, RecipeSection):
            yield name, field.default


def test_every_field_that_takes_globs_is_marked() -> None:
    """Its documentation says "glob"; what else names nodes is listed here with the reason."""
    marked = {f"{section}.{field}" for section, options in sections() for field, _, _ in named_parts(options)}
    described = {
        f"{section}.{name}"
        for section, options in sections()
        for name, field in type(options).model_fields.items()
        if "glob" in (field.description or "")
    }
    assert described <= marked | {"sweep.space"}  # whose keys are settings
    assert marked == set(VALUES)


def test_what_a_recipe_says_by_itself_is_never_refused(work: Path) -> None:
    view = load(work / "model.onnx").view
    for name in (None, *recipes.names()):
        refuse_unmatched(recipes.load(name), view, *SECTIONS)


CALLS: dict[str, tuple[tuple[str, ...], Callable[[Path, dict[str, Any]], object]]] = {
    "qdqtool.place": (("place",), lambda work, given: qdqtool.place(work / "model.onnx", settings=given)),
    "qdqtool.calibrate": (
        ("place", "calibrate"),
        lambda work, given: qdqtool.calibrate(work / "model.onnx", work / "s.npz", settings=given),
    ),
    "qdqtool.quantize": (
        SECTIONS,
        lambda work, given: qdqtool.quantize(work / "model.onnx", work / "s.npz", settings=given),
    ),
    "qdqtool.convert": (
        ("insert",),
        lambda work, given: qdqtool.convert(work / "model.onnx", settings=given),
    ),
    "cache to-qdq": (
        SECTIONS,
        lambda work, given: to_qdq(
            work / "model.onnx",
            read_cache(_cache(work)),
            recipes.load(None, [f"{key}={json.dumps(value)}" for key, value in given.items()]),
        ),
    ),
}


def _cache(work: Path) -> Path:
    path = work / "some.cache"
    path.write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\n")
    return path


@pytest.mark.parametrize(
    ("call", "field"),
    [(call, field) for call, (asked, _) in CALLS.items() for field in VALUES if field.split(".")[0] in asked],
)
def test_every_call_refuses_a_pattern_that_matches_nothing(call: str, field: str, work: Path) -> None:
    with pytest.raises(UsageError, match=field.replace(".", r"\.")) as caught:
        CALLS[call][1](work, {field: VALUES[field]})
    assert ("ConvTranspose" if field.endswith("_ops") else NOWHERE) in str(caught.value)
    assert "optional=" in caught.value.fix


@pytest.mark.parametrize("command", ["place", "calibrate", "quantize", "run"])
def test_every_command_refuses_it(
    command: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / ("x.json" if command == "calibrate" else "x"))
    samples = [] if command == "place" else ["--samples", str(work / "s.npz")]
    words = [command, str(work / "model.onnx"), *samples, "-o", out, "--set", f"place.exclude=[{NOWHERE}]"]
    assert run(words) == 2
    assert f"place.exclude: no node of the model matches '{NOWHERE}'" in capsys.readouterr().err


def test_a_finished_run_refuses_a_pattern_of_a_later_step(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run",
        str(work / "model.onnx"),
        "--samples",
        str(work / "s.npz"),
        "--out",
        str(tmp_path / "run"),
    ]
    words += ["--set", "calibrate.method=max", "--builder", "replay"]
    run(words)  # ends at the build, for which there is no recorded engine
    capsys.readouterr()
    assert (tmp_path / "run" / "model.qdq.onnx").exists()
    for field in ("calibrate.shrink", "insert.keep_nodes"):
        assert run([*words, "--set", f"{field}={json.dumps(VALUES[field])}"]) == 2
        assert f"{field}: no " in capsys.readouterr().err


@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize(
    "optional", [["*"], ["no_such_[*]", "ConvTranspose"], [NOWHERE, "ConvTranspose"]], ids=str
)
def test_optional_patterns_may_match_nothing(field: str, optional: list[str], work: Path) -> None:
    typed = [f"{field}={json.dumps(VALUES[field])}", f"optional={json.dumps(optional)}"]
    refuse_unmatched(recipes.load(None, typed), load(work / "model.onnx").view, *SECTIONS)


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("CONV1", "capital and small letters differ: 'conv1'"),
        ("cnv1", "did you mean 'conv1'"),
        ("*/head/*", "its names begin with"),
    ],
)
def test_the_error_names_the_nearest_nodes(pattern: str, hint: str, work: Path) -> None:
    with pytest.raises(UsageError) as caught:
        qdqtool.place(work / "model.onnx", settings={"place.exclude": [pattern]})
    assert hint in caught.value.what


def test_patterns_that_match_pass(work: Path) -> None:
    given = {
        "place.exclude": ["conv1"],
        "place.exclude_ops": ["Conv"],
        "place.only": ["conv*"],
        "place.formats": {"conv?": "float"},
        "calibrate.overrides": {"x": "max"},
        "calibrate.shrink": {"*": 0.9},
        "insert.keep_nodes": ["conv2"],
        "insert.keep_ops": ["Relu", "Exp"],
    }
    found = recipes.load(None, [f"{key}={json.dumps(value)}" for key, value in given.items()])
    refuse_unmatched(found, load(work / "model.onnx").view, *SECTIONS)


def test_quantize_tells_what_placement_notes(work: Path) -> None:
    given = {"place.exclude": [NOWHERE], "place.kept_float": ["gone"], "optional": ["*"]}
    notes = qdqtool.quantize(work / "model.onnx", work / "s.npz", settings=given).notes
    assert f"no node matches the pattern '{NOWHERE}' of place.exclude" in notes
    assert "place.kept_float lists 'gone', but the model has no such node" in notes


@pytest.mark.parametrize("name", ["blocks[0]/conv", "a[b", "c*d[e]?"])
def test_a_name_with_brackets_is_refused_until_it_is_a_pattern_that_matches_it(
    name: str, tmp_path: Path
) -> None:
    """The name was accepted as it is, and its node was quantized without a word."""
    network = models.conv_chain()
    network.graph.node[0].name = name
    view = load(models.save(network, tmp_path)).view
    recipe = recipes.load(None, [f"place.exclude={json.dumps([name])}"])
    if fnmatchcase(name, name):
        refuse_unmatched(recipe, view, *SECTIONS)
        return
    with pytest.raises(UsageError) as caught:
        refuse_unmatched(recipe, view, *SECTIONS)
    advised = ast.literal_eval(re.search(r"write ('.*') for this name", caught.value.what)[1])  # type: ignore[index]
    mended = recipes.load(None, [f"place.exclude={json.dumps([advised])}"])
    refuse_unmatched(mended, view, *SECTIONS)
    assert fnmatchcase(name, mended.place.exclude[0])


def test_a_node_that_is_advised_for_place_only_matches_the_advice(tmp_path: Path) -> None:
    network = models.conv_chain()
    network.graph.node[0].name = "blocks[0]/conv"
    path = models.save(network, tmp_path)
    placed = qdqtool.place(path, settings={"place.only": ["no*", *VALUES["place.only"]], "optional": ["*"]})
    fixes = {
        opinion.fix
        for entry in placed.decisions
        for opinion in entry.opinions
        if entry.slot.node == "blocks[0]/conv" and opinion.fix
    }
    assert fixes
    for (setting,) in map(settings_in, fixes):
        assert qdqtool.place(path, settings=[setting, 'optional=["*"]']).quantized
