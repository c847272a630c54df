"""Every real log of the shared material: nothing raises, and almost every line is read."""

from __future__ import annotations

import csv
import lzma
import re
from collections import Counter, defaultdict
from functools import lru_cache

import pytest

from qdqtool import buildlog
from qdqtool.core.buildlog import RunDigest
from tests.shared import SHARED, shared

pytestmark = pytest.mark.shared

LIMIT = 0.01


@lru_cache(maxsize=1)
def _digests() -> dict[str, tuple[RunDigest, ...]]:
    """File of the corpus -> its runs."""
    shared("corpus/MANIFEST.tsv")
    files = [
        path
        for kind in ("verbose_log", "trtexec_log")
        for path in sorted((SHARED / "corpus" / kind).iterdir())
    ]
    return {
        f"{path.parent.name}/{path.name}": tuple(buildlog.digests(buildlog.TextSource(path)))
        for path in files
    }


def _versions() -> dict[str, str]:
    with shared("corpus/MANIFEST.tsv").open(encoding="utf-8") as table:
        return {
            row["file"]: row["trt_version"]
            for row in csv.DictReader(table, delimiter="\t")
            # Those were read from the repository, not from the log.
            if "ver-from-commit-tree" not in row["notes"]
        }


def _generation(version: str) -> tuple[int, int] | None:
    found = re.match(r"(?:RTX)?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def test_at_most_one_line_in_a_hundred_is_unread_in_any_generation_from_8_0_on():
    lines: Counter[tuple[int, int]] = Counter()
    unread: Counter[tuple[int, int]] = Counter()
    examples: dict[tuple[int, int], list[str]] = defaultdict(list)
    versions = _versions()
    for file, runs in _digests().items():
        generation = _generation(versions.get(file, ""))
        if generation is None or (generation < (8, 0) and not versions[file].startswith("RTX")):
            continue
        for run in runs:
            lines[generation] += run.lines
            unread[generation] += run.unread
            examples[generation] += [one.text for one in run.unread_lines]
    assert len(lines) >= 10
    over = {
        generation: examples[generation][:5]
        for generation in lines
        if unread[generation] > LIMIT * lines[generation]
    }
    assert not over


OTHER_VERSIONS = {"11-ProblemSolving__PadNode__output.txt": (8, 2, 4)}
"""Logs whose closing banner names another release (v8204) than the manifest, which took that of its folder."""


def test_versions_of_the_banner_are_those_of_the_manifest():
    versions = _versions()
    for file, runs in _digests().items():
        stated = {run.version for run in runs if run.version is not None}
        listed = versions.get(file, "")
        if len(stated) == 1 and re.fullmatch(r"\d+\.\d+\.\d+", listed):
            known = next((found for name, found in OTHER_VERSIONS.items() if file.endswith(name)), None)
            assert stated == {known or tuple(int(part) for part in listed.split("."))}, file


def test_the_corpus_holds_several_runs_in_one_file_and_each_is_found():
    counts = {file: len(runs) for file, runs in _digests().items()}
    assert max(counts.values()) >= 7
    banners = {
        file: sum(1 for run in runs if run.front_end == "trtexec") for file, runs in _digests().items()
    }
    assert sum(banners.values()) > 60


def test_lines_of_other_programs_are_few_where_the_builder_speaks_alone():
    foreign = {file: sum(run.foreign for run in runs) for file, runs in _digests().items()}
    bevfusion = [file for file in foreign if "camera.backbone" in file]
    assert [foreign[file] for file in bevfusion] == [0]


@pytest.mark.parametrize("name", ["resnet18.ort.SM86", "vit_s4.mo_fp16.SM86", "yolov8n.ortc.SM86"])
def test_logs_of_the_rtx_builder_account_for_every_q_and_dq(name):
    (run,) = buildlog.read(shared(f"corpus/rtx/{name}.log.xz")).runs
    assert (run.front_end, run.status) == ("rtx", "built")
    assert run.unread == 0
    assert run.ledger_summary is not None
    assert run.ledger_summary.accounted == run.ledger_summary.q + run.ledger_summary.dq > 0
    assert len(run.engine_layers) > 10
    assert {node.precision for node in run.compute} & {"int8", "int8-in"}


_ROW = re.compile(rb"^.*(?<!Fastest )Tactic(?: Name: .*Tactic)?: \S+ Time: [\d.]", re.MULTILINE)


def test_every_kernel_that_was_timed_counts_for_one_layer_and_is_one_row():
    """Against a search that knows nothing of layers; rows of Myelin's tables are the compiler's own and count apart."""
    differs = {}
    for path in sorted((shared("corpus/MANIFEST.tsv").parent / "verbose_log").iterdir()):
        text = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        rows = len(_ROW.findall(text))
        if not rows:
            continue
        runs = buildlog.read(path).runs
        counted = sum(
            layer.candidates for run in runs for layer in (*run.tuning.layers, run.tuning.reformats) if layer
        )
        listed = sum(row.ms is not None for run in runs for row in run.tactics)
        operations = sum(op.candidates for run in runs for op in run.tuning.myelin)
        if (counted, listed) != (rows, rows + operations):
            differs[path.name] = rows, counted, listed, operations
    assert not differs


def test_no_run_is_left_without_an_answer():
    """Of every run, the answer says that an engine was built, or why not, or what the text lacks."""
    silent = [
        (name, run.number)
        for name, runs in _digests().items()
        for run in runs
        if run.answer is None or not (run.answer.built or run.answer.why_not)
    ]
    assert not silent
