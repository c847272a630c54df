"""Plain English in what people read: docstrings, messages and documentation.

Usage: `python .ci/english.py [--write] [--all] [ROOT]`. Counts, per package, sentences above 30 words, words in `WORDS`,
phrases of messages in `PRIVATE`, docstrings that begin with What, Which, Where, Those or "The same", and "where" against
"if". The counts may not grow beyond those in `.ci/english.json`; `--write` stores smaller ones, `--all` prints every
place. Exceptions are comments `# english: reason` on the line. It helps an author; it does not replace reading.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIMITS = Path(__file__).with_name("english.json")
MOST_WORDS = 30
BEGINNINGS = re.compile(r"(?:What|Which|Where|Those|The same)\b")
WORDS = re.compile(
    r"\b(?:foresee\w*|foretell|foretold|foreseen|quietest|quieter|told apart|told from|in the place of|next to nothing|held against"
    r"|whoever|that which|of what nothing|mends?|mended|by itself|dear|anew)\b",
    re.IGNORECASE,
)
PRIVATE = re.compile(
    r"\b(?:in front of|behind|of (?:its|their) own|as it stands|all the same|without a word|nobody|somebody|anew|afresh|so many were"
    r"|is told|told of|tells nothing|stands? (?:between|behind|in it)|takes? (?:it |Q/DQ |the pair )?off|taken (?:off|out)|goes on"
    r"|there is no \w+ \{|is no (?:number|recipe|entry|severity|file|list|table|model)|are no entries|was left out|gone since"
    r"|what it (?:is|reads|makes)|never fired)\b"
)
"""Phrases that users had to read twice. Messages use the field's words instead: before, after, separate, remove, unknown."""
SENTENCE = re.compile(r"(?<=[.!?:;])\s+")
Place = tuple[str, int, str, str]
"""File, line, rule and the text in question."""


def excused_lines(source: str) -> Iterator[int]:
    """Yields the lines with a comment `# english: reason`; for a comment that fills its line, the next line."""
    for number, line in enumerate(source.splitlines(), 1):
        if "# english:" in line:
            yield number + line.lstrip().startswith("#")


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yields line, text and whether it is a docstring, of a Python file or a page of the documentation."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        prose = re.sub(
            r"```.*?```|^\|.*?$|`[^`\n]*`",
            lambda found: "\n" * found[0].count("\n"),
            source,
            flags=re.DOTALL | re.MULTILINE,
        )
        for match in re.finditer(r"[^\n]+(?:\n[^\n]+)*", prose):
            yield prose[: match.start()].count("\n") + 1, " ".join(match[0].split()), False
        return
    excused = set(excused_lines(source))
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            if node.lineno not in excused:
                yield node.lineno, node.value.value, True
        elif isinstance(node, ast.JoinedStr) and node.lineno not in excused:
            parts = (part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
            yield node.lineno, "".join(map(str, parts)), False


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of each string of a Python file that is not a docstring and has two words or more."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    excused = set(excused_lines(source))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings or node.lineno in excused:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def places(path: Path, name: str) -> Iterator[Place]:
    """Yields what the rules find in one file."""
    if path.suffix == ".py":
        for line, text in messages(path):
            for match in PRIVATE.finditer(text):
                yield name, line, "private", match[0]
    for line, text, is_docstring in texts(path):
        plain = " ".join(re.sub(r"`[^`]*`", "x", text).split())
        if is_docstring and BEGINNINGS.match(plain):
            yield name, line, "beginning", plain[:60]
        for match in WORDS.finditer(plain):
            yield name, line, "word", match[0]
        for sentence in SENTENCE.split(plain):
            if len(sentence.split()) > MOST_WORDS:
                yield name, line, "long", sentence[:60]


def where_and_if(root: Path) -> Counter[str]:
    """Counts "where" and "if" in docstrings."""
    found: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        for _, text, is_docstring in texts(path):
            if is_docstring:
                found.update(re.findall(r"\b(?:where|if)\b", text.lower()))
    return found


def packages(root: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yields each package, and the documentation, with its files."""
    for folder in sorted(path for path in (root / "qdqtool").iterdir() if path.is_dir()):
        files = sorted([*folder.rglob("*.py"), *folder.rglob("*.md")])
        if files:
            yield f"qdqtool/{folder.name}", files
    yield "calibrators", sorted((root / "calibrators").rglob("*.py"))
    yield "docs", sorted((root / "docs").rglob("*.md"))
    yield "pages", [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store the counts, if none grew")
    parser.add_argument("--all", action="store_true", help="print every place")
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).resolve().parents[1])
    asked = parser.parse_args()
    limits = json.loads(LIMITS.read_text("utf-8")) if LIMITS.exists() else {}
    counts: dict[str, dict[str, int]] = {}
    grown = False
    for package, files in packages(asked.root):
        found = [place for path in files for place in places(path, path.relative_to(asked.root).as_posix())]
        counts[package] = dict(sorted(Counter(rule for _, _, rule, _ in found).items()))
        more = {
            rule: count
            for rule, count in counts[package].items()
            if package in limits and count > limits[package].get(rule, 0)
        }
        grown = grown or bool(more)
        for name, line, rule, text in found if asked.all or more else ():
            if asked.all or rule in more:
                print(f"{name}:{line}: {rule}: {text}")
        for rule, count in more.items():
            print(f"{package}: {rule}: {count} places, {limits[package].get(rule, 0)} are allowed")
    words = where_and_if(asked.root / "qdqtool")
    print(f"docstrings: where {words['where']}, if {words['if']}")
    if asked.write and not grown:
        LIMITS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", "utf-8")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
