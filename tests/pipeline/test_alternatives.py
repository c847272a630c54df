"""What nodes that leave INT8 are tried in: which formats a target offers, and what the model becomes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.core.kinds import CALIBRATION, PLACEMENT
from qdqtool.core.sensitivity import Alternative, EngineCost
from qdqtool.core.tensors import FP8, INT8
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline import recipes, runner
from qdqtool.pipeline.request import NullProgress, RunContext, RunRequest
from qdqtool.pipeline.search.float_nodes import Limit
from qdqtool.pipeline.search.formats import Ladder, Question, fastest, steps_of, with_formats
from qdqtool.pipeline.steps import compare_outputs
from tests.accuracy.test_parts import aside

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
FIRST, SECOND = "widen/first/conv/Conv", "widen/second/conv/Conv"


def made(out: Path, formats: dict[str, str], table: Path | None = None) -> RunContext:
    """The Q/DQ model of digits with some nodes in other formats."""
    recipe = recipes.load("conv-int8", ["build.sm=[89]", "calibrate.method=entropy"])
    if formats:
        recipe = with_formats(recipe, formats, prepare(load(DIGITS / "digits.onnx"), recipe.preparing).view)
    request = RunRequest(
        model=DIGITS / "digits.onnx",
        recipe=recipe,
        samples=f"{DIGITS / 'calibration.npz'}[:16]",
        eval_samples=None,
        labels=None,
        out=out,
        table=table,
    )
    return runner.start(request, "insert")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    """All of it in INT8."""
    return made(tmp_path_factory.mktemp("whole"), {})


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ([], ("fp16", "float")),
        (["build.sm=[86]"], ("fp16", "float")),
        (["build.sm=[89,120]"], ("fp8", "fp16", "float")),
        (["build.sm=[86,89]"], ("fp16", "float")),
        (["build.sm=[89]", "insert.types=fp16"], ("fp8", "float")),
        (["build.sm=[89]", "accuracy.alternatives=fp16"], ("fp16", "float")),
        (["build.sm=[89]", "accuracy.alternatives=[]"], ("float",)),
        (["place.target=8.6"], ("float",)),
    ],
)
def test_a_target_offers_only_what_all_its_architectures_run(
    settings: list[str], steps: tuple[str, ...]
) -> None:
    assert steps_of(recipes.load("conv-int8", settings)) == steps


def test_a_node_in_fp8_has_ranges_of_its_own_and_the_others_keep_theirs(
    whole: RunContext, tmp_path: Path
) -> None:
    known = CALIBRATION.read(whole.path("calibration.json"))
    work = made(tmp_path / "fp8", {SECOND: "fp8"}, whole.path("calibration.json"))
    placed = PLACEMENT.read(work.path("placement.json")).quantized
    assert {entry.spec.format for entry in placed if entry.slot.node == SECOND} == {FP8}
    table = CALIBRATION.read(work.path("calibration.json"))
    before, after = known.by_tensor(), table.by_tensor()
    changed = {name for name, entry in after.items() if entry != before.get(name)}
    assert changed == {entry.tensor for entry in placed if entry.slot.node == SECOND}
    assert {after[name].format for name in changed} == {FP8}
    assert SECOND in {entry.node for entry in known.shifts}
    assert {entry.node for entry in table.shifts} == {entry.node for entry in known.shifts} - {SECOND}


def test_a_node_in_fp16_takes_its_activation_along_and_no_scale_of_the_others_changes(
    whole: RunContext, tmp_path: Path
) -> None:
    work = made(tmp_path / "fp16", {FIRST: "fp16"}, whole.path("calibration.json"))
    model, plain = load(work.path("model.qdq.onnx")), load(whole.path("model.qdq.onnx"))
    halves = {
        node.name
        for node in model.view.nodes
        if node.op not in {"Cast", "QuantizeLinear", "DequantizeLinear"}
        and str(model.view.info(node.outputs[0]).dtype) == "fp16"
    }
    assert halves == {FIRST, "widen/first/act/Relu"}
    pairs = {node.name: node for node in plain.view.nodes if node.op == "QuantizeLinear"}
    left = [node for node in model.view.nodes if node.op == "QuantizeLinear"]
    assert {node.name for node in left} < set(pairs)
    for node in left:
        mine, theirs = model.view.constant(node.inputs[1]), plain.view.constant(pairs[node.name].inputs[1])
        assert np.array_equal(mine, theirs)


def test_formats_are_measured_as_the_run_that_must_keep_the_limit(tmp_path: Path) -> None:
    """The boxes of a detector are a hundred times larger than its scores, whose noise counts separately."""
    model = aside(tmp_path)
    rows = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=rows)
    request = RunRequest(
        model=model.path,
        recipe=recipes.load("conv-int8", ["place.last_layer=int8", "place.skip_rules=[narrow]"]),
        samples=str(tmp_path / "s.npz"),
        eval_samples=None,
        labels=None,
        out=tmp_path / "out",
    )
    whole = compare_outputs(runner.start(request, "insert"))
    assert whole.parts
    assert whole.sqnr is not None
    listener = NullProgress()
    ladder = Ladder(Question(request=request, first=request, kept=(), limit=Limit(), listener=listener))
    assert ladder._measure_formats({}).sqnr_db == pytest.approx(whole.sqnr.sqnr_db)


def test_the_fastest_of_the_engines_that_keep_the_limit_is_taken() -> None:
    def one(word: str, ms: float | None, *, keeps: bool) -> Alternative:
        cost = EngineCost(nodes_int8=1, kernels=1, activation_bytes=1, engine_bytes=1)
        built = None if ms is None else cost
        return Alternative(formats={"a": word}, sqnr_db=1.0, task=None, keeps=keeps, cost=built, ms=ms)

    tried = [
        one("float", 3.0, keeps=True),
        one("fp8", 1.0, keeps=False),
        one("fp16", 2.0, keeps=True),
        one("fp8", None, keeps=True),
    ]
    assert fastest(tried) is tried[2]
    assert fastest(tried[1:2]) is tried[1]


@pytest.mark.parametrize("pattern", ["*", FIRST])
def test_formats_of_the_searched_nodes_come_before_those_of_the_recipe(pattern: str) -> None:
    recipe = recipes.load(
        "conv-int8", [f'place.formats={{"{pattern}": "int8", "*n": "int8"}}', "build.sm=[89]"]
    )
    graph = load(DIGITS / "digits.onnx").view
    found = with_formats(recipe, {FIRST: "fp8", SECOND: "float"}, graph)
    assert next(iter(found.place.formats.items())) == (FIRST, "fp8")
    assert SECOND in found.place.kept_float
    assert found.insert == recipe.insert
    assert INT8.name in found.place.formats.values()
