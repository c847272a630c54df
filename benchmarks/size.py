"""How large the code is, and how much of it one call enters: what a reader has to follow.

    python benchmarks/size.py [--quick] [--single]

Counts lines and files of each package, the files that one other file alone imports, and for `quantize`, `lint`, `predict`,
`audit` and `parse` of the embedded example the files and functions that are entered and how deep calls go. Each call is made
once before it is counted, so that imports and compiled loops are not. `audit` and `parse` read an engine that TensorRT for RTX
builds here; without the builder they are null. --quick quantizes with the calibrator max alone. --single lists the files that
one other file alone imports, with it.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from checkout import ROOT

import qdqtool
from qdqtool.errors import MissingPackage

PACKAGES = ("qdqtool", "calibrators")
DIGITS = ROOT / "recipes" / "examples" / "digits"
PLAIN = {
    "calibrate.method": "max",
    "calibrate.bias": "keep",
    "weights.rounding": "nearest",
    "weights.equalize": "none",
}


@dataclass
class Entered:
    """What calls have entered.

    Attributes:
        functions: file, name and first line of each function.
        deepest: the largest number of our own functions inside each other, in one thread.
    """

    functions: set[tuple[str, str, int]] = field(default_factory=set)
    deepest: int = 0
    _depth: threading.local = field(default_factory=threading.local)

    @property
    def files(self) -> set[str]:
        return {file for file, _, _ in self.functions}

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take in an event of `sys.setprofile`."""
        code = frame.f_code
        if event not in {"call", "return"} or not code.co_filename.startswith(ROOTS):
            return
        depth = getattr(self._depth, "now", 0) + (1 if event == "call" else -1)
        self._depth.now = depth
        if event == "call":
            self.deepest = max(self.deepest, depth)
            self.functions.add((code.co_filename, code.co_name, code.co_firstlineno))


ROOTS = tuple(f"{ROOT / package}/" for package in PACKAGES)


def entered(call: Callable[[], object]) -> Entered:
    """What the second of two calls enters, in all threads that it starts."""
    call()
    found = Entered()
    threading.setprofile(found.note)
    sys.setprofile(found.note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return found


def calls(folder: Path, *, quick: bool) -> Iterator[tuple[str, Callable[[], object] | None]]:
    """Each call by name; None where there is no builder."""
    model, samples = DIGITS / "digits.onnx", DIGITS / "calibration.npz"
    settings = PLAIN if quick else {}
    yield "quantize", lambda: qdqtool.quantize(model, samples, settings=settings)
    made = qdqtool.quantize(model, samples, settings=PLAIN)
    yield "lint", lambda: qdqtool.lint(made)
    yield "predict", lambda: qdqtool.predict(made)
    try:
        engine = qdqtool.build(made)
    except MissingPackage as error:
        print(f"audit and parse are not counted: {error}")
        yield from (("audit", None), ("parse", None))
        return
    layers = folder / "layers.txt"
    layers.write_text(engine.layers, "utf-8")
    yield "audit", lambda: qdqtool.audit(made, layers)
    yield "parse", lambda: qdqtool.parse_log(engine.log)


def sources() -> dict[str, Path]:
    """Every module of the packages, by its dotted name."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def importers(modules: dict[str, Path]) -> dict[str, set[str]]:
    """The modules that import each module by a statement; plug-ins, found by their names, are imported by none."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [one if one in modules else node.module for one in inside]
            else:
                continue
            for one in wanted:
                if one in modules and one != name:
                    found[one].add(name)
    return found


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def _counted(name: str, found: Entered) -> dict[str, int]:
    """Print a row of the table and return its figures."""
    lines = sum(lines_of(Path(file)) for file in found.files)
    print(f"{name:<24}{len(found.files):>7}{lines:>8}{len(found.functions):>11}{found.deepest:>7}")
    return {"files": len(found.files), "functions": len(found.functions), "depth": found.deepest}


def main() -> int:
    """Print the tables, then all of it as JSON."""
    parser = argparse.ArgumentParser(description="Measure the size of the code and of what a call enters.")
    parser.add_argument("--quick", action="store_true", help="quantize with the calibrator max alone")
    parser.add_argument(
        "--single", action="store_true", help="list the files that one other file alone imports"
    )
    options = parser.parse_args()
    modules = sources()
    lines, files = Counter[str](), Counter[str]()
    for path in modules.values():
        inside = path.relative_to(ROOT).parts
        package = "/".join(inside[:2]) if len(inside) > 2 else inside[0]
        lines[package] += lines_of(path)
        files[package] += 1
    print(f"{'package':<24}{'files':>7}{'lines':>8}")
    for package, count in lines.most_common():
        print(f"{package:<24}{files[package]:>7}{count:>8}")
    single = {name: min(known) for name, known in importers(modules).items() if len(known) == 1}
    print(
        f"{'all':<24}{files.total():>7}{lines.total():>8}; {len(single)} files are imported by one other file\n"
    )
    for name in sorted(single) if options.single else ():
        print(f"{lines_of(modules[name]):>6} {name} <- {single[name]}")
    told: dict[str, dict[str, int] | None] = {}
    print(f"{'call':<24}{'files':>7}{'lines':>8}{'functions':>11}{'depth':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, call in calls(Path(folder), quick=options.quick):
            found = None if call is None else entered(call)
            told[name] = None if found is None else _counted(name, found)
    result = {
        "lines": lines.total(),
        "files": files.total(),
        "entered": told,
        "single_importer": len(single),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
