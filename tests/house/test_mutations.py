"""The list of wrong cores can be applied: a mutation that finds no text any more shows nothing about the tests."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
MUTATIONS = yaml.safe_load((ROOT / "benchmarks" / "mutations.yaml").read_text())


def test_each_mutation_finds_its_text_once_and_names_tests_that_exist() -> None:
    assert len(MUTATIONS) >= 50
    lost = [
        entry["what"]
        for entry in MUTATIONS
        if (ROOT / entry["file"]).read_text().count(entry["original"]) != 1
        or not all((ROOT / test).is_file() for test in entry["tests"])
    ]
    assert not lost
