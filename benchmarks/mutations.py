"""Whether the tests notice a wrong core: each mutation of mutations.yaml applied alone, and the tests that must fail.

    python benchmarks/mutations.py [--quick] [--only TEXT] [--seconds 300] [--trust]

Works in a temporary copy of the checkout. The mapped tests must pass there before anything is changed; then each
mutation replaces one text of one file, and is killed when one of its tests fails. What survives is named on stderr; the
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from checkout import ROOT

_COPIED = ("benchmarks", "calibrators", "docs", "qdqtool", "recipes", "tests")
_TIMED_OUT = "timed out"
_FAILED = 1
"""Exit status of pytest when tests ran and some failed; any other status but 0 is no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """One wrong text in the place of a right one.

    Attributes:
        what: the wrong behaviour.
        file: path in the checkout.
        original: what the file holds exactly once.
        mutated: what stands there instead.
        tests: files that must notice.
    """

    what: str
    file: str
    original: str
    mutated: str
    tests: tuple[str, ...]


def main() -> int:
    """Apply every mutation and count."""
    options = _options()
    mutations = [each for each in _read() if options.only in each.what][: 1 if options.quick else None]
    with tempfile.TemporaryDirectory(prefix="qdqtool-mutations-") as folder:
        tree = Path(folder)
        _copy(tree)
        files = sorted({test for each in mutations for test in each.tests})
        if (
            not (options.trust or options.quick)
            and _outcome(tree, files, options.seconds * len(files), {0}) != 0
        ):
            print("the tests fail without any mutation", file=sys.stderr)
            return 1
        outcomes = {each.what: _tried(tree, each, options.seconds) for each in mutations}
    killed = [what for what, outcome in outcomes.items() if outcome in {_FAILED, _TIMED_OUT}]
    survived = [what for what, outcome in outcomes.items() if outcome == 0]
    undecided = sorted(outcomes.keys() - {*killed, *survived})
    for kind, names in (("survived", survived), ("undecided", undecided)):
        for name in names:
            print(f"{kind}: {name}", file=sys.stderr)
    figures = {"total": len(mutations), "killed": len(killed), "survived": survived, "undecided": undecided}
    print(json.dumps(figures, ensure_ascii=False))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only mutations whose description holds this text")
    parser.add_argument(
        "--trust", action="store_true", help="the tests have just passed: do not run them first"
    )
    parser.add_argument("--seconds", type=int, default=300, help="most seconds for the tests of one mutation")
    parser.add_argument("--quick", action="store_true", help="the first mutation alone, as with --trust")
    return parser.parse_args()


def _read() -> list[Mutation]:
    table = yaml.safe_load((ROOT / "benchmarks" / "mutations.yaml").read_text(encoding="utf-8"))
    mutations = [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in table]
    for each in mutations:
        count = (ROOT / each.file).read_text(encoding="utf-8").count(each.original)
        if count != 1:
            sys.exit(f"{each.file} holds the original of {each.what!r} {count} times, not once")
    return mutations


def _copy(tree: Path) -> None:
    for name in _COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)


def _tried(tree: Path, mutation: Mutation, seconds: int) -> int | str:
    path = tree / mutation.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutation.original, mutation.mutated), encoding="utf-8")
    # Compiled code, Python's and numba's, is kept by size and time: no two contents of a file may share both.
    stamp = path.stat().st_mtime_ns
    os.utime(path, ns=(stamp, stamp + 2_000_000_000))
    try:
        outcome = _outcome(tree, mutation.tests, seconds, {0, _FAILED})
    finally:
        path.write_text(original, encoding="utf-8")
        os.utime(path, ns=(stamp, stamp + 4_000_000_000))
    print(f"{'killed' if outcome in {_FAILED, _TIMED_OUT} else outcome}: {mutation.what}", file=sys.stderr)
    return outcome


def _outcome(tree: Path, tests: Sequence[str], seconds: int, expected: Container[int]) -> int | str:
    """The exit status of pytest, told in full where it is not among the expected, or that it took too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=_environment(tree),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _TIMED_OUT
    if done.returncode not in expected:
        print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
    return done.returncode


def _environment(tree: Path) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(tree / ".compiled")}


if __name__ == "__main__":
    sys.exit(main())
