"""`--ignore CODE=reason` is one grammar: what one command takes, all take."""

from __future__ import annotations

from pathlib import Path

import pytest

import qdqtool
from qdqtool.auditing import audit
from qdqtool.core.findings import waivers
from qdqtool.core.tensors import DType
from qdqtool.errors import UsageError
from qdqtool.pipeline import recipes
from tests import models
from tests.audit.graphs import fine
from tests.audit.scenes import engine, kernel, model_of
from tests.placement.qdq import GRAPHS


def test_the_grammar() -> None:
    given = ["QDQ141=known = measured", "qdq201", "fp16_off = for DLA"]
    assert waivers(given) == {"QDQ141": "known = measured", "QDQ201": "", "fp16_off": "for DLA"}


@pytest.mark.parametrize("word", ["QDQ201", "qdq201", "fallback"])
@pytest.mark.parametrize("reason", ["", "=known = measured"])
def test_the_audit_leaves_findings_out_and_keeps_the_reason(word: str, reason: str, tmp_path: Path) -> None:
    layers = engine(kernel("c1_myl0_1", "c1", precision=DType.FLOAT16))
    plain = audit(model_of(fine(), tmp_path), layers)
    count = sum(finding.check == "fallback" for finding in plain.findings)
    found = audit(model_of(fine(), tmp_path), layers, ignore=(word + reason,))
    assert count
    assert found.findings == tuple(one for one in plain.findings if one.check != "fallback")
    noted = set(found.notes) - set(plain.notes)
    words = f"{count} finding{'s' if count > 1 else ''} of QDQ201 fallback accepted: known = measured"
    assert noted == ({words} if reason else set())


@pytest.mark.parametrize("word", ["QDQ101", "qdq101", "zero_point"])
def test_lint_takes_codes_in_any_case_and_names(word: str, tmp_path: Path) -> None:
    path = models.save(GRAPHS["activation_zero_point"](), tmp_path)
    for ignore in ({word: "for DLA"}, [f"{word}=for DLA"]):
        found = qdqtool.lint(path, ignore=ignore)
        assert {one.code for one in found.waived} == {"QDQ101"}
        assert all(one.waiver == "for DLA" for one in found.waived)
    with pytest.raises(UsageError, match="has no reason"):
        qdqtool.lint(path, ignore=[word])


@pytest.mark.parametrize(
    "ignore", [{"QDQ201": "known"}, ["QDQ201=known"], ["fallback"], "QDQ201=known"], ids=str
)
def test_the_python_audit_takes_a_mapping_or_words(ignore: object, tmp_path: Path) -> None:
    layers = engine(kernel("c1_myl0_1", "c1", precision=DType.FLOAT16))
    path = models.save(fine(), tmp_path)
    found = qdqtool.audit(path, layers, ignore=ignore)  # type: ignore[arg-type]
    assert not any(one.code == "QDQ201" for one in found.findings)


def test_a_recipe_takes_reasons_with_commas_too() -> None:
    found = recipes.load(None, ['audit.ignore=["QDQ201=known, measured", "fp16_off"]'])
    assert found.audit.ignore == ("QDQ201=known, measured", "fp16_off")
    with pytest.raises(UsageError, match="unknown name 'QDQ999'"):
        recipes.load(None, ['audit.ignore=["QDQ999=known"]'])


@pytest.mark.parametrize("word", ["QDQ201", "DAT101", "few_samples", "CAL150", "lost_channels"])
def test_a_recipe_accepts_every_finding_that_a_run_reports(word: str) -> None:
    assert recipes.load(None, [f'audit.ignore=["{word}=known"]']).audit.ignore == (f"{word}=known",)
