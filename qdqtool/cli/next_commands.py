"""Commands to suggest after a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from shlex import quote

from qdqtool.core.advice import is_worth_trying
from qdqtool.core.findings import Severity
from qdqtool.core.report import Report
from qdqtool.core.wording import Command, Setting
from qdqtool.pipeline.costs import saves_nothing
from qdqtool.pipeline.request import RunRequest

# More commands would be a manual.
_MOST = 3
# Quantization costs too much accuracy; if the data causes it, no node does.
_LOST = "DAT107"
# The float part computes in FP32, and nothing in FP16.
_FP32 = "QDQ212"
_HALF = Setting("insert.types", "fp16")


def next_commands(
    request: RunRequest, report: Report, changes: Sequence[str], *, has_samples: bool, is_quantized: bool
) -> list[str]:
    """Return at most three commands, each with a comment, the most useful first.

    `changes` are the quantization options of the run, so the commands quantize in the same way.
    """
    return list(
        islice(
            _worth(request, report, list(changes), has_samples=has_samples, is_quantized=is_quantized), _MOST
        )
    )


def _worth(
    request: RunRequest, report: Report, changes: list[str], *, has_samples: bool, is_quantized: bool
) -> Iterator[str]:
    model, folder = str(request.model), str(request.out)
    # random samples show nothing about accuracy, even if the user asked for them
    has_samples = has_samples and (report.comparison is None or report.comparison.meaningful)
    calibration = str(request.samples) if has_samples else "DATA"
    beside = [("--calibration-cache", request.calibration_cache), ("--reference", request.reference)]
    files = [word for option, path in beside if path is not None for word in (option, str(path))]
    # accuracy was measured on other samples, so it must not be measured on these next time
    judging = [("--eval-samples", request.eval_samples), ("--labels", request.labels)]
    judged = [word for option, path in judging if path is not None for word in (option, str(path))]
    run = [model, *changes, *files, "--samples", calibration, *judged, "--out", folder]
    is_float = not is_quantized
    if not has_samples:
        yield _line("run", *run, why="repeats the run with your data")
    measured = ["--samples", calibration] if has_samples else []
    fixes = [entry.fix for entry in report.fallbacks if is_worth_trying(entry.fix)]
    if not all(map(saves_nothing, fixes)):
        yield _line("fix", folder, *measured, why="tries fixes by building engines")
    grave = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    halves = [finding.fix for finding in grave if is_float and has_samples and finding.code == _FP32]
    if halves:
        grave = [finding for finding in grave if finding.code != _FP32]
    # the finding decides the verdict; it is not a kernel that costs time
    code = report.summary.verdict.accurate.evidence.partition(" ")[0]
    worst = next((finding for finding in grave if finding.code == code), next(iter(grave), None))
    if worst is not None:
        yield _line("explain", worst.code, why=quote(worst.subject))
    if is_float and has_samples and _LOST in {finding.code for finding in report.findings}:
        words = [model, *changes, "--samples", calibration, *judged]
        yield _line("sensitivity", *words, why="finds the nodes that cost accuracy")
    for fix in halves:
        half = (*run[:-1], f"{folder}-fp16", "--set=insert.types=fp16")
        yield _line("run", *half, why=fix.removeprefix(f"{_HALF} "))
    yield _line("engine", "show", str(request.out / "layers.json"), why="lists every kernel with its bytes")
    yield _line("audit", folder, "--fail-on", "warning", why="checks the model in continuous integration")
    if is_float and has_samples and find_spec("optuna") is not None:  # sweeps cannot run without it
        yield _line("sweep", *run[:-1], f"{folder}-sweep", why="tries other settings, for accuracy and time")


def _line(name: str, *arguments: str, why: str) -> str:
    return f"{Command(name, arguments).line}  # {why}"
