"""A fix that quantizes more nodes says what it costs in kernels, and a build agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.core.advice import settings_in
from qdqtool.core.recipe import Recipe
from qdqtool.errors import UsageError
from qdqtool.pipeline.fix_costs import Foreseen, more_kernels
from qdqtool.pipeline.recipes import changed
from tests import models
from tests.placement import graphs


def built(model: Path, out: Path, *words: str) -> dict:
    arguments = [
        "run",
        str(model),
        "--recipe",
        "conv-int8",
        "--samples",
        "random:2",
        "--sm",
        "86",
        "--out",
        str(out),
    ]
    assert run([*arguments, *words]) == 0
    return json.loads((out / "report.json").read_text())["data"]


@pytest.mark.parametrize("make", [graphs.excite, graphs.two_gates])
def test_a_setting_that_quantizes_more_tells_the_kernels_that_a_build_then_has(make, tmp_path: Path) -> None:
    path = models.save(make(), tmp_path)
    before = built(path, tmp_path / "before")
    fixes = {entry["fix"] for entry in before["fallbacks"] if "place.skip_rules" in entry["fix"]}
    assert fixes
    for number, fix in enumerate(sorted(fixes)):
        told = re.search(
            r"predicted: (\d+) of \d+ compute nodes quantized.*?, (?:about )?(?:(\d+) kernels? more|in (?:about )?as many)",
            fix,
        )
        assert told is not None
        off = re.search(r"this engine has (\d+) kernels?, and (\d+) were foreseen", fix)
        assert off is None or int(off[1]) == before["summary"]["kernels"] != int(off[2])
        assert off is None or "about" in told[0]
        words = [word for setting in settings_in(fix) for word in ("--set", setting)]
        after = built(path, tmp_path / f"after{number}", *words)
        nodes = sum(count for name, count in after["summary"]["realised"].items() if name != "float")
        assert nodes == int(told[1])
        assert after["summary"]["kernels"] == before["summary"]["kernels"] + int(told[2] or 0)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ((12, True), (13, True), "1 kernel more"),
        ((12, True), (13, False), "about 1 kernel more"),
        ((12, False), (12, True), "in about as many kernels"),
        ((12, True), (None, False), "in an unknown number of kernels"),
        ((None, False), (12, True), "in an unknown number of kernels"),
        (
            (6, False),
            (9, False),
            "in an unknown number of kernels; this engine has 12 kernels, and 6 were foreseen",
        ),
    ],
)
def test_a_number_is_told_where_both_are_foreseen_exactly(first, second, told: str) -> None:
    before, after = (
        Foreseen(kernels=count, exact=exact, inputs=1, asked=1, nodes=1) for count, exact in (first, second)
    )
    assert more_kernels(before, after, 12) == told


def test_a_setting_that_changes_nothing_alone_says_so(tmp_path: Path) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    settings = ["--set", "place.ops=[MatMul]", "--set", "place.format=float"]
    found = built(path, tmp_path / "out", "--recipe", "conv-int8", *settings)
    fixes = {entry["fix"] for entry in found["fallbacks"] if "place.ops" in entry["fix"]}
    assert fixes
    assert all("it changes nothing by itself" in fix for fix in fixes)


def test_two_settings_of_one_node_are_priced_together(tmp_path: Path) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    found = built(path, tmp_path / "out", "--recipe", "llm-int4-weights")
    (fix,) = {entry["fix"] for entry in found["fallbacks"]}
    assert fix.startswith("--set 'place.formats={")
    assert "--set 'place.ops=[Gemm, MatMul, Conv]'" in fix
    assert "(predicted: 2 of 2 compute nodes quantized instead of 0" in fix


def test_changes_of_a_recipe_are_those_of_the_command_line() -> None:
    recipe = changed(Recipe(), ["place.skip_rules=[gemv]", "build.sm=89"])
    assert recipe.place.skip_rules == ("gemv",)
    assert recipe.build.sm == ("89",)
    with pytest.raises(UsageError, match=r"place\.nothing"):
        changed(Recipe(), ["place.nothing=1"])
