"""Writes the skeleton of a rule and of its test: `make new-rule NAME=my_rule`, or `python .ci/new_rule.py NAME [ROOT]`.

The rule gets the next free code. Its file has a page to fill in and a `match` that finds nothing yet; its test fails until it shows
a model that has the pattern.
"""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

RULE = '''"""One sentence: what TensorRT does with the pattern, and what it costs.

    x ─ Q ─ DQ ─ Op      before: what happens
    x ─ Op               after: what happens instead

Why that is so, for which builders and GPUs, and the exceptions. `targets` and `formats` of the rule say the same as data.

Evidence: release, GPUs and names of the models that were built, or the page that documents it.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import EVERYWHERE, Rule, Violation


def match(view: GraphView) -> Iterator[Node]:
    """Every place with the pattern, in graph order; `place`, `check` and `fix` all start here."""
    for node in view.nodes:
        if node.op == "":  # the pattern
            yield node


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Such places in a Q/DQ model."""
    for node in match(flow.plain):
        yield Violation(
            node=node.name,
            reason="what is wrong",
            effect="what TensorRT does because of it",
            fix="what to change",
        )


PLUGIN = Rule(code="{code}", severity=Severity.INFO, targets=EVERYWHERE, check=check)
'''
TEST = '''"""The rule `{name}` finds its pattern, and nothing where the pattern is not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint
from tests import models


def with_pattern() -> onnx.ModelProto:
    """A Q/DQ model that shows the pattern; `models.Sketch` draws one."""
    pytest.fail("draw the model of the page's `before`")


def without_pattern() -> onnx.ModelProto:
    """The nearest model without the pattern."""
    pytest.fail("draw the model of the page's `after`")


@pytest.mark.parametrize(("model", "expected"), [(with_pattern, 1), (without_pattern, 0)])
def test_only_the_pattern_is_found(model, expected: int, tmp_path: Path) -> None:
    report = lint(load(models.save(model(), tmp_path)))
    assert sum(finding.code == "{code}" for finding in report.findings) == expected
'''
NEXT = """{rule} has the code {code}. Next:
1. Write the page (the docstring) and `match`. If the fact belongs to a file that exists, move the rule there: a heading `# {name}`
   in its docstring and an entry in its PLUGIN.
2. Draw the two models of {test}: pytest {test}
3. If the rule has a `check`, give its graph a name in tests/placement/qdq.py and the fact a row in tests/placement/facts.py.
4. Add what a user notices to CHANGELOG.md; run make lint.
"""


def next_code() -> str:
    """The first code after those of all shipped rules that no other plug-in has."""
    from qdqtool.matching.rule import RULES
    from qdqtool.pages import coded_plugins

    number = max(int(RULES.load(name).code[3:]) for name in RULES.shipped()) + 1
    while f"QDQ{number}" in coded_plugins():
        number += 1
    return f"QDQ{number}"


def write(name: str, root: Path) -> str:
    """Writes both files below `root` and returns what to do next.

    Raises:
        SystemExit: the name cannot be a rule's, or is taken.
    """
    from qdqtool.matching.rule import RULES

    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or not name.islower():
        raise SystemExit(f"{name!r} cannot name a rule; use lower-case words joined by _, as in narrow_head")
    rule, test = root / "qdqtool" / "rules" / f"{name}.py", root / "tests" / "placement" / f"test_{name}.py"
    if name in RULES.names():
        raise SystemExit(f"the rule {name!r} exists: {RULES.place(name)}")
    for path in (rule, test):
        if path.exists():
            raise SystemExit(f"{path} exists; choose another name")
    code = next_code()
    for path, text in ((rule, RULE), (test, TEST)):
        path.write_text(text.replace("{name}", name).replace("{code}", code), "utf-8")
    shown = {key: path.relative_to(root).as_posix() for key, path in (("rule", rule), ("test", test))}
    return NEXT.format(name=name, code=code, **shown)


if __name__ == "__main__":
    home = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(home))
    if len(sys.argv) < 2 or not sys.argv[1]:
        sys.exit("name the rule: make new-rule NAME=my_rule")
    print(write(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else home), end="")
