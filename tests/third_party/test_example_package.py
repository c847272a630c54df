"""The package that the documentation shows: installed by pip, its five plug-ins do what their files say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests import models

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "recipes" / "examples" / "plugins"
needs_rtx = pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed it."""
    folder = tmp_path_factory.mktemp("plugins")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=folder / "source", check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(folder / "site"), str(next(folder.glob("*.whl")))], check=True)
    return folder / "site"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A chain of convolutions, the last of which is protected, and its samples."""
    model = models.conv_chain()
    last = [node for node in model.graph.node if node.op_type == "Conv"][-1]
    last.name = "gain_protected"
    models.save(model, tmp_path)
    np.savez(tmp_path / "s.npz", x=np.random.default_rng(0).standard_normal((8, 8, 8, 8)).astype(np.float32))
    return tmp_path


def qdqtool(*arguments: str, site: Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_calibrator_is_a_method(site: Path, work: Path) -> None:
    words = ["model.onnx", "--samples", "s.npz", "--method", "two_thirds", "-o", "t.json"]
    qdqtool("calibrate", *words, site=site, cwd=work)
    ranges = json.loads((work / "t.json").read_text("utf-8"))["data"]["ranges"]
    chosen = [entry for entry in ranges if entry["method"] == "two_thirds"]
    assert chosen
    for entry in chosen:
        assert entry["amax"][0] == pytest.approx(max(abs(entry["low"]), abs(entry["high"])) * 2 / 3)


@pytest.mark.slow
def test_the_rule_keeps_nodes_float_and_finds_them_in_other_models(site: Path, work: Path) -> None:
    qdqtool("quantize", "model.onnx", "--samples", "s.npz", "-o", "with.onnx", site=site, cwd=work)
    qdqtool(
        "quantize", "model.onnx", "--samples", "s.npz", "-o", "without.onnx", site=work / "none", cwd=work
    )
    found = {
        name: [
            entry["node"]
            for entry in json.loads(qdqtool("lint", f"{name}.onnx", "--json", site=site, cwd=work))["data"][
                "findings"
            ]
            if entry["code"] == "HOUSE100"
        ]
        for name in ("with", "without")
    }
    assert found["with"] == []
    assert set(found["without"]) == {"gain_protected"}
    assert "stay float" in qdqtool("explain", "HOUSE100", site=site, cwd=work)


def test_the_metric_is_the_error_of_the_worst_sample(site: Path, work: Path) -> None:
    qdqtool("quantize", "model.onnx", "--samples", "s.npz", "-o", "q.onnx", site=site, cwd=work)
    asked = ["--set", "compare.metrics=[worst_sample]"]
    words = ["model.onnx", "q.onnx", "--samples", "s.npz", *asked, "--json"]
    text = qdqtool("compare", *words, site=site, cwd=work)
    from onnxruntime import InferenceSession

    feed = {"x": np.load(work / "s.npz")["x"]}
    both = [
        InferenceSession(str(work / name), providers=["CPUExecutionProvider"])
        for name in ("model.onnx", "q.onnx")
    ]
    rows = [
        [session.run(None, {"x": feed["x"][number : number + 1]})[0] for session in both]
        for number in range(8)
    ]
    worst = max(float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in rows)
    (output,) = json.loads(text)["data"]["outputs"]
    value = next(entry["value"] for entry in output["measures"] if entry["metric"] == "worst_sample")
    assert value == pytest.approx(worst, rel=1e-3)


@needs_rtx
@pytest.mark.slow
def test_the_builder_builds_for_the_fleet_and_the_section_stands_in_the_report(
    site: Path, work: Path
) -> None:
    words = ["model.onnx", "--samples", "s.npz", "--builder", "fleet", "--out", "run"]
    printed = qdqtool("run", *words, site=site, cwd=work)
    build = json.loads((work / "run" / "build.json").read_text("utf-8"))["data"]
    assert build["targets"] == ["sm86", "sm89"]
    assert any("fleet" in note for note in build["notes"])
    sizes = json.loads((work / "run" / "report.json").read_text("utf-8"))["data"]["sections"]["files"]
    assert sizes["engine.plan"] == (work / "run" / "engine.plan").stat().st_size
    assert "KiB in 3 files" in printed
    assert '<h2 id="files-a">Files</h2>' in (work / "run" / "report.html").read_text("utf-8")
