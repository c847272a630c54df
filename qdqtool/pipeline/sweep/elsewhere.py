"""Times trials on this or another machine: exports models and a script, runs the script over ssh, and reads the times.

The script (`time_trials.py`) needs only Python and trtexec.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import IO, Any, Final

from pydantic import TypeAdapter, ValidationError

from qdqtool.backends.building.procedure import external_files
from qdqtool.backends.flags import absolute, parse_flags
from qdqtool.backends.shapes import Shapes, format_shapes
from qdqtool.backends.timing.measure import LayerProfile, Timing
from qdqtool.backends.timing.series import Series, judge, summarize
from qdqtool.backends.timing.trtexec_times import LayerTime
from qdqtool.core.sweep import FloatPoint, Sweep, Trial
from qdqtool.core.target import packed_release
from qdqtool.core.wording import count_noun
from qdqtool.errors import BuildError, InputFileError, MissingPackage, UsageError
from qdqtool.graph.onnx_io.deferred import is_file
from qdqtool.graph.onnx_io.load import load
from qdqtool.io.files import digest_file, digest_files, make_folder, write_text
from qdqtool.io.json_files import canonical, digest_of, read_json
from qdqtool.pipeline.random_shapes import shapes_of
from qdqtool.pipeline.writing import write

# --- hosts -----------------------------------------------------------------------------------------------------------
# Times exported models on this or another machine: sends the folder over ssh, runs its script, fetches times.json.
#
# The machine needs an ssh server, Python 3.8, tar and trtexec. Sent files and times stay there in
# `~/.cache/qdqtool/DIGEST`, so that a repeated command continues where it was stopped. ssh must log in with a key to a
# known host: it asks for no password and accepts no new host key.


TIMES: Final = "times.json"
ELSEWHERE: Final = "elsewhere"
"""Folder of a sweep with the files that are timed on another machine."""
_OPTIONS: Final = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15")
_NO_TRTEXEC: Final = 3
"""Exit code of the script if trtexec is missing."""
_NO_ENGINE: Final = 4
"""Exit code of the script if no model has an engine."""
_NO_PROGRAM: Final = 127
"""Exit code of a shell that does not find a program."""
_REFUSED: Final = 255
"""Exit code of ssh if there is no connection."""
_SHORT: Final = 16
"""Digits of the digest that names a folder."""
_TROUBLES: Final = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the host key has changed",
        "check whether the machine was reinstalled; if so: ssh-keygen -R {name}, then ssh {target} once",
    ),
    (
        r"Host key verification failed|host key is known",
        "the host key is unknown",
        "connect once manually, compare the key and accept it: ssh {target}",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "the host requires a password or a key that ssh does not have",
        "install your key there: ssh-copy-id {target}",
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "the host does not exist",
        "check the name: {word}",
    ),
    (
        r"Connection refused|timed out|No route to host|Network is unreachable",
        "no ssh server answers",
        "check that the machine is on and runs sshd on this port: {word}",
    ),
)
"""Messages of ssh, their meaning, and the fix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine with a GPU.

    Attributes:
        word: as typed.
        target: user@host; "" is this machine.
        port: of its ssh server, or None.
    """

    word: str
    target: str = ""
    port: int | None = None

    def command(self, remote: str) -> list[str]:
        """Return the command that runs a shell line on the machine."""
        if not self.target:
            return ["sh", "-c", remote]
        port = [] if self.port is None else ["-p", str(self.port)]
        return ["ssh", *_OPTIONS, *port, self.target, remote]


def host_of(word: str) -> Host:
    """Return the machine that `--on` names.

    Raises:
        UsageError: it is neither "local" nor ssh://[user@]host[:port].
    """
    if word == "local":
        return Host(word=word)
    # A name that begins with a hyphen would be an option of ssh.
    match = re.fullmatch(r"ssh://((?:[\w.][\w.-]*@)?[\w.][\w.-]*)(?::(\d{1,5}))?/?", word)
    if match is None:
        raise UsageError(
            f"cannot read the host {word!r}",
            fix="write local, or ssh://user@host or ssh://user@host:2222",
            where="--on",
        )
    return Host(word=word, target=match[1], port=None if match[2] is None else int(match[2]))


def plan(on: Sequence[str], folder: Path, count: int, trtexec: str = "") -> tuple[str, ...]:
    """Return the steps to time exported models by hand, without `time_on_all`; `count`: number of trials, 0 if unknown.

    Raises:
        UsageError: `on` is empty, or does not name hosts.
    """
    if not on:
        raise UsageError(
            "--dry-run needs --on: it prints the commands of --on",
            fix="add --on local, or --on ssh://user@host",
        )
    models = f"the models of {count_noun(count, 'trial')}" if count else "the models of all trials"
    lines = [f"write {models} and {SCRIPT} to {folder}"]
    for host, name in zip(map(host_of, on), _name_times(len(on)), strict=True):
        program = _pass_program(trtexec)
        if not host.target:
            lines.append(shlex.join([sys.executable, str(folder / SCRIPT), *program, "--out", name]))
            continue
        place = f"{_HOME}/DIGEST"
        lines += [
            f"{shlex.join(['tar', '-C', str(folder), '-c', '.'])} | {shlex.join(host.command(f'mkdir -p {place} && tar -x -C {place}'))}",
            shlex.join(host.command(f"python3 {place}/{SCRIPT} {shlex.join(program)}".strip())),
            f"{shlex.join(host.command(f'cat {place}/{TIMES}'))} > {shlex.quote(str(folder / name))}",
        ]
    return tuple(lines)


def _name_times(count: int) -> list[str]:
    """Return the names of the files with times: one file for each machine, in order."""
    return [TIMES, *(f"times-{number}.json" for number in range(2, count + 1))]


_HOME: Final = ".cache/qdqtool"
"""Folder below the home folder of the other machine that contains everything that was sent."""


def time_on(
    host: Host, folder: Path, trtexec: str = "", name: str = TIMES, options: Sequence[str] = ()
) -> Path:
    """Time the models that `export` wrote to `folder`. Return the file of times: `name` in `folder`.

    `options` are further options of the script.

    Raises:
        MissingPackage: no connection, no Python, or no trtexec there.
        BuildError: no model has an engine there.
        InputFileError: the returned file is not a file of times.
    """
    program = [*_pass_program(trtexec), *options]
    if not host.target:
        _check(host, _ran(host, [sys.executable, str(folder / SCRIPT), *program, "--out", name]))
        return folder / name
    place = f"{_HOME}/{_digest(folder)[:_SHORT]}"
    if _ran(host, host.command(f"test -f {place}/.sent"), quiet=True).returncode:
        send = f"mkdir -p {place} && tar -x -C {place} && touch {place}/.sent"
        with TemporaryFile() as packed:  # all models may need more than the memory
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for path in _files(folder):
                    archive.add(path, path.name)
            packed.seek(0)
            _check(host, _ran(host, host.command(send), packed))
    _check(host, _ran(host, host.command(f"python3 {place}/{SCRIPT} {shlex.join(program)}".strip())))
    times = _ran(host, host.command(f"cat {place}/{TIMES}"))
    _check(host, times)
    write_text(folder / name, times.stdout.decode("utf-8", "replace"))
    return folder / name


def time_on_all(
    hosts: Sequence[Host], folder: Path, trtexec: str = "", options: Sequence[str] = ()
) -> tuple[Path, ...]:
    """Time exported models on several machines at the same time. Return the file of times of each machine, in order.

    Raises:
        MissingPackage, BuildError, InputFileError: as `time_on`, after all machines have ended.
    """
    with ThreadPoolExecutor(len(hosts)) as pool:
        files = [
            pool.submit(time_on, host, folder, trtexec, name, options)
            for host, name in zip(hosts, _name_times(len(hosts)), strict=True)
        ]
    return tuple(file.result() for file in files)


def check_host(host: Host, trtexec: str = "") -> None:
    """Check before a long search that the machine can be reached and has trtexec.

    Raises:
        MissingPackage: no connection, no Python, or no trtexec there.
    """
    look = f"command -v {shlex.quote(trtexec or 'trtexec')}"
    test = look if trtexec else f"{look} || test -x /usr/src/tensorrt/bin/trtexec"
    programs = (
        "" if not host.target else "command -v python3 >/dev/null && command -v tar >/dev/null || exit 127; "
    )
    done = _ran(host, host.command(f"{programs}{{ {test}; }} >/dev/null || exit {_NO_TRTEXEC}"), quiet=True)
    _check(host, done)


def identify(host: Host, trtexec: str = "") -> tuple[str, str]:
    """Return the GPU of a machine and the release of its trtexec, as "10.16.0"; "" for what it does not show.

    Raises:
        MissingPackage: the machine cannot be reached.
    """
    program = trtexec or "$(command -v trtexec || echo /usr/src/tensorrt/bin/trtexec)"
    gpu = "nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1"
    done = _ran(host, host.command(f"echo GPU $({gpu}); {program} --help 2>&1"), quiet=True)
    text = done.stdout.decode("utf-8", "replace")
    name, release = re.search(r"^GPU (.+)$", text, re.MULTILINE), re.search(r"TensorRT v(\d+)", text)
    spelled = ".".join(map(str, packed_release(int(release[1])))) if release else ""
    return (name[1].strip() if name else ""), spelled


def time_models(
    hosts: Sequence[Host],
    models: Sequence[Path],
    folder: Path,
    trtexec: str = "",
    flags: Sequence[str] = (),
    options: Sequence[str] = (),
    shapes: Shapes | None = None,
) -> Timing:
    """Time ONNX models with trtexec on machines. Each machine builds its own engines.

    With several machines, the name of a model is followed by the machine, and each machine has its own verdicts.

    Args:
        hosts: the machines.
        models: the first is the reference.
        folder: for the files that are sent; made if it is not there.
        trtexec: the program there; "" looks for it.
        flags: further flags of trtexec, as `--useDLACore=0`.
        options: further options of the script, as `--profile`.
        shapes: of dynamic inputs; None takes shapes with which each model runs.

    Raises:
        MissingPackage, InputFileError: as `time_on`.
        BuildError: a model has no engine there.
        UsageError: a flag is one that the script sets.
    """
    for host in hosts:
        check_host(host, trtexec)
    export_models(models, folder, flags, shapes)
    files = time_on_all(hosts, folder, trtexec, options)
    names = {f"{number:04}": path for number, path in enumerate(models)}
    timings = [
        compare_times(host, names, read_times(file), several=len(hosts) > 1)
        for host, file in zip(hosts, files, strict=True)
    ]
    return Timing(
        summaries=tuple(summary for timing in timings for summary in timing.summaries),
        verdicts=tuple(verdict for timing in timings for verdict in timing.verdicts),
        profiles=tuple(profile for timing in timings for profile in timing.profiles),
    )


def compare_times(
    host: Host, models: Mapping[str, Path], times: MeasuredTimes, *, several: bool = False
) -> Timing:
    """Compare the times of models with the times of the first; `models` are files by their names in `times`.

    Raises:
        BuildError: a model has no engine there.
    """
    series, profiles = [], []
    for there, path in models.items():
        rounds = times.rounds.get(there)
        if not rounds:
            why = times.failed.get(there, "the model was not timed")
            raise BuildError(
                f"the model has no engine on {host.word}: {why}",
                fix="lint the model for the release on that machine: qdqtool lint MODEL --target",
                where=str(path),
            )
        clock = f"GPU compute time by trtexec on {times.device} ({host.word}), one median per round"
        name = f"{path.name} on {host.word}" if several else path.name
        series.append(Series(name=name, clock=clock, rounds=tuple((ms,) for ms in rounds)))
        if there in times.profiles:
            profiles.append(LayerProfile(name=name, layers=times.profiles[there]))
    bound = [times.is_launch_bound(there) for there in models]
    verdicts = [judge(series[0], each) for each in series[1:]]
    return Timing(
        summaries=tuple(map(summarize, series)),
        verdicts=tuple(
            replace(verdict, answer="bound by launches") if bound[0] or is_bound else verdict
            for verdict, is_bound in zip(verdicts, bound[1:], strict=True)
        ),
        profiles=tuple(profiles),
    )


def _pass_program(trtexec: str) -> list[str]:
    return ["--trtexec", trtexec] if trtexec else []


def _files(folder: Path) -> list[Path]:
    """Return the files to send: the manifest, the models and their weights, and the script."""
    products = {"progress.json", "progress.tmp", "timing.cache"}
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and path.suffix != ".plan"
        and path.name not in products
        and not re.fullmatch(r"times(-\d+)?\.json", path.name)
    )


def _digest(folder: Path) -> str:
    about = "".join(f"{path.name} {digest_file(path)}\n" for path in _files(folder))
    return hashlib.sha256(about.encode()).hexdigest()


def _ran(
    host: Host, command: Sequence[str], piped: IO[bytes] | None = None, *, quiet: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run a command on a machine and return its result. Only a missing connection raises an error."""
    try:
        done = subprocess.run(command, stdin=piped or subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    except FileNotFoundError as error:
        fix = "install an ssh client" if host.target else "--on local needs a POSIX shell; on Windows use WSL"
        raise MissingPackage(f"the program {command[0]} is not installed", fix=fix, where="--on") from error
    if host.target and done.returncode == _REFUSED:
        raise _unreachable(host, done.stderr.decode("utf-8", "replace"))
    if done.returncode and not quiet:
        sys.stderr.write(done.stderr.decode("utf-8", "replace"))
    return done


def _unreachable(host: Host, message: str) -> MissingPackage:
    target, name = host.target, host.target.rpartition("@")[2]
    if host.port is not None:
        target, name = f"-p {host.port} {target}", f"'[{name}]:{host.port}'"
    names = {"word": host.word, "target": target, "name": name}
    for pattern, problem, fix in _TROUBLES:
        if re.search(pattern, message):
            return MissingPackage(
                f"cannot reach {host.word}: {problem}", fix=fix.format(**names), where="--on"
            )
    words = " ".join(message.split())[:300] or "ssh ended without a message"
    return MissingPackage(
        f"cannot reach {host.word}: {words}", fix=f"try it manually: ssh {target}", where="--on"
    )


def _check(host: Host, done: subprocess.CompletedProcess[bytes]) -> None:
    """Raise an error for the exit code of a command on the machine."""
    message = " ".join((done.stderr or done.stdout).decode("utf-8", "replace").split())[-300:]
    if done.returncode == _NO_TRTEXEC:
        raise MissingPackage(
            f"{host.word} has no trtexec{': ' if message else ''}{message}",
            fix="install TensorRT there, or pass the program with --trtexec /path/to/trtexec",
            where="--on",
        )
    if done.returncode == _NO_PROGRAM:
        raise MissingPackage(
            f"{host.word} lacks a program: {message}", fix="install python3 and tar there", where="--on"
        )
    if done.returncode == _NO_ENGINE:
        raise BuildError(
            f"no model has an engine on {host.word}: {message}",
            fix="check the release there (trtexec --help) and `failed` in times.json; build for that release with --target",
            where="--on",
        )
    if done.returncode:
        raise InputFileError(
            f"the script ended with {done.returncode} on {host.word}: {message}",
            fix="run the script manually on that machine",
        )


# --- elsewhere -------------------------------------------------------------------------------------------------------


SCRIPT: Final = "time_trials.py"
FLOATS: Final = {"FP32": "float", "FP16": "float16"}
"""Names of the models of `Sweep.floats` on the other machine."""
_STEADY: Final = 0.95
"""Share of the highest clock that the lowest must reach; times change in proportion to the clock. A chosen value."""
_OWN_FLAGS: Final = frozenset(
    [
        "onnx",
        "saveEngine",
        "loadEngine",
        "minShapes",
        "optShapes",
        "maxShapes",
        "shapes",
        "timingCacheFile",
        "stronglyTyped",
        "skipInference",
        "buildOnly",
        "iterations",
        "duration",
        "warmUp",
        "exportTimes",
        "exportProfile",
        "dumpProfile",
    ]
)
"""Flags of trtexec that the script sets."""
_QUANTIZED: Final = ("--int8", "--fp16")
"""Flags for a quantized model if trtexec has no strong typing."""
# Like every interval of this tool.
_SURE: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTimes:
    """The file that the script writes.

    Attributes:
        digest: of the trials that were exported.
        gpu: the GPU that timed them.
        rounds: milliseconds of each round by model.
        failed: why a model has no engine there, by model.
        enqueue: milliseconds that the CPU takes to launch an inference, of each round by model; none from old releases.
        power_mode: of a Jetson, as "MAXN"; "" on other machines.
        clocks_mhz: clock of the GPU at the end of each round; none if the machine does not show it.
        celsius: its temperature, likewise.
        profiles: times of layers by model, if they were asked for.
    """

    digest: str
    gpu: str
    rounds: dict[str, list[float]]
    failed: dict[str, str]
    enqueue: dict[str, list[float]] = field(default_factory=dict)
    power_mode: str = ""
    clocks_mhz: list[float] = field(default_factory=list)
    celsius: list[float] = field(default_factory=list)
    profiles: dict[str, tuple[LayerTime, ...]] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The GPU; if known, with its power mode, clock and temperature during the measurement."""
        about = [f"power mode {self.power_mode}"] if self.power_mode else []
        if self.clocks_mhz:
            low, high = min(self.clocks_mhz), max(self.clocks_mhz)
            moved = (
                ", which is not steady: lock the clock to get comparable times"
                if low < _STEADY * high
                else ""
            )
            about.append(f"{_format_range(low, high)} MHz{moved}")
        if self.celsius:
            about.append(f"{_format_range(min(self.celsius), max(self.celsius))} °C")
        return f"{self.gpu} ({'; '.join(about)})" if about else self.gpu

    def is_launch_bound(self, name: str) -> bool:
        """Return True if launching the kernels takes longer than running them, so that their speed does not show."""
        enqueue = self.enqueue.get(name) or [0.0]
        return median(enqueue) > median(self.rounds[name])


def _format_range(low: float, high: float) -> str:
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


_TIMES: Final = TypeAdapter(MeasuredTimes)


def export(
    sweep: Sweep,
    floats: Mapping[str, Path],
    models: Mapping[int, Path],
    folder: Path,
    flags_of: Callable[[tuple[str, ...]], Sequence[str]],
    shapes: Shapes | None = None,
) -> Path:
    """Write the float models, the models of all finished trials, and a script that times them. Return the script.

    Args:
        sweep: with its trials.
        floats: the models without a quantized node, by the names of `Sweep.floats`.
        models: the Q/DQ models of the trials by their numbers.
        folder: made if it is not there.
        flags_of: returns further flags of trtexec for the settings of a trial, and for () those of the float models.
        shapes: of dynamic inputs; None takes shapes with which each model runs.

    Raises:
        InputFileError: a file cannot be written.
    """
    make_folder(folder)
    done = [trial for trial in sweep.trials if trial.outcome is not None]
    entries = [
        _write_entry(path, FLOATS[name], folder, flags_of(()), shapes, ("--fp16",) if name == "FP16" else ())
        for name, path in floats.items()
    ]
    for trial in done:
        assert trial.outcome is not None
        flags = flags_of(trial.outcome.settings)
        model = models[trial.number]
        entries.append(_write_entry(model, name_of(trial), folder, flags, shapes, _QUANTIZED))
    return _with_script(folder, digest(sweep), entries)


def export_models(
    models: Sequence[Path], folder: Path, flags: Sequence[str] = (), shapes: Shapes | None = None
) -> Path:
    """Write models with numbers as names, and the script that times them, as `export` does. Return the script.

    Raises:
        InputFileError: a model cannot be read, or a file cannot be written.
        UsageError: a flag is one that the script sets.
    """
    refuse_own(flags)
    make_folder(folder)
    entries = [
        _write_entry(path, f"{number:04}", folder, flags, shapes, _QUANTIZED)
        for number, path in enumerate(models)
    ]
    return _with_script(folder, digest_models(models), entries)


def digest_models(models: Sequence[Path]) -> str:
    """Return a digest of ONNX models with their external weights.

    Raises:
        InputFileError: a file cannot be read.
    """
    return digest_files([file for path in models for file in (path, *external_files(path))])


def refuse_own(flags: Sequence[str]) -> None:
    """Refuse flags that the script sets, and paths that hold on this machine only.

    Raises:
        UsageError: it is one of these flags.
    """
    for flag in parse_flags(flags):
        if flag.name in _OWN_FLAGS:
            raise UsageError(f"--{flag.name} is set by {SCRIPT} itself", fix="remove it", where=str(flag))
        here = Path(flag.value or ".")
        if absolute(flag) != flag or (not here.is_absolute() and is_file(here)):
            raise UsageError(
                "the flag names a file on this machine, but the engine is built on another machine",
                fix="write the absolute path of a file on the other machine",
                where=str(flag),
            )


def _with_script(folder: Path, about: str, entries: Sequence[Mapping[str, Any]]) -> Path:
    """Write a manifest of the models in a folder, and the script, into this folder. Return the script."""
    write_text(folder / "manifest.json", canonical({"digest": about, "models": entries}))
    script = folder / SCRIPT
    shutil.copyfile(Path(__file__).with_name(SCRIPT), script)
    return script


def with_times(sweep: Sweep, path: Path) -> Sweep:
    """Return the sweep with the measured times from the file `path`; trials without times in it count as failed.

    Raises:
        InputFileError: the file is damaged, or of another sweep.
    """
    from qdqtool.pipeline.sweep.front import (
        front,
    )  # imports optuna, which other users of this module may lack

    times = read_times(path)
    if times.digest != digest(sweep):
        raise InputFileError(
            "the file holds times for trials of another sweep",
            fix="export this sweep again with --export, and time the new files",
            where=str(path),
        )
    trials = tuple(_add_times(trial, times) for trial in sweep.trials)
    floats = tuple(_float_timed(point, times) for point in sweep.floats)
    return replace(
        sweep,
        trials=trials,
        pareto=front(trials),
        speed="measured",
        device=times.device,
        spread=None,
        floats=tuple(point for point in floats if point is not None),
        launch_bound=tuple(
            trial.number
            for trial in trials
            if trial.outcome is not None and times.is_launch_bound(name_of(trial))
        ),
    )


def digest(sweep: Sweep) -> str:
    """Return a digest of the settings of all finished trials."""
    about = {name_of(trial): trial.outcome.settings for trial in sweep.trials if trial.outcome is not None}
    return digest_of(about)


def middle(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the median of times and its 95 % interval, from their order; below 6 values there is no interval."""
    ordered, count = sorted(values), len(values)
    outside, left = 0.0, 0
    while left < count // 2:
        outside += 2 * math.comb(count, left) / 2**count
        if outside > 1 - _SURE:
            break
        left += 1
    if not left:
        return median(ordered), None, None
    return median(ordered), ordered[left - 1], ordered[count - left]


def _float_timed(point: FloatPoint, times: MeasuredTimes) -> FloatPoint | None:
    rounds = times.rounds.get(FLOATS[point.name])
    if not rounds:
        return None
    ms, low, high = middle(rounds)
    return replace(point, ms=ms, ms_low=low, ms_high=high)


def _add_times(trial: Trial, times: MeasuredTimes) -> Trial:
    if trial.outcome is None:
        return trial
    rounds = times.rounds.get(name_of(trial))
    if not rounds:
        why = times.failed.get(name_of(trial), "the model was not timed")
        return replace(trial, state="failed", outcome=None, reason=f"on {times.gpu}: {why}")
    ms, low, high = middle(rounds)
    return replace(trial, outcome=replace(trial.outcome, ms=ms, ms_low=low, ms_high=high))


def read_times(path: Path) -> MeasuredTimes:
    """Read the times that the script wrote.

    Raises:
        InputFileError: the file is damaged, or has values that are not times.
    """
    try:
        times = _TIMES.validate_python(read_json(path))
    except ValidationError as error:
        raise InputFileError(
            f"the file is not a file of times: {error.errors()[0]['msg']}",
            fix=f"pass the times.json that {SCRIPT} wrote",
            where=str(path),
        ) from error
    wrong = [ms for rounds in times.rounds.values() for ms in rounds if not (math.isfinite(ms) and ms > 0)]
    if wrong:
        raise InputFileError(
            f"the file holds {wrong[0]} ms, which is not a valid time",
            fix=f"run {SCRIPT} again",
            where=str(path),
        )
    return times


def _write_entry(
    model: Path, name: str, folder: Path, flags: Sequence[str], shapes: Shapes | None, weakly: Sequence[str]
) -> Mapping[str, Any]:
    """Write a model and return its manifest entry; `weakly`: flags such as --int8, for trtexec without strong typing."""
    opened = load(model)
    write(opened, folder / f"{name}.onnx", step="sweep")
    text = format_shapes(shapes_of(opened) if shapes is None else shapes)
    entry = {"name": name, "file": f"{name}.onnx", "shapes": text}
    return {**entry, "weakly": list(weakly), "flags": list(flags)}


def name_of(trial: Trial) -> str:
    """Return the name of a trial's model on the other machine."""
    return f"{trial.number:04}"
