"""The residual stream behind normalizations stays float; what that costs is told, and a build after the fix agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.core.advice import settings_in
from qdqtool.core.recipe import PlacementOptions
from qdqtool.placement.decide import decide
from tests import models
from tests.placement import graphs


@pytest.mark.parametrize("written_out", [False, True])
def test_the_shortcut_behind_a_normalization_is_float_until_the_rule_is_skipped(written_out: bool) -> None:
    view = graphs.view(graphs.normalized_stream(written_out))
    for skipped, added in (((), set()), (("residual_stream",), {"add1", "add2"})):
        placement = decide(view, PlacementOptions(skip_rules=skipped))
        assert {decision.slot.node for decision in placement.quantized if decision.op == "Add"} == added


def test_the_shortcut_beside_convolutions_is_int8_with_the_recipe_for_transformers(
    tmp_path: Path, capsys
) -> None:
    path = models.save(models.residual_cnn(), tmp_path)
    assert run(["place", str(path), "--recipe", "transformer-int8", "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)["data"]["decisions"]
    assert any(decision["quantize"] for decision in decisions if decision["op"] == "Add")


@pytest.mark.rtx
@pytest.mark.slow
def test_the_bytes_at_stake_are_those_that_the_engine_moves_less_after_the_fix(tmp_path: Path, capfd) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")
    path = models.save(graphs.normalized_stream(), tmp_path)

    def moved(name: str, *words: str) -> tuple[int, list[dict]]:
        out = tmp_path / name
        line = ["run", str(path), "--recipe", "transformer-int8", "--samples", "random:2", "--sm", "86"]
        assert run([*line, "--out", str(out), *words]) == 0
        data = json.loads((out / "findings.json").read_text())["data"]
        return data["counts"]["activation_bytes_dumped"], data["findings"]

    before, findings = moved("before")
    printed = " ".join(capfd.readouterr().out.split())
    page = (tmp_path / "before" / "report.html").read_text("utf-8")
    (told,) = (finding for finding in findings if finding["code"] == "QDQ219")
    words = [word for setting in settings_in(told["fix"]) for word in ("--set", setting)]
    after, left = moved("after", *words)
    assert before - after == told["bytes"] > 0
    assert "Kept float" in printed
    assert "more [estimated]; without: --set 'place.skip_rules=[residual_stream]'" in printed
    assert "Bytes kept float for accuracy" in page
    assert "Kept float" not in capfd.readouterr().out
    assert not [finding for finding in left if finding["code"] == "QDQ219"]
