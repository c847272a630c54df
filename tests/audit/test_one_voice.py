"""Every sentence that an audit prints is put to the experiment that its claim names, and no engine contradicts it.

Fixes are typed as they are printed, refusals are skipped, and "nothing to do" is tried by hand: `benchmarks/truth_experiments.py`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import onnx
import pytest

from qdqtool.auditing.context import Check
from qdqtool.auditing.full_audit import CHECKS
from qdqtool.cli.app import run
from qdqtool.pipeline.costs import FixCosts
from tests import models
from tests.placement.zoo import FLOAT
from tests.shared import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from truth_experiments import Experiments
from truth_figures import Figures

_NO_EXPERIMENT = {
    "no_tensor_cores", "opaque_region", "padding_waste", "slower_layer", "sparse_weights", "unmerged_siblings",
}  # fmt: skip
"""Checks about times and about tactics, formats and regions of classic TensorRT, whose engines are not built here."""
_CHEAP = (
    "--set",
    "calibrate.method=max",
    "--set",
    "weights.rounding=nearest",
    "--set",
    "weights.equalize=none",
)
"""Ranges change no kernel, so they are not searched."""
_QUICK = 12
"""Every so many networks of the zoo one is tried in the quick tests."""
_NAMES = sorted(FLOAT)


def _marks(place: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (place % _QUICK != 0)


def typed(*words: object) -> CompletedProcess[str]:
    """A command line in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run([str(word) for word in words])
    return CompletedProcess([], code, out.getvalue(), "")


def experiment(*words: object) -> CompletedProcess[str]:
    """A command line that builds no costs: of an experiment only the engine, nodes and findings are read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FixCosts, "added_to", lambda _, audit: audit)
        return typed(*words)


def assert_no_contradiction(row: Mapping[str, Any]) -> None:
    """A row that says that INT8 adds kernels has no fix that adds none; "nothing to do" stands beside no way out.

    Each number of a cost is a claim.
    """
    said = {claim["says"]: claim.get("kernels", 0) for claim in row.get("claims", ())}
    assert not ("more_kernels" in said and said.get("kernels", 1) <= 0), row
    assert not ("nothing_helps" in said and {"runs_quantized", "finding_gone"} & said.keys()), row
    assert not ("stays_float" in said and "runs_quantized" in said), row
    assert "a build of this network contradicts it" not in row["reason"] or said["kernels"] <= 0, row
    assert "(built: " not in row["fix"] or {"quantized", "kernels"} <= said.keys(), row
    assert "bytes" not in said or "activation bytes" in row["fix"], row


def figures_of(proto: onnx.ModelProto, folder: Path, *words: str) -> Figures | None:
    """The claims of one network's audit; None if it is refused."""
    model, out = Path(models.save(proto, folder)), folder / "run"
    kept = ("--build-cache", folder / "builds")
    done = typed("run", model, "--samples", "random:2", "--out", out, *kept, *_CHEAP, *words)
    if done.returncode not in {0, 1}:
        return None
    report = json.loads((out / "report.json").read_text("utf-8"))["data"]
    for row in (*report["verdicts"], *report["findings"]):
        assert_no_contradiction(row)
    result = Figures()
    Experiments(
        key=folder.name,
        model=model,
        out=out,
        recipe=out / "recipe.yaml",
        target=kept,
        tool=experiment,
        most=24,
    ).judge(result, report)
    return result


@pytest.mark.rtx
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_marks(place)) for place, name in enumerate(_NAMES)]
)
def test_no_engine_contradicts_what_an_audit_prints(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    figures = figures_of(FLOAT[name](), tmp_path)
    if figures is None:
        pytest.skip("refused in words")
    assert [miss for miss in figures.misses if "contradicted" in miss] == []
    assert figures.contradicted == 0


@pytest.mark.parametrize("name", sorted(CHECKS.coded().values()))
def test_every_check_says_something_that_an_engine_can_contradict(name: str) -> None:
    check: Check = CHECKS.load(name)
    assert (check.says is None) is (name in _NO_EXPERIMENT)
