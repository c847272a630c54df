"""Style rules that ruff and mypy cannot check; `make lint` runs this script.

Usage: `python .ci/style.py [ROOT]`. Prints one line per finding, `file:line: rule: message`, and exits with 1 if there is any.
Each rule is a function from one parsed file, or from all of them, to findings. `tests/house/test_style.py` shows every rule a file
that breaks it.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

PRODUCT = ("qdqtool", "calibrators")
SCRIPTS = ("benchmarks", "docs", "recipes", "tests")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One Python file: its path from the root of the checkout, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> dict[type[ast.AST], list[Any]]:
        """Syntax nodes by type, outer ones first: one walk serves all rules."""
        nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
        waiting: list[ast.AST] = [self.tree]
        for node in waiting:
            kind = type(node)
            nodes[kind].append(node)
            for name in kind._fields:
                value = getattr(node, name)
                if type(value) is list:
                    waiting += [item for item in value if type(item) not in LEAVES]
                elif type(value) not in LEAVES:
                    waiting.append(value)
        return nodes

    def of(self, *types: type[ast.AST]) -> Iterator[Any]:
        """Yields the syntax nodes of these types."""
        for kind in types:
            yield from self.nodes.get(kind, ())

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def package(self) -> str:
        """Second part of the path: `report` of `qdqtool/report/page.py`."""
        return self.path.split("/")[1]


@dataclass(frozen=True, order=True)
class Finding:
    """A broken rule and its place."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


LEAVES = {ast.Load, ast.Store, ast.Del, type(None), type(...), bool, int, float, complex, str, bytes}
"""Types of fields that no rule reads. A set, because two million fields are looked up in it."""
Lines = Iterator[tuple[int, str]]
"""Line numbers with messages: what a rule about one file yields."""

# --- sizes and names ---------------------------------------------------------------------------------------------------

MOST_LINES = 700
MOST_STATEMENTS = 50
MOST_PARAMETERS = 7
VAGUE = frozenset({"utils", "helpers", "common", "manager", "base", "misc"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
UNCLEAR = frozenset(
    {
        "found",
        "known",
        "told",
        "wanted",
        "one",
        "ones",
        "many",
        "said",
        "such",
        "so",
        "same",
        "other",
        "others",
        "rest",
        "seen",
        "given",
        "made",
        "asked",
    }
)
"""Names that say that a value exists, and not what it is: a tensor name, a range, a finding, a node."""
CLEAR_HERE = {("qdqtool/cli/commands/engine.py", "others"): "the help of the command prints it"}
"""Places where such a name stays, with the reason."""


def file_size(source: Source) -> Lines:
    """Limits the length of a file, so that one idea fits into it."""
    if len(source.lines) >= MOST_LINES:
        yield MOST_LINES, f"the file has {len(source.lines)} lines; split it by idea below {MOST_LINES}"


def function_size(source: Source) -> Lines:
    """Limits statements and parameters; parameters of commands and of API calls are what a user types."""
    is_for_users = "/commands/" in source.path or source.path.startswith("qdqtool/api/")
    for node in source.of(*FUNCTIONS):
        is_long = node.end_lineno - node.lineno >= MOST_STATEMENTS  # ruff refuses two statements on a line
        statements = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1 if is_long else 0
        parameters = len(node.args.args) + len(node.args.kwonlyargs)
        if statements > MOST_STATEMENTS:
            yield node.lineno, f"{node.name} has {statements} statements, more than {MOST_STATEMENTS}"
        if parameters > MOST_PARAMETERS and not is_for_users:
            yield node.lineno, f"{node.name} has {parameters} parameters, more than {MOST_PARAMETERS}"


def file_name(source: Source) -> Lines:
    """Refuses names that say nothing about the content, and files without a docstring."""
    if Path(source.path).stem in VAGUE:
        yield 1, f"name the file for its idea instead of {Path(source.path).stem!r}"
    if not ast.get_docstring(source.tree):
        yield 1, "the file has no docstring that says what it is for"


def unclear_name(source: Source) -> Lines:
    """Finds variables, parameters and functions whose name is in `UNCLEAR`.

    Fields of classes may be keys of JSON. The second operand of a method is `other` in all of Python.
    """
    allowed = {
        id(each.target)
        for node in source.of(ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.AnnAssign)
    }
    methods = [node.args.args for node in source.of(*FUNCTIONS) if node.args.args[:1]]
    allowed |= {
        id(args[1]) for args in methods if args[0].arg == "self" and args[1:] and args[1].arg == "other"
    }
    named = [(node.id, node) for node in source.of(ast.Name) if isinstance(node.ctx, ast.Store)]
    named += [(node.arg, node) for node in source.of(ast.arg)]
    named += [(node.name, node) for node in source.of(*FUNCTIONS, ast.ExceptHandler, ast.MatchAs)]
    for name, node in named:
        if name in UNCLEAR and id(node) not in allowed and (source.path, name) not in CLEAR_HERE:
            yield (
                node.lineno,
                f"{name!r} does not say what the value is: a tensor, a range, a finding, a node ...",
            )


# --- constants ---------------------------------------------------------------------------------------------------------

SCREEN_PACKAGES = ("report", "cli")
"""Packages whose numbers are widths and lengths on a screen or a page."""


def unexplained_number(source: Source) -> Lines:
    """Finds constants of one number without a comment above or beside them, or a string below them.

    A group of assignments shares the comment above the first one.
    """
    if source.package in SCREEN_PACKAGES:
        return
    body = source.tree.body
    explained_up_to = -1
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.end_lineno is None:
            continue
        above = source.lines[node.lineno - 2].strip() if node.lineno > 1 else ""
        beside = "#" in source.lines[node.end_lineno - 1]
        below = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if beside or below or above.startswith("#") or explained_up_to == node.lineno - 1:
            explained_up_to = node.end_lineno
        elif is_a_number(node.value) and node.end_lineno - node.lineno < 2:
            yield node.lineno, f"`{ast.unparse(node)}` does not say what the number is or where it comes from"


def is_a_number(value: ast.expr | None) -> bool:
    """Whether a value is one number, or a sum, product or shift of numbers, but not 0, 1 or 2."""
    if value is None:
        return False
    parts = list(ast.walk(value))
    allowed = ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    is_plain = all(isinstance(part, allowed) for part in parts) and all(
        type(number) in {int, float} for number in numbers
    )
    return is_plain and numbers not in ([0], [1], [2])


# --- systems -----------------------------------------------------------------------------------------------------------

SYSTEM_MODULES = {"resource", "pwd", "grp", "fcntl", "termios", "msvcrt", "winreg", "posix"}
SYSTEM_NAMES = {
    "os": {"fork", "forkpty", "getuid", "geteuid", "getpgid", "kill", "killpg", "mkfifo", "name", "nice", "setsid",
           "sched_getaffinity", "sysconf", "umask", "uname", "wait", "waitpid"},
    "signal": {"SIGKILL", "SIGALRM", "SIGHUP", "SIGBUS", "SIGUSR1", "SIGUSR2", "SIGCHLD", "alarm", "pthread_kill"},
    "sys": {"platform", "getwindowsversion"},
}  # fmt: skip
SYSTEM_PATHS = ("/proc/", "/sys/fs/")
SYSTEM_KEYWORDS = {"start_new_session", "preexec_fn", "creationflags"}
SYSTEM_FILE = "qdqtool/platform.py"


def one_system_only(source: Source) -> Lines:
    """Keeps what only some operating systems have in one module."""
    if source.path == SYSTEM_FILE:
        return
    for node in source.of(ast.Attribute, ast.Import, ast.Constant, ast.keyword):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in SYSTEM_NAMES.get(node.value.id, ()):
                names = [f"{node.value.id}.{node.attr}"]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name in SYSTEM_MODULES]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value.startswith(SYSTEM_PATHS) else []
        elif isinstance(node, ast.keyword) and node.arg in SYSTEM_KEYWORDS:
            names = [str(node.arg)]
        for name in names:
            yield getattr(node, "lineno", 1), f"{name} exists on some systems only; use {SYSTEM_FILE}"


# --- words -------------------------------------------------------------------------------------------------------------

_COUNT = re.compile(
    r"(len|sum|abs)\(.*\)$|(.*[._])?(count|total|number|nodes|kernels|samples|lines|entries|half|more)$"
)
_PLURAL = re.compile(r" ((?:[\w/-]+ )?)([A-Za-z]{3,}s)\b(?! (?:of|in) \w+ms\b)")
_NO_NOUNS = set("has was this its does less holds reads takes needs axis bias class".split())  # noqa: SIM905
_PREPOSITIONS = set("of in on to or and is are run no it that with".split())  # noqa: SIM905
_BELOW_WORDING = ("io", "platform.py")
"""Packages below the one that defines `counted`."""


def count_and_noun(source: Source) -> Lines:
    """Finds counts in f-strings before a plural noun: `counted` makes "1 finding" and "2 findings"."""
    if source.package in _BELOW_WORDING or not source.path.startswith("qdqtool/"):
        return
    for node in source.of(ast.JoinedStr):
        for field, words in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(field, ast.FormattedValue) and isinstance(words, ast.Constant)):
                continue
            value, match = ast.unparse(field.value), _PLURAL.match(str(words.value))
            if match is None or not _COUNT.match(value) or value.isupper():
                continue
            if match[2] not in _NO_NOUNS and match[1].strip() not in _PREPOSITIONS:
                yield node.lineno, f"use `counted` for {{{value}}}{match[0]}"


_TYPED = re.compile(r"`qdqtool [a-z]|--set \S")
_COMMANDS = "qdqtool/core/wording.py"
_ADVICE = frozenset({_COMMANDS, "qdqtool/core/advice.py"})


def advice_by_hand(source: Source) -> Lines:
    """Finds commands and settings that a text spells out: `Command` and `Setting` render them, and read them back."""
    if source.path in _ADVICE or not source.path.startswith("qdqtool/"):
        return
    texts = {id(node.value) for node in source.of(ast.Expr)}
    for node in source.of(ast.Constant):
        if isinstance(node.value, str) and id(node) not in texts:
            match = _TYPED.search(node.value)
            if match is not None:
                yield node.lineno, f"{match[0]!r} is written by hand; use Command or Setting of {_COMMANDS}"


_FIGURE = re.compile(
    r"\d[\d.]*\s(?:dB|ms|ns)\b(?! and more)|\b\d[\d.]* (?:times|%) (?:faster|slower|longer|as long|quieter|noisier)"
)
_BOUND = re.compile(
    r"(?:more than|less than|at least|at most|below|above|beyond|within|behind|[Ee]very|each|to|and) $|(?:^|[`(\"'|,:] ?)$"
)
_OF_TENSORRT = re.compile(r"TensorRT|RTX|Evidence|trtexec|Orin")


def figure_in_docstring(source: Source) -> Lines:
    """Finds measured figures in docstrings: `make figures` does not measure these again.

    A figure is a number with a unit of what was measured. Allowed are bounds that the code itself keeps ("more than 0.3 dB") and
    facts about TensorRT whose evidence the same docstring names.
    """
    for node in source.of(ast.Expr):
        if not isinstance(node.value, ast.Constant):
            continue
        text = " ".join(re.sub(r"`[^`]*`", "", str(node.value.value)).split())
        if _OF_TENSORRT.search(text):
            continue
        for match in _FIGURE.finditer(text):
            before = text[max(0, match.start() - 40) : match.start()]
            if not _BOUND.search(before):
                yield node.lineno, f"a docstring states the figure '{before}{match[0]}'"


# --- rules about TensorRT ------------------------------------------------------------------------------------------------

_RULE_PARTS = ("place", "check", "fix")
_MATCH = re.compile(r"match(_|$)")


def names_read(function: str, functions: dict[str, ast.FunctionDef], seen: set[str]) -> Iterator[str]:
    """Yields every name that a function reads, itself or through functions of its file."""
    seen.add(function)
    for node in ast.walk(functions[function]):
        if isinstance(node, ast.Name):
            yield node.id
            if node.id in functions and node.id not in seen:
                yield from names_read(node.id, functions, seen)


def part_without_match(source: Source) -> Lines:
    """Wants the parts of a rule to share one `match`, so that placement, check and fix find the same places.

    A file that holds one rule calls it `match`; one about several rules may have more, each named `match_...`.
    """
    if not source.path.startswith("qdqtool/rules/"):
        return
    functions = {node.name: node for node in source.tree.body if isinstance(node, ast.FunctionDef)}
    for node in source.of(ast.Call):
        if not (isinstance(node.func, ast.Name) and node.func.id == "Rule"):
            continue
        given = [each.value for each in node.keywords if each.arg in _RULE_PARTS]
        parts = [part.id for part in given if isinstance(part, ast.Name) and part.id in functions]
        read_by = ({part, *names_read(part, functions, set())} for part in parts)
        matches = [set(filter(_MATCH.match, names)) for names in read_by]
        if len(parts) > 1 and not set.intersection(*matches):
            yield node.lineno, f"{' and '.join(f'`{part}`' for part in parts)} do not use one `match`"


def stray_docstring(source: Source) -> Lines:
    """Refuses a text that stands alone and describes nothing, as one whose constant was moved or removed."""
    for scope in source.of(ast.Module, ast.ClassDef, *FUNCTIONS):
        for before, node in pairwise(scope.body):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            described = (
                isinstance(before, (ast.Assign, ast.AnnAssign)) and node.lineno == before.end_lineno + 1
            )
            if isinstance(node.value.value, str) and not described:
                yield node.lineno, "this text describes nothing; move it below its constant, or remove it"


# --- all files together --------------------------------------------------------------------------------------------------


def repeated_class(sources: Iterable[Source]) -> Iterator[Finding]:
    """Wants one class per name, so that a search for the name finds one thing."""
    first: dict[str, str] = {}
    for source in sources:
        for node in source.of(ast.ClassDef):
            home = first.setdefault(node.name, f"{source.path}:{node.lineno}")
            if home != f"{source.path}:{node.lineno}":
                yield Finding(
                    source.path, node.lineno, "repeated-class", f"{node.name} is also defined in {home}"
                )


def collections_of_operators(
    source: Source, operators: frozenset[str]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields line and names of every literal collection of two or more ONNX operators and nothing else."""
    for node in source.of(ast.Set, ast.Tuple, ast.List, ast.Dict):
        elements = node.keys if isinstance(node, ast.Dict) else node.elts
        if isinstance(node, ast.Dict):
            yield from ((node.lineno, words) for words in columns_of(node, operators))
        words = [each.value for each in elements if isinstance(each, ast.Constant)]
        if len(words) > 1 and all(word in operators for word in words):
            yield node.lineno, tuple(str(word) for word in words)


def columns_of(table: ast.Dict, operators: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yields the operators with each fact of a table: operators, each with a string of facts."""
    columns: dict[str, list[str]] = defaultdict(list)
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
            for fact in str(value.value).split():
                columns[fact].append(str(key.value))
    yield from (tuple(words) for words in columns.values() if len(words) > 1 and operators.issuperset(words))


def operator_list(sources: Iterable[Source]) -> Iterator[Finding]:
    """Finds a family of ONNX operators that two files list, so that no two parts of the program disagree about it.

    A family with one reader is beside this reader, one with several is in `qdqtool/trt/ops.py`.
    """
    import onnx.defs

    operators = frozenset(schema.name for schema in onnx.defs.get_all_schemas())
    first: dict[frozenset[str], str] = {}
    for source in sources:
        for line, words in collections_of_operators(source, operators):
            home = first.setdefault(frozenset(words), source.path)
            if home != source.path:
                yield Finding(
                    source.path,
                    line,
                    "operator-list",
                    f"the operators {', '.join(words)} are also listed in {home}; keep them in trt/ops.py",
                )


def names_defined(source: Source) -> set[str]:
    """Collects the names that a module defines or imports, at any depth."""
    names = {node.name for node in source.of(ast.FunctionDef, ast.ClassDef)}
    names |= {(name.asname or name.name).partition(".")[0] for name in source.of(ast.alias)}
    return names | {node.id for node in source.of(ast.Name) if isinstance(node.ctx, ast.Store)}


def missing_import(product: Iterable[Source], scripts: Iterable[Source]) -> Iterator[Finding]:
    """Finds names that scripts and tests import from the product and that are not there; mypy reads the product alone."""
    modules = {
        source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source
        for source in product
    }
    children: dict[str, set[str]] = defaultdict(set)
    for name in modules:
        parent, _, child = name.rpartition(".")
        children[parent].add(child)
    defined = {name: names_defined(source) | children[name] for name, source in modules.items()}
    for source in scripts:
        for match in _IMPORT.finditer(source.text):
            members = defined.get(match[1], set())
            entries = re.sub(r"#.*", "", match[2] or match[3]).split(",")
            for name in filter(None, (entry.split(" as ")[0].strip() for entry in entries)):
                if name not in members and "__getattr__" not in members:
                    line = source.text.count("\n", 0, match.start()) + 1
                    yield Finding(source.path, line, "missing-import", f"{match[1]} has no {name}")


_IMPORT = re.compile(r"^ *from ((?:qdqtool|calibrators)[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
"""An import from the product: reading a thousand files of tests by their text takes a twentieth of parsing them."""


_MODULE = re.compile(r"`(?:qdqtool\.)?([a-z_]+(?:\.\w+)+)`")
_FILES_AND_KEYS = re.compile(r".*\.(json|plan|flatbuffers|BuilderFlag)|(accuracy|runtime)\.\w+")
"""Other names with a dot: files, a class of TensorRT, and sections of a recipe that are packages too."""


def stale_name(sources: Iterable[Source]) -> Iterator[Finding]:
    """Finds modules and their members that a text names and that are gone: they send a reader the wrong way."""
    product = list(sources)
    modules: dict[str, set[str]] = {}
    for source in product:
        path = source.path.removesuffix(".py").removesuffix("/__init__").removeprefix("qdqtool/")
        modules[path.replace("/", ".")] = names_defined(source)
    packages = {name.partition(".")[0] for name in modules if "." in name}
    for source in product:
        for match in _MODULE.finditer(source.text):
            parts = match[1].split(".")
            if parts[0] not in packages or _FILES_AND_KEYS.fullmatch(match[1]):
                continue
            held = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in modules)
            if held < len(parts) and parts[held] not in modules[".".join(parts[:held])]:
                line = source.text.count("\n", 0, match.start()) + 1
                yield Finding(source.path, line, "stale-name", f"there is no {match[1]}")


RULES: dict[str, Callable[[Source], Lines]] = {
    "file-size": file_size,
    "function-size": function_size,
    "file-name": file_name,
    "unclear-name": unclear_name,
    "unexplained-number": unexplained_number,
    "one-system-only": one_system_only,
    "count-and-noun": count_and_noun,
    "advice-by-hand": advice_by_hand,
    "figure-in-docstring": figure_in_docstring,
    "part-without-match": part_without_match,
    "stray-docstring": stray_docstring,
}


def read(root: Path, folders: Iterable[str]) -> list[Source]:
    """Reads all Python files of some folders, in the order of their paths."""
    return [
        Source(path=path.relative_to(root).as_posix(), text=path.read_text("utf-8"))
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    ]


def findings(product: list[Source], scripts: list[Source]) -> Iterator[Finding]:
    """Yields what all rules find in the product, and what some find in benchmarks and tests."""
    for source in product:
        for name, rule in RULES.items():
            yield from (Finding(source.path, line, name, message) for line, message in rule(source))
    for source in scripts:
        if source.path.startswith("benchmarks/"):
            yield from (
                Finding(source.path, line, "file-size", message) for line, message in file_size(source)
            )
    yield from repeated_class(product)
    yield from operator_list(product)
    yield from missing_import(product, scripts)
    yield from stale_name(product)


def main(root: Path) -> int:
    gc.disable()  # a thousand syntax trees stay alive until the end; collecting between them doubles the time
    product, scripts = read(root, PRODUCT), read(root, SCRIPTS)
    broken = sorted(findings(product, scripts))
    for finding in broken:
        print(finding)
    if not product:
        print(f"{root}: no Python file of {' or '.join(PRODUCT)} is there")
    return 1 if broken or not product else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
