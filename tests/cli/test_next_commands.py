"""What a run proposes to type next is what its report expects something of."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.cli.next_commands import next_commands
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.recipe import Recipe
from qdqtool.core.report import Fallback, Report
from qdqtool.pipeline import recipes
from qdqtool.pipeline.request import RunRequest
from qdqtool.pipeline.search import limited_run
from qdqtool.report.assemble import assemble
from tests.report.material import FULL, finding

DIGITS = recipes.folder() / "examples" / "digits" / "digits.onnx"
SETTING = "--set place.last_layer=int8"
SAME = f"{SETTING} (built: 2 of 2 compute nodes quantized instead of 1, in the same number of kernels)"
MORE = f"{SETTING} (built: 2 of 2 compute nodes quantized instead of 1, 1 kernel more)"
FEWER = f"{SETTING} (built: 2 of 2 compute nodes quantized instead of 1, 1 kernel fewer)"
LIGHTER = f"{SETTING} (built: 2 of 2 compute nodes quantized instead of 1, in the same number of kernels, 9% fewer activation bytes)"
UNKNOWN = f"{SETTING} (predicted: 2 of 2 compute nodes quantized instead of 1, kernels unknown: `qdqtool fix` builds it)"
IDLE = f"{SETTING} (this setting alone changes nothing)"
FP16_OFF = replace(finding(Severity.WARNING, "k"), code="QDQ212")


def report(*fixes: str, findings: tuple[Finding, ...] = ()) -> Report:
    return replace(
        assemble(FULL),
        fallbacks=tuple(
            Fallback(
                node=f"n{number}", op="Conv", precision="fp32", reason="it is last", fix=fix, requested=False
            )
            for number, fix in enumerate(fixes)
        ),
        findings=findings,
    )


def proposed(of: Report, *, is_quantized: bool = False, judged: str | None = None) -> list[list[str]]:
    request = RunRequest(
        model=Path("m.onnx"),
        recipe=Recipe(),
        samples="s.npz",
        eval_samples=judged,
        labels=judged,
        out=Path("out"),
    )
    lines = next_commands(request, of, ["--recipe", "conv-int8"], has_samples=True, is_quantized=is_quantized)
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize(
    ("change", "is_code"),
    [
        ("runtime.custom_ops=[ops.so]", True),
        ("compare.metrics=['mine:f']", True),
        ("place.first_layer=float", False),
    ],
)
def test_the_command_that_repeats_a_run_may_read_its_recipe(
    change: str, is_code: bool, tmp_path: Path
) -> None:
    """The recipe of a run with libraries of operators was refused without --trust."""
    recipe = recipes.load(None, [change])
    (tmp_path / "recipe.yaml").write_text(recipes.dump(recipe), "utf-8")
    request = RunRequest(
        model=Path("m.onnx"), recipe=recipe, samples="s.npz", eval_samples=None, labels=None, out=tmp_path
    )
    words = request.typed().arguments
    assert ("--trust" in words) is is_code
    assert recipes.load(words[words.index("--recipe") + 1], trust="--trust" in words) == recipe


def test_the_next_commands_have_the_libraries_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed: list[str] = []
    monkeypatch.setattr(limited_run, "run", lambda *_, **__: report())
    monkeypatch.setattr(
        "qdqtool.cli.next_commands.next_commands", lambda _, __, changes, **___: typed.extend(changes) or []
    )
    own = tmp_path / "own.yaml"
    own.write_text("compare:\n  metrics: ['mine:f']\n", "utf-8")
    words = ["run", str(DIGITS), "--samples", "random:4", "--out", str(tmp_path / "out")]
    run([*words, "--recipe", str(own), "--trust", "--custom-ops", "ops.so"])
    assert typed == ["--recipe", str(own), "--trust", '--set=runtime.custom_ops=["ops.so"]']


def test_what_measures_accuracy_measures_it_on_the_same_samples() -> None:
    lost = replace(finding(Severity.WARNING, "k"), code="DAT107")
    for words in proposed(report(findings=(FP16_OFF, lost)), judged="e.npz"):
        if words[0] in {"run", "sensitivity", "sweep"}:
            assert words[words.index("--eval-samples") + 1] == words[words.index("--labels") + 1] == "e.npz"
    assert "sweep" in {words[0] for words in proposed(report(), judged="e.npz")}


def test_where_nothing_is_left_to_fix_the_engine_is_shown() -> None:
    assert [words[0] for words in proposed(report())] == ["engine", "audit", "sweep"]
    assert [words[0] for words in proposed(report("nothing to do"))] == ["engine", "audit", "sweep"]


@pytest.mark.parametrize("fixes", [(SAME,), (MORE,), (IDLE,), (SAME, MORE, IDLE, "nothing to do")])
def test_fixes_that_save_nothing_are_not_offered(fixes: tuple[str, ...]) -> None:
    assert [words[0] for words in proposed(report(*fixes))] == ["engine", "audit", "sweep"]


@pytest.mark.parametrize("fix", [FEWER, LIGHTER, UNKNOWN, SETTING])
def test_one_fix_that_may_save_a_kernel_is_tried_first(fix: str) -> None:
    assert proposed(report(SAME, fix, findings=(FP16_OFF,)))[0][0] == "fix"


def test_an_engine_whose_float_part_is_fp32_is_built_again_in_fp16() -> None:
    first, second, _ = proposed(report(SAME, findings=(FP16_OFF,)))
    assert first[:4] == ["run", "m.onnx", "--recipe", "conv-int8"]
    assert first[first.index("--out") + 1] == "out-fp16"
    settings = [word.removeprefix("--set=") for word in first if word.startswith("--set=")]
    assert recipes.load("conv-int8", settings).insert.types == "fp16"
    assert second[0] == "engine"


def test_a_warning_beside_it_is_explained_and_that_of_a_quantized_model_too() -> None:
    both = report(SAME, findings=(FP16_OFF, finding(Severity.WARNING)))
    first, second, _ = proposed(both)
    assert first[:2] == ["explain", "QDQ201"]
    assert second[0] == "run"
    assert proposed(report(SAME, findings=(FP16_OFF,)), is_quantized=True)[0] == ["explain", "QDQ212"]


def test_a_finding_for_information_is_not_proposed() -> None:
    told = proposed(report(findings=(finding(Severity.INFO),)))
    assert "explain" not in [words[0] for words in told]
