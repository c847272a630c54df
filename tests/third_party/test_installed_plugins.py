"""Plug-ins of another, really installed distribution: they work, and broken ones hurt only those who ask for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import models

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed the example distribution."""
    folder = tmp_path_factory.mktemp("site")
    build = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=HERE / "example", check=True)
    wheel = next(folder.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    models.save(models.conv_chain(), folder)
    np.savez(folder / "s.npz", x=np.random.default_rng(0).standard_normal((4, 8, 8, 8)).astype(np.float32))
    return folder


def qdqtool(*arguments: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "qdqtool", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_calibrator_of_another_distribution_works_like_our_own(site: Path, work: Path) -> None:
    done = qdqtool(
        *("calibrate", "model.onnx", "--samples", "s.npz", "--method", "half", "-o", "t.json"),
        site=site,
        cwd=work,
    )
    assert done.returncode == 0, done.stderr
    ranges = json.loads((work / "t.json").read_text())["data"]["ranges"]
    chosen = [entry for entry in ranges if entry["method"] == "half"]
    assert chosen
    for entry in chosen:
        assert entry["amax"][0] == pytest.approx(max(abs(entry["low"]), abs(entry["high"])) / 2)
    told = qdqtool("explain", "half", site=site, cwd=work)
    assert told.stdout.startswith("Half of the largest magnitude.")


def test_a_calibrator_that_fails_is_named_with_its_distribution(site: Path, work: Path) -> None:
    done = qdqtool(
        "calibrate", "model.onnx", "--samples", "s.npz", "--method", "quarrel", site=site, cwd=work
    )
    assert done.returncode == 3
    assert "the calibrator 'quarrel' of the installed package qdqtool-example 1.0 fails" in done.stderr
    assert "ZeroDivisionError: the example divides by zero" in done.stderr
    assert "pip uninstall qdqtool-example" in done.stderr
    assert "mistake in qdqtool" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("place", "model.onnx"),
        ("lint", "model.onnx"),
        ("calibrate", "model.onnx", "--samples", "s.npz", "--method", "max"),
        ("compare", "model.onnx", "model.onnx", "--samples", "s.npz"),
        ("recipe", "list"),
    ],
    ids=lambda words: words[0],
)
def test_broken_plugins_do_not_break_other_commands(
    arguments: tuple[str, ...], site: Path, work: Path
) -> None:
    done = qdqtool(*arguments, site=site, cwd=work)
    without = qdqtool(*arguments, site=work / "nowhere", cwd=work)
    assert done.returncode == without.returncode == 0, done.stderr
    assert done.stdout == without.stdout


def test_a_broken_plugin_that_was_left_out_is_named(site: Path, work: Path) -> None:
    done = qdqtool("place", "model.onnx", site=site, cwd=work)
    assert "the rule 'absent' of the installed package qdqtool-example 1.0 fails" in done.stderr
    assert "the example wants another release; it is skipped" in done.stderr


def test_a_shipped_plugin_is_never_replaced(site: Path, work: Path) -> None:
    done = qdqtool(
        *("calibrate", "model.onnx", "--samples", "s.npz", "--method", "max", "-o", "m.json"),
        site=site,
        cwd=work,
    )
    assert "qdqtool-example 1.0 offers the calibrator 'max' too: the shipped one is used" in done.stderr
    methods = {entry["method"] for entry in json.loads((work / "m.json").read_text())["data"]["ranges"]}
    assert methods == {"max"}


def test_a_slow_plugin_is_named(site: Path, work: Path) -> None:
    (work / "build.log").write_text("[I] [TRT] nothing\n")
    done = qdqtool("parse", "build.log", site=site, cwd=work)
    assert "the pattern 'slow' of qdqtool-example 1.0 took 1." in done.stderr


def test_all_calibrators_are_all_that_work(site: Path, work: Path) -> None:
    done = qdqtool(
        *("calibrate", "model.onnx", "--samples", "s.npz", "--method", "all", "-o", "a.json"),
        site=site,
        cwd=work,
    )
    assert done.returncode == 0, done.stderr
    wrote = {path.name.split(".")[1] for path in work.glob("a.*.json")}
    assert wrote == {"auto", "best", "entropy", "half", "legacy", "max", "mse", "percentile"}
    assert "the calibrator 'quarrel' of the installed package qdqtool-example 1.0 fails" in done.stderr
