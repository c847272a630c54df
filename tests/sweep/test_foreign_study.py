"""A study that others can write to: its rows are figures, never settings that are run, and damage is an error with a fix."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.app import run
from tests import models

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
SPACE = 'sweep.space={"calibrate.method": [max, mse]}'
ATTRIBUTE = "update trial_user_attributes set value_json = ? where key = ?"


def words(folder: Path, out: Path) -> list[str]:
    settings = (SPACE, "sweep.keep_float=[0]", "sweep.speed=none")
    options = [word for setting in settings for word in ("--set", setting)]
    return [
        *("sweep", str(folder / "model.onnx"), "--samples", str(folder / "s.npz")),
        *("--out", str(out), *options),
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    models.save(models.conv_chain(), folder)
    values = np.random.default_rng(0).standard_normal((4, 8, 8, 8)).astype(np.float32)
    np.savez(folder / "s.npz", x=values)
    assert run(words(folder, folder / "s")) == 0
    return folder


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished sweep; its results are made again from the study."""
    copy = tmp_path / "s"
    shutil.copytree(finished / "s", copy, ignore=shutil.ignore_patterns("pareto", "sweep.json"))
    return copy


def change(out: Path, statement: str, *values: str) -> None:
    with closing(sqlite3.connect(out / "study.db")) as opened, opened:
        assert opened.execute(statement, values).rowcount > 0


def outcomes(out: Path) -> list[dict[str, object]]:
    data = json.loads((out / "sweep.json").read_text("utf-8"))["data"]
    return [trial["outcome"] for trial in data["trials"] if trial["outcome"]]


@pytest.mark.slow
def test_settings_that_the_database_names_are_not_run(
    finished: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings may name functions, and those of a trial on the front were run with the trust that the recipe had."""
    (tmp_path / "stranger.py").write_text("raise SystemExit('the code of a stranger runs')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = outcomes(finished / "s")
    for outcome in known:
        foreign = {**outcome, "settings": ['compare.metrics=["stranger:metric"]', 'build.target="10.0"']}
        change(
            out,
            ATTRIBUTE + " and value_json like ?",
            json.dumps(foreign),
            "outcome",
            f"%{outcome['accuracy']}%",
        )
    assert run(words(finished, out)) == 0
    assert outcomes(out) == known
    recipes = [path.read_text("utf-8") for path in (out / "pareto").glob("*/recipe.yaml")]
    assert recipes
    assert not any("stranger" in recipe for recipe in recipes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("choice", '{"compare.metrics": "stranger:metric"}'),
        ("choice", '{"calibrate.method": "entropy", "keep_float": 0}'),
        ("choice", "7"),
        ("outcome", "{}"),
        ("outcome", "{"),
        ("metric", '["x"]'),
        ("ranking", "7"),
        ("ranking", "[7]"),
        ("reference ms", '["soon"]'),
    ],
)
def test_a_value_that_no_sweep_writes_is_named_with_a_way_out(
    key: str, value: str, finished: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_study = key in {"ranking", "reference ms"}
    change(out, ATTRIBUTE.replace("trial_", "study_") if of_study else ATTRIBUTE, value, key)
    assert run(words(finished, out)) == 5
    said = capsys.readouterr().err
    assert "the study was not written by this tool" in said
    assert "--study" in said


@pytest.mark.parametrize(
    "statement",
    [
        "update trial_params set distribution_json = '{'",
        "update trial_params set param_value = 99",
        "update trials set state = 'EVIL'",
        "update study_user_attributes set value_json = '{'",
    ],
)
def test_rows_that_the_study_cannot_read_are_named_with_a_way_out(
    statement: str, finished: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(out, statement)
    assert run(words(finished, out)) == 5
    assert "the study was not written by this tool" in capsys.readouterr().err
