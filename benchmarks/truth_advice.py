"""Types every command that the tool prints about other people's files, and judges what it did.

    python benchmarks/truth_advice.py FOLDER [FOLDER ...] [--quick]

Reads every ONNX file with Q/DQ, calibration cache and log below the folders. `lint`, `cache lint` and `parse` print fixes;
each command in them is typed with the file's name for its capital letters (smooth waves for DATA) and judged:

- works: it ends well, a finding that it was printed for is gone, and onnxruntime's outputs are as near to those of the network
  without activation Q/DQ as before, or keep 20 dB;
- fails: it ends with an error, the finding stays, or the outputs are further away than before;
- untested: it needs a file that is not here (a script, a float model, the model of a log).

If onnxruntime cannot run the network, or it gives no finite numbers before, the end and the finding alone are judged.

The last line is JSON: `advice` counts different commands of a file, `advice_executed` those that were judged, `advice_works`,
`findings_gone`, `accuracy_kept` and `accuracy_untested`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from checkout import ROOT
from truth import run
from truth_edits import bare

from qdqtool.core.wording import Command, actions

KEPT_DB = 20.0
_ENDS_WELL = frozenset({0, 1})
_WRITES = frozenset({"repair", "convert"})
_OF_MODEL = _WRITES | {"lint", "compare", "sensitivity"}
_LIMIT = 120


@dataclass
class Advice:
    """One printed command, the finding it belongs to, and what became of it."""

    command: Command
    code: str = ""
    node: str = ""


@dataclass
class Judge:
    """Counts the commands of all files, and keeps a line for each that did not work."""

    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    misses: list[str] = field(default_factory=list)

    def file(self, path: Path) -> None:
        told = list(_distinct(advice_of(path, self.tool)))
        self.counts["files"] += 1
        for advice in told:
            self.counts["advice"] += 1
            state, why = self.judged(path, advice)
            self.counts[state] += 1
            if state != "advice_works":
                self.misses.append(f"{state}: {path.name}: {advice.command.line} ({advice.code} {why})")
        self.counts["advice_executed"] = self.counts["advice_works"] + self.counts["fails"]

    def tool(self, *words: object) -> CompletedProcess[str]:
        return run([sys.executable, "-m", "qdqtool", *map(str, words)], _LIMIT, cwd=self.folder)

    def judged(self, path: Path, advice: Advice) -> tuple[str, str]:
        """Type one command, and return its state with the reason."""
        command, out = advice.command, self.folder / "out.onnx"
        out.unlink(missing_ok=True)
        words = [self.filled(word, path) for word in command.arguments]
        if command.name in _WRITES and not any(word.endswith(".onnx") for word in words):
            words = [str(path), *words]
        missing = [word for word in words if word.isupper() and len(word) > 2]
        missing += ["MODEL"] * (path.suffix != ".onnx" and command.name in _OF_MODEL)
        if missing:
            return "untested", f"needs {', '.join(missing)}"
        if command.name in _WRITES:
            words = [*_without(words, "--out"), "--out", str(out)]
        done = self.tool(command.name, *words)
        if done.returncode not in _ENDS_WELL:
            said = next((row for row in done.stderr.splitlines() if row.startswith("error")), "")
            return "fails", f"ended with {done.returncode}: {said[:200]}"
        if command.name not in _WRITES:
            return "advice_works", ""
        left = {(one["code"], one["node"]) for one in self.findings(out)}
        if (advice.code, advice.node) in left:
            return "fails", "the finding stays"
        self.counts["findings_gone"] += 1
        after, before = (agreement(path, one) for one in (out, path))
        if after is None or before is None:
            self.counts["accuracy_untested"] += 1
            return "advice_works", ""
        kept = after >= min(before - 1, KEPT_DB)
        self.counts["accuracy_kept"] += kept
        return ("advice_works", "") if kept else ("fails", f"{after:.1f} dB, before {before:.1f}")

    def findings(self, path: Path) -> Sequence[dict[str, Any]]:
        done = self.tool("lint", path, "--json")
        return json.loads(done.stdout)["data"]["findings"] if done.returncode in _ENDS_WELL else ()

    def filled(self, word: str, path: Path) -> str:
        own = {
            ".onnx": ("MODEL",),
            ".log": ("LOG",),
            ".cache": ("CACHE", "TABLE"),
            ".table": ("CACHE", "TABLE"),
        }
        if word in own.get(path.suffix, ()):
            return str(path)
        return str(waves(path, self.folder / "samples")) if word == "DATA" else word


def advice_of(path: Path, tool: Any) -> Iterator[Advice]:
    """Yield the commands that the tool prints about one file."""
    if path.suffix == ".onnx":
        done = tool("lint", path, "--json")
        for one in json.loads(done.stdout)["data"]["findings"] if done.returncode in _ENDS_WELL else ():
            yield from (Advice(command, one["code"], one["node"]) for command in _commands(one["fix"]))
    elif path.suffix in {".cache", ".table"}:
        yield from map(Advice, _commands(tool("cache", "lint", path).stdout))
    else:
        done = tool("parse", path, "--json")
        for one in json.loads(done.stdout)["data"]["runs"] if done.returncode in _ENDS_WELL else ():
            yield from map(Advice, _commands((one.get("answer") or {}).get("fix", "")))


def _commands(text: str) -> Iterator[Command]:
    return (one for one in actions(text) if isinstance(one, Command))


def _distinct(told: Iterator[Advice]) -> Iterator[Advice]:
    """Yield each command once for each kind of finding: a hundred nodes with one fault are one case."""
    seen = set()
    for one in told:
        names = [word for word in one.command.arguments if word.startswith("--")]
        key = (one.code, one.command.name, tuple(names))
        if key not in seen:
            seen.add(key)
            yield one


def _without(words: Sequence[str], option: str) -> list[str]:
    kept = list(words)
    if option in kept:
        at = kept.index(option)
        del kept[at : at + 2]
    return kept


def waves(model: Path, folder: Path) -> Path:
    """Write four samples of smooth waves for every input, and return their folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for step in range(4):
        np.savez(folder / f"{step}.npz", **_inputs(onnx.load(model, load_external_data=False), step))
    return folder


def _inputs(model: onnx.ModelProto, step: int) -> dict[str, np.ndarray]:
    held, given = {tensor.name for tensor in model.graph.initializer}, {}
    for value in model.graph.input:
        if value.name in held:
            continue
        kind = value.type.tensor_type
        places = np.arange(int(np.prod(shape := [dim.dim_value or 1 for dim in kind.shape.dim]))).reshape(
            shape
        )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        given[value.name] = np.sin(0.37 * places + step).astype(dtype)
    return given


def agreement(original: Path, model: Path) -> float | None:
    """Return the SQNR in dB of a model's outputs against the original without activation Q/DQ; None if it cannot be measured."""
    proto = onnx.load(original)
    names = [node.name for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    given = _inputs(proto, 1)
    try:
        outputs = [
            _outputs(one, given) for one in (bare(proto, names) or onnx.load(original), onnx.load(model))
        ]
    except Exception:  # noqa: BLE001 -- onnxruntime raises many kinds, and all of them mean: untested
        return None
    noise = [
        10 * float(np.log10(max(np.square(exact).sum(), 1e-30) / max(np.square(exact - found).sum(), 1e-30)))
        for exact, found in zip(*outputs, strict=False)
        if exact.shape == found.shape
    ]
    found = min(noise, default=None)
    return found if found is not None and np.isfinite(found) else None


def _outputs(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(values, np.float64) for values in session.run(None, given)]


_KINDS = {".onnx": ".onnx", ".log": ".log", ".txt": ".log", ".cache": ".cache", ".table": ".cache"}


def files_of(folders: Sequence[Path], keep: Path) -> Iterator[Path]:
    """Yield the files below the folders, as copies in `keep` that are unpacked and end with their kind."""
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        name = Path(path.name.removesuffix(".xz"))
        folder = ".cache" if "calib" in path.parent.name else ".log" if path.parent.name == "logs" else ""
        kind = _KINDS.get(name.suffix, folder)
        if not kind:
            continue
        copy = keep / f"{len(list(keep.iterdir()))}-{name.stem}{kind}"
        copy.write_bytes(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())
        yield copy


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Type the commands that are printed about files, and judge them."
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "tests" / "data"])
    parser.add_argument("--quick", action="store_true", help="the first three files")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="advice-") as place:
        keep, work = Path(place) / "files", Path(place) / "work"
        keep.mkdir()
        work.mkdir()
        judge = Judge(work)
        for path in islice(files_of(options.folders, keep), 3 if options.quick else None):
            judge.file(path)
            print(f"{path.name}: {dict(judge.counts)}", file=sys.stderr, flush=True)
    print("".join(f"{miss}\n" for miss in judge.misses), end="")
    names = (
        "files",
        "advice",
        "advice_executed",
        "advice_works",
        "fails",
        "untested",
        "findings_gone",
        "accuracy_kept",
        "accuracy_untested",
    )
    print(json.dumps({name: judge.counts[name] for name in names}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
