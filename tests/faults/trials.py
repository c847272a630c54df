"""Runs a command with one fault at one point, looks at what is visible then, and runs it again without.

Commands run in children forked from one process that has imported everything, so that a trial costs what the command
itself does. What a trial must show:

- right after the fault, every visible file is the one an undisturbed run leaves, or the one that was there before;
- the command ended with a documented exit code and sentence, or was killed;
- the same command again ends as an undisturbed one, with the same bytes.

Files that hold times are compared with every number left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from qdqtool.cli.app import run as run_command
from tests import models
from tests.faults import points
from tests.processes import worked_s

PATIENCE_S = 120.0
"""Processor seconds after which a command hangs: four times what the longest takes."""
WAITING_S = 900.0
"""Seconds by the clock after which a command hangs that does not work at all."""
_JOURNAL = "-journal"
"""What SQLite writes beside a database before it changes it: with it, the next to open the file takes the change back."""
_CHECKPOINTS = (
    "steps.json",
    "study.db",
    "study.db" + _JOURNAL,
    "histograms.partial.npz",
    ".pt",
    "training.jsonl",
)
"""Files that are replaced again and again while a command works."""
_WORKING = ("s/trials/", "s/float-")
"""Folders of a sweep that are emptied when their work is done; until then they hold whole files of it."""
DOCUMENTED = range(6)
"""Exit codes that a command may end with after a fault of the system."""
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Command:
    """A command line, and what lies in its folder before.

    Attributes:
        words: the command line; files are named relative to the folder.
        prepare: fills the folder.
        essence: its files without what may depend on how often it was interrupted.
    """

    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    essence: Callable[[Files], Files] = dict


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, negative for a signal, None where it hung; what it said on both streams."""

    code: int | None
    words: str


@dataclass
class Reference:
    """What an undisturbed run leaves.

    Attributes:
        ended: how it ended.
        files: visible files by name.
        before: the same, before the command ran.
        timed: names of files that hold times, so that no two runs write the same bytes.
        points: all points in the order in which they were passed.
        sites: the calls that led to each: all, and the innermost ones, as one word each.
        alone: points of the command's own process at which it has no children.
        again: what a rerun said, by the state that it began with.
    """

    ended: Ended
    files: Files
    before: Files
    timed: frozenset[str] = frozenset()
    points: tuple[str, ...] = ()
    sites: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    again: dict[str, tuple[list[str], list[str], list[str]]] = field(default_factory=dict)


@dataclass
class Trial:
    """What one fault did; all lists are empty where nothing went wrong.

    Attributes:
        lost: files that are half-written or gone, and reruns that fail.
        differs: files that the rerun left with other bytes.
        wrong: internal errors, tracebacks, and successes that were none.
        hidden: names of hidden drafts that are left after the rerun.
    """

    point: str
    fault: str
    code: int | None
    lost: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


def small_model(folder: Path) -> None:
    """A chain of two convolutions and four samples."""
    models.save(models.conv_chain(), folder)
    dice = np.random.default_rng(0)
    np.savez(folder / "s.npz", x=dice.standard_normal((4, 8, 8, 8)).astype(np.float32))


def _and_older_outputs(folder: Path) -> None:
    """The same, and in place of the outputs files of an earlier run on other samples."""
    small_model(folder)
    for name in ("t.json", "q.onnx"):
        (folder / name).write_bytes(b"what an earlier run left")


def _with_a_fallback(folder: Path) -> None:
    """A Q/DQ model of which one convolution lacks a pair."""
    from tests.audit.graphs import GRAPHS

    models.save(GRAPHS["float_activation"](), folder, "q.onnx")


def _with_a_network(folder: Path) -> None:
    """A network in PyTorch with drawn images, and the recipe that trains it for one epoch."""
    shutil.copy(Path(__file__).parents[1] / "qat" / "networks.py", folder)
    (folder / "recipe.yaml").write_text(
        "name: small\ncalibrate: {method: max}\n"
        "qat: {model: 'networks.py:mixed', data: 'networks.py:images', epochs: 1, batch: 16, threads: 1}\n"
    )


def _without_numbers_of_trials(files: Files) -> Files:
    """A trial that was lost is tried again under the next number; everything else of a sweep stays the same."""
    kept = sorted({name.split("/")[2] for name in files if name.startswith("s/pareto/")})
    found = {}
    for name, content in files.items():
        words = name.split("/")
        if name.startswith("s/pareto/"):
            words[2] = str(kept.index(words[2]))
        found["/".join(words)] = _outcomes(content) if words[-1] == "sweep.json" else content
    page = found.get("s/sweep.html")
    return found if page is None else {**found, "s/sweep.html": page[-20:]}


def _outcomes(content: bytes) -> bytes:
    """What a sweep found, without the numbers of trials and the trials that were lost."""
    data = json.loads(content)["data"]
    trials, pareto = ([str(trial["outcome"]) for trial in data[key]] for key in ("trials", "pareto"))
    return json.dumps([sorted(row for row in trials if row != "None"), pareto]).encode()


def _without_seconds(files: Files) -> Files:
    """Of checkpoints of torch the tensors: beside them stands how long the epochs took."""
    found = dict(files)
    for name, content in files.items():
        if name.endswith(".pt") and _reads(name, content):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                sums = [one.CRC for one in archive.infolist() if "/data/" in one.filename]
            found[name] = json.dumps(sums).encode()
    return found


_SPACE = 'sweep.space={"calibrate.method": [max, mse]}'
COMMANDS: dict[str, Command] = {
    "run": Command(("run", "model.onnx", "--samples", "s.npz", "--out", "out"), small_model),
    "calibrate": Command(
        ("calibrate", "model.onnx", "--samples", "s.npz", "--method", "all", "-o", "t.json"),
        _and_older_outputs,
    ),
    "quantize": Command(("quantize", "model.onnx", "--samples", "s.npz", "-o", "q.onnx"), _and_older_outputs),
    "fix": Command(
        ("fix", "q.onnx", "--samples", "random:2", "--budget", "2", "-o", "fixed"),
        _with_a_fallback,
    ),
    "sweep": Command(
        (
            *("sweep", "model.onnx", "--samples", "s.npz", "--out", "s", "--trials", "2"),
            *("--set", _SPACE, "--set", "sweep.keep_float=[0]", "--set", "sweep.speed=none"),
        ),
        small_model,
        _without_numbers_of_trials,
    ),
    "qat": Command(
        ("qat", "run", "recipe.yaml", "--out", "trained", "--trust"), _with_a_network, _without_seconds
    ),
}


def missing(name: str) -> str:
    """Why a command cannot run here; empty where it can."""
    wanted = {"run": "tensorrt_rtx", "fix": "tensorrt_rtx", "sweep": "optuna", "qat": "torch"}.get(name)
    return "" if wanted is None or importlib.util.find_spec(wanted) else f"{wanted} is not installed"


def undisturbed(command: Command) -> Reference:
    """Run a command twice: what it leaves, what of it holds times, and the points it passes."""
    with _folder(command) as (root, notes):
        before = visible(root)
        ended = perform(command, root, {"folder": str(notes), "root": str(root)})
        files = command.essence(visible(root))
        assert (notes / "points").exists(), f"the command changes nothing: {ended}"
        _import_what_it_needs(notes)
    # Only now: what a program makes while it is imported for the first time is made by no trial.
    with _folder(command) as (root, notes):
        again = perform(command, root, {"folder": str(notes), "root": str(root)})
        second = command.essence(visible(root))
        lines = [line.split("\t") for line in (notes / "points").read_text().splitlines()]
        sites = {point: tuple(site.split()) for point, site, _ in reversed(lines)}
        alone = frozenset(point for point, _, how in lines if how and point.startswith("main "))
    assert (ended.code, set(files)) == (again.code, set(second)), f"{ended}\n{again}"
    timed = frozenset(name for name in files if files[name] != second[name])
    strange = [name for name in timed if not _alike(name, files[name], second[name])]
    assert not strange, f"two undisturbed runs differ by more than times: {strange}"
    return Reference(
        ended, files, before, timed, tuple(dict.fromkeys(point for point, *_ in lines)), sites, alone
    )


def trial(command: Command, reference: Reference, point: str, fault: str) -> Trial:
    """One fault at one point, and the same command again."""
    with _folder(command) as (root, notes):
        asked = {"folder": str(notes), "root": str(root), "point": point, "fault": fault}
        ended = perform(command, root, asked)
        found = Trial(point, fault, ended.code)
        if not (notes / "hit").exists():
            found.wrong.append("the point was not passed")
            return found
        left = command.essence(visible(root))
        killed = fault.startswith("kill") and ended.code == -signal.SIGKILL
        if ended.code is None:
            found.wrong.append("hangs")
        elif not killed and ended.code not in DOCUMENTED:
            found.wrong.append(f"exit code {ended.code}: {ended.words[-600:]}")
        if "Traceback" in ended.words:
            found.wrong.append(f"a traceback: {ended.words[-600:]}")
        if ended.code == reference.ended.code and "SIGKILL" in ended.words:
            return found  # a candidate's builder was killed, and the answer says so
        _judge(found, command, reference, root, ended, left)
        return found


def kills(command: Command, reference: Reference) -> Iterator[Trial]:
    """Every kill of the command's own process, from one run that goes on behind each: what a kill leaves is copied aside.

    SIGKILL keeps what the system was given and nothing else, so that a copy of the folder is the state after it. Kills
    that leave the same state share the rerun. Those with living children are left out: they need a real kill.
    """
    with _folder(command) as (root, notes):
        blobs = notes / "blobs"
        blobs.mkdir()
        ended = perform(command, root, {"folder": str(notes), "root": str(root), "kills": str(blobs)})
        assert ended.code == reference.ended.code, ended.words[-600:]
        for line in (notes / "killed").read_text().splitlines():
            point, fault, state = json.loads(line)
            found = Trial(point, fault, -signal.SIGKILL)
            _restore(root, blobs, state)
            left = command.essence(visible(root))
            _judge(found, command, reference, root, Ended(-signal.SIGKILL, ""), left)
            yield found


def _restore(root: Path, blobs: Path, state: str) -> None:
    """Make a folder what it was at a snapshot, at the place where it was."""
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "tmp").mkdir()
    entries = json.loads((blobs / f"{state}.json").read_text())
    for name, (mode, content) in sorted(entries.items()):
        path = root / name
        if stat.S_ISDIR(mode):
            path.mkdir()
        elif stat.S_ISLNK(mode):
            path.symlink_to(content)
            continue
        elif stat.S_ISREG(mode):
            shutil.copyfile(blobs / content, path)
        path.chmod(stat.S_IMODE(mode))


def _judge(
    found: Trial, command: Command, reference: Reference, root: Path, ended: Ended, left: Files
) -> None:
    """What is visible after a fault, and what the same command makes of it."""
    for name in left:
        if _is_log_of_failed_build(name, ended):
            continue
        if not _is_whole(reference, left, name):
            found.lost.append(f"{name} is visible and half-written, or no file of this command")
    found.lost += [f"{name} is gone" for name in reference.before if name not in left]
    if ended.code == reference.ended.code:
        found.wrong += [f"success, but {name}" for name in _differences(reference, left)]
        return
    if not _differences(reference, left):
        return  # only clearing up was left: `fix` takes no finished folder for a second time
    state = _state(reference, root)
    if state not in reference.again:
        reference.again[state] = _rerun(command, reference, root)
    lost, differs, hidden = reference.again[state]
    found.lost += lost
    found.differs += differs
    found.hidden += hidden


def _rerun(command: Command, reference: Reference, root: Path) -> tuple[list[str], list[str], list[str]]:
    again = perform(command, root, None)
    failed = again.code != reference.ended.code
    lost = [f"the rerun ends with {again.code}: {again.words[-600:]}"] if failed else []
    differs = _differences(reference, command.essence(visible(root)))
    return lost, differs, [str(path.relative_to(root)) for path in _hidden(root)]


def _state(reference: Reference, root: Path) -> str:
    """What a rerun begins with, as one word: without times, and without what is random in names."""
    found = []
    for path in sorted(root.rglob("*")):
        name = points.without_random("/" + str(path.relative_to(root)))
        if name.startswith("/tmp/"):
            continue
        content = path.read_bytes() if path.is_file() else b""
        timed = name[1:] in reference.timed or name.endswith((".json", ".log"))
        found.append((name, hashlib.sha256(_without_numbers(content) if timed else content).hexdigest()))
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def perform(command: Command, root: Path, asked: Mapping[str, str] | None) -> Ended:
    """Run a command in a forked child with its own folder for everything; `asked` goes to `points`."""
    words = root.parent / "words"
    child = os.fork()
    if child == 0:
        _be_a_child(command, root, words, asked)
    end = time.monotonic() + WAITING_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code: int | None = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > end or worked_s(child) > PATIENCE_S:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            code = None
            break
        time.sleep(0.02)
    return Ended(code, words.read_text("utf-8", "replace"))


def _be_a_child(command: Command, root: Path, words: Path, asked: Mapping[str, str] | None) -> None:
    code = 99
    try:
        os.setsid()
        handle = os.open(words, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(root)
        tempfile.tempdir = None
        here = str(Path(__file__).parent / "inject")
        project = str(Path(__file__).resolve().parents[2])
        os.environ.update(
            TMPDIR=str(root / "tmp"), HOME=str(root / "home"), PYTHONPATH=f"{here}{os.pathsep}{project}"
        )
        if asked is not None:
            os.environ[points.VARIABLE] = json.dumps(asked)
            points.begin("main")
        code = run_command(list(command.words))
        sys.stdout.flush()
        sys.stderr.flush()
        if asked is not None:
            Path(asked["folder"], "modules").write_text("\n".join(sys.modules))
    finally:
        os._exit(code)


def _import_what_it_needs(notes: Path) -> None:
    """Import what a command imports on use, once for all trials."""
    for name in (notes / "modules").read_text().split("\n"):
        if name.split(".")[0] not in {"__main__", "__mp_main__", "sitecustomize", "points"}:
            with contextlib.suppress(Exception):  # what cannot be imported twice is imported by the command
                importlib.import_module(name)


@contextlib.contextmanager
def _folder(command: Command) -> Iterator[tuple[Path, Path]]:
    """A fresh folder for a command, and one beside it for notes."""
    place = Path(tempfile.mkdtemp(prefix="faults-")).resolve()
    root, notes = place / "root", place / "notes"
    try:
        for folder in (root, notes, root / "tmp", root / "home"):
            folder.mkdir()
        command.prepare(root)
        yield root, notes
    finally:
        shutil.rmtree(place, ignore_errors=True)


def visible(root: Path) -> Files:
    """The files of a folder that are not hidden, temporary or in its home, by name."""
    found = {}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and parts[0] not in {"tmp", "home"} and not any(p.startswith(".") for p in parts):
            with contextlib.suppress(FileNotFoundError):  # a child that is ending has just removed it
                found["/".join(parts)] = path.read_bytes()
    return found


def _hidden(root: Path) -> list[Path]:
    """Drafts; temporary folders are the system's to clear, and on a disk that is full or read-only nobody can."""
    places = (
        path
        for path in root.rglob(".*")
        if path.name.startswith(".qdqtool-draft-") or (path.is_file() and not path.name.endswith(".lock"))
    )
    return [path for path in places if path.relative_to(root).parts[0] not in {"tmp", "home"}]


def _differences(reference: Reference, files: Files) -> list[str]:
    """What differs from an undisturbed run."""
    found = [f"{name} is missing" for name in reference.files if name not in files]
    for name, content in files.items():
        known = reference.files.get(name)
        if known is None:
            found.append(f"{name} is too much")
        elif known != content and not (name in reference.timed and _alike(name, known, content)):
            found.append(f"{name} has other bytes")
    return found


def _is_log_of_failed_build(name: str, ended: Ended) -> bool:
    """A build that failed leaves its log, as far as it came: it says why."""
    return name.endswith("build.log") and ended.code is not None and ended.code > 0


def _is_whole(reference: Reference, left: Files, name: str) -> bool:
    content = left[name]
    if content in {reference.files.get(name), reference.before.get(name)}:
        return True
    if name.endswith(_CHECKPOINTS) or name.startswith(_WORKING):
        base = name.removesuffix(_JOURNAL)
        return _reads(base, left.get(base, b""), left.get(base + _JOURNAL))
    return name in reference.timed and _alike(name, reference.files[name], content)


def _reads(name: str, content: bytes, journal: bytes | None = None) -> bool:
    """Whether a file that is there while a command works can be read."""
    try:
        if name.endswith(".db"):
            return bool(content) and _rows(content, journal) is not None
        if name.endswith(".npz"):
            with np.load(io.BytesIO(content)) as arrays:
                return bool([arrays[key] for key in arrays])
        if name.endswith(".pt") and content[:1] != b"[":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                return archive.testzip() is None
        if name.endswith(".onnx"):
            return bool(onnx.load_from_string(content).graph.node)
        if name.endswith(".json"):
            json.loads(content)
    except (ValueError, zipfile.BadZipFile, DecodeError):
        return False
    return True


def _alike(name: str, one: bytes, other: bytes) -> bool:
    """Whether two files differ in numbers only; databases, in times only."""
    if name.endswith(".db"):
        return _rows(one) == _rows(other)
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(content: bytes) -> bytes:
    # digests of files that hold times, and temporary folders
    place = re.escape(tempfile.gettempdir()).encode()
    content = re.sub(rb"\b[0-9a-f]{64}\b|%s/[^ \"]*" % place, b"0", content)
    return re.sub(rb"(?<![\w.])-?\d+(\.\d+)?(e-?\d+)?", b"0", content)


def _rows(content: bytes, journal: bytes | None = None) -> list[str] | None:
    """What a study says of its finished trials; None where the database is damaged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.db"
        path.write_bytes(content)
        if journal is not None:
            path.with_name(path.name + _JOURNAL).write_bytes(journal)
        with contextlib.closing(sqlite3.connect(path)) as opened:
            try:
                if opened.execute("pragma integrity_check").fetchone() != ("ok",):
                    return None
                tables = {row[0] for row in opened.execute("select name from sqlite_master")}
                if "trial_values" not in tables:
                    return []
                return sorted(
                    str(row)
                    for row in opened.execute(
                        "select p.param_name, p.param_value, v.value from trials t "
                        "join trial_params p using (trial_id) join trial_values v using (trial_id) "
                        "where t.state = 'COMPLETE'"
                    )
                )
            except sqlite3.DatabaseError:
                return None
