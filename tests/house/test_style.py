"""The style script of `make lint`: every rule finds a file that breaks it, and leaves one alone that does not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "style.py"
if not SCRIPT.exists():
    pytest.skip("the source distribution has no .ci", allow_module_level=True)


@pytest.fixture(scope="module")
def style() -> ModuleType:
    spec = importlib.util.spec_from_file_location("style", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["style"] = module
    spec.loader.exec_module(module)
    return module


MANY_PARAMETERS = "def f(a, b, c, d, e, f, g, h):\n    return a"
MANY_STATEMENTS = "def f():\n" + "    a = 1\n" * 51
ONE_MATCH = """
def match(view): return view.nodes
def check(flow): return _found(flow)
def _found(flow): return [node for node in match(flow.view)]
"""
OWN_PATTERN = (
    ONE_MATCH
    + "def fix(context): return [node for node in context.view.nodes]\nPLUGIN = Rule(check=check, fix=fix)\n"
)
TWO_RULES = """
def match_one(view): return view.nodes
def match_two(view): return view.nodes
def check(flow): return match_one(flow)
def fix(context): return match_{}(context)
PLUGIN = {{"one": Rule(check=check, fix=fix), "two": Rule(check=match_two)}}
"""

BROKEN = [
    ("file-size", "qdqtool/core/a.py", "A = 1\n" * 700),
    ("function-size", "qdqtool/core/a.py", MANY_PARAMETERS),
    ("function-size", "qdqtool/core/a.py", MANY_STATEMENTS),
    ("file-name", "qdqtool/core/utils.py", '"""A file."""'),
    ("file-name", "qdqtool/core/a.py", "A = 1"),
    ("unclear-name", "qdqtool/core/a.py", "def f():\n    found = 1"),
    ("unclear-name", "qdqtool/core/a.py", "def f(wanted): ..."),
    ("unclear-name", "qdqtool/core/a.py", "def told(): ..."),
    ("unclear-name", "qdqtool/core/a.py", "A = [one for one in B]"),
    ("unclear-name", "qdqtool/core/a.py", "A = sorted(B, key=lambda one: one.size)"),
    ("unclear-name", "qdqtool/core/a.py", "def f(a, other): ..."),
    ("unexplained-number", "qdqtool/core/a.py", "A = 5\n"),
    ("unexplained-number", "qdqtool/core/a.py", "A = 1 << 30\n"),
    ("one-system-only", "qdqtool/core/a.py", "import os\nos.killpg(1, 2)"),
    ("one-system-only", "qdqtool/core/a.py", "import resource"),
    ("one-system-only", "qdqtool/core/a.py", 'A = "/proc/self/status"'),
    ("one-system-only", "qdqtool/core/a.py", "f(start_new_session=True)"),
    ("count-and-noun", "qdqtool/core/a.py", 'f"{len(found)} findings"'),
    ("count-and-noun", "qdqtool/core/a.py", 'f"wrote {out}: {count} open nodes, {x}"'),
    ("count-and-noun", "qdqtool/core/a.py", 'f"{run.lines:,} lines"'),
    ("advice-by-hand", "qdqtool/rules/a.py", 'f"take it off; `qdqtool repair --float {node}` does"'),
    ("advice-by-hand", "qdqtool/cli/a.py", 'A = "--set place.first_layer=int8"'),
    ("figure-in-docstring", "qdqtool/core/a.py", 'def f():\n    """Costs MobileNet 1.4 dB."""'),
    ("figure-in-docstring", "qdqtool/core/a.py", 'X = 1\n"""It ran 6 times faster."""'),
    ("part-without-match", "qdqtool/rules/a.py", OWN_PATTERN),
    ("part-without-match", "qdqtool/rules/a.py", TWO_RULES.format("two")),
    ("stray-docstring", "qdqtool/core/a.py", 'A = 1\n\n\n"""What a constant is for."""'),
    ("stray-docstring", "qdqtool/core/a.py", 'class A:\n    def f(): ...\n\n    """What a method does."""'),
]
SOUND = [
    ("function-size", "qdqtool/cli/commands/a.py", MANY_PARAMETERS),
    ("file-name", "qdqtool/core/a.py", '"""A file."""'),
    (
        "unclear-name",
        "qdqtool/core/a.py",
        "class A:\n    others: int\n    def f(self, other): return other.found",
    ),
    ("unexplained-number", "qdqtool/core/a.py", "# Bytes.\nA = 5\nB = 6\n"),
    ("unexplained-number", "qdqtool/core/a.py", 'A = 5\n"""Bytes."""\n'),
    ("unexplained-number", "qdqtool/core/a.py", "A = 5  # bytes\n"),
    ("unexplained-number", "qdqtool/cli/a.py", "A = 5\n"),
    ("one-system-only", "qdqtool/platform.py", "import resource"),
    ("count-and-noun", "qdqtool/core/a.py", "f\"{counted(len(found), 'finding')}\""),
    ("count-and-noun", "qdqtool/core/a.py", 'f"{path} holds nothing"'),
    ("count-and-noun", "qdqtool/core/a.py", 'f"{MOST} lines at most"'),
    ("count-and-noun", "qdqtool/core/a.py", 'f"{len(part)} of {whole}"'),
    ("advice-by-hand", "qdqtool/rules/a.py", 'A = f"take it off; {REPAIR} does"'),
    ("advice-by-hand", "qdqtool/rules/a.py", '"""`qdqtool repair` does it."""'),
    ("figure-in-docstring", "qdqtool/core/a.py", 'X = 1\n"""Kept where it gains more than 0.3 dB."""'),
    ("figure-in-docstring", "qdqtool/core/a.py", 'X = 1\n"""Evidence: RTX 1.7.1: 0.3 ms."""'),
    ("part-without-match", "qdqtool/rules/a.py", ONE_MATCH + "PLUGIN = Rule(check=check, fix=match)\n"),
    ("part-without-match", "qdqtool/rules/a.py", TWO_RULES.format("one")),
    ("part-without-match", "qdqtool/core/a.py", OWN_PATTERN),
    ("stray-docstring", "qdqtool/core/a.py", '"""A file."""\n\nA = 1\n"""What it is for."""'),
]


def rules_broken(style: ModuleType, path: str, text: str) -> set[str]:
    return {found.rule for found in style.findings([style.Source(path=path, text=text)], [])}


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN)
def test_a_broken_rule_is_found(style: ModuleType, rule: str, path: str, text: str) -> None:
    assert rule in rules_broken(style, path, text)


@pytest.mark.parametrize(("rule", "path", "text"), SOUND)
def test_a_sound_file_is_left_alone(style: ModuleType, rule: str, path: str, text: str) -> None:
    assert rule not in rules_broken(style, path, text)


def test_an_exception_of_a_name_is_still_needed(style: ModuleType) -> None:
    for (path, name), reason in style.CLEAR_HERE.items():
        text = (ROOT / path).read_text("utf-8")
        named = style.unclear_name(style.Source(path=f"{path} without exceptions", text=text))
        assert any(repr(name) in message for _, message in named), (path, name, reason)


def test_every_rule_has_a_broken_example(style: ModuleType) -> None:
    assert {rule for rule, _, _ in BROKEN} == set(style.RULES)


@pytest.mark.parametrize(
    "text",
    [
        '{"Conv", "Gemm"}',
        '("Gemm", "Conv")',
        '["Conv", "Gemm"]',
        '{"Conv": 1, "Gemm": -1}',
        '{"Relu": "clamp", "Conv": "computes sums", "Gemm": "computes"}',
    ],
)
def test_a_family_of_operators_in_two_files_is_found(style: ModuleType, text: str) -> None:
    table = style.Source(path="qdqtool/trt/a.py", text='A = frozenset({"Conv", "Gemm"})')
    for path, expected in (("qdqtool/core/a.py", 1), (table.path, 0)):
        files = [table, style.Source(path=path, text=text)]
        found = [each for each in style.findings(files, []) if each.rule == "operator-list"]
        assert len(found) == expected


@pytest.mark.parametrize("text", ['{"Conv", "MatMul"}', '{"Add", "Silu"}'])
def test_other_words_may_be_listed(style: ModuleType, text: str) -> None:
    table = style.Source(path="qdqtool/trt/a.py", text='A = {"Conv", "Gemm"}, {"Add", "Silu"}')
    files = [table, style.Source(path="qdqtool/core/a.py", text=text)]
    assert "operator-list" not in {each.rule for each in style.findings(files, [])}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("graph.a", 0),
        ("graph.a.Found", 0),
        ("graph.a.Found.size", 0),
        ("qdqtool.graph.gone", 1),
        ("graph.a.gone", 1),
        ("a.json", 0),
    ],
)
def test_a_text_names_only_modules_that_are_there(style: ModuleType, word: str, expected: int) -> None:
    files = [
        style.Source(path="qdqtool/graph/__init__.py", text='"""Graphs."""'),
        style.Source(path="qdqtool/graph/a.py", text=f'"""See `{word}`."""\nclass Found:\n    size = 1'),
    ]
    assert sum(each.rule == "stale-name" for each in style.findings(files, [])) == expected


def test_a_class_name_used_twice_is_found(style: ModuleType) -> None:
    files = [style.Source(path=f"qdqtool/core/{name}.py", text="class Same: pass") for name in "ab"]
    (found,) = (each for each in style.findings(files, []) if each.rule == "repeated-class")
    assert (found.path, found.message) == (
        "qdqtool/core/b.py",
        "Same is also defined in qdqtool/core/a.py:1",
    )


def test_a_name_that_is_gone_is_found(style: ModuleType) -> None:
    product = [style.Source(path="qdqtool/platform.py", text="def processors(): ...")]
    text = "from qdqtool.platform import processors, nobody\nfrom qdqtool.nowhere import anything"
    found = style.missing_import(product, [style.Source(path="tests/test_a.py", text=text)])
    assert [each.message for each in found] == [
        "qdqtool.platform has no nobody",
        "qdqtool.nowhere has no anything",
    ]


def test_the_script_ends_with_one_on_a_finding_and_with_none_on_a_clean_tree(tmp_path: Path) -> None:
    folder = tmp_path / "qdqtool" / "core"
    folder.mkdir(parents=True)
    file = folder / "a.py"
    for text, code, words in (('"""A file."""\n', 0, ""), ("A = 1\n", 1, "qdqtool/core/a.py:1: file-name:")):
        file.write_text(text, "utf-8")
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout[: len(words)]) == (code, words), done.stderr


def test_a_folder_without_the_product_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
