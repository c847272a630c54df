"""A run in a log: its program, version, options and outcome, and the time of its phases."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import prod

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.prefix import DEEPSTREAM, JETSON, OLD, PYTHON, STAMPED, TORCH, Prefix, seconds_of
from qdqtool.core.buildlog import OnnxHeader, Phase
from qdqtool.core.target import packed_release

# --- identity --------------------------------------------------------------------------------------------------------
# The program of a run: front end, version, command, verdict.


_VERSION = re.compile(r"TensorRT v(\d{4,6})")
_BUILD = re.compile(r"\[(b\d{1,6})\]")
_LIBRARY = re.compile(r"nvinfer\w*\.so\.(\d{1,3}\.\d{1,3}\.\d{1,3})")
_WINDOWS = re.compile(r"(?:^|[\s=\"'])(?:[A-Za-z]:|\.{1,2})?\\\w|\.exe\b")
_EXECUTABLE = re.compile(r"[^-].{0,260}?\.exe\b\"?")
_QUOTED = re.compile(r"[\"'\\]|\.exe\b|#")
_HARNESS = re.compile(r"(?:^|/)harness_\w+")
_DOTTED = re.compile(r"\d{1,3}(?:\.\d{1,5}){1,4}")
# Maximum length of a command line; longer text is a log that lost its line ends.
_LONGEST_COMMAND = 1 << 16


class IdentityCollector:
    """Collects which program made a run of the log, in which version, and how it ended.

    Args:
        before: the run before in this process, if the new run has no banner: its library is still loaded.
    """

    def __init__(self, before: IdentityCollector | None = None) -> None:
        self.has_restarted: bool = False
        self._stated: tuple[int, ...] | None = None
        goes_on = before is not None and not before.has_restarted
        self._before: tuple[int, ...] | None = before.version if before is not None and goes_on else None
        self.build = ""
        self.command = ""
        self.carried_by = ""
        self.verdict = ""
        self.generated = 0
        self.is_configured: bool = False
        self.is_calibrated: bool = False
        self.engine: tuple[int, str] = (0, "")
        self._signs: Counter[str] = Counter()

    def handlers(self) -> dict[str, Handler]:
        return {
            "run-begins": self._begins,
            "run-passed": lambda line, program: self._closes(line, "passed", program),
            "run-failed": lambda line, program: self._closes(line, "failed", program),
            "run-waived": lambda line, program: self._closes(line, "waived", program),
            "polygraphy-begins": self._polygraphy,
            "tactics-inspected": lambda _line, _path: self._sign("polygraphy"),
            "bad-tactics": lambda _line: self._sign("polygraphy"),
            "polygraphy-passed": lambda _line, *_: self._ends("passed"),
            "polygraphy-failed": lambda _line, *_: self._ends("failed"),
            "module-loaded": self._module,
            "memory-change": self._initializes,
            "version": self._says_version,
            "library-trying": self._library,
            "library-loaded": self._library,
            "section-options": lambda _line, *_: self._sign("trtexec"),
            "tensorrt-llm-said": lambda _line, *_: self._sign("tensorrt-llm"),
            "convergence-mode": lambda _line, *_: self._sign("rtx"),
            "engine-written": self._writes,
            "engine-missing": lambda _line, *_: self._sign("deepstream"),
            "engine-reused": self._reuses,
            "deepstream-builds": lambda _line, *_: self._sign("deepstream"),
            "engine-generated": self._generates,
            "engine-added": self._generates,
            "engine-built": self._generates,
            "engine-finished": self._generates,
            "configuring": self._configures,
            "calibration-begins": self._calibrates,
            "calibration-begins-batch": self._calibrates,
            "calibration-scales": self._has_scales,
            "calibration-ends": self._has_scales,
        }

    def saw_prefix(self, prefix: Prefix) -> None:
        """Record the form of a line's prefix, which is a weak sign of the program."""
        if prefix.form >= 0:
            self._signs[_FORMS.get(prefix.form, "logger")] += 1

    @property
    def version(self) -> tuple[int, ...] | None:
        """The version that the run states, or that of the previous run."""
        return self._stated or self._before

    @property
    def front_end(self) -> str:
        """The most likely program of the run. Strong signs count more than prefixes."""
        for name in ("rtx", "mlperf", "trtexec", "polygraphy", "tensorrt-llm", "deepstream"):
            if self._signs[f"!{name}"]:
                return name
        if self.carried_by:
            return self.carried_by
        return self._signs.most_common(1)[0][0] if self._signs else "unknown"

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the run as words.

        On Windows a backslash separates folders and escapes nothing.
        """
        if not _QUOTED.search(self.command):
            return tuple(self.command.split())
        try:
            if _WINDOWS.search(self.command) is None:
                return tuple(shlex.split(self.command))
            # The folder of the program may contain blanks ("Program Files").
            program = _EXECUTABLE.match(self.command)
            first, arguments = (program[0], self.command[program.end() :]) if program else ("", self.command)
            words = shlex.split(arguments.replace("\\", "\\\\"))
            return (first.strip('"'), *words) if first else tuple(words)
        except ValueError:
            return tuple(self.command.split())

    def status(self, *, failed: bool) -> str:
        """Return how the run ended, from its last messages."""
        if self.verdict:
            return self.verdict
        if failed:
            return "failed"
        return "built" if self.generated else "cut"

    def _begins(self, _line: int, program: str, command: str) -> None:
        # MLPerf's harness prints trtexec's banner with its own command.
        self._sign("mlperf" if _HARNESS.search(command.partition(" ")[0]) else "trtexec")
        self.command = command.strip()[:_LONGEST_COMMAND]
        version = _VERSION.search(program)
        if version:
            self._stated = packed_release(int(version.group(1)))
        build = _BUILD.search(program)
        self.build = build.group(1) if build else ""

    def _polygraphy(self, _line: int, command: str) -> None:
        self._sign("polygraphy")
        self.command = command.strip()[:_LONGEST_COMMAND]

    def _closes(self, line: int, verdict: str, banner: str) -> None:
        """Record the last banner of trtexec, which repeats the first and ends the run."""
        program, separator, command = banner.partition(" # ")
        if separator and not self.command:
            self._begins(line, program, command)
        self._ends(verdict)

    def _ends(self, verdict: str) -> None:
        self.verdict = verdict

    def _sign(self, front_end: str) -> None:
        self._signs[f"!{front_end}"] += 1

    def _says_version(self, _line: int, text: str) -> None:
        match = _DOTTED.match(text)
        if match and self._stated is None:
            self._stated = tuple(int(part) for part in match.group().split("."))

    def _library(self, _line: int, path: str) -> None:
        match = _LIBRARY.search(path)
        if match and self._stated is None:
            self._stated = tuple(int(part) for part in match[1].split("."))

    def _module(self, line: int, module: str, version: str, *_path: str) -> None:
        self._sign("polygraphy")
        if module.strip() == "tensorrt":
            # 10.14.1.48: the last number is that of the build.
            self._says_version(line, ".".join(version.strip().split(".")[:3]))

    def _initializes(self, line: int, step: str, *_fields: object) -> None:
        """Record a finished engine, or a new process: CUDA is loaded again after a finished engine."""
        if self.generated and step.startswith("Init CUDA"):
            self.has_restarted = True
        elif step.endswith("building engine"):
            self.generated = line

    def _writes(self, line: int, _host: str, path: str) -> None:
        """Record that DeepStream has written its engine file."""
        self._sign("deepstream")
        self.generated = line
        self.engine = (line, path)

    def _reuses(self, line: int, _host: str, path: str) -> None:
        """Record that DeepStream runs a finished engine."""
        self._sign("deepstream")
        self.engine = (line, path)

    def _generates(self, line: int, *_fields: object) -> None:
        self.generated = line

    def _configures(self, _line: int, *_fields: object) -> None:
        self._sign("polygraphy")
        self.is_configured = True

    def _has_scales(self, _line: int, *_fields: object) -> None:
        self.is_calibrated = True

    def _calibrates(self, _line: int, *_fields: object) -> None:
        """Record that the last engine only collected ranges, so that the INT8 engine follows."""
        self.generated = 0


_FORMS = {
    STAMPED: "trtexec",
    PYTHON: "python",
    OLD: "python",
    DEEPSTREAM: "deepstream",
    JETSON: "jetson-inference",
    TORCH: "torch-tensorrt",
}
"""Front end for each form of prefix: trtexec's logger prints the severity before the origin, Python's after it."""


# --- options ---------------------------------------------------------------------------------------------------------
# The requested build: the echo of options, the device, and the model's header.


_WORKSPACE = re.compile(r"workspace: (\d{1,9}(?:\.\d{1,12})?(?:e-?\d{1,2})?) MiB")
_LONGEST = 2000
"""Most characters kept of an option."""
_TYPES_ON = re.compile(r"(\w+): True")
_POLYGRAPHY_TYPES = frozenset({"FP16", "BF16", "INT8", "FP8", "INT4"})
_MOST_OPTIONS = 512
"""Most options kept per run; trtexec prints about ninety."""


class OptionsCollector:
    """Keeps the options that a log prints, by section and name."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, str]] = {}
        self._current: dict[str, str] = {}
        self._kept = 0
        self._header: dict[str, str] = {}
        self.plugins = 0

    def handlers(self) -> dict[str, Handler]:
        header = {
            "onnx-file": "file",
            "onnx-ir": "ir_version",
            "onnx-opset": "opset",
            "onnx-producer": "producer",
            "onnx-producer-version": "producer_version",
            "onnx-domain": "domain",
            "onnx-model-version": "model_version",
        }
        return {
            "section-options": self._open,
            "section-device": lambda line: self._open(line, "Device"),
            "section-joined": self._open_joined,
            "option": self._option,
            "option-tight": self._option,
            "option-unset": lambda line, key: self._option(line, key, ""),
            "plugin-registered": self._plugin,
            "configuration": self._configuration,
            **{name: self._note(field) for name, field in header.items()},
        }

    @property
    def onnx(self) -> OnnxHeader | None:
        """The header of the ONNX model in the log; None if none is printed."""
        return OnnxHeader(**{"file": "", **self._header}) if self._header else None

    @property
    def at_once(self) -> int:
        """Queries that the GPU computes at the same time: the implicit batch of TensorRT up to 9 times the streams."""
        options = self.sections.get("Inference", {})
        texts = (options.get(name, "") for name in ("Batch", "Streams", "Inference Streams"))
        return prod(int(text) or 1 for text in texts if re.fullmatch("[0-9]{1,6}", text))

    @property
    def workspace(self) -> int | None:
        """The workspace limit in bytes; None for the default, or if the log does not print it."""
        match = _WORKSPACE.search(self.sections.get("Build", {}).get("Memory Pools", ""))
        return int(float(match[1]) * (1 << 20) + 0.5) if match else None

    def _open(self, _line: int, title: str) -> None:
        if len(self.sections) < 32:
            title = title[:_LONGEST]
            self._current = self.sections.setdefault(
                title.removesuffix(" Options").removesuffix(" Information"), {}
            )

    def _open_joined(self, line: int, title: str, option: str, value: str) -> None:
        self._open(line, title)
        self._option(line, option, value)

    def _option(self, _line: int, key: str, value: str) -> None:
        key, value = key[:_LONGEST], value.strip()[:_LONGEST]
        if self._kept >= _MOST_OPTIONS:
            return
        self._kept += 1
        before = self._current.get(key)
        repeated = before and before != value and value not in before.split(", ")
        self._current[key] = f"{before}, {value}" if repeated else value

    def _configuration(self, _line: int, key: str, value: str) -> None:
        """Record the types that Polygraphy allows, in the spelling of any release."""
        if key not in {"Flags", "Precision"}:
            return
        build = self.sections.setdefault("Build", {})
        allowed = [*build.get("Precision", "FP32").split("+")]
        named = _TYPES_ON.findall(value) if key == "Precision" else re.findall(r"\w+", value)
        allowed += [name for name in named if name in _POLYGRAPHY_TYPES and name not in allowed]
        build["Precision"] = "+".join(allowed)

    def _plugin(self, _line: int, *_fields: str) -> None:
        self.plugins += 1

    def _note(self, field: str) -> Handler:
        def handle(_line: int, value: str) -> None:
            self._header.setdefault(field, value.strip()[:_LONGEST])

        return handle


# --- phases ----------------------------------------------------------------------------------------------------------


_STATED = {
    "parsing-took": "parsing",
    "construction-took": "graph construction",
    "optimization-took": "graph optimization",
    "construction-and-optimization-took": "graph construction and optimization",
    "calibration-ends": "calibration",
    "selection-took": "formats and tactics selection",
    "engine-generated": "engine generation",
    "engine-built": "engine build",
    "engine-deserialized": "engine deserialization",
}
_MARKS = {
    "parsing-begins": "parsing",
    "onnx-file": "parsing",
    "network-input": "parsing",
    "layers-original": "graph optimization",
    # Tuning follows, or the loading of cuBLAS and cuDNN: see `_loads`.
    "optimization-took": "autotuning",
    "construction-and-optimization-took": "autotuning",
    "calibration-begins": "calibration",
    "calibration-begins-batch": "calibration",
    "timing-cache-local": "autotuning",
    "timing-cache-global": "autotuning",
    "profile-number": "autotuning",
    "selection-took": "engine generation",
    "engine-generated": "loading",
    "inference-begins": "inference",
}
_LIBRARIES = ("Init cuBLAS", "Init cuDNN")
_LOADING = "library initialization"
# Largest number of phases of one run; runs in one process have about twenty each.
_MOST_PHASES = 200


class PhasesCollector:
    """Keeps the durations of build phases that a log states, and the time stamps at which phases begin.

    Args:
        now: the time stamp of the line being handled, "" if it has none.
    """

    def __init__(self, now: Callable[[], str]) -> None:
        self._now = now
        self._stated: list[Phase] = []
        self._marks: list[tuple[str, int, float]] = []
        self._tunes = False
        self.current = ""
        # Lines in which the builder begins a step, with or without time stamps.
        self.steps: list[int] = []

    def handlers(self) -> dict[str, Handler]:
        return {
            **{name: self._state(phase) for name, phase in _STATED.items() if name not in _MARKS},
            **{name: self._mark(phase) for name, phase in _MARKS.items() if name not in _STATED},
            **{name: self._both(_STATED[name], _MARKS[name]) for name in _STATED if name in _MARKS},
            "memory-change": self._loads,
        }

    def _steps_on(self, line: int) -> None:
        if len(self.steps) < _MOST_PHASES:
            self.steps.append(line)

    def _loads(self, line: int, step: str, *_fields: object) -> None:
        """Record a step that changes memory. Loading cuBLAS or cuDNN before any tuned layer is not tuning."""
        self._steps_on(line)
        if not step.startswith(_LIBRARIES):
            return
        if self.current == "autotuning" and not self._tunes and self._marks:
            _, begun, begin = self._marks[-1]
            self._marks[-1] = (_LOADING, begun, begin)
            self.current = _LOADING

    @property
    def unfinished(self) -> str:
        """The build phase that began last; "" if its duration was stated."""
        return "" if any(phase.name == self.current for phase in self._stated) else self.current

    def begins(self, line: int) -> None:
        """Record that the autotuning of the first layer begins."""
        self._tunes = True
        self._mark("autotuning")(line)

    def finish(self, last_stamp: str) -> tuple[Phase, ...]:
        """Return the stated durations of phases, then those measured by time stamps."""
        end = seconds_of(last_stamp)
        marks = self._marks + ([("", 0, end)] if end is not None else [])
        measured = [
            Phase(name=name, line=line, seconds=after - begin, stated=False)
            for (name, line, begin), (_, _, after) in pairwise(marks)
            if after >= begin
        ]
        return (*self._stated, *measured)

    def _state(self, phase: str) -> Handler:
        def handle(line: int, seconds: float | None) -> None:
            if seconds is not None and len(self._stated) < _MOST_PHASES:
                self._stated.append(Phase(name=phase, line=line, seconds=seconds, stated=True))

        return handle

    def _mark(self, phase: str) -> Handler:
        def handle(line: int, *_fields: object) -> None:
            if self.current == phase:
                return
            self.current = phase
            self._steps_on(line)
            begin = seconds_of(self._now())
            if begin is not None and len(self._marks) < _MOST_PHASES:
                self._marks.append((phase, line, begin))

        return handle

    def _both(self, stated: str, mark: str) -> Handler:
        state, begin = self._state(stated), self._mark(mark)

        def handle(line: int, seconds: float | None) -> None:
            state(line, seconds)
            begin(line)

        return handle
