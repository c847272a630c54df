"""Examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest

from tests.shared import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("qdqtool", "calibrators")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if re.search(r"^\s+>>> ", path.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed
