"""`make new-rule` writes a rule that every command can load and a test that fails until it is filled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from qdqtool.matching.rule import RULES, Rule
from qdqtool.pages import coded_plugins

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "new_rule.py"
if not SCRIPT.exists():
    pytest.skip("the source distribution has no .ci", allow_module_level=True)


def run(root: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, name, root], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("qdqtool/rules", "tests/placement"):
        (root / folder).mkdir(parents=True)
    done = run(root, "my_rule")
    assert done.returncode == 0, done.stderr
    return root, done.stdout


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rule_has_the_next_free_code_and_a_page(written: tuple[Path, str]) -> None:
    root, said = written
    module = loaded(root / "qdqtool" / "rules" / "my_rule.py")
    assert isinstance(module.PLUGIN, Rule)
    newest = max(RULES.load(name).code for name in RULES.shipped())
    assert module.PLUGIN.code > newest
    assert module.PLUGIN.code not in coded_plugins()
    assert module.PLUGIN.code in said
    assert "Evidence: " in (module.__doc__ or "")


def test_the_rule_keeps_the_style(written: tuple[Path, str]) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "style.py", written[0]], capture_output=True, text=True, check=False
    )
    # The folder holds nothing of the product that the test could import.
    assert [line for line in done.stdout.splitlines() if "missing-import" not in line] == []


def test_the_test_fails_until_its_models_are_drawn(written: tuple[Path, str]) -> None:
    root, _ = written
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", root / "tests" / "placement"],
        capture_output=True, text=True, check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "draw the model of the page's `before`" in done.stdout
    assert "2 failed" in done.stdout


@pytest.mark.parametrize("name", ["My-Rule", "_private", "class", RULES.names()[0]])
def test_a_name_that_cannot_be_a_rules_is_refused(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, name)
    assert done.returncode == 1
    assert repr(name) in done.stderr
    assert not list(tmp_path.iterdir())
