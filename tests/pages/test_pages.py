"""Every word that qdqtool prints as a term has a page, and `explain` finds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qdqtool
from qdqtool.cli.app import run
from qdqtool.core.events import End
from qdqtool.core.tensors import SCHEMES
from qdqtool.pages import REGISTRIES, coded_plugins, explanation, is_code, known_words, page_of, pages
from tests.shared import ROOT

CODES = sorted(
    {
        code
        for path in Path(qdqtool.__file__).parent.rglob("*.py")
        for code in re.findall(r'"([A-Z]{3}[1-9][0-9]{2})"', path.read_text("utf-8"))
    }
)


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_a_finding_has_a_page(code: str, capfd):
    assert run(["explain", code.lower()]) == 0
    assert capfd.readouterr().out.startswith(code)


@pytest.mark.parametrize("end", [end.value for end in End if end is not End.UNKNOWN])
def test_every_end_of_a_q_or_dq_has_a_page(end: str):
    assert explanation(end)


@pytest.mark.parametrize(
    "precision", ["int8", "int8-in", "fp8", "fp8-in", "fp4", "fp4-in", "float", "unknown"]
)
def test_every_verdict_on_a_node_of_a_log_has_a_page(precision: str, capfd):
    assert run(["explain", precision]) == 0
    assert capfd.readouterr().out.startswith(precision)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_format_that_a_recipe_can_ask_for_has_a_page(scheme: str):
    assert (explanation(scheme) or "").startswith(scheme)


def test_no_name_is_given_twice():
    files = sorted((ROOT / "qdqtool" / "pages").glob("*.md"))
    names = [
        name.lower()
        for file in files
        for heading in re.findall(r"^## (.+)$", file.read_text("utf-8"), re.MULTILINE)
        for name in heading.split(", ")
    ]
    assert len(names) == len(set(names)) == len(pages())


@pytest.mark.parametrize("page", dict.fromkeys(pages().values()), ids=lambda page: page.name)
def test_a_page_says_something_and_has_no_empty_summary(page):
    assert len(page.body) > 40
    assert 10 < len(page.summary) < 200
    assert page.topic


def test_the_list_without_a_word_names_every_page(capfd):
    assert run(["explain"]) == 0
    listed = capfd.readouterr().out
    assert all(page.name in listed for page in pages().values())
    assert all(code in listed for code in coded_plugins())


@pytest.mark.parametrize("name", ["Half_Quantized", "PARSE"])
def test_a_plug_in_is_found_in_upper_and_lower_case(name: str):
    assert explanation(name) == explanation(name.lower()) is not None


def test_a_word_that_has_no_page_is_answered_with_the_nearest(capfd):
    assert run(["explain", "INT8in"]) == 2
    assert "int8-in" in capfd.readouterr().err


def test_pages_named_in_pages_exist():
    words = set(known_words())
    for page in pages().values():
        named = re.findall(r"\b(?:QDQ|CAL|DAT)[0-9]{3}\b", page.body)
        assert set(named) <= words | {code for code in CODES if page_of(code)}
        commands = re.findall(r"`qdqtool ([a-z]+)", page.body)
        assert set(commands) <= words


def test_what_is_a_code():
    assert is_code("qdq120")
    assert not is_code("entropy")
    assert len(REGISTRIES) == len(set(REGISTRIES))
